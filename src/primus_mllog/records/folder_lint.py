"""What is wrong with logs together that is right with each: our findings in a folder of results."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from primus_mllog import benchmarks, keys
from primus_mllog.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from primus_mllog.records.run_record import RunRecord

__all__ = ["lint_folders"]

_RESULT = re.compile(r"result_(\d+)\.txt")


def lint_folders(records: Mapping[Path, RunRecord]) -> dict[Path, list[Finding]]:
    """Our findings by folder, for folders that hold two logs or more of one benchmark.

    Args:
        records: the run of each log, by its path.
    """
    folders: dict[Path, dict[Path, RunRecord]] = {}
    for path, record in records.items():
        folders.setdefault(path.parent, {})[path] = record
    found = {
        folder: [finding for rule in _RULES for finding in rule(members)]
        for folder, members in folders.items()
        if len(members) > 1
    }
    return {folder: findings for folder, findings in found.items() if findings}


def _one_benchmark(records: Mapping[Path, RunRecord]) -> Iterator[Finding]:
    names = sorted({str(r.get(keys.SUBMISSION_BENCHMARK)) for r in records.values()})
    if len(names) > 1:
        hint = "Give each benchmark a folder of its own, as a submission has."
        yield _finding(keys.SUBMISSION_BENCHMARK, ", ".join(names), "one in a folder", hint)


def _seeds(records: Mapping[Path, RunRecord]) -> Iterator[Finding]:
    by_seed: dict[Any, list[str]] = {}
    for path, record in records.items():
        seed = record.get(keys.SEED)
        if isinstance(seed, (int, float, str)):
            by_seed.setdefault(seed, []).append(path.name)
    for seed, names in by_seed.items():
        if len(names) > 1:
            hint = "Each run of a submission draws a seed of its own."
            yield _finding(keys.SEED, f"{seed} in {', '.join(names)}", "another in each", hint)


def _number_of_runs(records: Mapping[Path, RunRecord]) -> Iterator[Finding]:
    names = {str(r.get(keys.SUBMISSION_BENCHMARK)) for r in records.values()}
    benchmark = benchmarks.find(names.pop()) if len(names) == 1 else None
    if benchmark is not None and len(records) != benchmark.num_runs:
        hint = "A submission has exactly as many; one of them may have failed."
        wanted = f"{benchmark.num_runs} for {benchmark.name}"
        yield _finding("", f"{len(records)} runs", wanted, hint)


def _file_names(records: Mapping[Path, RunRecord]) -> Iterator[Finding]:
    matches = [_RESULT.fullmatch(path.name) for path in records]
    numbers = sorted(int(match[1]) for match in matches if match)
    if numbers and numbers != list(range(len(records))):
        found = ", ".join(sorted(path.name for path in records))
        wanted = f"result_0.txt to result_{len(records) - 1}.txt"
        hint = "The official tools read these names only; primus-mllog package writes them."
        yield _finding("", found, wanted, hint)


_RULES = (_one_benchmark, _seeds, _number_of_runs, _file_names)


def _finding(key: str, found: str, wanted: str, hint: str) -> Finding:
    message = f"{key + ': ' if key else ''}found {found}, wanted: {wanted}"
    return Finding("primus-mllog", key, message, found, wanted, None, hint)
