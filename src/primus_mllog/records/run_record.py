"""What a log says of its run: the facts that scores, summaries and comparisons are made of."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from primus_mllog import keys
from primus_mllog.records.log_file import Event, Malformed, read_events

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["Evaluation", "RunRecord", "read_runs", "runs_of"]

_MARKERS = frozenset(
    {
        *(keys.CACHE_CLEAR, keys.INIT_START, keys.INIT_STOP, keys.RUN_START, keys.RUN_STOP),
        *(keys.EPOCH_START, keys.EPOCH_STOP, keys.BLOCK_START, keys.BLOCK_STOP),
        *(keys.EVAL_START, keys.EVAL_STOP, keys.EVAL_ACCURACY),
        *(keys.TRAIN_LOSS, keys.TRACKED_STATS),
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation that had a value."""

    samples_count: Any
    """Training samples before it; None where the log does not say."""
    loss: Any
    time_ms: int


@dataclasses.dataclass(slots=True)
class RunRecord:
    """One run, as its log tells it. Times are in milliseconds since 1970."""

    path: str
    hyperparameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Every other key of the log, with its last value."""
    init_start_ms: int | None = None
    run_start_ms: int | None = None
    run_stop_ms: int | None = None
    """Of the first run_stop, which the official scores use."""
    status: str | None = None
    evaluations: list[Evaluation] = dataclasses.field(default_factory=list)
    throughputs: list[float] = dataclasses.field(default_factory=list)
    """Samples per second of each block that says so."""
    num_train_losses: int = 0

    @property
    def minutes(self) -> float | None:
        """Time to train, computed as the official summarizer does."""
        if self.run_start_ms is None or self.run_stop_ms is None:
            return None
        return (float(self.run_stop_ms) - float(self.run_start_ms)) / 60 / 1000

    @property
    def samples_to_converge(self) -> Any:
        """Training samples at the last evaluation of a run that succeeded."""
        if self.status != keys.SUCCESS or not self.evaluations:
            return None
        return self.evaluations[-1].samples_count

    def get(self, key: str) -> Any:
        """A hyperparameter; None where the log does not have it."""
        return self.hyperparameters.get(key)

    def add(self, event: Event) -> None:
        """Take in the next event of the log."""
        key = event.key
        if key not in _MARKERS:
            self.hyperparameters[key] = event.value
        elif key == keys.INIT_START:
            self.init_start_ms = event.time_ms
        elif key == keys.RUN_START and self.run_start_ms is None:
            self.run_start_ms = event.time_ms
        elif key == keys.RUN_STOP and self.run_stop_ms is None:
            self.run_stop_ms = event.time_ms
            self.status = event.metadata.get(keys.STATUS)
        elif key == keys.EVAL_ACCURACY:
            evaluation = Evaluation(event.samples_count, event.value, event.time_ms)
            self.evaluations.append(evaluation)
        elif key == keys.TRAIN_LOSS:
            self.num_train_losses += 1
        elif key == keys.TRACKED_STATS and isinstance(event.value, dict):
            throughput = event.value.get(keys.THROUGHPUT)
            if isinstance(throughput, (int, float)):
                self.throughputs.append(float(throughput))


def read_runs(path: str | Path) -> Iterator[RunRecord]:
    """The runs of a log: one, or several where a relaunch appended to its file.

    Raises:
        LogFileError: the file cannot be read.
    """
    return runs_of(path, read_events(path))


def runs_of(path: str | Path, items: Iterable[Event | Malformed]) -> Iterator[RunRecord]:
    """The runs of a log that is read already; see :func:`read_runs`."""
    run = RunRecord(str(path))
    is_empty = True
    for event in items:
        if not isinstance(event, Event):
            continue
        begins = event.key in {keys.CACHE_CLEAR, keys.INIT_START}
        if begins and run.run_start_ms is not None:
            yield run
            run = RunRecord(str(path))
        run.add(event)
        is_empty = False
    if not is_empty:
        yield run
