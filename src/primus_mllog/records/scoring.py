"""Scores of result folders, by the rules of MLPerf training, and what makes them up.

A score is the mean time to train, without the fastest and the slowest run; one run that failed
counts as the slowest (https://github.com/mlcommons/training_policies). The arithmetic is in the
order of MLCommons' result summarizer, so that the last digit is the same.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_mllog import benchmarks, compliance, keys
from primus_mllog.errors import LogFileError
from primus_mllog.records.collection import on_all_cores
from primus_mllog.records.run_record import RunRecord, read_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Run", "Score", "read_all", "score"]

_FAILED_ALLOWED = 1


@dataclasses.dataclass(frozen=True)
class Run:
    """One log, read and judged."""

    path: Path
    record: RunRecord | None
    """None where the log cannot be read."""
    passed: bool
    """By the official checker."""
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Score:
    """The runs of one benchmark in one folder."""

    folder: str
    benchmark: str
    runs: tuple[Run, ...]
    minutes: float | None
    """The score; None where too few runs are left, or too many failed."""
    deviation: float | None
    """Standard deviation of the runs' times to train, in minutes; None for fewer than two."""
    samples_to_converge: float | None
    """Mean, without the runs of the fewest and the most samples."""
    rcp: str
    """Verdict of the official reference-convergence check, or why there is none."""

    @property
    def num_failed(self) -> int:
        """Runs that the official checker does not pass."""
        return sum(not run.passed for run in self.runs)


def read_all(paths: Sequence[Path], ruleset: str = "") -> list[Run]:
    """Every log read and judged, on all cores."""
    return on_all_cores(partial(_read, ruleset=compliance.resolve_ruleset(ruleset)), paths)


def _read(path: Path, ruleset: str) -> Run:
    try:
        passed = compliance.check_file(path, ruleset).passed
        record = next(read_runs(path), None)
    except LogFileError as error:
        return Run(path, None, passed=False, error=str(error))
    if record is None:
        return Run(path, None, passed=False, error=f"{path}: it holds no event")
    return Run(path, record, passed=passed)


def score(runs: Iterable[Run], ruleset: str = "") -> Iterator[Score]:
    """One score for each folder and benchmark, in order."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        named = run.record.get(keys.SUBMISSION_BENCHMARK) if run.record is not None else None
        groups.setdefault((str(run.path.parent), str(named or "")), []).append(run)
    for (folder, benchmark), members in groups.items():
        times = [r.record.minutes for r in members if r.passed and r.record is not None]
        minutes = [time for time in times if time is not None]
        samples = [r.record.samples_to_converge for r in members if r.record is not None]
        yield Score(
            folder=folder,
            benchmark=benchmark,
            runs=tuple(members),
            minutes=_olympic(minutes, len(members) - len(minutes), _scaling(folder)),
            deviation=statistics.stdev(minutes) if len(minutes) > 1 else None,
            samples_to_converge=_trimmed(s for s in samples if isinstance(s, (int, float))),
            rcp=_rcp(folder, members, benchmark, ruleset),
        )


def _olympic(minutes: list[float], num_failed: int, scaling: float) -> float | None:
    if num_failed > _FAILED_ALLOWED:
        return None
    ordered = sorted(minutes)
    counted = ordered[1 : len(ordered) - (1 - num_failed)]
    return sum(counted) * 1.0 / len(counted) * scaling if counted else None


def _trimmed(samples: Iterable[float]) -> float | None:
    counted = sorted(samples)[1:-1]
    return statistics.fmean(counted) if counted else None


def _scaling(folder: str) -> float:
    """What the review committee scales the score by, where it does (``scaling.json``)."""
    try:
        content: Any = json.loads((Path(folder) / "scaling.json").read_text(encoding="utf-8"))
        return float(content["scaling_factor"])
    except (OSError, ValueError, KeyError, TypeError):
        return 1.0


def _rcp(folder: str, runs: Sequence[Run], benchmark: str, ruleset: str) -> str:
    first = next((run.record for run in runs if run.record is not None), None)
    if first is None or first.get(keys.SUBMISSION_DIVISION) != "closed":
        return "closed division only"
    known = benchmarks.find(benchmark)
    if known is not None and len(runs) < known.num_runs:
        return f"needs {known.num_runs} runs"
    return compliance.check_convergence(folder, ruleset)
