"""Putting a measured table into BENCHMARKS.md, where ``<!-- NAME -->`` marks its place."""

from __future__ import annotations

import datetime
import os
import platform
import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[1] / "BENCHMARKS.md"


def write(name: str, lines: list[str]) -> None:
    """Replace the table of that name, and say when and on what it was measured."""
    text = "\n".join([measured_on(), "", *lines])
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    DOCUMENT.write_text(pattern.sub(lambda _: f"{begin}\n{text}\n{end}", DOCUMENT.read_text()))


def measured_on() -> str:
    today = datetime.datetime.now(tz=datetime.timezone.utc).date()
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return (
        f"{today}, {processor()}, {cores} cores, Python {platform.python_version()}, "
        f"load {load:.1f} at the end:"
    )


def processor() -> str:
    """The processor's name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.machine()
