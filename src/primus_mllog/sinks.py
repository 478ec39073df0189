"""Where event lines go: the log file and stdout, whole and at once.

``EventSink`` poses as the ``logging.Logger`` that mllog writes to, but takes no part in standard
logging: ``logging.disable``, raised levels, ``dictConfig`` and interceptors of frameworks cannot
reach it. Every line is one ``write`` of its own, so a killed process loses none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any, Final

from primus_mllog import notices
from primus_mllog.errors import OutputError

__all__ = ["EventSink", "LogFile", "rotated_name"]

TOKEN: Final = b":::MLLOG "
# Lines that a full disk refused wait in memory for room; past this they are only on stdout.
MAX_WAITING_BYTES: Final = 16 * 1024 * 1024


class LogFile:
    """An append-only file of events; what a full disk refuses is kept and written later.

    Args:
        path: the file; missing folders are made.
        existing: what to do with a file that already holds a run: ``"rotate"`` it aside to
            ``NAME.1``, ``NAME.2``, …; ``"error"``; or ``"append"``. A file without an event (for
            instance a launcher's own output) is appended to in every case.

    Raises:
        OutputError: the file cannot be made or written, or holds a run and may not be touched.
    """

    def __init__(self, path: str, existing: str = "rotate") -> None:
        self.path = path
        self.rotated_to: str | None = None
        self._waiting = b""
        try:
            self._prepare(existing)
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            reason = error.strerror or str(error)
            advice = (
                "Set MLLOG_OUTPUT_FILE to a file in a folder that can be written, or "
                "MLLOG_SAVE_TO_FILE=0 to log to stdout only."
            )
            raise OutputError(path, reason, advice) from error
        self._end_the_last_line()

    def write(self, line: bytes) -> None:
        """Append ``line`` (with its newline). A failing disk is told once and never raises."""
        had_waiting = bool(self._waiting)
        self._waiting += line
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._fd, self._waiting) :]
        except OSError as error:
            if len(self._waiting) > MAX_WAITING_BYTES:
                self._waiting = self._waiting[: -len(line)]
            notices.tell_once(
                f"write {self.path}",
                f"WRITING THE MLPERF LOG FAILED: {self.path}: {error.strerror}. The training goes "
                "on, stdout has every line, and the missing ones are written as soon as it works.",
            )
        else:
            if had_waiting:
                notices.tell(f"{self.path}: writing works again, nothing is missing in it")

    def sync(self) -> None:
        """Ask the disk to keep what was written, so that a dying node does not take it along."""
        with contextlib.suppress(OSError):  # a pipe or a network file system may not offer it
            if os.fstat(self._fd).st_nlink == 0:
                self._write_anew()
            os.fsync(self._fd)

    def _write_anew(self) -> None:
        """Somebody removed the file, or its folder: what is open still has every line."""
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_EXCL
        new = os.open(self.path, flags, 0o644)
        try:
            removed = os.fstat(self._fd).st_size
            copied = 0
            while copied < removed:
                copied += os.write(new, os.pread(self._fd, 1 << 20, copied))
            os.dup2(new, self._fd, inheritable=False)
        finally:
            os.close(new)
        notices.tell(f"{self.path} was removed while it was written; it is there again, whole")

    def close(self) -> None:
        """Try once more what was refused, then close."""
        if self._waiting:
            self.write(b"")
        self.sync()
        with contextlib.suppress(OSError):
            os.close(self._fd)

    def _prepare(self, existing: str) -> None:
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        if existing == "append" or not _holds_a_run(self.path):
            return
        if existing == "error":
            advice = (
                "Move it away, choose another MLLOG_OUTPUT_FILE, or set MLLOG_EXISTING_FILE=rotate."
            )
            raise OutputError(self.path, "it already holds a run", advice)
        self.rotated_to = rotated_name(self.path)
        os.replace(self.path, self.rotated_to)  # noqa: PTH105 - the reserved name is replaced
        notices.tell(f"{self.path} held an earlier run; it is now {self.rotated_to}")

    def _end_the_last_line(self) -> None:
        """Begin on a line of our own after a writer that ended without a newline."""
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            self.write(b"\n")


class EventSink(logging.Logger):
    """The logger that mllog writes to; lines before a file is attached are kept for it.

    Args:
        stdout: whether lines go to the process's original stdout too.
    """

    def __init__(self, *, stdout: bool = True) -> None:
        super().__init__("primus_mllog.events")
        self._stdout = stdout
        self._file: LogFile | None = None
        self._early: list[bytes] | None = []
        self._pid = os.getpid()
        # Reentrant: a signal handler may log while its own thread is in here.
        self._lock = threading.RLock()

    def attach(self, file: LogFile | None) -> None:
        """Send lines to ``file`` from now on, instead of an earlier one, the early lines first.

        None ends the keeping of early lines: there will be no file.
        """
        with self._lock:
            early, self._early = self._early or [], None
            previous, self._file = self._file, file
            if previous is not None:
                previous.close()
            if file is not None:
                for line in early:
                    file.write(line)

    @property
    def path(self) -> str | None:
        """The attached file's path."""
        return None if self._file is None else self._file.path

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Write one line. Signature of ``logging.Logger.log``; never raises."""
        if os.getpid() != self._pid:
            return  # a forked child (a data loader's worker) is not the run
        line = f"{msg}\n".encode("utf-8", errors="backslashreplace")
        with self._lock:
            if self._file is not None:
                self._file.write(line)
            elif self._early is not None:
                self._early.append(line)
            if self._stdout:
                _write_to_stdout(line)

    def sync(self) -> None:
        """Ask the disk to keep what was written."""
        if self._file is not None:
            self._file.sync()


def rotated_name(path: str) -> str:
    """Reserve the first free of ``path.1``, ``path.2`` and so on, and return it."""
    number = 1
    while True:
        name = f"{path}.{number}"
        try:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            number += 1
        else:
            return name


def _holds_a_run(path: str) -> bool:
    if not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        return any(TOKEN in line for line in file)


def _write_to_stdout(line: bytes) -> None:
    """Write to the stdout the process was started with, whatever ``sys.stdout`` is by now.

    It begins with a newline: what another writer left on the current line must not be in front
    of the event, nor an event of somebody else's.
    """
    stream = sys.__stdout__
    if stream is None:
        return
    try:
        stream.flush()  # what was printed before comes before
        stream.buffer.write(b"\n" + line)
        stream.buffer.flush()
    except (OSError, ValueError) as error:  # ValueError: it is closed
        notices.tell_once("stdout", f"events cannot be written to stdout: {error}")
