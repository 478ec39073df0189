"""``ThroughputTimer``: samples per second of the time spent inside training steps."""

from __future__ import annotations

import collections
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["ThroughputTimer"]


class ThroughputTimer:
    """Samples per second of the time spent inside training steps.

    Time between steps (evaluation, checkpoints, logging) and skipped steps do not count. ::

        timer = ThroughputTimer(global_batch_size=1024)
        with timer:                        # or step_start() and step_stop()
            train_step()
        samples_per_second = timer.get_throughput()

    Where torch has initialised an accelerator, the time is the device's own, between two events
    that it passes in its queue: how long the host took to launch the work does not count, and
    nothing here ever waits for the device. Steps that it has not finished when
    :meth:`get_throughput` asks are left for the next call. Elsewhere the time is the host's
    monotonic clock, which no correction of the date can set back.

    Args:
        global_batch_size: samples in one step, over all ranks.
    """

    def __init__(self, global_batch_size: int) -> None:
        self.global_batch_size = global_batch_size
        self._clock: _HostClock | _DeviceClock = _HostClock()
        self._is_new = True
        self._before = (0.0, 0)

    def step_start(self) -> None:
        """A training step begins."""
        if self._is_new:
            self._is_new = False
            if (cuda := _accelerator()) is not None:
                self._clock = _DeviceClock(cuda)
        self._clock.start()

    def step_stop(self, *, skipped: bool = False) -> None:
        """The step that :meth:`step_start` began is done; a skipped step does not count."""
        self._clock.stop(counts=not skipped)

    def __enter__(self) -> Self:
        self.step_start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: object, _traceback: TracebackType | None
    ) -> None:
        self.step_stop(skipped=kind is not None)

    def get_throughput(self) -> float | None:
        """Samples per second of the steps since the last call; None if there were none."""
        total = self._clock.read()
        seconds, num_steps = total[0] - self._before[0], total[1] - self._before[1]
        self._before = total
        return self._rate(seconds, num_steps)

    def get_overall_throughput(self) -> float | None:
        """Samples per second of all steps so far; None if there were none."""
        return self._rate(*self._clock.read())

    def _rate(self, seconds: float, num_steps: int) -> float | None:
        return num_steps * self.global_batch_size / seconds if num_steps and seconds > 0 else None


class _HostClock:
    """In-step time of the host."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._seconds = 0.0
        self._num_steps = 0

    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self, *, counts: bool) -> None:
        if self._started is not None and counts:
            self._seconds += time.perf_counter() - self._started
            self._num_steps += 1
        self._started = None

    def read(self) -> tuple[float, int]:
        """Seconds in steps, and steps, since the beginning."""
        return self._seconds, self._num_steps


class _DeviceClock:
    """In-step time of the device: a pair of events a step, on the stream the step is queued on.

    Pairs are used again once the device has passed them, so that there are never more than the
    device is behind, and two.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._free: list[tuple[Any, Any]] = []
        self._queued: collections.deque[tuple[Any, Any]] = collections.deque()
        self._open: tuple[Any, Any] | None = None
        self._seconds = 0.0
        self._num_steps = 0

    def start(self) -> None:
        if not self._free:
            self._collect()
        event = self._cuda.Event
        pair = (
            self._free.pop()
            if self._free
            else (event(enable_timing=True), event(enable_timing=True))
        )
        pair[0].record()
        self._open = pair

    def stop(self, *, counts: bool) -> None:
        pair, self._open = self._open, None
        if pair is None:
            return
        if counts:
            pair[1].record()
            self._queued.append(pair)
        else:
            self._free.append(pair)

    def read(self) -> tuple[float, int]:
        """Seconds in steps, and steps, that the device has finished since the beginning."""
        self._collect()
        return self._seconds, self._num_steps

    def _collect(self) -> None:
        """Add up the pairs that the device has passed, in the order of the queue."""
        try:
            while self._queued and self._queued[0][1].query():
                pair = self._queued.popleft()
                self._seconds += pair[0].elapsed_time(pair[1]) / 1000
                self._num_steps += 1
                self._free.append(pair)
        except RuntimeError:  # the device has failed; the end of the log must still be written
            self._queued.clear()


def _accelerator() -> Any:
    """``torch.cuda`` (CUDA or ROCm) if the training computes there; torch is not imported here."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None
