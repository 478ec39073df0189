"""Traces: of what, by whom, and always brought to their end."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rpd
from primus_mllog.run import MLPerfRun
from primus_mllog.settings import PretrainSettings
from primus_mllog.testing import capture_events


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``rpdTracerControl``'s stand-in, in a process where nothing was traced yet."""
    monkeypatch.setenv("RPDT_FILENAME", "")  # what it sets is taken back after the test
    module = rpd.module()
    monkeypatch.setitem(sys.modules, "rpdTracerControl", module)
    return module.rpdTracerControl


def run_with(folder: Path, **settings: Any) -> MLPerfRun:
    """A run whose log would be in ``folder``, before its clock starts."""
    run = MLPerfRun(
        PretrainSettings(
            mllog_output_file=str(folder / "run.log"), mllog_preflight="off", **settings
        )
    )
    run.init_start()
    return run


def train(run: MLPerfRun, tracer: Any, blocks: tuple[int, ...] = (3, 3)) -> str:
    """Train blocks of so many steps, an evaluation after each; what was traced, a letter each.

    ``s`` is a step, ``e`` an evaluation and ``-`` what lies between steps; ``|`` is a stop.
    """
    seen = ""

    def note(letter: str) -> None:
        nonlocal seen
        assert tracer.depth in {0, 1}
        if tracer.depth:
            seen += letter
        elif seen and seen[-1] != "|":
            seen += "|"

    samples = 0
    for num_steps in blocks:
        for _ in range(num_steps):
            note("-")
            run.step_start()
            note("s")
            samples += 16
            run.step_stop(samples)
        note("-")
        run.eval_start(samples)
        note("e")
        run.eval_stop(5.0)
    note("-")
    run.stop()
    note("!")
    return seen


WINDOWS = {
    "training steps and what lies between": ({"prof_active_steps": 0}, "s-s-s-|s-s-s-|"),
    "steps only": ({"profile_segment": "train_step", "prof_active_steps": 0}, "s|s|s|s|s|s|"),
    "evaluations": ({"profile_segment": "eval"}, "e|e|"),
    "so many steps": ({"prof_active_steps": 2}, "s-s|"),
    "a window over an evaluation": ({"prof_warmup_steps": 2, "prof_active_steps": 2}, "s-|s|"),
    "so many evaluations": ({"profile_segment": "eval", "prof_active_steps": 1}, "e|"),
    "evaluations after so many steps": ({"profile_segment": "eval", "prof_warmup_steps": 4}, "e|"),
    "after the end": ({"prof_warmup_steps": 6}, ""),
}


@pytest.mark.fault("T4")
@pytest.mark.parametrize(("settings", "traced"), WINDOWS.values(), ids=WINDOWS)
def test_the_window_is_traced(
    tmp_path: Path, tracer: Any, settings: dict[str, Any], traced: str
) -> None:
    """Only the chosen segment is, within the chosen steps, by one start for each stop."""
    with capture_events():
        run = run_with(tmp_path, profiler="rpd", **settings)
        run.start()
        assert train(run, tracer) == traced
    assert (tmp_path / "trace_rank0.rpd").exists()


@pytest.mark.fault("T4")
@pytest.mark.parametrize("segment", ["train", "train_step"])
def test_no_warmup_step_is_traced(tmp_path: Path, tracer: Any, segment: str) -> None:
    """Steps before the clock starts are neither traced nor counted."""
    with capture_events(strict=False):
        run = run_with(tmp_path, profiler="rpd", profile_segment=segment, prof_active_steps=1)
        for _ in range(3):
            run.step_start()
            assert tracer.depth == 0
            run.step_stop(0)
        run.start()
        assert train(run, tracer) == "s|"
    assert tracer.calls == ["start", "stop", "flush"]


@pytest.mark.fault("T4")
def test_an_end_in_the_middle_stops_the_tracer(tmp_path: Path, tracer: Any) -> None:
    """A step that raises leaves no tracer running, and what it holds is written out."""
    with capture_events(), pytest.raises(ZeroDivisionError):
        run = run_with(tmp_path, profiler="rpd")
        with run:
            run.start()
            run.step_start()
            1 / 0  # noqa: B018
    assert tracer.calls == ["start", "stop", "flush"]


