"""The log file and stdout."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from primus_mllog.errors import OutputError
from primus_mllog.sinks import EventSink, LogFile

RUN = ':::MLLOG {"key": "run_start"}\n'


@pytest.mark.fault("W1")
def test_a_file_that_holds_a_run_is_rotated_aside(tmp_path: Path) -> None:
    """The old run keeps its lines under the next free number; the new file holds the new run."""
    path = tmp_path / "run.log"
    path.write_text(RUN)
    (tmp_path / "run.log.1").write_text("an even older run")
    file = LogFile(str(path))
    file.write(b"new\n")
    assert path.read_text() == "new\n"
    assert (tmp_path / "run.log.2").read_text() == RUN
    assert file.rotated_to == f"{path}.2"


@pytest.mark.fault("W1")
def test_a_file_that_holds_a_run_can_be_refused(tmp_path: Path) -> None:
    """MLLOG_EXISTING_FILE=error leaves the old run untouched and says what to do."""
    path = tmp_path / "run.log"
    path.write_text(RUN)
    with pytest.raises(OutputError, match="already holds a run.*MLLOG_EXISTING_FILE=rotate"):
        LogFile(str(path), existing="error")
    assert path.read_text() == RUN


def test_a_file_that_holds_a_run_can_be_appended_to(tmp_path: Path) -> None:
    """MLLOG_EXISTING_FILE=append keeps the old run in front."""
    path = tmp_path / "run.log"
    path.write_text(RUN)
    LogFile(str(path), existing="append").write(b"new\n")
    assert path.read_text() == RUN + "new\n"


@pytest.mark.fault("W6")
def test_the_first_event_starts_on_its_own_line(tmp_path: Path) -> None:
    """A launcher's output that ends without a newline is kept, and ended first."""
    path = tmp_path / "run.log"
    path.write_text("starting...")
    LogFile(str(path)).write(RUN.encode())
    assert path.read_text() == "starting...\n" + RUN


@pytest.mark.fault("W8")
def test_missing_folders_are_made(tmp_path: Path) -> None:
    """The output folder need not exist."""
    path = tmp_path / "a" / "b" / "run.log"
    LogFile(str(path)).write(b"x\n")
    assert path.read_text() == "x\n"


@pytest.mark.fault("W8")
@pytest.mark.parametrize("kind", ["a folder", "below a file"])
def test_an_unwritable_path_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    """A path that cannot be a file is an error that names it, the reason and the way out."""
    path = tmp_path / "taken"
    if kind == "a folder":
        path.mkdir()
    else:
        path.write_text("")
        path = path / "run.log"
    with pytest.raises(OutputError, match="Set MLLOG_OUTPUT_FILE") as caught:
        LogFile(str(path))
    assert caught.value.path == str(path)


