"""``primus-mllog profile``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path  # noqa: TC003 - typer reads it at run time
from typing import TYPE_CHECKING, Annotated

import typer

from primus_mllog.records.rpd_trace import read_trace

if TYPE_CHECKING:
    from primus_mllog.records.rpd_trace import Trace

__all__ = ["profile"]


def profile(
    trace: Annotated[Path, typer.Argument(help="An RPD trace.", show_default=False)],
    top: Annotated[int, typer.Option(min=1, help="Kernels to show.")] = 20,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all kernels.")] = False,
) -> None:
    """Say which kernels of an RPD trace took the devices' time.

    The file is only read. Exit code 2: it cannot be.
    """
    found = read_trace(trace)
    if as_json:
        typer.echo(json.dumps({"schema": 1, **dataclasses.asdict(found)}, indent=2))
    else:
        _print(found, top)


def _print(trace: Trace, top: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from primus_mllog.cli.text import plain

    console = Console(highlight=False)
    busy = sum(kernel.seconds for kernel in trace.kernels)
    num_calls = sum(kernel.num_calls for kernel in trace.kernels)
    console.print(
        f"{num_calls} calls of {len(trace.kernels)} kernels on {trace.num_devices} devices: "
        f"{busy:.3f} s of device time in {trace.seconds:.3f} s",
        soft_wrap=True,
    )
    table = Table("time ms", "share", "calls", "mean µs", "kernel", box=None, pad_edge=False)
    for column in table.columns[:4]:
        column.justify = "right"
        column.no_wrap = True
    table.columns[4].no_wrap = True  # names of templates are long: cut, --json has them whole
    table.columns[4].overflow = "ellipsis"
    for kernel in trace.kernels[:top]:
        table.add_row(
            f"{kernel.seconds * 1e3:.3f}",
            f"{kernel.share:.1%}",
            str(kernel.num_calls),
            f"{kernel.seconds * 1e6 / kernel.num_calls:.1f}",
            Text(plain(kernel.name)),
        )
    console.print(table)
    if num_more := len(trace.kernels[top:]):
        console.print(f"… and {num_more} more; --top {len(trace.kernels)} shows all")
