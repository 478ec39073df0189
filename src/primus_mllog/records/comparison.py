"""Two sets of runs of one benchmark, side by side."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING, Any

from primus_mllog import keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_mllog.records.run_record import RunRecord
    from primus_mllog.records.scoring import Score

__all__ = ["Comparison", "Pair", "compare"]

# Of every run its own.
_NOT_COMPARED = {keys.SEED}
_SIGNIFICANT = 2.0
"""Standard errors that a difference of means must exceed to be more than the spread."""


@dataclasses.dataclass(frozen=True)
class Pair:
    """One number of both sides."""

    first: float | None
    second: float | None

    @property
    def ratio(self) -> float | None:
        """The second over the first."""
        if self.first is None or self.second is None or not self.first:
            return None
        return self.second / self.first


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What differs between two scores of one benchmark."""

    benchmark: str
    score: Pair
    """Minutes."""
    samples_to_converge: Pair
    samples_per_second: Pair
    is_more_than_spread: bool | None
    """Whether the mean times to train differ by more than two standard errors (Welch's, see
    https://en.wikipedia.org/wiki/Welch%27s_t-test); None for fewer than two runs on a side."""
    hyperparameters: dict[str, tuple[Any, Any]]
    """Those that differ: the values of each side, or a list where its own runs differ."""


def compare(first: Score, second: Score) -> Comparison:
    """What the second is, beside the first."""
    return Comparison(
        benchmark=first.benchmark,
        score=Pair(first.minutes, second.minutes),
        samples_to_converge=Pair(first.samples_to_converge, second.samples_to_converge),
        samples_per_second=Pair(_throughput(first), _throughput(second)),
        is_more_than_spread=_is_more_than_spread(_minutes(first), _minutes(second)),
        hyperparameters=_differences(_records(first), _records(second)),
    )


def _records(score: Score) -> list[RunRecord]:
    return [run.record for run in score.runs if run.record is not None]


def _minutes(score: Score) -> list[float]:
    times = [run.record.minutes for run in score.runs if run.passed and run.record is not None]
    return [time for time in times if time is not None]


def _throughput(score: Score) -> float | None:
    blocks = [value for record in _records(score) for value in record.throughputs]
    return statistics.fmean(blocks) if blocks else None


def _is_more_than_spread(first: Sequence[float], second: Sequence[float]) -> bool | None:
    if min(len(first), len(second)) < 2:  # noqa: PLR2004 - one run has no spread
        return None
    error = math.sqrt(
        statistics.variance(first) / len(first) + statistics.variance(second) / len(second)
    )
    difference = abs(statistics.fmean(first) - statistics.fmean(second))
    return difference > _SIGNIFICANT * error


def _differences(
    first: Sequence[RunRecord], second: Sequence[RunRecord]
) -> dict[str, tuple[Any, Any]]:
    names = dict.fromkeys(n for record in (*first, *second) for n in record.hyperparameters)
    sides = {n: (_values(first, n), _values(second, n)) for n in names if n not in _NOT_COMPARED}
    return {name: pair for name, pair in sides.items() if pair[0] != pair[1]}


def _values(records: Sequence[RunRecord], name: str) -> Any:
    """The value that all runs have, or the list of those they have."""
    values: list[Any] = []
    for record in records:
        value = record.get(name)
        if value not in values:
            values.append(value)
    return values[0] if len(values) == 1 else values