WAYS_OUT = {
    "exception": ("raise RuntimeError('boom')", 1),
    "sys.exit": ("sys.exit(3)", 3),
    "end of the program": ("", 0),
    "SIGTERM": ("signal.raise_signal(signal.SIGTERM)", -signal.SIGTERM),
    "interrupt": ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT),
}


@pytest.mark.fault("T4")
@pytest.mark.parametrize(("way_out", "code"), WAYS_OUT.values(), ids=WAYS_OUT)
def test_every_way_out_stops_the_tracer(tmp_path: Path, way_out: str, code: int) -> None:
    """Without a context manager, too; and the log has ended before the trace is written."""
    program = (
        "import os, signal, sys\n"
        "import rpd\n"
        "module = sys.modules['rpdTracerControl'] = rpd.module()\n"
        "from primus_mllog import MLPerfRun\n"
        "def stop(self):\n"
        "    print(self.calls, open('run.log').read().count('run_stop'), flush=True)\n"
        "module.rpdTracerControl.stop = stop\n"
        "run = MLPerfRun(stdout=False); run.init_start(); run.start(); run.step_start()\n"
        f"{way_out}\n"
    )
    environment = {
        "MLLOG_OUTPUT_FILE": "run.log",
        "MLLOG_PREFLIGHT": "off",
        "PROFILER": "rpd",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "['start'] 1\n"), done.stderr


