"""The fine-tuning logger, called as loops call it."""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grammar import assert_finished, letters, samples
from primus_mllog import MLPerfSFTLogger
from primus_mllog.array_file import num_samples
from primus_mllog.compliance import check_file
from primus_mllog.errors import ArrayFileError
from primus_mllog.testing import FakeProcessGroup, capture_events, run_ranks

ARGUMENTS: dict[str, Any] = {
    "train_gbs": 8,
    "train_mbs": 1,
    "train_iters": 1024,
    "eval_iters": 22,
    "seq_length": 8192,
    "seed": 1234,
    "lr": 4e-4,
    "weight_decay": 1e-4,
    "clip_grad": 0.3,
    "lr_warmup_iters": 0,
}


class Bomb:
    """Goes off when it is unpickled."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("a data file was unpickled",))


@pytest.fixture
def data_root(tmp_path: Path) -> Path:
    """The files of llama2_70b_lora: arrays of Python objects."""
    for name, count in (("train", 3901), ("validation", 173)):
        np.save(tmp_path / f"{name}.npy", np.array([Bomb()] * count, dtype=object))
    return tmp_path


@pytest.fixture
def submission(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The environment of a submission; the log."""
    log = tmp_path / "results" / "run.log"
    names = {
        "MLLOG_OUTPUT_FILE": str(log),
        "MLLOG_SUBMISSION_BENCHMARK": "llama2_70b_lora",
        "MLLOG_SUBMISSION_DIVISION": "closed",
        "MLLOG_SUBMISSION_STATUS": "onprem",
        "MLLOG_SUBMISSION_ORG": "org",
        "MLLOG_SUBMISSION_PLATFORM": "platform",
        "MLLOG_PREFLIGHT": "error",
    }
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    return log


def run_loop(
    logger: MLPerfSFTLogger,
    config: dict[str, Any],
    eval_losses: list[Any],
    *,
    has_loss: bool = True,
) -> bool:
    """As the README's loop: an evaluation every 48 steps; whether the target was reached."""
    logger.log_cache_clear_and_init_start()
    logger.log_init_params(config)
    logger.log_init_stop_run_start()
    reached = False
    step = 0
    for val_loss in eval_losses:
        for _ in range(48):
            step += 1
            losses = {"lm loss": torch.tensor(1.5)} if has_loss else {}
            logger.on_train_step(step, losses, 4e-4, step * 8)
        if val_loss == "skipped":
            continue
        logger.on_eval_start(step * 8)
        if val_loss == "time limit":
            continue
        reached = logger.on_eval_end(step * 8, val_loss if has_loss else None)
        if reached:
            break
    logger.log_run_stop(step * 8)
    return reached


@pytest.mark.parametrize("ruleset", ["6.0.0", "6.1.0"])
def test_the_benchmarks_own_run_passes(submission: Path, data_root: Path, ruleset: str) -> None:
    """With the arguments of the benchmark the official checker has nothing to say."""
    logger = MLPerfSFTLogger(global_batch_size=8, micro_batch_size=1)
    config = MLPerfSFTLogger.extract_sft_configs(
        **ARGUMENTS,
        data_root=data_root,
        config_filename="config.sh",
        lowest_numerical_precision_linear="fp8",
        data_parallel_size=8,
    )
    assert run_loop(logger, config, ["skipped"] * 3 + [0.95, 0.93, 0.92])
    verdict = check_file(submission, ruleset)
    assert verdict.passed, verdict.findings


@pytest.mark.fault("C1")
@pytest.mark.fault("L1")
def test_a_run_is_logged_whole(data_root: Path) -> None:
    """train_loss at its frequency, one end, and samples that agree."""
    with capture_events() as events:
        logger = MLPerfSFTLogger(8, train_loss_log_freq=16)
        config = MLPerfSFTLogger.extract_sft_configs(**ARGUMENTS, data_root=data_root)
        run_loop(logger, config, [0.95, 0.925])
    assert_finished(events)
    assert letters(events).count("ttt") == 2
    assert [samples(e) for e in events if e["key"].startswith("eval_a")] == [384, 768]
    assert events[-1]["metadata"]["status"] == "success"


@pytest.mark.fault("L9")
@pytest.mark.parametrize(("name", "argument"), [("0.5", None), (None, 0.5), ("0.9", 0.5)])
def test_an_argument_wins_over_the_environment(
    monkeypatch: pytest.MonkeyPatch, data_root: Path, name: str | None, argument: float | None
) -> None:
    """The target that decides is the one in the header."""
    if name is not None:
        monkeypatch.setenv("MLLOG_TARGET_EVAL_LOSS", name)
    with capture_events() as events:
        logger = MLPerfSFTLogger(8, target_eval_loss=argument)
        config = MLPerfSFTLogger.extract_sft_configs(**ARGUMENTS, data_root=data_root)
        assert not run_loop(logger, config, [0.6])
    assert [e["value"] for e in events if e["key"] == "target_accuracy"] == [0.5]


