"""An event, beside the same event from bare mllog."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from benchmarks import Row, side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from primus_mllog import MLPerfLogger

MOST_RATIO, MOST_SUPPRESSED_US = 1.2, 0.5
METADATA = {"samples_count": 4096, "step": 128, "lr": 0.0004}


def rows() -> Iterator[Row]:
    yield from written()
    yield from suppressed()


def written() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        for stdout in (None, nowhere):
            name = f"{folder}/{bool(stdout)}"
            bare, ours = bare_to(f"{name}.bare", stdout), ours_to(f"{name}.ours", stdout)
            with mock.patch.object(sys, "__stdout__", nowhere):
                mine, theirs, ratio = side_by_side(
                    lambda emit=ours: cost(emit), lambda emit=bare: cost(emit)
                )
            yield Row(
                "on rank 0, to a file" + (" and stdout" if stdout else ""),
                "µs",
                mine,
                "bare mllog",
                theirs,
                ratio,
                goal=f"≤ {MOST_RATIO}×",
                is_met=ratio <= MOST_RATIO,
            )


def suppressed() -> Iterator[Row]:
    without_torch = {name: m for name, m in sys.modules.items() if name != "torch.distributed"}
    states = {"before torch is imported": False, "before the process group is": True}
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, RANK="1"):
        bare = bare_to(f"{folder}/bare.log", None)
        for state, has_torch in states.items():
            with mock.patch.dict(
                sys.modules, {} if has_torch else without_torch, clear=not has_torch
            ):
                if has_torch:
                    pass
                yield suppressed_row(f"on rank 1, {state}", logger(), bare)
        in_group = logger()
        in_group.group._rank = 1  # as torch.distributed has said, and will not change
        yield suppressed_row("on rank 1, in a process group", in_group, bare)


def suppressed_row(what: str, on_rank_1: MLPerfLogger, bare: Callable[..., None]) -> Row:
    mine, theirs, ratio = side_by_side(
        lambda: cost(on_rank_1.log_event, 20_000), lambda: cost(bare)
    )
    goal = f"≤ {MOST_SUPPRESSED_US} µs"
    is_met = mine <= MOST_SUPPRESSED_US
    return Row(what, "µs", mine, "bare mllog", theirs, ratio, goal=goal, is_met=is_met)


def cost(emit: Callable[..., None], num_events: int = 500) -> float:
    """Microseconds an event."""
    started = time.perf_counter()
    for _ in range(num_events):
        emit("train_loss", 2.5, METADATA)
    return (time.perf_counter() - started) / num_events * 1e6


def bare_to(path: str, stdout: Any) -> Callable[..., None]:
    """Mllog set up as its own documentation does it."""
    from mlperf_logging.mllog import mllog

    logger = logging.getLogger(path)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.FileHandler(path))
    if stdout is not None:
        logger.addHandler(logging.StreamHandler(stdout))
    return mllog.MLLogger(logger=logger).event


def ours_to(path: str, stdout: Any) -> Callable[..., None]:
    ours = logger(stdout=stdout is not None)
    ours.open(path)
    return ours.log_event


def logger(*, stdout: bool = False) -> MLPerfLogger:
    from primus_mllog import MLPerfLogger
    from primus_mllog.settings import PretrainSettings

    return MLPerfLogger(PretrainSettings(), stdout=stdout)
