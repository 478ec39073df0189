"""The agreement of all ranks on an evaluation's loss, over gloo on this machine."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

from benchmarks import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

WORLD_SIZES = (2, 4, 8)
NUM_TIMES = 300
FEW = 30
"""Agreements that warm up the connections."""


def rows() -> Iterator[Row]:
    medians = {}
    for world_size in WORLD_SIZES:
        mine, theirs, ratio = measured(world_size)
        medians[world_size] = mine
        yield Row(f"{world_size} processes", "ms", mine, "its two collectives", theirs, ratio)
    first, last = WORLD_SIZES[0], WORLD_SIZES[-1]
    growth = (medians[last] / medians[first]) ** (1 / math.log2(last / first))
    yield Row("growth for each doubling", "×", growth)
    yield Row(
        "if it went on to 10,000 ranks", "ms", medians[last] * growth ** math.log2(10_000 / last)
    )


def measured(world_size: int) -> tuple[float, float, float]:
    """Median milliseconds of an agreement and of its collectives, and of their ratio, on rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.agreement", f"{folder}/store", str(world_size)]
        ranks = [
            subprocess.Popen(
                [*command, str(rank)],
                stdout=subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for rank in range(world_size)
        ]
        try:
            output, _ = ranks[0].communicate(timeout=120)
            for rank in ranks[1:]:
                rank.communicate(timeout=60)
        finally:
            for rank in ranks:
                rank.kill()
    mine, theirs, ratio = json.loads(output)
    return mine, theirs, ratio


def take_part(store: str, world_size: int, rank: int) -> None:
    """One rank: agree and do the bare collectives in turns; rank 0 prints what it took."""
    import torch.distributed as dist

    from primus_mllog.distributed import WorldGroup

    dist.init_process_group(
        "gloo", store=dist.FileStore(store, world_size), rank=rank, world_size=world_size
    )
    group = WorldGroup()
    loss = 3.2 if rank == world_size - 1 else None  # the last pipeline stage has it
    turns = []
    for _ in range(FEW + NUM_TIMES):
        turns.append((timed(lambda: group.agree([loss])), timed(lambda: bare(dist, world_size))))
    turns = turns[FEW:]
    if rank == 0:
        sides = [statistics.median(side) for side in zip(*turns, strict=True)]
        print(json.dumps([*sides, statistics.median(a / b for a, b in turns)]))
    dist.barrier()
    dist.destroy_process_group()


def timed(work: Any) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def bare(dist: Any, world_size: int) -> None:
    """The collectives of an agreement alone: an integer's minimum, and two numbers sent."""
    import torch

    dist.all_reduce(torch.zeros(1, dtype=torch.int64), op=dist.ReduceOp.MIN)
    dist.broadcast(torch.zeros(2, 1, dtype=torch.float64), src=world_size - 1)


if __name__ == "__main__":
    take_part(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
