"""``primus-mllog watch``."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path  # noqa: TC003 - typer reads it at run time
from typing import TYPE_CHECKING, Annotated

import typer

from primus_mllog import keys
from primus_mllog.cli.text import plain
from primus_mllog.records.follow import Following, follow
from primus_mllog.records.log_file import Event, Malformed

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["watch"]

_SHOWN = 5
"""Evaluations on the screen."""


def watch(
    log: Annotated[Path, typer.Argument(help="A log, also one that is not there yet.")],
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Say what there is and stop, instead of following.")
    ] = False,
) -> None:
    """Follow a log while the run goes on: phase, speed, evaluations, and what is left.

    Ends with the run. On a terminal one screen, elsewhere a line for each thing that happens.
    What is left is estimated by a line of the loss over the logarithm of the samples through the
    last evaluations; it is unknown until there are three, and where they do not fall.
    """
    with contextlib.suppress(KeyboardInterrupt):
        if sys.stdout.isatty() and not once:
            _on_a_screen(log)
        else:
            _as_lines(log, once=once)


def _as_lines(log: Path, *, once: bool) -> None:
    state = Following()
    quiet = {state.phase, "between", "evaluating"}
    told = set(quiet)
    if not log.exists():
        typer.echo(f"waiting for {plain(str(log))}")
    for event in follow(log, is_over=lambda: once or state.is_over):
        if isinstance(event, Malformed):
            typer.echo(f"line {event.line}: an event that is {event.reason}")
        elif isinstance(event, Event):
            state.add(event)
            if event.key == keys.INIT_START:
                told = set(quiet)  # a run of its own
            if event.key == keys.EVAL_ACCURACY:
                typer.echo(_evaluation(state))
            elif state.phase not in told:
                told.add(state.phase)
                typer.echo(plain(state.phase))


def _on_a_screen(log: Path) -> None:
    from rich.live import Live

    state, warnings = Following(), list[str]()
    with Live(_screen(log, state, warnings), refresh_per_second=4) as live:
        for event in follow(log, is_over=lambda: state.is_over):
            if isinstance(event, Malformed):
                warnings.append(f"line {event.line}: an event that is {event.reason}")
            elif isinstance(event, Event):
                state.add(event)
            else:
                live.update(_screen(log, state, warnings))


def _screen(log: Path, state: Following, warnings: list[str]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    run = state.run
    title = [plain(str(log)), plain(str(run.get(keys.SUBMISSION_BENCHMARK) or ""))]
    rows = {
        "phase": plain(state.phase),
        "step": "" if state.step is None else plain(str(state.step)),
        "samples": "" if state.samples_count is None else f"{state.samples_count:,}",
        "train loss": "" if state.train_loss is None else f"{state.train_loss:.4f}",
        "samples/s": _or_unknown(state.samples_per_second, ".1f"),
        "target": _or_unknown(state.target, "g"),
        "left": _left(state),
    }
    facts = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        facts.add_row(Text(name, style="dim"), Text(value))
    evaluations = Table("samples", "loss", "to the target", box=None, pad_edge=False)
    for evaluation in run.evaluations[-_SHOWN:]:
        loss = evaluation.loss
        is_number = isinstance(loss, (int, float))
        distance = f"{loss - state.target:+.4f}" if is_number and state.target is not None else ""
        shown = f"{loss:.4f}" if is_number else plain(str(loss))
        evaluations.add_row(plain(str(evaluation.samples_count)), shown, distance)
    told = [Text(plain(text), style="yellow") for text in warnings[-_SHOWN:]]
    return Group(Text("  ".join(filter(None, title)), style="bold"), facts, evaluations, *told)


def _evaluation(state: Following) -> str:
    evaluation = state.run.evaluations[-1]
    loss = evaluation.loss
    shown = f"{loss:.4f}" if isinstance(loss, (int, float)) else plain(str(loss))
    target = "" if state.target is None else f" (target {state.target:g})"
    samples = plain(str(evaluation.samples_count))
    return f"evaluation at {samples} samples: {shown}{target}, left: {_left(state)}"


def _left(state: Following) -> str:
    if state.is_over:
        return "nothing"
    estimate = state.estimate()
    if estimate is None:
        return "unknown"
    minutes = "" if estimate.minutes is None else f", {estimate.minutes:.0f} minutes"
    return f"about {estimate.samples:,.0f} samples{minutes}"


def _or_unknown(value: float | None, form: str) -> str:
    return "unknown" if value is None else format(value, form)
