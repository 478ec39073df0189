"""The adapter in the real Megatron-LM loop: every parallelism, every way out."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from grammar import assert_finished, letters, samples
from primus_mllog.compliance import check_file
from primus_mllog.records.lint import lint

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VERSIONS = ["0.17.1", "0.19.2"]
# "make test-integration" puts them there; there is no test without them
MEGATRON = {version: ROOT / ".megatron" / version for version in VERSIONS}
if os.environ.get("MEGATRON_LM_PATH"):
    MEGATRON["MEGATRON_LM_PATH"] = Path(os.environ["MEGATRON_LM_PATH"])

ARGUMENTS = """
--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32
--max-position-embeddings 32 --micro-batch-size 2 --global-batch-size 8 --train-iters 30
--eval-interval 5 --eval-iters 2 --lr 1e-2 --min-lr 1e-4 --lr-warmup-iters 2
--lr-decay-style cosine --lr-decay-iters 60 --weight-decay 0.1 --clip-grad 1.0 --seed 1234
--adam-beta2 0.95 --adam-eps 1e-5 --mock-data --tokenizer-type NullTokenizer --vocab-size 127
--transformer-impl local --distributed-backend gloo --no-persist-layer-norm
--no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion
--no-gradient-accumulation-fusion --no-rope-fusion --attention-backend unfused --split 80,10,10
--num-workers 0 --dataloader-type single --hidden-dropout 0.0 --attention-dropout 0.0
--log-interval 100
"""
EXPERTS = (
    "--num-experts 4 --moe-token-dispatcher-type alltoall --moe-router-load-balancing-type none "
    "--disable-bias-linear"
)


class Pretraining(NamedTuple):
    """One run of ``pretrain()`` under the adapter."""

    returncode: int
    events: list[dict[str, Any]]
    notes: list[dict[str, Any]]
    """By rank."""
    output: str

    @property
    def status(self) -> Any:
        return self.events[-1]["metadata"].get("status")

    def values(self, key: str) -> list[Any]:
        return [event["value"] for event in self.events if event["key"] == key]


LOGGED = (str(HERE / "logged.py"), str(HERE / "pretrain_toy.py"))


def pretrain(
    folder: Path,
    version: str,
    extra: str = "",
    *,
    nproc: int = 1,
    target: float = 0.9,
    program: tuple[str, ...] = LOGGED,
    path: str = "",
    **env: Any,
) -> Pretraining:
    log, notes = folder / "results" / "run.log", folder / "notes"
    megatron = MEGATRON.get(version, Path(version))
    assert megatron.is_dir(), f"no Megatron-LM in {megatron}: run this with make test-integration"
    submission = {
        "BENCHMARK": "llama31_8b",
        "DIVISION": "open",
        "ORG": "org",
        "PLATFORM": "platform",
    }
    environment = {
        **{n: v for n, v in os.environ.items() if not n.startswith("MLLOG_")},
        "PYTHONPATH": f"{megatron}:{HERE}:{path}",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "MLLOG_OUTPUT_FILE": str(log),
        "MLLOG_CONFIG_FILENAME": "toy",
        "MLLOG_TARGET_EVAL_LOSS": str(target),
        "MLLOG_BLOCK_TPUT_LOG": "1",
        "MLLOG_PREFLIGHT": "error",
        "TOY_NOTES": str(notes),
        **{f"MLLOG_SUBMISSION_{name}": value for name, value in submission.items()},
        **{name: str(value) for name, value in env.items() if value is not None},
    }
    for name in [name for name, value in env.items() if value is None]:
        environment.pop(name, None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    arguments = [*program, *ARGUMENTS.split(), *extra.split()]
    if nproc == 1:
        here = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
        environment |= {**here, "MASTER_PORT": port}
        command = [sys.executable, "-W", "ignore", *arguments]
    else:
        run = ["-m", "torch.distributed.run", "--nproc-per-node", str(nproc)]
        address = ["--master-addr", "127.0.0.1", "--master-port", port]
        command = [sys.executable, "-W", "ignore", *run, *address, *arguments]
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=folder,
    )
    output = done.stdout + done.stderr
    lines = log.read_text().splitlines() if log.exists() else []
    return Pretraining(
        done.returncode,
        [json.loads(line.removeprefix(":::MLLOG ")) for line in lines],
        [json.loads(path.read_text()) for path in sorted(folder.glob("notes.*"))],
        output,
    )


def assert_good(run: Pretraining, folder: Path) -> None:
    """The order holds, the official checker passes, and we find nothing either."""
    assert_finished(run.events)
    log = folder / "results" / "run.log"
    verdict = check_file(log, "6.1.0")
    assert verdict.passed, verdict.findings
    assert lint(log) == []


PARALLELISM = {
    "1 rank": (1, ""),
    "DP 2": (2, ""),
    "TP 2": (2, "--tensor-model-parallel-size 2"),
    "PP 2": (2, "--pipeline-model-parallel-size 2"),
    "EP 2": (2, f"--expert-model-parallel-size 2 {EXPERTS}"),
}


@pytest.mark.fault("L3")
@pytest.mark.fault("L4")
@pytest.mark.fault("L10")
@pytest.mark.fault("L14")
@pytest.mark.parametrize("version", MEGATRON)
@pytest.mark.parametrize(("nproc", "extra"), PARALLELISM.values(), ids=PARALLELISM)
def test_the_target_ends_the_run_on_every_rank(
    tmp_path: Path, version: str, nproc: int, extra: str
) -> None:
    """Success at the deciding evaluation, all ranks leave together, and the clock stops then."""
    run = pretrain(tmp_path, version, extra, nproc=nproc)
    assert run.returncode == 0, run.output[-3000:]
    assert_good(run, tmp_path)
    *earlier, deciding = run.values("eval_accuracy")
    assert all(loss > 0.9 for loss in earlier)
    assert deciding <= 0.9
    assert run.status == "success"
    num_steps = samples(run.events[-1]) // 8
    assert [notes["status"] for notes in run.notes] == ["success"] * nproc
    assert {notes["iteration"] for notes in run.notes} <= {num_steps - 1, num_steps}
    assert len(run.values("train_loss")) == num_steps
    verdict = run.notes[0]["moments"][-1]
    assert abs(run.events[-1]["time_ms"] - verdict) <= 1.0


# What the closed division fixes and a toy cannot have.
TOO_SMALL = {"max_sequence_length", "eval_samples"}
BENCHMARKS = {"llama31_8b": "", "gpt_oss_20b": EXPERTS}


@pytest.mark.fault("C11")
@pytest.mark.fault("C3")
@pytest.mark.parametrize("version", MEGATRON)
@pytest.mark.parametrize(("benchmark", "extra"), BENCHMARKS.items(), ids=BENCHMARKS)
def test_a_benchmarks_own_arguments(
    tmp_path: Path, version: str, benchmark: str, extra: str
) -> None:
    """In the closed division, the official checker refuses what a toy is too small for, only."""
    schedule = "--train-iters 1200000 --lr-decay-iters 1200000"
    run = pretrain(
        tmp_path,
        version,
        f"{schedule} {extra}",
        target=3.3,
        MLLOG_SUBMISSION_BENCHMARK=benchmark,
        MLLOG_SUBMISSION_DIVISION="closed",
        MLLOG_SUBMISSION_STATUS="onprem",
        MLLOG_PREFLIGHT="warn",
    )
    assert run.returncode == 0, run.output[-3000:]
    assert run.status == "success"
    # ours adds the evaluations, which come every few steps
    assert {f.key for f in lint(tmp_path / "results" / "run.log")} == {"eval_start"}
    findings = check_file(tmp_path / "results" / "run.log", "6.1.0").findings
    assert {finding.key for finding in findings} == TOO_SMALL, findings


@pytest.mark.fault("L2")
@pytest.mark.fault("L8")
@pytest.mark.parametrize("version", MEGATRON)
def test_iterations_used_up(tmp_path: Path, version: str) -> None:
    """Aborted, with no trace of Megatron's last validation and test set."""
    run = pretrain(tmp_path, version, "--train-iters 10", target=0.1)
    assert run.returncode == 0, run.output[-3000:]
    assert_finished(run.events)
    assert run.status == "aborted"
    assert len(run.values("eval_accuracy")) == 2
    assert "on test set" in run.output  # it did evaluate again


