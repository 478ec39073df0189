"""Many logs: finding them in folders, and reading them on all cores."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

__all__ = ["logs_in", "on_all_cores"]

Result = TypeVar("Result")

_SUFFIXES = {".txt", ".log", ".out"}
_FEW = 4
"""Logs that a process reads at a time."""


def logs_in(paths: Iterable[Path]) -> list[Path]:
    """Files as they are named, and the logs of folders, recursively, in order.

    A folder's logs are its ``.txt``, ``.log`` and ``.out`` files and rotated ones (``.log.1``)
    that hold an event.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            files = (p for p in sorted(path.rglob("*")) if p.is_file() and not p.is_symlink())
            found += [p for p in files if _SUFFIXES & set(p.suffixes) and _has_events(p)]
        else:
            found.append(path)
    return found


def _has_events(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return any(b":::MLLOG" in line for line in file)
    except OSError:
        return True  # to be reported, not passed over


def on_all_cores(read: Callable[[Path], Result], paths: Sequence[Path]) -> list[Result]:
    """``read`` of every path, in order; a few are read here, where a pool would take longer."""
    num_workers = min(len(os.sched_getaffinity(0)), len(paths) // _FEW)
    if num_workers < 2:  # noqa: PLR2004 - nothing to share
        return [read(path) for path in paths]
    with ProcessPoolExecutor(num_workers) as pool:
        return list(pool.map(read, paths, chunksize=_FEW))
