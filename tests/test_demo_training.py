"""The demo trains, in every kind of parallelism, and each way out ends its log."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grammar import assert_finished
from primus_mllog import compliance
from primus_mllog.demo.launcher import train_here
from primus_mllog.demo.options import DemoOptions

SEED = 5
UNREACHABLE = 0.01
# One evaluation in the middle and one at the end.
FEW_STEPS = 25

Events = list[dict[str, Any]]


def read(path: Path) -> Events:
    lines = path.read_text().splitlines()
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]


def values(events: Events, key: str) -> list[Any]:
    return [event["value"] for event in events if event["key"] == key]


def demo(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "primus_mllog.demo", "--output", str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Events:
    """The log of a short training in this process."""
    path = tmp_path_factory.mktemp("demo") / "alone.log"
    options = DemoOptions(steps=FEW_STEPS, seed=SEED, target=UNREACHABLE, output=str(path))
    result = train_here(options, options.settings())
    events = read(path)
    assert result.train_losses == values(events, "train_loss")
    return events


@pytest.mark.slow
def test_the_model_learns(alone: Events) -> None:
    """It begins at a uniform guess over the bytes and is much better a few steps later."""
    losses = values(alone, "train_loss")
    assert losses[0] == pytest.approx(math.log(256), abs=0.3)
    assert values(alone, "eval_accuracy")[-1] < 3.5


@pytest.mark.slow
def test_steps_used_up_end_the_run(alone: Events) -> None:
    """A run that does not reach its target ends with one run_stop, aborted."""
    assert_finished(alone)
    assert alone[-1]["metadata"]["status"] == "aborted"
    assert alone[-1]["metadata"]["samples_count"] == FEW_STEPS * 16


@pytest.mark.slow
def test_megatron_is_left_as_it_was(alone: Events) -> None:
    """After a training in this process, torch's functions are torch's own again."""
    import torch

    assert torch.zeros.__module__ != "primus_mllog.demo.cpu"
    assert torch.ones(1).type() == "torch.FloatTensor"
    assert not torch.distributed.is_initialized()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [[], ["--tensor-parallel=2"]], ids=["data", "tensor"])
def test_two_processes_do_as_one(tmp_path: Path, alone: Events, kind: list[str]) -> None:
    """Data or tensor parallel, the losses are those of one process, and logged once.

    A short run gives the official checker nothing to complain of but the loss.
    """
    path = tmp_path / "run.log"
    few = [f"--steps={FEW_STEPS}", f"--seed={SEED}", f"--target={UNREACHABLE}"]
    done = demo(path, "--nproc=2", *kind, *few)
    events = read(path)
    assert done.returncode == 1, done.stderr
    assert_finished(events)
    assert [f.key for f in compliance.check_file(str(path)).findings] == ["eval_accuracy"]
    for key in ("train_loss", "eval_accuracy"):
        assert values(events, key) == pytest.approx(values(alone, key), abs=1e-3)


@pytest.mark.slow
@pytest.mark.fault("L3")
@pytest.mark.fault("L4")
def test_the_target_is_reached_and_the_log_passes(tmp_path: Path) -> None:
    """With the defaults, on two pipeline stages and any seed: exit code 0 and a passing log."""
    path = tmp_path / "folder" / "run.log"
    done = demo(path, "--nproc=2", "--pipeline-parallel=2")
    assert done.returncode == 0, done.stdout + done.stderr
    events = read(path)
    assert_finished(events)
    assert events[-1]["metadata"]["status"] == "success"
    assert len(values(events, "eval_accuracy")) == len(values(events, "eval_start"))
    assert compliance.check_file(str(path), "6.1.0").passed
    shown = done.stdout.splitlines()
    assert shown[-1] == f"log: {path}"
    assert any("passed (ruleset" in line for line in shown)
    last_step = events[-1]["metadata"]["samples_count"] // 16
    assert done.stderr.splitlines()[-1].startswith(f"step {last_step:>3}/"), done.stderr
    assert f"seed              {values(events, 'seed')[0]}" in shown


WAYS_OUT = {
    "SIGTERM": ("signal.raise_signal(signal.SIGTERM)", -signal.SIGTERM, "step"),
    "exception": ("raise RuntimeError('boom')", 1, "RuntimeError: boom"),
    "sys.exit": ("sys.exit(3)", 3, ""),
    "interrupt": ("signal.raise_signal(signal.SIGINT)", 130, "primus-mllog: interrupted"),
}

PROGRAM = """
import signal, sys
from primus_mllog.demo import progress
from primus_mllog.demo.launcher import run_demo
from primus_mllog.demo.options import DemoOptions
def step(self, iteration, loss):
    if iteration == 3:
        print("step", file=sys.stderr, flush=True)
        {way_out}
progress._Lines.step = step
sys.exit(run_demo(DemoOptions(output={path!r})))
"""


@pytest.mark.slow
@pytest.mark.fault("L5")
@pytest.mark.parametrize(("way_out", "code", "told"), WAYS_OUT.values(), ids=WAYS_OUT)
def test_each_way_out_ends_the_log(tmp_path: Path, way_out: str, code: int, told: str) -> None:
    """In the middle of the training: one run_stop, aborted, and the exit code that it would be."""
    path = tmp_path / "run.log"
    program = PROGRAM.format(way_out=way_out, path=str(path))
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    events = read(path)
    assert_finished(events)
    assert events[-1]["metadata"] == {
        **events[-1]["metadata"],
        "status": "aborted",
        "samples_count": 48,
    }


@pytest.mark.slow
@pytest.mark.fault("L5")
def test_ctrl_c_ends_the_log_of_several_processes(tmp_path: Path) -> None:
    """The interrupt reaches every process, and the launcher waits for the end of the log."""
    path = tmp_path / "run.log"
    command = [sys.executable, "-m", "primus_mllog.demo", "--nproc=2", f"--output={path}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith("step"))
        process.send_signal(signal.SIGINT)
        process.stderr.read()
    assert process.returncode == 130
    events = read(path)
    assert_finished(events)
    assert events[-1]["metadata"]["status"] == "aborted"
