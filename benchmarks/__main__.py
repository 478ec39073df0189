"""``python -m benchmarks [--record] [SECTION …]``: measure and print one table.

``--record`` also puts it into BENCHMARKS.md, with the date and the machine.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import _record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks import Row

FOLDER = Path(__file__).parent


def main() -> None:
    modules = sorted(module.name for module in pkgutil.iter_modules([str(FOLDER)]))
    sections = [name for name in modules if not name.startswith("_")]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(sections))
    parser.add_argument("--record", action="store_true", help="write BENCHMARKS.md, too")
    options = parser.parse_args()
    lines = []
    for line in table(options.sections or sections):
        print(line, flush=True)
        lines.append(line)
    if options.record:
        _record.write("bench", lines)


def table(sections: list[str]) -> Iterator[str]:
    """The lines of a Markdown table, each as soon as it is measured."""
    yield "| | ours | beside it | ratio | goal |"
    yield "|---|---:|---:|---:|---|"
    for name in sections:
        module = importlib.import_module(f"benchmarks.{name}")
        title = (module.__doc__ or name).splitlines()[0].rstrip(".")
        yield f"| **{title}** | | | | |"
        try:
            for row in module.rows():
                yield line_of(row)
        except ModuleNotFoundError as error:
            yield f"| not measured: {error} | | | | |"


def line_of(row: Row) -> str:
    peer = "" if row.peers is None else f"{row.peer} {number(row.peers)} {row.unit}"
    ratio = "" if row.ratio is None else f"{number(row.ratio)}×"
    goal = row.goal if row.is_met is None else f"{row.goal} {'✓' if row.is_met else '**✗**'}"
    return f"| {row.what} | {number(row.ours)} {row.unit} | {peer} | {ratio} | {goal} |"


def number(value: float) -> str:
    """Three digits are what such a measurement is good for."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
