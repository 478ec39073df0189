"""The adapter in the real Megatron-Bridge loop: the release on PyPI, and a checkout of main.

``MEGATRON_BRIDGE_PATH`` names the checkout's ``src`` and ``MEGATRON_LM_PATH`` its Megatron-LM;
``TRANSFORMERS_PATH``, where given, a folder with the newer transformers that it wants.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_megatron_lm import HERE, ROOT, Pretraining

from grammar import assert_finished, letters, samples
from primus_mllog.compliance import check_file
from primus_mllog.records.lint import lint

# "make test-integration" puts it there; there is no test without it
BRIDGES = {"0.3.1": [str(ROOT / ".megatron" / "bridge-0.3.1")]}
if os.environ.get("MEGATRON_BRIDGE_PATH") and os.environ.get("MEGATRON_LM_PATH"):
    names = ("TRANSFORMERS_PATH", "MEGATRON_BRIDGE_PATH", "MEGATRON_LM_PATH")
    BRIDGES["MEGATRON_BRIDGE_PATH"] = [os.environ[name] for name in names if name in os.environ]
WAYS = ("callback", "hooks")
TARGET = 1.5


def train(
    folder: Path,
    version: str,
    mode: str,
    way: str,
    checkpoint: Path,
    *,
    nproc: int = 1,
    target: float = TARGET,
    **env: Any,
) -> Pretraining:
    assert Path(BRIDGES[version][0]).is_dir(), "run this with make test-integration"
    folder.mkdir(exist_ok=True)
    log, notes = folder / "results" / "run.log", folder / "notes"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {
        **{n: v for n, v in os.environ.items() if not n.startswith("MLLOG_")},
        "PYTHONPATH": ":".join([*BRIDGES[version], str(HERE)]),
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "MLLOG_OUTPUT_FILE": str(log),
        "MLLOG_CONFIG_FILENAME": "toy",
        "MLLOG_TARGET_EVAL_LOSS": str(target),
        "MLLOG_TRAIN_LOSS_LOG_FREQ": "1",
        "MLLOG_SUBMISSION_BENCHMARK": "llama2_70b_lora",
        "MLLOG_SUBMISSION_DIVISION": "closed",
        "MLLOG_SUBMISSION_STATUS": "onprem",
        "MLLOG_SUBMISSION_ORG": "org",
        "MLLOG_SUBMISSION_PLATFORM": "platform",
        "TOY_NOTES": str(notes),
        "DROPOUT": "0.1",
        **{name: str(value) for name, value in env.items()},
    }
    program = [str(HERE / "bridge_toy.py"), mode, way, str(checkpoint)]
    if nproc == 1:
        here = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
        environment |= {**here, "MASTER_PORT": port}
    else:
        run = ["-m", "torch.distributed.run", f"--nproc-per-node={nproc}"]
        program = [*run, "--master-addr=127.0.0.1", f"--master-port={port}", *program]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=folder,
    )
    lines = log.read_text().splitlines() if log.exists() else []
    return Pretraining(
        done.returncode,
        [json.loads(line.removeprefix(":::MLLOG ")) for line in lines],
        [json.loads(path.read_text()) for path in sorted(folder.glob("notes.*"))],
        done.stdout + done.stderr,
    )


@pytest.fixture(scope="module", params=BRIDGES)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkpoint(version: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a dense model that was trained without reaching the target."""
    folder = tmp_path_factory.mktemp("dense")
    run = train(folder, version, "base", "callback", folder / "ckpt", target=0.01, ITERS=8)
    assert run.returncode == 0, run.output[-3000:]
    assert_finished(run.events)
    assert run.status == "aborted"
    assert len(run.values("eval_accuracy")) == 2  # none of the evaluation after the training
    return folder / "ckpt"


LAYOUTS = {"1 rank": (1, {}), "DP 2": (2, {}), "TP 2": (2, {"TP": 2}), "PP 2": (2, {"PP": 2})}


