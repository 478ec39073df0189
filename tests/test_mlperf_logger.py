"""MLPerfLogger: ranks, files, callers, values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from primus_mllog import MLPerfLogger
from primus_mllog.errors import EncodingError
from primus_mllog.mlperf_logger import MAX_LINE_BYTES
from primus_mllog.settings import PretrainSettings
from primus_mllog.testing import FakeProcessGroup, capture_events, run_ranks


def events_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in path.read_text().splitlines()]


def logger_to(path: Path, **settings: Any) -> MLPerfLogger:
    logger = MLPerfLogger(PretrainSettings(mllog_output_file=str(path), **settings), stdout=False)
    logger.open()
    return logger


def test_events_have_mllogs_form(tmp_path: Path) -> None:
    """A line is what mllog itself writes: namespace, time, type, key, value, metadata."""
    logger = logger_to(tmp_path / "run.log")
    logger.log_event("seed", 7, {"step": 1}, time_ms=1234.9)
    logger.log_start("run_start")
    logger.log_end("run_stop", metadata={"status": "success"})
    point, start, end = events_in(tmp_path / "run.log")
    assert list(point) == ["namespace", "time_ms", "event_type", "key", "value", "metadata"]
    assert (point["time_ms"], point["value"], point["metadata"]["step"]) == (1234, 7, 1)
    assert [e["event_type"] for e in (point, start, end)] == [
        "POINT_IN_TIME",
        "INTERVAL_START",
        "INTERVAL_END",
    ]


def test_only_rank_0_logs() -> None:
    """Other ranks write nothing, save through log_event_all_ranks."""

    def rank(group: FakeProcessGroup) -> None:
        logger = MLPerfLogger(PretrainSettings(), group=group)
        logger.log_event("seed", 1)
        logger.log_start("run_start")
        logger.log_end("run_stop")
        logger.log_event_all_ranks("init_start")

    with capture_events() as events:
        run_ranks(3, rank)
    keys = [event["key"] for event in events]
    assert sorted(keys) == ["init_start"] * 3 + ["run_start", "run_stop", "seed"]
    assert {e["event_type"] for e in events if e["key"] == "init_start"} == {"INTERVAL_START"}


def test_other_ranks_do_not_touch_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """On a rank that does not log, all-ranks events go to stdout and no file is made."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    logger = MLPerfLogger(PretrainSettings(mllog_output_file=str(tmp_path / "run.log")))
    logger.open()
    logger.log_event_all_ranks("cache_clear", value=True)
    assert list(tmp_path.iterdir()) == []
    assert '"cache_clear"' in capfd.readouterr().out


@pytest.mark.fault("W2")
def test_events_before_configure_are_in_the_file(tmp_path: Path) -> None:
    """cache_clear and init_start are its first two lines though it is configured later."""
    logger = MLPerfLogger(PretrainSettings(), stdout=False)
    logger.log_event("cache_clear", value=True)
    logger.log_start("init_start")
    logger.configure(str(tmp_path / "run.log"))
    logger.log_event("seed", 1)
    assert [e["key"] for e in events_in(tmp_path / "run.log")] == [
        "cache_clear",
        "init_start",
        "seed",
    ]


def test_configure_returns_the_hyperparameters(tmp_path: Path) -> None:
    """configure opens the file and reads the framework's arguments."""
    logger = MLPerfLogger(PretrainSettings(), stdout=False)
    config = logger.configure(str(tmp_path / "run.log"), {"seed": 5, "global_batch_size": 32})
    assert (config["seed"], config["global_batch_size"]) == (5, 32)
    assert (tmp_path / "run.log").exists()


@pytest.mark.fault("W3")
def test_configuring_again_does_not_double_lines(tmp_path: Path) -> None:
    """The same file configured twice has each line once, and is not rotated away."""
    logger = logger_to(tmp_path / "run.log")
    logger.log_event("seed", 1)
    logger.open()
    logger.log_event("seed", 2)
    assert [e["value"] for e in events_in(tmp_path / "run.log")] == [1, 2]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.fault("W1")
def test_a_relaunch_has_a_file_of_its_own(tmp_path: Path) -> None:
    """The second run's file holds the second run only."""
    for seed in (1, 2):
        logger_to(tmp_path / "run.log").log_event("seed", seed)
    assert [e["value"] for e in events_in(tmp_path / "run.log")] == [2]
    assert [e["value"] for e in events_in(tmp_path / "run.log.1")] == [1]


