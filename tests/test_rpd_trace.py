"""Reading RPD traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import rpd
from primus_mllog.cli.app import app
from primus_mllog.errors import LogFileError
from primus_mllog.records.rpd_trace import Kernel, read_trace

OPS = [
    (0, 1_000_000, 4_000_000, "gemm", "KernelExecution"),
    (1, 2_000_000, 4_000_000, "gemm", "KernelExecution"),
    (0, 5_000_000, 9_000_000, "softmax", "KernelExecution"),
    (1, 9_000_000, 10_000_000, "", "CopyDeviceToHost"),
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "odd name?#.rpd"
    rpd.write_trace(path, OPS)
    return path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["profile", *arguments], env={"COLUMNS": "80"})
    return result.exit_code, result.output


def test_kernels_are_added_up_over_calls_and_devices(trace: Path) -> None:
    """Longest first, with calls and share; a copy is named by its kind."""
    found = read_trace(trace)
    assert found.kernels == (
        Kernel("gemm", 2, 0.005, 0.5),
        Kernel("softmax", 1, 0.004, 0.4),
        Kernel("CopyDeviceToHost", 1, 0.001, 0.1),
    )
    assert (found.num_devices, found.seconds) == (2, 0.009)


def test_the_trace_is_only_read(trace: Path) -> None:
    """Nothing is written, neither to it nor beside it."""
    before = trace.read_bytes()
    trace.chmod(0o444)
    read_trace(trace)
    assert trace.read_bytes() == before
    assert list(trace.parent.iterdir()) == [trace]


def test_a_trace_without_operations_is_empty(tmp_path: Path) -> None:
    """A run that ended before its window left one."""
    rpd.write_trace(tmp_path / "trace.rpd")
    assert read_trace(tmp_path / "trace.rpd").kernels == ()
    assert run(str(tmp_path / "trace.rpd"))[0] == 0


@pytest.mark.parametrize("kind", ["text", "cut off", "missing", "another database"])
def test_what_is_no_trace_is_said(trace: Path, kind: str) -> None:
    """One error that names the file, and nothing is made."""
    if kind == "text":
        trace.write_text("no database, but longer than the header of one " * 20)
    elif kind == "cut off":
        trace.write_bytes(trace.read_bytes()[:5000])
    elif kind == "missing":
        trace.unlink()
    else:
        import sqlite3

        trace.unlink()
        sqlite3.connect(trace).execute("CREATE TABLE other (id)").connection.close()
    with pytest.raises(LogFileError, match="odd name"):
        read_trace(trace)
    assert trace.exists() is (kind != "missing")


def test_the_table_has_the_longest_kernels(trace: Path) -> None:
    """Time, share, calls and mean; what is left out is counted."""
    code, output = run(str(trace), "--top", "2")
    assert code == 0
    assert output.splitlines() == [
        "4 calls of 3 kernels on 2 devices: 0.010 s of device time in 0.009 s",
        "time ms  share  calls  mean µs  kernel ",
        "  5.000  50.0%      2   2500.0  gemm   ",
        "  4.000  40.0%      1   4000.0  softmax",
        "… and 1 more; --top 3 shows all",
    ]


def test_long_and_hostile_names_stay_in_their_line(tmp_path: Path) -> None:
    """A name is cut at the end of the line, and cannot drive the terminal."""
    path = tmp_path / "trace.rpd"
    name = "\x1b[31mvoid [bold]gemm<" + "float, " * 50
    rpd.write_trace(path, [(0, 0, 1000, name, "KernelExecution")])
    _, output = run(str(path))
    assert max(map(len, output.splitlines())) <= 80
    assert "\\x1b[31mvoid [bold]gemm<" in output
    [kernel] = json.loads(run(str(path), "--json")[1])["kernels"]
    assert kernel["name"] == name
