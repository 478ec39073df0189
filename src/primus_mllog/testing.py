"""Tools for testing a training loop's MLPerf log: captured events, a clock, ranks in one process.

::

    with capture_events() as events:
        train()
    assert [event["key"] for event in events][-1] == "run_stop"

Inside :func:`capture_events` runs are strict: a call that would break the order of events raises
:class:`~primus_mllog.errors.LifecycleError`.
"""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

from primus_mllog import mlperf_logger, run
from primus_mllog.signals import TerminationHandler
from primus_mllog.sinks import TOKEN, EventSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self

__all__ = ["FakeClock", "FakeProcessGroup", "capture_events", "run_ranks"]

Result = TypeVar("Result")
# A rank that waits longer than this for the others has met a deadlock.
_DEADLOCK_SECONDS = 30.0


@contextlib.contextmanager
def capture_events(*, strict: bool = True) -> Iterator[list[dict[str, Any]]]:
    """The events logged in the block, parsed from their lines; no file and no stdout is written.

    Args:
        strict: whether runs in the block raise LifecycleError.
    """
    events: list[dict[str, Any]] = []

    def log(_sink: EventSink, _level: int, message: object, *_args: Any, **_kwargs: Any) -> None:
        events.append(json.loads(str(message).removeprefix(TOKEN.decode())))

    with (
        mock.patch.object(EventSink, "log", log),
        mock.patch.object(mlperf_logger.MLPerfLogger, "open", return_value=None),
        mock.patch.object(run.MLPerfRun, "strict_by_default", strict),
        # a run that a test leaves open neither outlives it nor keeps the process's signals
        mock.patch("atexit.register"),
        mock.patch.object(TerminationHandler, "install"),
    ):
        yield events


class FakeClock:
    """A clock that stands still: ``time_ms`` of every event in the block is :attr:`now_ms`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms
        self._patches = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for module in (mlperf_logger, run):
            self._patches.enter_context(mock.patch.object(module, "now_ms", self._read))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def _read(self) -> int:
        return self.now_ms


class FakeProcessGroup:
    """One rank of a group whose ranks are threads of this process; see :func:`run_ranks`.

    Stands for :class:`primus_mllog.distributed.WorldGroup` over ``torch.distributed``.
    """

    def __init__(self, rank: int, world_size: int, shared: _Shared) -> None:
        self.rank = rank
        self.world_size = world_size
        self._shared = shared

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self._shared.barrier.wait()

    def agree(self, values: Sequence[float | None]) -> list[float | None]:
        """The values of the lowest rank that has any, on every rank."""
        self._shared.values[self.rank] = list(values)
        self.barrier()
        everyone = [self._shared.values[rank] for rank in range(self.world_size)]
        self.barrier()
        have_any = (v for v in everyone if any(x is not None for x in v))
        return next(have_any, [None] * len(values))


class _Shared:
    def __init__(self, world_size: int) -> None:
        self.barrier = threading.Barrier(world_size, timeout=_DEADLOCK_SECONDS)
        self.values: dict[int, list[float | None]] = {}


def run_ranks(world_size: int, function: Callable[[FakeProcessGroup], Result]) -> list[Result]:
    """Run ``function`` once for each rank, at the same time, and return the results by rank.

    Raises:
        BaseException: the first rank's error, after all ranks have ended.
    """
    shared = _Shared(world_size)
    results: dict[int, Result] = {}
    errors: list[BaseException] = []

    def body(group: FakeProcessGroup) -> None:
        try:
            results[group.rank] = function(group)
        except BaseException as error:  # noqa: BLE001 - handed to the caller below
            errors.append(error)
            shared.barrier.abort()

    groups = [FakeProcessGroup(rank, world_size, shared) for rank in range(world_size)]
    threads = [threading.Thread(target=body, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(world_size)]