@pytest.mark.fault("W8")
def test_a_full_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines that the disk refused, even in the middle, are written once there is room again."""
    file = LogFile(str(tmp_path / "run.log"))
    real_write = os.write
    room = 7

    def full(fd: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real_write(fd, data[:room])
        room -= written
        return written

    monkeypatch.setattr(os, "write", full)
    file.write(b"first line\n")
    file.write(b"second line\n")
    assert capsys.readouterr().err.count("WRITING THE MLPERF LOG FAILED") == 1
    room = 1000
    file.write(b"third line\n")
    assert (tmp_path / "run.log").read_text() == "first line\nsecond line\nthird line\n"
    assert "nothing is missing" in capsys.readouterr().err


@pytest.mark.fault("W2")
def test_lines_before_the_file_come_first_in_it(tmp_path: Path) -> None:
    """What was logged before the file was opened is its beginning."""
    sink = EventSink(stdout=False)
    sink.log(20, "early")
    sink.attach(LogFile(str(tmp_path / "run.log")))
    sink.log(20, "late")
    assert (tmp_path / "run.log").read_text() == "early\nlate\n"


@pytest.mark.fault("W3")
def test_a_second_file_replaces_the_first(tmp_path: Path) -> None:
    """Each line is in one file, once."""
    sink = EventSink(stdout=False)
    sink.attach(LogFile(str(tmp_path / "a.log")))
    sink.log(20, "one")
    sink.attach(LogFile(str(tmp_path / "b.log")))
    sink.log(20, "two")
    assert (tmp_path / "a.log").read_text() == "one\n"
    assert (tmp_path / "b.log").read_text() == "two\n"


SUPPRESSIONS = {
    "logging.disable": "import logging; logging.disable(logging.CRITICAL)",
    "raised root level": "import logging; logging.getLogger().setLevel(100)",
    "dictConfig": (
        "import logging.config; "
        "logging.config.dictConfig({'version': 1, 'disable_existing_loggers': True})"
    ),
    "replaced sys.stdout": "import io, sys; sys.stdout = io.StringIO()",
    "intercepted records": ("import logging; logging.setLogRecordFactory(lambda *a, **k: 1 / 0)"),
}


@pytest.mark.fault("W7")
@pytest.mark.parametrize("suppression", SUPPRESSIONS.values(), ids=SUPPRESSIONS)
def test_suppressed_logging_does_not_reach_events(tmp_path: Path, suppression: str) -> None:
    """Nothing that frameworks do to logging or to sys.stdout keeps an event from both outputs."""
    path = tmp_path / "run.log"
    code = (
        "from primus_mllog.sinks import EventSink, LogFile\n"
        f"sink = EventSink(); sink.attach(LogFile({str(path)!r}))\n"
        f"{suppression}\n"
        "sink.log(20, 'event')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "event"]
    assert path.read_text() == "event\n"


@pytest.mark.fault("W6")
def test_an_event_starts_on_its_own_line_of_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    """Text that another writer left without a newline does not share the event's line."""
    os.write(1, b"progress 50%")
    EventSink().log(20, "event")
    assert capfd.readouterr().out == "progress 50%\nevent\n"


@pytest.mark.fault("W8")
def test_a_closed_stdout_is_said_once_and_does_not_raise(tmp_path: Path) -> None:
    """With stdout gone the file still has every line."""
    path = tmp_path / "run.log"
    code = (
        "import sys\n"
        "from primus_mllog.sinks import EventSink, LogFile\n"
        f"sink = EventSink(); sink.attach(LogFile({str(path)!r}))\n"
        "sys.stdout.close()\n"
        "sink.log(20, 'one'); sink.log(20, 'two')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.count("events cannot be written to stdout") == 1
    assert path.read_text() == "one\ntwo\n"


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    """A data loader's worker that inherits the log is not the run."""
    path = tmp_path / "run.log"
    code = (
        "import os\n"
        "from primus_mllog.sinks import EventSink, LogFile\n"
        f"sink = EventSink(); sink.attach(LogFile({str(path)!r}))\n"
        "pid = os.fork()\n"
        "sink.log(20, 'child' if pid == 0 else 'parent')\n"
        "os._exit(0) if pid == 0 else os.waitpid(pid, 0)\n"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert path.read_text() == "parent\n"


def test_a_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process leaves whole lines: each is handed to the system in one piece."""
    file = LogFile(str(tmp_path / "run.log"))
    pieces: list[bytes] = []
    monkeypatch.setattr(os, "write", lambda _fd, data: pieces.append(bytes(data)) or len(data))
    sink: Any = EventSink(stdout=False)
    sink.attach(file)
    sink.log(20, "a")
    sink.log(20, "b")
    assert pieces == [b"a\n", b"b\n"]


@pytest.mark.fault("W9")
@pytest.mark.parametrize("removed", ["file", "folder"])
def test_a_log_that_is_removed_is_written_anew(tmp_path: Path, removed: str) -> None:
    """At the next end of an interval the whole file is there again."""
    path = tmp_path / "results" / "run.log"
    file = LogFile(str(path))
    file.write(b"one\n")
    shutil.rmtree(path.parent) if removed == "folder" else path.unlink()
    file.write(b"two\n")
    file.sync()
    file.write(b"three\n")
    file.close()
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_a_file_that_took_the_place_of_a_removed_log_is_left_alone(tmp_path: Path) -> None:
    """It is not ours to write into."""
    path = tmp_path / "run.log"
    file = LogFile(str(path))
    file.write(b"one\n")
    path.unlink()
    path.write_bytes(b"another's\n")
    file.sync()
    file.close()
    assert path.read_bytes() == b"another's\n"
