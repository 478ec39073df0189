"""The drop-in trainer on real Primus.

``PRIMUS_PATH`` names a checkout of 2026-06 or newer. ``PRIMUS_OLDER_PATH`` names one before that,
whose trainer has a loop of its own, and ``MEGATRON_OLDER_PATH`` the Megatron-LM that it pins.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from test_megatron_lm import HERE, Pretraining, assert_good, pretrain

from grammar import assert_finished

PRIMUS_PATH = os.environ.get("PRIMUS_PATH", "")
OLDER_PATH = os.environ.get("PRIMUS_OLDER_PATH", "")
OLDER_MEGATRON = os.environ.get("MEGATRON_OLDER_PATH", "")
is_current = pytest.mark.skipif(
    not PRIMUS_PATH, reason="PRIMUS_PATH names no Primus checkout (it is not on PyPI)"
)
is_older = pytest.mark.skipif(
    not (OLDER_PATH and OLDER_MEGATRON),
    reason="PRIMUS_OLDER_PATH and MEGATRON_OLDER_PATH name no older Primus and its Megatron-LM",
)
VERSION = "0.17.1"  # the newest Megatron that Primus' trainer can call


@is_current
@pytest.mark.fault("W12")
@pytest.mark.parametrize("kind", ["runtime", "by-hand"])
@pytest.mark.parametrize(("nproc", "extra"), [(1, ""), (2, "--pipeline-model-parallel-size 2")])
def test_primus_trains_and_logs(tmp_path: Path, kind: str, nproc: int, extra: str) -> None:
    """Primus' adapter loads our class for its stage; both ways of calling it log a success."""
    program = (str(HERE / "primus_toy.py"), kind)
    run = pretrain(tmp_path, VERSION, extra, nproc=nproc, program=program, path=PRIMUS_PATH)
    assert run.returncode == 0, run.output[-3000:]
    assert_good(run, tmp_path)
    assert run.status == "success"
    assert len(run.values("init_start")) == 1


@is_current
@pytest.mark.fault("L5")
@pytest.mark.parametrize("kind", ["runtime", "by-hand"])
def test_an_exception_in_primus_ends_the_run(tmp_path: Path, kind: str) -> None:
    """The run is aborted where the training died, and Primus' error goes on."""
    program = (str(HERE / "primus_toy.py"), kind)
    run = pretrain(tmp_path, VERSION, program=program, path=PRIMUS_PATH, TOY_TROUBLE="raise@7")
    assert run.returncode == 1
    assert "trouble in a step" in run.output
    assert_finished(run.events)
    assert run.status == "aborted"


def pretrain_older(folder: Path, extra: str = "", **options: Any) -> Pretraining:
    program = (str(HERE / "primus_older_toy.py"),)
    return pretrain(folder, OLDER_MEGATRON, extra, program=program, path=OLDER_PATH, **options)


@is_older
@pytest.mark.parametrize(("nproc", "extra"), [(1, ""), (2, "--pipeline-model-parallel-size 2")])
def test_the_older_trainer_logs_its_own_loop(tmp_path: Path, nproc: int, extra: str) -> None:
    """``init`` and ``run`` of the older trainer: success at the target, nothing after it."""
    run = pretrain_older(tmp_path, extra, nproc=nproc)
    assert run.returncode == 0, run.output[-3000:]
    assert_good(run, tmp_path)
    assert run.status == "success"
    assert len(run.values("train_loss")) * 8 == run.events[-1]["metadata"]["samples_count"]


@is_older
@pytest.mark.parametrize(("trouble", "code"), [("", 0), ("raise@7", 1)])
def test_the_older_trainers_ways_out(tmp_path: Path, trouble: str, code: int) -> None:
    """Iterations used up, or an exception: aborted."""
    extra = "--train-iters 10"
    run = pretrain_older(tmp_path, extra, target=0.01, TOY_TROUBLE=trouble)
    assert run.returncode == code, run.output[-3000:]
    assert_finished(run.events)
    assert run.status == "aborted"