@pytest.mark.fault("L3")
@pytest.mark.fault("L4")
@pytest.mark.fault("L10")
@pytest.mark.fault("L11")
@pytest.mark.parametrize(("nproc", "sizes"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_target_ends_the_run_on_every_rank(
    tmp_path: Path, version: str, checkpoint: Path, nproc: int, sizes: dict[str, int]
) -> None:
    """The callback and the hooks log the same success, in the same training."""
    runs = []
    for way in WAYS:
        run = train(tmp_path / way, version, "lora", way, checkpoint, nproc=nproc, **sizes)
        runs.append(run)
        assert run.returncode == 0, run.output[-3000:]
        assert_finished(run.events)
        *earlier, deciding = run.values("eval_accuracy")
        assert all(loss > TARGET for loss in earlier)
        assert deciding <= TARGET
        assert [notes["status"] for notes in run.notes] == ["success"] * nproc
        assert len(run.values("train_loss")) * 4 == samples(run.events[-1])
        assert abs(run.events[-1]["time_ms"] - run.notes[0]["moments"][-1]) <= 1.0
        [start] = [event["time_ms"] for event in run.events if event["key"] == "run_start"]
        is_before = start <= run.notes[0]["opened"][0]
        # 0.3.1 has no event before the data is opened
        assert is_before == (way == "hooks" or version != "0.3.1")
    first, second = (list(map(essence, run.events)) for run in runs)
    assert first == second


def essence(event: dict[str, Any]) -> tuple[Any, ...]:
    """An event without when and where it was written."""
    metadata = event["metadata"].items()
    return event["key"], event["value"], [m for m in metadata if m[0] not in {"file", "lineno"}]


def test_the_official_checker_accepts_the_benchmarks_own_arguments(
    tmp_path: Path, version: str, checkpoint: Path
) -> None:
    """In the closed division it misses the benchmark's loss, which is not a toy's, and no more."""
    run = train(tmp_path / "run", version, "lora", "hooks", checkpoint)
    assert run.returncode == 0, run.output[-3000:]
    log = tmp_path / "run" / "results" / "run.log"
    for ruleset in ("6.0.0", "6.1.0"):
        findings = check_file(log, ruleset).findings
        assert {finding.key for finding in findings} == {"eval_accuracy"}, findings
    # ours adds the evaluations, which come every few steps
    assert {finding.key for finding in lint(log)} == {"eval_start"}


@pytest.mark.fault("L5")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("trouble", "code"),
    [({"ITERS": 6}, 0), ({"EXIT_INTERVAL": 6}, 0), ({"TOY_TROUBLE": "raise@25"}, 1)],
    ids=["iterations used up", "exit interval", "exception"],
)
def test_every_way_out_ends_the_run(
    tmp_path: Path, version: str, checkpoint: Path, way: str, trouble: dict[str, Any], code: int
) -> None:
    """One run_stop, aborted, where the loop was left; the exit code is what it would be."""
    run = train(tmp_path / "run", version, "lora", way, checkpoint, target=0.01, **trouble)
    assert run.returncode == code, run.output[-3000:]
    assert_finished(run.events)
    assert run.status == "aborted"
    # main reads a batch ahead, and meets the sample that raises a step or two before
    assert samples(run.events[-1]) in ((16, 20, 24) if code else (24,))
    assert letters(run.events).count("e") == 1


@pytest.mark.fault("L12")
def test_evaluations_as_the_rules_want_them(tmp_path: Path, version: str, checkpoint: Path) -> None:
    """The first ones are left out, and each is on the samples of the first."""
    helpers = "same_eval_samples skip_first_evals"
    options: dict[str, Any] = {"target": 0.01, "ITERS": 296, "HELPERS": helpers}
    run = train(tmp_path / "run", version, "lora", "hooks", checkpoint, **options)
    assert run.returncode == 0, run.output[-3000:]
    starts = [samples(event) for event in run.events if event["key"] == "eval_start"]
    # at a batch of 4, FLOOR(0.125 * 4 + 2) = 2 of each 384 samples may be left out
    assert starts == [1152, 1168, 1184]
    # read once for all three; the next ones are for Bridge's own evaluation after the training
    assert run.notes[0]["evaluated"] == list(range(16))


@pytest.mark.fault("L13")
@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_run_goes_on_counting(tmp_path: Path, version: str, way: str) -> None:
    """Samples and steps go on from the checkpoint."""
    ckpt = tmp_path / "ckpt"
    saved = train(
        tmp_path / "first", version, "base", way, ckpt, target=0.01, ITERS=12, EXIT_INTERVAL=8
    )
    assert saved.returncode == 0, saved.output[-3000:]
    run = train(tmp_path / "run", version, "base", way, ckpt, target=0.01, ITERS=12, LOAD=ckpt)
    assert run.returncode == 0, run.output[-3000:]
    assert_finished(run.events)
    losses = [event["metadata"] for event in run.events if event["key"] == "train_loss"]
    assert [loss["step"] for loss in losses] == [9, 10, 11, 12]
    assert losses[0]["samples_count"] == 36
    assert samples(next(e for e in run.events if e["key"] == "epoch_start")) == 32


@pytest.mark.fault("X1")
@pytest.mark.fault("X10")
@pytest.mark.fault("X11")
@pytest.mark.parametrize("mode", ["base", "lora"])
def test_the_training_after_a_warmup_is_the_one_without(
    tmp_path: Path, version: str, checkpoint: Path, mode: str
) -> None:
    """Dropout on: losses, evaluations, parameters and optimizer state are the same bits."""
    runs = []
    for num_steps in (0, 3):
        where = checkpoint if mode == "lora" else tmp_path / f"ckpt{num_steps}"
        run = train(
            tmp_path / str(num_steps),
            version,
            mode,
            "hooks",
            where,
            target=0.01,
            ITERS=8,
            SYNTH_WARMUP_STEPS=num_steps,
            SYNTH_WARMUP_VALID_STEPS=num_steps and 2,
            SYNTH_WARMUP_VERIFY=1,
        )
        assert run.returncode == 0, run.output[-3000:]
        assert ("verified to be what it was" in run.output) == bool(num_steps)
        runs.append(run)
    plain, warmed = runs
    for key in ("train_loss", "eval_accuracy"):
        assert warmed.values(key) == plain.values(key)
    assert warmed.notes[0]["digest"] == plain.notes[0]["digest"]