def test_without_a_file_events_go_to_stdout(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """MLLOG_SAVE_TO_FILE=0 makes no file."""
    settings = PretrainSettings(
        mllog_output_file=str(tmp_path / "run.log"), mllog_save_to_file=False
    )
    logger = MLPerfLogger(settings)
    logger.open()
    logger.log_event("seed", 1)
    assert list(tmp_path.iterdir()) == []
    assert '"seed"' in capfd.readouterr().out


@pytest.mark.fault("W10")
def test_an_event_points_at_its_caller(tmp_path: Path) -> None:
    """file and lineno are those of the call of the public method."""
    logger = logger_to(tmp_path / "run.log")
    logger.log_event("seed", 1, {"expected": sys._getframe().f_lineno})
    metadata = events_in(tmp_path / "run.log")[0]["metadata"]
    assert (metadata["file"], metadata["lineno"]) == (__file__, metadata["expected"])


@pytest.mark.fault("W10")
def test_an_event_of_the_lifecycle_points_at_the_loop() -> None:
    """However deep in this package an event is written, its caller is the code that uses it."""
    from primus_mllog.run import MLPerfRun

    with capture_events() as events, MLPerfRun(PretrainSettings(mllog_preflight="off")) as run:
        run.init_start()
        run.start()
        run.eval_start(16)
        run.eval_stop(0.5)
    assert {event["metadata"]["file"] for event in events} == {__file__}


@pytest.mark.fault("W13")
def test_code_without_a_caller_can_log() -> None:
    """At the top of a program there is no frame above: nothing raises."""
    code = (
        "from primus_mllog import MLPerfLogger\n"
        "logger = MLPerfLogger()\n"
        "import threading\n"
        "logger.log_event('seed', 1)\n"
        "t = threading.Thread(target=logger.log_event, args=('seed', 2)); t.start(); t.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count(":::MLLOG") == 2


@pytest.mark.fault("W4")
def test_values_are_converted(tmp_path: Path) -> None:
    """Value and metadata may hold tensors, paths and dtypes."""
    logger = logger_to(tmp_path / "run.log")
    logger.log_event("train_loss", torch.tensor(1.5), {"dtype": torch.bfloat16, "path": tmp_path})
    event = events_in(tmp_path / "run.log")[0]
    assert event["value"] == 1.5
    assert event["metadata"]["dtype"] == "bfloat16"
    assert event["metadata"]["path"] == str(tmp_path)


@pytest.mark.fault("W4")
def test_an_unwritable_value_is_an_error(tmp_path: Path) -> None:
    """The caller is told the key and the type, and no half line is written."""
    logger = logger_to(tmp_path / "run.log")
    with pytest.raises(EncodingError, match="opt_name"):
        logger.log_event("opt_name", object())
    assert (tmp_path / "run.log").read_text() == ""


@pytest.mark.fault("W5")
@pytest.mark.parametrize(
    ("key", "value"), [("train_loss", None), ("eval_accuracy", sys.float_info.max)]
)
def test_nan_is_valid_json(tmp_path: Path, key: str, value: Any) -> None:
    """A NaN is null, except where the official checker needs a number; metadata names it."""
    logger_to(tmp_path / "run.log").log_event(key, float("nan"))
    line = (tmp_path / "run.log").read_text().removeprefix(":::MLLOG ")
    event = json.loads(line, parse_constant=pytest.fail)
    assert event["value"] == value
    assert event["metadata"]["non_finite"] == "NaN"


@pytest.mark.fault("W13")
@given(
    st.text() | st.lists(st.integers()) | st.just('\x00"\\é' * 3000),
    st.dictionaries(st.text(min_size=1, max_size=9), st.text() | st.just("x" * 5000), max_size=5),
)
def test_every_line_is_short_and_whole(value: Any, metadata: dict[str, str]) -> None:
    """A line stays whole on a pipe shared by many ranks: below 4 KB, and valid JSON."""
    for key in ("file", "lineno"):  # mllog's own
        metadata.pop(key, None)
    lines: list[str] = []
    logger = MLPerfLogger(PretrainSettings())
    logger._sink.log = lambda _level, message: lines.append(message)  # type: ignore[method-assign]
    logger.log_event("config", value, metadata)
    [line] = lines
    assert len(line.encode()) <= MAX_LINE_BYTES
    event = json.loads(line.removeprefix(":::MLLOG "))
    if "truncated" not in event["metadata"]:
        assert event["value"] == value


@pytest.mark.fault("W9")
def test_a_killed_process_loses_no_event(tmp_path: Path) -> None:
    """After SIGKILL every event that was logged is in the file, whole."""
    path = tmp_path / "run.log"
    code = (
        "import os, signal\n"
        "from primus_mllog import MLPerfLogger\n"
        "logger = MLPerfLogger(stdout=False)\n"
        f"logger.open({str(path)!r})\n"
        "for n in range(500): logger.log_event('train_loss', n)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -9
    assert [e["value"] for e in events_in(path)] == list(range(500))


def test_a_lifecycle_end_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of an interval is synced, so that a dying node does not take it along."""
    logger = logger_to(tmp_path / "run.log")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    logger.log_event("train_loss", 1.0)
    assert synced == []
    logger.log_end("eval_stop")
    assert len(synced) == 1