@pytest.mark.fault("L5")
@pytest.mark.parametrize("version", MEGATRON)
@pytest.mark.parametrize(
    ("extra", "trouble", "code"),
    [
        ("--exit-interval 7", "", 0),
        ("", "raise@7", 1),
        ("", "sigterm@7", -signal.SIGTERM),
    ],
    ids=["exit interval", "exception", "SIGTERM"],
)
def test_every_way_out_ends_the_run(
    tmp_path: Path, version: str, extra: str, trouble: str, code: int
) -> None:
    """One run_stop, aborted, where the loop was left; the exit code is what it would be."""
    run = pretrain(tmp_path, version, extra, target=0.1, TOY_TROUBLE=trouble)
    assert run.returncode == code, run.output[-3000:]
    assert_finished(run.events)
    assert run.status == "aborted"
    assert samples(run.events[-1]) == 56


@pytest.mark.fault("L6")
@pytest.mark.parametrize("version", MEGATRON)
def test_a_time_limit_inside_an_evaluation(tmp_path: Path, version: str) -> None:
    """The evaluation is closed without a value, and no earlier one is logged again."""
    run = pretrain(tmp_path, version, target=0.1, TOY_TROUBLE="limit@9")
    assert run.returncode == 0, run.output[-3000:]
    assert letters(run.events).endswith("rpbtttttkBeaEbtttttkBeEdkPR")
    assert run.status == "aborted"