@pytest.mark.fault("L9")
def test_a_target_of_zero_is_one(data_root: Path) -> None:
    """An explicit 0 is honoured, and so is a frequency of 0."""
    with capture_events() as events:
        logger = MLPerfSFTLogger(8, target_eval_loss=0.0, train_loss_log_freq=0)
        config = MLPerfSFTLogger.extract_sft_configs(**ARGUMENTS, data_root=data_root)
        assert not run_loop(logger, config, [0.6])
    assert "t" not in letters(events)


@pytest.mark.fault("L3")
@pytest.mark.fault("L4")
@pytest.mark.parametrize("owner", [0, 1])
def test_all_ranks_get_the_verdict_of_the_rank_that_has_the_loss(
    data_root: Path, owner: int
) -> None:
    """on_eval_end takes None where there is no loss, and answers the same everywhere."""

    def rank(group: FakeProcessGroup) -> bool:
        logger = MLPerfSFTLogger(8, group=group)
        config = MLPerfSFTLogger.extract_sft_configs(**ARGUMENTS, data_root=data_root)
        return run_loop(logger, config, [0.95, 0.9], has_loss=group.rank == owner)

    with capture_events() as events:
        assert run_ranks(2, rank) == [True, True]
    assert_finished(events)
    assert [e["value"] for e in events if e["key"] == "eval_accuracy"] == [0.95, 0.9]
    assert letters(events).count("t") == 9


@pytest.mark.fault("L6")
def test_an_evaluation_that_a_time_limit_ended_is_closed(data_root: Path) -> None:
    """Loops do not call on_eval_end then: the next step closes it, without a value."""
    with capture_events() as events:
        logger = MLPerfSFTLogger(8)
        config = MLPerfSFTLogger.extract_sft_configs(**ARGUMENTS, data_root=data_root)
        run_loop(logger, config, [0.95, "time limit", 0.94, "time limit"])
    assert_finished(events)
    assert [e["value"] for e in events if e["key"] == "eval_accuracy"] == [0.95, 0.94]
    assert letters(events).count("eE") == 2


@pytest.mark.fault("C4")
@pytest.mark.fault("C7")
def test_the_environment_wins_over_what_a_recipe_passes(
    monkeypatch: pytest.MonkeyPatch, submission: Path, data_root: Path
) -> None:
    """Status, precision and configuration file, under the keys of the rules."""
    monkeypatch.setenv("MLLOG_LOWEST_NUMERICAL_PRECISION_LINEAR", "mxfp4")
    config = MLPerfSFTLogger.extract_sft_configs(
        **ARGUMENTS,
        data_root=data_root,
        lowest_numerical_precision_linear="fp8",
        config_filename="recipe.sh",
    )
    assert config["lowest_numerical_precision_in_linear"] == "mxfp4"
    assert config["config_filename"] == "recipe.sh"
    assert config["submission_status"] == "onprem"


@pytest.mark.fault("C6")
@pytest.mark.parametrize(
    ("sizes", "accumulation"),
    [
        ({"data_parallel_size": 4}, 2),
        ({"tensor_model_parallel_size": 2, "context_parallel_size": 2}, 4),
        # as Primus' recipe calls it: WORLD_SIZE // (tp * pp) beside the context-parallel size
        ({"data_parallel_size": 8, "context_parallel_size": 2}, 2),
        (
            {
                "data_parallel_size": 4,
                "tensor_model_parallel_size": 2,
                "context_parallel_size": 2,
            },
            4,
        ),
    ],
)
def test_accumulation_counts_context_parallelism(
    monkeypatch: pytest.MonkeyPatch, data_root: Path, sizes: dict[str, int], accumulation: int
) -> None:
    """The data-parallel size is the world's over all model parallelism, before there is a group."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    config = MLPerfSFTLogger.extract_sft_configs(**ARGUMENTS, **sizes, data_root=data_root)
    assert config["gradient_accumulation_steps"] == accumulation


@pytest.mark.fault("C2")
@pytest.mark.fault("C9")
def test_samples_are_counted_from_headers(monkeypatch: pytest.MonkeyPatch, data_root: Path) -> None:
    """Nothing is unpickled; the samples there are do not say how long the training is."""
    monkeypatch.setenv("MLLOG_SUBMISSION_BENCHMARK", "llama2_70b_lora")
    config = MLPerfSFTLogger.extract_sft_configs(**ARGUMENTS, data_root=data_root)
    assert (config["train_samples"], config["eval_samples"]) == (3901, 173)
    assert config["max_steps"] == config["opt_learning_rate_training_steps"] == 1024


@pytest.mark.fault("C2")
def test_an_evaluation_that_cannot_hold_its_samples_is_told(
    data_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Too few steps for the validation set are said before the clock starts."""
    few = {**ARGUMENTS, "eval_iters": 10}
    MLPerfSFTLogger.extract_sft_configs(**few, data_root=data_root)
    assert "does not cover the 173 of validation.npy" in capsys.readouterr().err


