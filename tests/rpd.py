"""Stands for ``rpdTracerControl`` of ROCm's rocmProfileData, which needs ROCm.

What it does and refuses is what that module does and refuses: one tracer and one file for the
process and its children, named in RPDT_FILENAME once it is made; starts and stops that are
counted; a Python hook that replaces any other. Its trace has the real one's tables.
"""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import sys
import types
from pathlib import Path
from typing import Any

SCHEMA = """
CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string TEXT NOT NULL);
CREATE TABLE rocpd_op (
    id INTEGER PRIMARY KEY, gpuId INTEGER, queueId INTEGER, sequenceId INTEGER,
    "start" INTEGER, "end" INTEGER, description_id INTEGER, opType_id INTEGER
);
"""


def write_trace(path: str | Path, ops: list[tuple[int, int, int, str, str]] = ()) -> None:  # type: ignore[assignment]
    """A trace with these operations: device, start and end in ns, kernel, type."""
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA)
    strings = sorted({name for op in ops for name in op[3:]})
    connection.executemany("INSERT INTO rocpd_string VALUES (?, ?)", enumerate(strings, start=1))
    rows = (
        (device, start, end, strings.index(kernel) + 1, strings.index(kind) + 1)
        for device, start, end, kernel, kind in ops
    )
    connection.executemany(
        'INSERT INTO rocpd_op (gpuId, queueId, sequenceId, "start", "end", description_id, '
        "opType_id) VALUES (?1, 0, 0, ?2, ?3, ?4, ?5)",
        rows,
    )
    connection.commit()
    connection.close()


class Control:
    """The class; each process that stands here has one of its own, see :func:`module`."""

    calls: list[str]
    has_library: bool
    depth = 0
    _filename = "trace.rpd"
    _is_loaded = False
    _makes_file = True

    @classmethod
    def setFilename(cls, name: str, append: bool = False) -> None:  # noqa: N802
        if in_use := os.environ.get("RPDT_FILENAME"):
            cls._filename = in_use
            if in_use != name:
                raise Warning(f"RPDT_FILENAME is set: the trace is {in_use}")
            return
        if cls._is_loaded:
            raise RuntimeError("the file cannot change once the tracer is loaded")
        if multiprocessing.parent_process() is not None:
            raise RuntimeError("the file cannot be chosen in a child process")
        cls._filename = name
        cls._makes_file = not append

    def __init__(self) -> None:
        cls = type(self)
        if multiprocessing.parent_process() or os.environ.get("RPDT_FILENAME"):
            cls._makes_file = False
        if cls._makes_file:
            Path(cls._filename).unlink(missing_ok=True)
            write_trace(cls._filename)
            cls._makes_file = False
        os.environ["RPDT_FILENAME"] = cls._filename
        cls._is_loaded = True

    def start(self) -> None:
        if not self.has_library:  # the real one then loads the program itself, without a message
            raise AttributeError("undefined symbol: rpdstart")
        self.calls.append("start")
        type(self).depth += 1

    def stop(self) -> None:
        self.calls.append("stop")
        type(self).depth -= 1

    def flush(self) -> None:
        self.calls.append("flush")

    def _hook(self, *_: Any) -> None: ...

    def setPythonTrace(self, doTrace: bool) -> None:  # noqa: N802, N803
        sys.setprofile(self._hook if doTrace else None)


def module(*, has_library: bool = True) -> Any:
    """A fresh ``rpdTracerControl``, as in a process that has just begun."""
    fresh = {"calls": [], "has_library": has_library}
    return types.SimpleNamespace(rpdTracerControl=type("rpdTracerControl", (Control,), fresh))
