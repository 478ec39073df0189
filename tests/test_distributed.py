"""Ranks, before and after torch.distributed exists."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from typing import Any

import pytest

from primus_mllog import distributed
from primus_mllog.distributed import WorldGroup

# Four real ranks over gloo; each prints what it was given.
PROGRAM = """
import json, math, sys
import torch.distributed as dist
from primus_mllog.distributed import WorldGroup
group = WorldGroup()
before = [group.rank, group.world_size]
dist.init_process_group("gloo")
mine = eval(sys.argv[1])[group.rank]
agreed = group.agree(mine)
group.barrier()
print(json.dumps([before, group.rank, group.world_size, [repr(v) for v in agreed]]))
dist.destroy_process_group()
"""


def on_real_ranks(values: list[list[float | None]]) -> list[Any]:
    """Run ``agree`` on one process for each row of ``values``."""
    port = str(29000 + os.getpid() % 1000)
    expression = repr(values).replace("nan", "math.nan")
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM, expression],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(len(values)),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(len(values))
    ]
    return [json.loads(p.communicate(timeout=60)[0]) for p in processes]


@pytest.mark.fault("L3")
@pytest.mark.fault("L4")
def test_real_ranks_agree_on_the_values_of_the_lowest_rank_that_has_any() -> None:
    """Over gloo every rank gets rank 1's values, bit for bit, its gap and its NaN included."""
    third = 1 / 3
    rows = [[None] * 3, [third, None, math.nan], [2.0, 3.0, 4.0]]
    results = on_real_ranks(rows)
    assert [agreed for _, _, _, agreed in results] == [[repr(third), "None", "nan"]] * 3
    assert [[before, rank, size] for before, rank, size, _ in results] == [
        [[rank, 3], rank, 3] for rank in range(3)
    ]


def test_real_ranks_without_any_value_agree_on_none() -> None:
    """Nobody has a loss: all ranks get None."""
    assert [agreed for *_, agreed in on_real_ranks([[None], [None]])] == [["None"]] * 2


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, (2, 4)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2)),
        ({"RANK": "", "WORLD_SIZE": "many"}, (0, 1)),
    ],
)
def test_before_torch_the_launcher_says_who_we_are(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: tuple[int, int]
) -> None:
    """Rank and world size come from torchrun, Open MPI or Slurm; without them, one process."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (WorldGroup().rank, WorldGroup().world_size) == expected


def test_one_process_agrees_with_itself() -> None:
    """Without a process group nothing is waited for."""
    group = WorldGroup()
    group.barrier()
    assert group.agree([1.0, None]) == [1.0, None]


def test_an_accelerator_backend_gets_tensors_on_the_accelerator() -> None:
    """NCCL and RCCL reduce on this rank's device, gloo on the CPU."""
    import torch

    class Dist:
        def __init__(self, backend: str) -> None:
            self.get_backend = lambda: backend

    class Torch:
        device = torch.device

        class cuda:  # noqa: N801 - named as torch names it
            current_device = staticmethod(lambda: 5)

    chosen = [
        str(distributed._collective_device(Dist(backend), Torch))
        for backend in ("gloo", "nccl", "cpu:gloo,cuda:nccl")
    ]
    assert chosen == ["cpu", "cuda:5", "cpu"]