def truncated(path: Path) -> None:
    np.save(path, np.zeros((100, 10)))
    path.write_bytes(path.read_bytes()[:-1])


HEADER = b"{'descr': '|O', 'fortran_order': False, 'shape': (3,)}\n".rjust(60)
NO_OBJECTS = b"\x93NUMPY\x01\x00\x3c\x00" + HEADER
BROKEN: dict[str, Any] = {
    "missing": lambda path: None,
    "a folder": lambda path: path.mkdir(),
    "empty": lambda path: path.touch(),
    "a pickle": lambda path: path.write_bytes(pickle.dumps([1])),
    "cut off": truncated,
    "header only": lambda path: path.write_bytes(b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f8'"),
    "a scalar": lambda path: np.save(path, np.float64(1)),
    "no objects": lambda path: path.write_bytes(NO_OBJECTS),
}


@pytest.mark.fault("C9")
@pytest.mark.parametrize("break_it", BROKEN.values(), ids=BROKEN)
def test_a_file_that_cannot_be_counted_is_a_clear_error(tmp_path: Path, break_it: Any) -> None:
    """It names the file and what is wrong with it."""
    path = tmp_path / "train.npy"
    break_it(path)
    with pytest.raises(ArrayFileError, match=r"train\.npy cannot be counted: .+"):
        num_samples(path)


@pytest.mark.fault("C9")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), is_array=st.booleans())
def test_no_bytes_break_the_count(tmp_path: Path, content: bytes, is_array: bool) -> None:
    """Whatever a file holds, it is counted or a clear error."""
    path = tmp_path / "train.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" * is_array + content)
    with contextlib.suppress(ArrayFileError):
        assert num_samples(path) >= 0


@pytest.mark.parametrize("dtype", [np.int64, np.float16, object])
def test_arrays_are_counted_by_their_first_axis(tmp_path: Path, dtype: Any) -> None:
    """Of any type, in either version of the header."""
    np.save(tmp_path / "a.npy", np.zeros((7, 3), dtype=dtype))
    assert num_samples(tmp_path / "a.npy") == 7
    with (tmp_path / "b.npy").open("wb") as file:
        np.lib.format.write_array(file, np.zeros((5, 2)), version=(2, 0))
    assert num_samples(tmp_path / "b.npy") == 5


def test_the_log_is_in_the_file(submission: Path, data_root: Path) -> None:
    """cache_clear and init_start are its first lines."""
    logger = MLPerfSFTLogger(8)
    logger.log_cache_clear_and_init_start()
    keys = [json.loads(line[9:])["key"] for line in submission.read_text().splitlines()]
    assert keys == ["cache_clear", "init_start"]


RECIPE = """
import sys, torch.distributed as dist
from primus_mllog import MLPerfSFTLogger
logger = MLPerfSFTLogger(8)
logger.log_cache_clear_and_init_start()
config = MLPerfSFTLogger.extract_sft_configs(
    train_gbs=8, train_mbs=1, train_iters=9, eval_iters=22, seq_length=16, seed=1, lr=1e-3,
    weight_decay=0.0, clip_grad=0.3, lr_warmup_iters=0, data_root=sys.argv[1],
)
logger.log_init_params(config)
dist.init_process_group("gloo")
logger.log_init_stop_run_start()
is_last = dist.get_rank() == 1
logger.on_train_step(1, {"lm loss": 2.0} if is_last else {}, 1e-3, 8)
logger.on_eval_start(8)
reached = logger.on_eval_end(8, 0.5 if is_last else None)
logger.log_run_stop(8)
dist.destroy_process_group()
sys.exit(3 if reached else 4)
"""


@pytest.mark.fault("W2")
@pytest.mark.fault("L3")
def test_a_recipe_makes_the_logger_before_there_is_a_process_group(
    submission: Path, monkeypatch: pytest.MonkeyPatch, data_root: Path
) -> None:
    """As Primus': the launcher says who writes, later the group; both processes stop."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MLLOG_PREFLIGHT", "off")
    monkeypatch.setenv("MLLOG_TRAIN_LOSS_LOG_FREQ", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    processes = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        processes.append(subprocess.Popen([sys.executable, "-c", RECIPE, str(data_root)]))
    assert [process.wait(120) for process in processes] == [3, 3]
    events = [json.loads(line[9:]) for line in submission.read_text().splitlines()]
    assert_finished(events)
    assert [e["value"] for e in events if e["key"] in {"train_loss", "eval_accuracy"}] == [2.0, 0.5]
    [accumulation] = [e["value"] for e in events if e["key"] == "gradient_accumulation_steps"]
    assert accumulation == 4