def refusals(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def trained_all_the_same(run: MLPerfRun, tracer: Any) -> bool:
    run.start()
    return train(run, tracer) == "" and run.status == "aborted"


class NoTracer:
    """Where there is none, none runs."""

    depth = 0


@pytest.mark.fault("T4")
def test_a_missing_tracer_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what to install, and the training goes on."""
    monkeypatch.setitem(sys.modules, "rpdTracerControl", None)
    with capture_events():
        assert trained_all_the_same(run_with(tmp_path, profiler="rpd"), NoTracer)
    [message] = refusals(capsys)
    assert "PROFILER=rpd needs rpdTracerControl, which is not installed" in message
    assert message.endswith("The training goes on without a trace.")


def test_a_tracer_without_its_library_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That shows at the first start only; there is no second."""
    monkeypatch.setenv("RPDT_FILENAME", "")
    module = rpd.module(has_library=False)
    monkeypatch.setitem(sys.modules, "rpdTracerControl", module)
    with capture_events():
        run = run_with(tmp_path, profiler="rpd")
        assert trained_all_the_same(run, module.rpdTracerControl)
    [message] = refusals(capsys)
    assert "undefined symbol: rpdstart" in message


def test_another_user_of_the_tracer_keeps_it(
    tmp_path: Path, tracer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is one for the process: ours gives way, with one message."""
    tracer.setFilename(str(tmp_path / "theirs.rpd"))
    theirs = tracer()
    theirs.start()
    with capture_events():
        run = run_with(tmp_path, profiler="rpd")
        run.start()
        run.step_start()
        run.step_stop(16)
        run.stop()
    assert tracer.calls == ["start"]
    [message] = refusals(capsys)
    assert "RPDT_FILENAME is set" in message


def test_a_child_process_does_not_trace(
    tmp_path: Path,
    tracer: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The tracer refuses there, and a message says so."""
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    with capture_events():
        assert trained_all_the_same(run_with(tmp_path, profiler="rpd"), tracer)
    [message] = refusals(capsys)
    assert "child process" in message


def test_an_earlier_trace_is_kept(tmp_path: Path, tracer: Any) -> None:
    """The tracer would delete it: it is renamed before."""
    (tmp_path / "trace_rank0.rpd").write_text("an earlier trace")
    with capture_events():
        run_with(tmp_path, profiler="rpd").start()
    assert (tmp_path / "trace_rank0.rpd.1").read_text() == "an earlier trace"
    assert sqlite3.connect(tmp_path / "trace_rank0.rpd").execute("SELECT * FROM rocpd_op")


@pytest.mark.parametrize(
    ("ranks", "traces"), [("0", False), ("3", True), ("0,3,5", True), ("all", True)]
)
def test_the_named_ranks_trace(tmp_path: Path, tracer: Any, ranks: str, traces: bool) -> None:
    """Rank 0 does unless others are named; each has a file of its own."""

    class Rank:
        rank, world_size = 3, 8

        def barrier(self) -> None: ...

        def agree(self, values: Any) -> Any:
            return list(values)

    settings = PretrainSettings(
        profiler="rpd",
        profile_ranks=ranks,
        profile_output_dir=str(tmp_path / "traces"),
        mllog_preflight="off",
    )
    with capture_events():
        run = MLPerfRun(settings, group=Rank())
        run.init_start()
        run.start()
        assert bool(train(run, tracer)) is traces
    assert (tmp_path / "traces" / "trace_rank3.rpd").exists() is traces


def test_python_calls_are_traced_inside_the_window(tmp_path: Path, tracer: Any) -> None:
    """With ENABLE_PYTHON_TRACE=1, and not outside."""
    with capture_events():
        run = run_with(tmp_path, profiler="rpd", enable_python_trace=True, prof_active_steps=1)
        run.start()
        run.step_start()
        assert sys.getprofile() is not None
        run.step_stop(16)
        assert sys.getprofile() is None


def test_another_tools_hook_is_left_alone(
    tmp_path: Path, tracer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tracer would take it away: Python calls are not traced, and that is said."""

    def theirs(*_: Any) -> None: ...

    with capture_events():
        run = run_with(tmp_path, profiler="rpd", enable_python_trace=True)
        run.start()
        sys.setprofile(theirs)
        try:
            run.step_start()
            run.step_stop(16)
            run.stop()
            assert sys.getprofile() is theirs
        finally:
            sys.setprofile(None)
    assert "another tool has sys.setprofile" in capsys.readouterr().err


# -- PyTorch's profiler, the real one


def ops_in(path: Path) -> list[str]:
    events = json.loads(path.read_text())["traceEvents"]
    return [e["name"] for e in events if e.get("cat") == "cpu_op"]


@pytest.mark.parametrize("segment", ["train_step", "train", "eval"])
def test_torch_traces_the_segment(tmp_path: Path, segment: str) -> None:
    """A Chrome trace for each piece, which holds what was computed in it and nothing else."""
    import torch

    x = torch.ones(2)
    settings = {"profile_segment": segment, "prof_warmup_steps": 1, "prof_active_steps": 2}
    with capture_events():
        run = run_with(tmp_path, profiler="torch", **settings)
        run.start()
        for step in range(1, 5):
            x.cos()
            run.step_start()
            x.sin()
            run.step_stop(step)
            if step in {2, 4}:
                x.tan()
                run.eval_start()
                x.exp()
                run.eval_stop(5.0)
        run.stop()
    traces = {path.name: ops_in(path) for path in tmp_path.glob("*.json")}
    assert (
        traces
        == {
            "train_step": {
                "trace_rank0_step2.json": ["aten::sin"],
                "trace_rank0_step3.json": ["aten::sin"],
            },
            "train": {
                "trace_rank0_step2.json": ["aten::sin", "aten::tan"],
                "trace_rank0_step3.json": ["aten::sin"],
            },
            "eval": {
                "trace_rank0_eval_after_step2.json": ["aten::exp"],
                "trace_rank0_eval_after_step4.json": ["aten::exp"],
            },
        }[segment]
    )


OTHERS = {
    "is recording before": ("theirs.start()", "is recording", "theirs.stop()"),
    "ends the recording": ("", "has ended the recording", "theirs.start(); theirs.stop()"),
}


@pytest.mark.parametrize(("before", "said", "then"), OTHERS.values(), ids=OTHERS)
def test_another_user_of_torchs_profiler_is_no_crash(
    tmp_path: Path, before: str, said: str, then: str
) -> None:
    """Two sessions at a time end the process at torch's next step; ours gives way."""
    program = (
        "import torch\n"
        "from primus_mllog import MLPerfRun\n"
        "theirs = torch.profiler.profile()\n"
        "run = MLPerfRun(stdout=False); run.init_start(); run.start()\n"
        f"{before}\n"
        "run.step_start(); torch.ones(2).sin()\n"
        f"{then}\n"
        "run.step_stop(16); run.stop()\n"
    )
    environment = {
        "MLLOG_OUTPUT_FILE": "run.log",
        "MLLOG_PREFLIGHT": "off",
        "PROFILER": "torch",
        "PROFILE_SEGMENT": "train_step",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("The training goes on without a trace.") == 1
    assert said in done.stderr
