"""How far the training is, on stderr: a bar on a terminal, a line for each evaluation elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

__all__ = ["Silence", "show_progress"]


class Silence:
    """Shows nothing."""

    def step(self, iteration: int, loss: float | None) -> None:
        """Step number ``iteration``, counted from 1, is done; ``loss`` in nats per byte."""

    def evaluation(self, iteration: int, loss: float | None) -> None:
        """The evaluation after that step is done."""


class _Lines(Silence):
    """A line for each evaluation."""

    def __init__(self, args: Namespace, target: float) -> None:
        self._args = args
        self._target = target
        self._loss: float | None = None
        self._eval_loss: float | None = None
        self._step_ends: list[float] = []  # since the last evaluation, in seconds

    def step(self, iteration: int, loss: float | None) -> None:
        self._loss = loss
        self._step_ends.append(time.perf_counter())
        self._show_step(iteration)

    def evaluation(self, iteration: int, loss: float | None) -> None:
        self._eval_loss = loss
        self._show_evaluation(iteration)
        self._step_ends.clear()

    def _show_step(self, iteration: int) -> None:
        pass

    def _show_evaluation(self, iteration: int) -> None:
        where = f"step {iteration:>3}/{self._args.train_iters}"
        print(f"{where}  {self._text()}", file=sys.stderr, flush=True)  # noqa: T201 - a command

    def _text(self) -> str:
        text = f"loss {_shown(self._loss)}  eval {_shown(self._eval_loss)}  target {self._target:g}"
        num_steps = len(self._step_ends) - 1  # the first one only says when the second began
        if num_steps > 0:
            seconds = self._step_ends[-1] - self._step_ends[0]
            text += f"  {num_steps * self._args.global_batch_size / seconds:.0f} samples/s"
        return text


class _Bar(_Lines):
    """A bar that rich draws."""

    def __init__(self, args: Namespace, target: float, bar: Any) -> None:
        super().__init__(args, target)
        self._bar = bar
        self._task = bar.add_task("training", total=args.train_iters, text="")

    def _show_step(self, iteration: int) -> None:
        self._bar.update(self._task, completed=iteration, text=self._text())

    def _show_evaluation(self, iteration: int) -> None:
        self._show_step(iteration)


@contextlib.contextmanager
def show_progress(args: Namespace, target: float, is_shown: bool) -> Iterator[Silence]:
    """Show the progress of a training inside the block.

    Args:
        args: see :func:`primus_mllog.demo.arguments.megatron_arguments`.
        target: the evaluation loss to reach, in nats per byte.
        is_shown: whether this rank is the one to show it.
    """
    if not is_shown:
        yield Silence()
        return
    console = _terminal()
    if console is None:
        yield _Lines(args, target)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=console) as bar:
        yield _Bar(args, target, bar)


def _terminal() -> Any:
    """Stderr as rich sees it; None where it is no terminal or rich is not installed."""
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(stderr=True)
    return console if console.is_terminal else None


def _shown(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.3f}"
