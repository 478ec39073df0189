"""An import, beside what would be imported anyway."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

from benchmarks import Row, side_by_side

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_ADDED_MS = 30.0


def rows() -> Iterator[Row]:
    mine, theirs, ratio = side_by_side(
        lambda: milliseconds("import primus_mllog"), lambda: milliseconds("pass"), num_turns=15
    )
    goal, is_met = f"≤ {MOST_ADDED_MS:.0f} ms more", mine - theirs <= MOST_ADDED_MS
    yield Row("import primus_mllog", "ms", mine, "bare Python", theirs, ratio, goal, is_met)
    mine, theirs, ratio = side_by_side(
        lambda: milliseconds("from primus_mllog import MLPerfRun"),
        lambda: milliseconds("from mlperf_logging import mllog"),
        num_turns=15,
    )
    yield Row("from primus_mllog import MLPerfRun", "ms", mine, "mllog", theirs, ratio)


def milliseconds(code: str) -> float:
    """Milliseconds of a Python that executes ``code``."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter() - started) * 1e3
