"""``primus-mllog demo``."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from primus_mllog.demo.options import DEFAULT_OUTPUT, DEFAULT_STEPS, DemoOptions

__all__ = ["demo"]


def demo(  # noqa: PLR0913, PLR0917 - one argument for each option
    nproc: Annotated[int, typer.Option(help="Number of processes.")] = 1,
    tensor_parallel: Annotated[int, typer.Option(help="Processes that share each layer.")] = 1,
    pipeline_parallel: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    steps: Annotated[int, typer.Option(help="Training steps at most.")] = DEFAULT_STEPS,
    target: Annotated[
        Optional[float],  # noqa: UP045 - typer reads this at run time, on Python 3.10 too
        typer.Option(help="Evaluation loss to reach, in nats per byte.", show_default="0.95"),
    ] = None,
    seed: Annotated[
        Optional[int],  # noqa: UP045 - as above
        typer.Option(help="Seed of weights and data order.", show_default="random"),
    ] = None,
    output: Annotated[
        Optional[str],  # noqa: UP045 - as above
        typer.Option(help="The log to write.", show_default=DEFAULT_OUTPUT),
    ] = None,
) -> None:
    """Train a small Megatron-Core GPT on this machine's CPU and check the MLPerf log it writes."""
    from primus_mllog.demo.launcher import run_demo

    options = DemoOptions(nproc, tensor_parallel, pipeline_parallel, steps, target, seed, output)
    raise typer.Exit(run_demo(options))
