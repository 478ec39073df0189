"""The drop-in trainer on real Primus; ``PRIMUS_PATH`` names the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from test_megatron_lm import HERE, assert_good, pretrain

from grammar import assert_finished

PRIMUS_PATH = os.environ.get("PRIMUS_PATH", "")
pytestmark = pytest.mark.skipif(
    not PRIMUS_PATH, reason="PRIMUS_PATH names no Primus checkout (it is not on PyPI)"
)
VERSION = "0.17.1"  # the newest Megatron that Primus' trainer can call


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
