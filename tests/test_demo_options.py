"""What the demo can be asked for."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from primus_mllog.demo import launcher
from primus_mllog.demo.arguments import megatron_arguments
from primus_mllog.demo.options import DemoOptions, OptionsError, parse
from primus_mllog.errors import MissingDependencyError, OutputError

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no process": ({"nproc": 0}, "--nproc=0 .*at least 1"),
    "no step": ({"steps": 0}, "--steps=0 .*at least 1"),
    "processes left over": ({"nproc": 3, "tensor_parallel": 2}, "--nproc=3 .*a multiple of 2"),
    "one process for two stages": ({"pipeline_parallel": 2}, "--nproc=1 .*a multiple of 2"),
    "heads": ({"nproc": 3, "tensor_parallel": 3}, "--tensor-parallel=3 .*a divisor of 4"),
    "layers": ({"nproc": 4, "pipeline_parallel": 4}, "--pipeline-parallel=4 .*a divisor of 2"),
    "batch": ({"nproc": 3}, "--nproc=3 .*divides the 16 samples"),
    "target": ({"target": float("nan")}, "--target=nan .*finite"),
    "seed": ({"seed": -1}, "--seed=-1 .*0 to"),
    "output": ({"output": ""}, "--output= .*a file name"),
}


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_what_cannot_run_is_refused(options: dict[str, Any], message: str) -> None:
    """Each is named with what was given and what is wanted, before anything is started."""
    with pytest.raises(OptionsError, match=message):
        launcher.run_demo(DemoOptions(**options))


def test_everything_wrong_is_told_at_once() -> None:
    """Two mistakes are in one message."""
    with pytest.raises(OptionsError) as caught:
        DemoOptions(nproc=3, tensor_parallel=3, seed=-1).check()
    assert [p.name for p in caught.value.problems] == ["--tensor-parallel", "--seed"]


@pytest.mark.parametrize("nproc", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("tensor_parallel", [1, 2, 4])
@pytest.mark.parametrize("pipeline_parallel", [1, 2])
def test_what_is_allowed_divides(nproc: int, tensor_parallel: int, pipeline_parallel: int) -> None:
    """The global batch is a whole number of micro batches on every rank, whatever is allowed."""
    options = DemoOptions(
        nproc=nproc, tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel
    )
    if nproc % (tensor_parallel * pipeline_parallel):
        with pytest.raises(OptionsError):
            options.check()
        return
    options.check()
    args = megatron_arguments(
        seed=0,
        train_iters=1,
        world_size=nproc,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
    )
    assert args.data_parallel_size * tensor_parallel * pipeline_parallel == nproc
    assert args.global_batch_size % (args.micro_batch_size * args.data_parallel_size) == 0


def test_defaults_of_the_demo() -> None:
    """With nothing set it is an open llama31_8b run that says what it is."""
    settings = DemoOptions().settings()
    assert settings.mllog_submission_benchmark == "llama31_8b"
    assert settings.mllog_submission_division == "open"
    assert settings.mllog_submission_platform == "CPU demo (not a submission)"
    assert settings.mllog_output_file == "demo-results/mlperf_output.log"
    assert settings.mllog_target_eval_loss < 1.0


@pytest.mark.fault("L9")
def test_a_variable_wins_over_a_default_and_an_option_over_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An explicit 0 is a target, too."""
    monkeypatch.setenv("MLLOG_SUBMISSION_ORG", "Somebody")
    monkeypatch.setenv("MLLOG_TARGET_EVAL_LOSS", "0")
    assert DemoOptions().settings().mllog_submission_org == "Somebody"
    assert DemoOptions().settings().mllog_target_eval_loss == 0.0
    assert DemoOptions(target=0.5).settings().mllog_target_eval_loss == 0.5
    assert DemoOptions(output="x.log").settings().mllog_output_file == "x.log"


def test_the_demo_needs_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLLOG_SAVE_TO_FILE=0 leaves nothing to check, so it is refused."""
    monkeypatch.setenv("MLLOG_SAVE_TO_FILE", "0")
    with pytest.raises(OptionsError, match="MLLOG_SAVE_TO_FILE=0"):
        launcher.run_demo(DemoOptions())


def test_the_command_line_gives_the_options() -> None:
    """Every option of the module's command line arrives, and so do the defaults."""
    line = "--nproc 4 --tensor-parallel 2 --pipeline-parallel 2 --steps 9 --target 1.5 --seed 3"
    options = DemoOptions(4, 2, 2, steps=9, target=1.5, seed=3, output="o")
    assert parse([*line.split(), "--output", "o"]) == (options, False)
    assert parse(["--worker"]) == (DemoOptions(), True)


@pytest.mark.fault("W12")
@pytest.mark.parametrize(
    ("missing", "package"), [("torch", "torch"), ("megatron.core", "megatron-core")]
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, missing: str, package: str
) -> None:
    """Without torch or megatron-core, the message says what to install."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == missing else real(name)
    )
    with pytest.raises(MissingDependencyError, match=rf"{package}.*primus-mllog\[demo\]"):
        launcher.run_demo(DemoOptions())


@pytest.mark.fault("W8")
@pytest.mark.parametrize("nproc", [1, 2])
def test_an_unusable_output_is_refused(tmp_path: Path, nproc: int) -> None:
    """A path that is a folder is one clear error, before any process is started."""
    with pytest.raises(OutputError, match="cannot be written"):
        launcher.run_demo(DemoOptions(nproc=nproc, output=str(tmp_path)))


def test_the_module_reports_without_a_traceback(tmp_path: Path) -> None:
    """``python -m primus_mllog.demo`` answers a bad option with one message and exit code 2."""
    command = [sys.executable, "-m", "primus_mllog.demo", "--nproc", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "primus-mllog: the demo cannot run like this" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
