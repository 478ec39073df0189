"""``primus-mllog compare``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path  # noqa: TC003 - typer reads it at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from primus_mllog import compliance
from primus_mllog.cli.text import plain
from primus_mllog.records.collection import logs_in
from primus_mllog.records.comparison import compare as compare_scores
from primus_mllog.records.scoring import read_all, score

if TYPE_CHECKING:
    from primus_mllog.records.comparison import Comparison, Pair
    from primus_mllog.records.scoring import Score

__all__ = ["compare"]


def compare(
    first: Annotated[Path, typer.Argument(help="A log, or a folder.", show_default=False)],
    second: Annotated[Path, typer.Argument(help="Another.", show_default=False)],
    ruleset: Annotated[
        str, typer.Option(help="MLPerf ruleset, for instance 6.1.0.", show_default="newest")
    ] = "",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Say how the second folder's runs differ from the first's: score, samples, hyperparameters.

    And whether the times to train differ by more than the runs of one folder do.
    """
    ruleset = compliance.resolve_ruleset(ruleset)
    sides = [_scores(path, ruleset) for path in (first, second)]
    common = [name for name in sides[0] if name in sides[1]]
    if not common:
        raise typer.BadParameter("they hold no benchmark in common", param_hint="FIRST SECOND")
    found = [compare_scores(sides[0][name], sides[1][name]) for name in common]
    if as_json:
        content = {"schema": 1, "comparisons": [dataclasses.asdict(c) for c in found]}
        typer.echo(json.dumps(content, indent=2, default=str))
        return
    for comparison in found:
        _print(comparison)


def _scores(path: Path, ruleset: str) -> dict[str, Score]:
    """By benchmark; of several folders of one benchmark the first."""
    scores: dict[str, Score] = {}
    for each in score(read_all(logs_in([path]), ruleset), ruleset):
        scores.setdefault(each.benchmark, each)
    return scores


def _print(comparison: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(plain(comparison.benchmark) or "no benchmark", style="bold"))
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("first", "second", "ratio"):
        table.add_column(name, justify="right")
    rows = {
        "score, minutes": comparison.score,
        "samples to converge": comparison.samples_to_converge,
        "samples/s": comparison.samples_per_second,
    }
    for name, pair in rows.items():
        table.add_row(name, *_cells(pair))
    console.print(table)
    told = {
        None: "too few runs to say whether that is more than their spread",
        True: "the times to train differ by more than their spread",
        False: "the times to train differ by no more than their spread",
    }
    console.print(told[comparison.is_more_than_spread])
    for name, (ours, theirs) in comparison.hyperparameters.items():
        line = f"  {name}: {_shown(ours)} → {_shown(theirs)}"
        console.print(Text(plain(line)), soft_wrap=True)


def _cells(pair: Pair) -> list[str]:
    ratio = "" if pair.ratio is None else f"{pair.ratio:.4f}"
    return [*("" if v is None else f"{v:.6g}" for v in (pair.first, pair.second)), ratio]


def _shown(value: Any) -> str:
    return "absent" if value is None else str(value)
