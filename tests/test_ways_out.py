"""Every way out of a training leaves the end of the run in the log, and its own exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grammar import assert_finished, letters

PROGRAM = """
import os, signal, sys
from primus_mllog import MLPerfRun
from primus_mllog.settings import PretrainSettings
{before}
run = MLPerfRun(PretrainSettings(mllog_output_file={path!r}, mllog_preflight="off"), stdout=False)
run.init_start()
run.start()
run.step_start()
run.step_stop(16, loss=1.0)
{way_out}
"""

WAYS = {
    "exception": ("raise RuntimeError('boom')", 1),
    "exception inside the context": ("with run: raise RuntimeError('boom')", 1),
    "sys.exit": ("sys.exit(3)", 3),
    "sys.exit inside the context": ("with run: sys.exit(3)", 3),
    "end of the program": ("", 0),
    "interrupt": ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT),
    "SIGTERM": ("signal.raise_signal(signal.SIGTERM)", -signal.SIGTERM),
    "SIGHUP": ("signal.raise_signal(signal.SIGHUP)", -signal.SIGHUP),
    "SIGTERM in an evaluation": ("run.eval_start(16); os.kill(os.getpid(), 15)", -signal.SIGTERM),
    "stop()": ("run.stop()", 0),
}


def execute(path: Path, way_out: str, before: str = "") -> tuple[int, list[dict[str, Any]]]:
    program = PROGRAM.format(path=str(path), way_out=way_out, before=before)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    lines = path.read_text().splitlines()
    return done.returncode, [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]


@pytest.mark.fault("L5")
@pytest.mark.parametrize(("way_out", "code"), WAYS.values(), ids=WAYS)
def test_every_way_out_ends_the_run(tmp_path: Path, way_out: str, code: int) -> None:
    """One run_stop, aborted, in a log of the promised order; the exit code is what it would be."""
    returncode, events = execute(tmp_path / "run.log", way_out)
    assert returncode == code
    assert_finished(events)
    assert events[-1]["metadata"]["status"] == "aborted"


@pytest.mark.fault("L5")
def test_a_handler_of_the_framework_keeps_its_say(tmp_path: Path) -> None:
    """Where SIGTERM is handled already, the training goes on to its own end."""
    returncode, events = execute(
        tmp_path / "run.log",
        "signal.raise_signal(signal.SIGTERM); run.eval_start(16); run.eval_stop(2.0); sys.exit(5)",
        before="signal.signal(signal.SIGTERM, lambda *_: None)",
    )
    assert returncode == 5
    assert letters(events) == "ciIrpbtBeaEPR"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", range(8))
def test_a_signal_in_the_middle_of_an_event_waits_for_it(
    tmp_path: Path, number: signal.Signals, when: str, nth: int
) -> None:
    """A signal between a line and what it means for the run loses neither, and doubles neither."""
    returncode, events = execute(
        tmp_path / "run.log",
        "write, num_lines = run.logger._emit, 0\n"
        "def interrupted(*a):\n"
        "    global num_lines\n"
        "    num_lines += 1\n"
        f"    is_now = num_lines == {nth + 1}\n"
        f"    if is_now and {when == 'before'}: signal.raise_signal({int(number)})\n"
        "    write(*a)\n"
        f"    if is_now and {when == 'after'}: signal.raise_signal({int(number)})\n"
        "run.logger._emit = interrupted\n"
        "run.eval_start(16); run.eval_stop(2.0)\n"
        "run.step_start(); run.step_stop(32, loss=1.0); run.stop()",
    )
    assert returncode == -number
    assert_finished(events)


def test_a_forked_worker_does_not_end_the_run(tmp_path: Path) -> None:
    """A data loader's worker that exits, or is terminated, leaves the run alone."""
    returncode, events = execute(
        tmp_path / "run.log",
        "pid = os.fork()\n"
        "if pid == 0: sys.exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "pid = os.fork()\n"
        "if pid == 0: signal.raise_signal(signal.SIGTERM)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -15\n"
        "run.eval_start(16); run.eval_stop(2.0); run.stop()",
    )
    assert returncode == 0
    assert letters(events) == "ciIrpbtBeaEPR"


def test_before_run_start_there_is_no_run_to_end(tmp_path: Path) -> None:
    """A failure during initialisation writes no run_stop without a run_start."""
    path = tmp_path / "run.log"
    program = (
        "from primus_mllog import MLPerfRun\n"
        "from primus_mllog.settings import PretrainSettings\n"
        f"run = MLPerfRun(PretrainSettings(mllog_output_file={str(path)!r}), stdout=False)\n"
        "with run:\n"
        "    run.init_start()\n"
        "    raise RuntimeError\n"
    )
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    keys = [json.loads(line.split(" ", 1)[1])["key"] for line in path.read_text().splitlines()]
    assert keys == ["cache_clear", "init_start"]
