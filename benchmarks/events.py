"""An event, beside the same event from bare mllog."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import Row, side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NUM_EVENTS = 500
METADATA = {"samples_count": 4096, "step": 128, "lr": 0.0004}


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:  # noqa: PTH123
        for stdout in (False, True):
            bare = _bare(Path(folder) / f"bare{stdout}.log", nowhere if stdout else None)
            ours = _ours(Path(folder) / f"ours{stdout}.log", nowhere if stdout else None)
            mine, theirs, ratio = side_by_side(
                lambda emit=ours: _cost(emit), lambda emit=bare: _cost(emit)
            )
            where = "file and stdout" if stdout else "file"
            goal = {"goal": "≤ 1.2×", "is_met": ratio <= 1.2}
            yield Row(f"event to {where}", "µs", mine, "bare mllog", theirs, ratio, **goal)
    yield from _suppressed()


def _cost(emit: Callable[..., None]) -> float:
    """Microseconds an event."""
    started = time.perf_counter()
    for _ in range(NUM_EVENTS):
        emit("train_loss", 2.5, METADATA)
    return (time.perf_counter() - started) / NUM_EVENTS * 1e6


def _bare(path: Path, stdout: Any) -> Callable[..., None]:
    """mllog as MLCommons' own examples use it: a file, and stdout unless it is off."""
    from mlperf_logging.mllog import mllog

    logger = logging.Logger("bare", logging.INFO)
    logger.addHandler(logging.FileHandler(path))
    if stdout is not None:
        logger.addHandler(logging.StreamHandler(stdout))
    return mllog.MLLogger(logger=logger).event


def _ours(path: Path, stdout: Any) -> Callable[..., None]:
    from primus_mllog import MLPerfLogger
    from primus_mllog.settings import PretrainSettings

    logger = MLPerfLogger(PretrainSettings(), stdout=stdout is not None)
    logger.open(str(path))
    if stdout is None:
        return logger.log_event

    def emit(*args: Any) -> None:
        sys.__stdout__, saved = stdout, sys.__stdout__
        logger.log_event(*args)
        sys.__stdout__ = saved

    return emit
