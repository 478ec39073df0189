"""A warmup leaves the training that follows as it would have been, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_megatron_lm import EXPERTS, HERE, VERSIONS, Pretraining, pretrain

MATRIX = {
    "DP": 1,
    "DP 2": 2,
    "DP distributed optimizer 2": 2,
    "TP 2": 2,
    "PP 2": 2,
    "EP 2": 2,
}


@pytest.mark.fault("X1")
@pytest.mark.fault("X2")
@pytest.mark.fault("X3")
@pytest.mark.parametrize(("layout", "nproc"), MATRIX.items(), ids=MATRIX)
def test_trainings_of_megatron_core_are_the_same(layout: str, nproc: int) -> None:
    """Dropout on, fp32 and bf16, Adam and SGD, fresh and resumed, 1 and 5 warmup steps, or none."""
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    program = [str(HERE / "warmup_matrix.py"), layout.removesuffix(" 2")]
    done = subprocess.run(
        [*command, f"--nproc-per-node={nproc}", *program],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [result] = done.stdout.splitlines()
    num_combinations = 4 if "distributed" in layout else 8  # it takes no SGD
    assert result == f"compared {2 * num_combinations}"


EXPERT_BIAS = "--moe-router-enable-expert-bias --moe-router-score-function sigmoid"
LOOPS = {
    "dropout": (1, "--hidden-dropout 0.1 --attention-dropout 0.1"),
    "expert bias": (
        2,
        f"--expert-model-parallel-size 2 {EXPERTS} {EXPERT_BIAS} --bf16",
    ),
    "loss scale": (1, "--fp16 --initial-loss-scale 4294967296"),
    "attention mask in the loader, TP 2": (2, "--tensor-model-parallel-size 2"),
    "rerun state machine": (1, "--rerun-mode validate_results"),
    "overlap": (
        2,
        "--bf16 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
    ),
    "PP 2": (2, "--pipeline-model-parallel-size 2 --hidden-dropout 0.1"),
    "fused Adam": (1, "--bf16"),
}


# beyond what the others cover already: one release
CASES = [(case, version) for case in LOOPS for version in VERSIONS]
CASES = [pair for pair in CASES if pair not in {("PP 2", VERSIONS[0]), ("overlap", VERSIONS[0])}]


def with_and_without(folder: Path, version: str, extra: str, **options: Any) -> list[Pretraining]:
    """The same training after no warmup, and after three steps and two evaluation steps."""
    runs = []
    for num_steps in (0, 3):
        place = folder / str(num_steps)
        place.mkdir()
        run = pretrain(
            place,
            version,
            f"--train-iters 10 {extra}",
            target=0.01,
            SYNTH_WARMUP_STEPS=num_steps,
            SYNTH_WARMUP_VALID_STEPS=2 if num_steps else 0,
            SYNTH_WARMUP_VERIFY=1,
            **options,
        )
        assert run.returncode == 0, run.output[-3000:]
        assert ("verified to be what it was" in run.output) == bool(num_steps)
        runs.append(run)
    return runs


def assert_same(plain: Pretraining, warmed: Pretraining) -> None:
    for key in ("train_loss", "eval_accuracy"):
        assert warmed.values(key) == plain.values(key)
    assert [n["digest"] for n in warmed.notes] == [n["digest"] for n in plain.notes]


@pytest.mark.fault("X10")
@pytest.mark.fault("X11")
@pytest.mark.parametrize(("case", "version"), CASES)
def test_trainings_of_the_megatron_loop_are_the_same(
    tmp_path: Path, case: str, version: str
) -> None:
    """Losses, evaluations, parameters and optimizer state; the data is where it would be."""
    nproc, extra = LOOPS[case]
    options = {"TOY_OPTIMIZER": "fused"} if case == "fused Adam" else {}
    assert_same(*with_and_without(tmp_path, version, extra, nproc=nproc, **options))


@pytest.mark.fault("X2")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_resumed_training_is_the_same(tmp_path: Path, version: str) -> None:
    """In bf16 with fp32 main parameters and Adam state from a checkpoint."""
    keep = f"--bf16 --ckpt-format torch --save {tmp_path}/ckpt"
    until = "--train-iters 10 --save-interval 5 --exit-interval 5"
    saved = pretrain(tmp_path, version, f"{keep} {until}", target=0.01)
    assert saved.returncode == 0, saved.output[-3000:]
    resumed = f"--bf16 --ckpt-format torch --load {tmp_path}/ckpt"
    assert_same(*with_and_without(tmp_path, version, resumed))
