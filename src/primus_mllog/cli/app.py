"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from primus_mllog import __version__
from primus_mllog.cli.check import check
from primus_mllog.cli.compare import compare
from primus_mllog.cli.demo import demo
from primus_mllog.cli.package import package
from primus_mllog.cli.profile import profile
from primus_mllog.cli.summary import summary
from primus_mllog.cli.watch import watch

__all__ = ["app"]

app = typer.Typer(
    name="primus-mllog",
    help="The MLPerf training log of a Megatron-family run, right the first time.",
    no_args_is_help=True,
    add_completion=False,
    # plain tracebacks and help: rich's boxes break in the logs of a cluster job
    pretty_exceptions_enable=False,
)
app.command()(check)
app.command()(compare)
app.command()(demo)
app.command()(package)
app.command()(profile)
app.command()(summary)
app.command()(watch)


def _version(*, value: bool) -> None:
    if value:
        typer.echo(f"primus-mllog {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Say the version and stop."
        ),
    ] = False,
) -> None:
    pass
