"""``primus-mllog package``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads it at run time
from typing import Annotated

import typer

from primus_mllog import compliance
from primus_mllog.cli.text import plain
from primus_mllog.records.collection import logs_in
from primus_mllog.records.package import make_package

__all__ = ["package"]


def package(
    folder: Annotated[Path, typer.Argument(help="Of the submission.", show_default=False)],
    logs: Annotated[list[Path], typer.Argument(help="Logs, or folders.", show_default=False)],
    system: Annotated[Path, typer.Option(help="Its description, SYSTEM.json.", show_default=False)],
    benchmark: Annotated[str, typer.Option(help="As the rules spell it.", show_default=False)],
    ruleset: Annotated[
        str, typer.Option(help="MLPerf ruleset, for instance 6.1.0.", show_default="newest")
    ] = "",
) -> None:
    """Lay logs out as a submission has them, and ask the official package checker about it.

    Nothing that exists is overwritten. Exit code: 0 no errors, 1 the checker found some, 2 no
    package was made.
    """
    ruleset = compliance.resolve_ruleset(ruleset)
    found = logs_in(logs)
    if not found:
        raise typer.BadParameter("there are no logs in there", param_hint="LOGS")
    results = make_package(folder, system, benchmark, found)
    typer.echo(f"{len(found)} logs are now in {plain(str(results))}")
    passed, words = compliance.check_package(folder, ruleset)
    for word in words:
        typer.echo(f"  {plain(word)}")
    verdict = "PASS" if passed else "FAIL"
    typer.echo(f"{verdict}  {plain(str(folder))}  (MLCommons' package checker, ruleset {ruleset})")
    raise typer.Exit(0 if passed else 1)
