"""``primus-mllog summary``."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path  # noqa: TC003 - typer reads it at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from primus_mllog import compliance, keys
from primus_mllog.cli.text import plain
from primus_mllog.records.collection import logs_in
from primus_mllog.records.scoring import read_all, score

if TYPE_CHECKING:
    from primus_mllog.records.scoring import Run, Score

__all__ = ["summary"]


def summary(
    paths: Annotated[list[Path], typer.Argument(help="Logs, or folders.", show_default=False)],
    ruleset: Annotated[
        str, typer.Option(help="MLPerf ruleset, for instance 6.1.0.", show_default="newest")
    ] = "",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print one CSV row for each run.")] = False,
) -> None:
    """Time to train, samples and evaluations of each run, and the score of each folder.

    The score is the mean time to train without the fastest and the slowest run. Exit code: 0, or 2
    if some log cannot be read.
    """
    ruleset = compliance.resolve_ruleset(ruleset)
    runs = read_all(logs_in(paths), ruleset)
    if not runs:
        raise typer.BadParameter("there are no logs in there", param_hint="PATHS")
    scores = list(score(runs, ruleset))
    if as_json:
        content = {"schema": 1, "ruleset": ruleset, "scores": [_score_as_json(s) for s in scores]}
        typer.echo(json.dumps(content, indent=2))
    elif as_csv:
        _print_csv(scores)
    else:
        for each in scores:
            _print(each)
    raise typer.Exit(2 if any(run.record is None for run in runs) else 0)


def _row(run: Run) -> dict[str, Any]:
    """One run, under the names of the JSON and CSV output."""
    record = run.record
    if record is None:
        return {"path": str(run.path), "passed": False, "error": run.error}
    throughput = record.throughputs
    return {
        "path": str(run.path),
        "passed": run.passed,
        "status": record.status,
        "minutes": record.minutes,
        "samples_to_converge": record.samples_to_converge,
        "evaluations": len(record.evaluations),
        "final_loss": record.evaluations[-1].loss if record.evaluations else None,
        "samples_per_second": sum(throughput) / len(throughput) if throughput else None,
        "seed": record.get(keys.SEED),
    }


def _score_as_json(each: Score) -> dict[str, Any]:
    return {
        "folder": each.folder,
        "benchmark": each.benchmark,
        "score_minutes": each.minutes,
        "deviation_minutes": each.deviation,
        "samples_to_converge": each.samples_to_converge,
        "rcp": each.rcp,
        "failed": each.num_failed,
        "runs": [_row(run) for run in each.runs],
    }


def _print_csv(scores: list[Score]) -> None:
    rows = [
        {"folder": each.folder, "benchmark": each.benchmark, **_row(run)}
        for each in scores
        for run in each.runs
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(sys.stdout, names)
    writer.writeheader()
    writer.writerows(rows)


def _print(each: Score) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    title = (plain(each.benchmark) or "no benchmark", "bold"), f"  {plain(each.folder)}"
    console.print(Text.assemble(*title), soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("log", overflow="fold")
    for name in ("minutes", "samples", "evals", "loss", "samples/s", "seed"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for run in each.runs:
        row = _row(run)
        cells = [
            _number(row.get("minutes"), 3),
            _number(row.get("samples_to_converge"), 0),
            str(row.get("evaluations", "")),
            _number(row.get("final_loss"), 4),
            _number(row.get("samples_per_second"), 1),
            plain(str(row.get("seed") if row.get("seed") is not None else "")),
        ]
        verdict = "" if run.passed else "cannot be read" if run.record is None else "refused"
        status = " ".join(filter(None, (plain(str(row.get("status") or "")), verdict)))
        style = "" if run.passed else "yellow"
        table.add_row(Text(plain(run.path.name)), *map(Text, cells), Text(status), style=style)
    console.print(table)
    console.print(_sentence(each), soft_wrap=True)
    console.print()


def _sentence(each: Score) -> str:
    if each.minutes is None:
        return (
            f"no score: {len(each.runs)} runs, {each.num_failed} failed "
            "(it takes three runs that pass, and one at most may fail)"
        )
    spread = "" if each.deviation is None else f" ± {each.deviation:.3f}"
    samples = each.samples_to_converge
    converged = "" if samples is None else f", {samples:.0f} samples to converge"
    return f"score {each.minutes!r} minutes{spread}{converged}; RCP: {plain(each.rcp)}"


def _number(value: Any, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, (int, float)) else ""