@pytest.mark.fault("L13")
@pytest.mark.parametrize("version", MEGATRON)
def test_a_resumed_run_goes_on_counting(tmp_path: Path, version: str) -> None:
    """Samples and iterations go on from the checkpoint."""
    keep = f"--ckpt-format torch --save {tmp_path}/ckpt --save-interval 5"
    first = pretrain(tmp_path, version, f"{keep} --exit-interval 5", target=0.1)
    assert first.returncode == 0, first.output[-3000:]
    run = pretrain(tmp_path, version, f"{keep} --load {tmp_path}/ckpt")
    assert run.returncode == 0, run.output[-3000:]
    starts = [e for e in run.events if e["key"] in {"epoch_start", "block_start"}]
    assert [samples(event) for event in starts[:2]] == [40, 40]
    losses = [e["metadata"] for e in run.events if e["key"] == "train_loss"]
    assert (losses[0]["step"], losses[0]["samples_count"]) == (6, 48)
    assert run.status == "success"
    # the first run's log was rotated aside, whole
    assert check_file(tmp_path / "results" / "run.log.1", "6.1.0").ruleset == "6.1.0"


@pytest.mark.fault("L7")
@pytest.mark.parametrize("version", MEGATRON)
def test_the_first_of_two_validation_sets_decides(tmp_path: Path, version: str) -> None:
    """One eval_accuracy an evaluation, that of the first set."""
    extra = "--multiple-validation-sets --full-validation --train-iters 5"
    run = pretrain(tmp_path, version, extra, target=0.1)
    assert run.returncode == 0, run.output[-3000:]
    assert_finished(run.events)
    [loss] = run.values("eval_accuracy")
    assert f"validation-0 loss at iteration 5 | lm loss value: {loss:.6E}" in run.output


@pytest.mark.fault("T2")
@pytest.mark.parametrize("version", MEGATRON)
def test_a_skipped_iteration_is_no_work_done(tmp_path: Path, version: str) -> None:
    """Steps that overflow in fp16 count their samples, and log no loss."""
    run = pretrain(
        tmp_path, version, "--fp16 --initial-loss-scale 4294967296 --train-iters 30", target=0.1
    )
    assert run.returncode == 0, run.output[-3000:]
    assert_finished(run.events)
    assert samples(run.events[-1]) == 240
    assert 0 < len(run.values("train_loss")) < 30


@pytest.mark.fault("W1")
@pytest.mark.parametrize("version", VERSIONS[-1:])
def test_run_twice_into_one_path(tmp_path: Path, version: str) -> None:
    """Each run has a file of its own."""
    for _ in range(2):
        run = pretrain(tmp_path, version)
        assert run.returncode == 0, run.output[-3000:]
        assert_good(run, tmp_path)
    assert (tmp_path / "results" / "run.log.1").exists()


@pytest.mark.fault("C5")
@pytest.mark.parametrize("version", VERSIONS[-1:])
def test_parallelism_is_known_without_variables(tmp_path: Path, version: str) -> None:
    """With no MLLOG_* set, TP 2 is logged as what it is, and nobody is named."""
    names = [f"MLLOG_SUBMISSION_{name}" for name in ("BENCHMARK", "DIVISION", "ORG", "PLATFORM")]
    unset = dict.fromkeys([*names, "MLLOG_CONFIG_FILENAME", "MLLOG_TARGET_EVAL_LOSS"])
    extra = "--tensor-model-parallel-size 2 --train-iters 5"
    run = pretrain(tmp_path, version, extra, nproc=2, MLLOG_PREFLIGHT="warn", **unset)
    assert run.returncode == 0, run.output[-3000:]
    assert run.values("tensor_parallelism") == [2]
    assert run.values("submission_org") == [""]
    assert run.status == "aborted"
    assert "submission_benchmark" in run.output
    assert "MLLOG_TARGET_EVAL_LOSS" in run.output


@pytest.mark.parametrize("version", VERSIONS[-1:])
def test_a_header_that_would_be_refused_stops_before_the_clock(
    tmp_path: Path, version: str
) -> None:
    """MLLOG_PREFLIGHT=error ends the training before a step is taken."""
    run = pretrain(tmp_path, version, MLLOG_SUBMISSION_DIVISION="closed")
    assert run.returncode == 1
    assert "max_sequence_length" in run.output
    assert "run_start" not in {event["key"] for event in run.events}
