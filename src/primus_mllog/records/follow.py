"""Following a log that grows, and what it tells of the run so far."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from typing import TYPE_CHECKING, Any, Final

from primus_mllog import benchmarks, keys
from primus_mllog.records.log_file import Event, Malformed, read_events
from primus_mllog.records.run_record import RunRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["Estimate", "Following", "follow"]

_POLL_SECONDS: Final = 0.5
_EVALUATIONS_IN_FIT: Final = 4
_PHASES: Final = {
    keys.INIT_START: "initialising",
    keys.INIT_STOP: "initialised",
    keys.RUN_START: "training",
    keys.BLOCK_START: "training",
    keys.BLOCK_STOP: "between",
    keys.EVAL_START: "evaluating",
    keys.EVAL_STOP: "between",
}


def follow(
    path: Path,
    *,
    is_over: Callable[[], bool] = lambda: False,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[Event | Malformed | None]:
    """The events of a log as they are written; None where there is nothing new.

    A log that does not exist yet is waited for. One that is rotated away is read to its end, then
    the new one of its name.

    Args:
        path: the log.
        is_over: asked when there is nothing new; ends the following.
        wait: for the seconds between two looks.
    """
    file: Any = None
    rest, line = "", 0
    try:
        while True:
            if file is None and path.exists():
                file, rest, line = path.open(encoding="utf-8", errors="replace"), "", 0
            text = file.read() if file is not None else ""
            *lines, rest = (rest + text).split("\n")
            for complete in lines:
                line += 1
                for found in read_events([complete]):
                    yield dataclasses.replace(found, line=line)
            if text:
                continue
            if file is not None and _is_other_file(file, path):
                file.close()
                file = None
                continue
            yield None
            if is_over():
                return
            wait(_POLL_SECONDS)
    finally:
        if file is not None:
            file.close()


def _is_other_file(file: Any, path: Path) -> bool:
    """Whether the name is another file's by now, or this one was cut to less than was read."""
    try:
        now = path.stat()
    except OSError:
        return False  # rotated away, and no new one yet
    mine = os.fstat(file.fileno())
    return (now.st_dev, now.st_ino) != (mine.st_dev, mine.st_ino) or now.st_size < file.tell()


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What is left until the target, by a line through the last evaluations."""

    samples: float
    minutes: float | None
    """None where the log does not tell how fast samples go by."""


class Following:
    """A run, as far as its log has come."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.run = RunRecord("")
        self.phase = "waiting for the log"
        self.step: int | None = None
        self.samples_count: int | None = None
        self.train_loss: float | None = None
        self._first: tuple[int, int] | None = None
        self._last: tuple[int, int] | None = None

    def add(self, event: Event) -> None:
        """Take in the next event; a new run begins with its cache_clear or init_start."""
        if event.key in {keys.CACHE_CLEAR, keys.INIT_START} and self.run.run_start_ms is not None:
            self._begin()
        self.run.add(event)
        self.phase = _PHASES.get(event.key, self.phase)
        if event.key == keys.RUN_STOP:
            self.phase = f"over: {event.metadata.get(keys.STATUS)}"
        samples = event.samples_count
        if isinstance(samples, int):
            self.samples_count = samples
        if event.key in {keys.BLOCK_START, keys.EVAL_STOP}:
            self._first = self._last = None  # the speed is that inside a block
        if event.key == keys.TRAIN_LOSS:
            self.step = event.metadata.get(keys.STEP)
            self.train_loss = event.value if isinstance(event.value, (int, float)) else None
            if isinstance(samples, int):
                self._last = (event.time_ms, samples)
                self._first = self._first or self._last

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.run.run_stop_ms is not None

    @property
    def target(self) -> float | None:
        """The loss at which it succeeds: of the header, else of the benchmark's rules."""
        target = self.run.get(keys.TARGET_ACCURACY)
        if isinstance(target, (int, float)):
            return float(target)
        benchmark = benchmarks.find(str(self.run.get(keys.SUBMISSION_BENCHMARK)))
        return None if benchmark is None else benchmark.target

    @property
    def samples_per_second(self) -> float | None:
        """Of the present block's steps; else of the last block that says so."""
        if self._first is not None and self._last is not None and self._last[0] > self._first[0]:
            (began, before), (now, after) = self._first, self._last
            return (after - before) * 1000 / (now - began)
        return self.run.throughputs[-1] if self.run.throughputs else None

    def estimate(self) -> Estimate | None:
        """What is left; None ("unknown") where the curve does not lead to the target.

        The line is the least-squares one of the loss over the logarithm of the samples, through
        the last four evaluations; it takes three, and it must fall. Learning curves bend: it is a
        guess for the next evaluations, not for the end of a long run.
        """
        points = [
            (math.log(e.samples_count), float(e.loss))
            for e in self.run.evaluations[-_EVALUATIONS_IN_FIT:]
            if isinstance(e.samples_count, int)
            and e.samples_count > 0
            and isinstance(e.loss, (int, float))
            and math.isfinite(e.loss)
        ]
        if len(points) < 3 or self.target is None:  # noqa: PLR2004 - two are no curve
            return None
        mean_x = sum(x for x, _ in points) / len(points)
        mean_y = sum(y for _, y in points) / len(points)
        spread = sum((x - mean_x) ** 2 for x, _ in points)
        slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
        exponent = mean_x + (self.target - mean_y) / slope if slope < 0 else math.inf
        if exponent > math.log(1e15):
            return None
        left = max(math.exp(exponent) - (self.samples_count or 0), 0.0)
        speed = self.samples_per_second
        return Estimate(left, left / speed / 60 if speed else None)
