"""``run_demo``: one process here, or several under torchrun; then the summary.

Nothing heavy is imported before the options are known to be possible.
"""

from __future__ import annotations

import contextlib
import importlib.util
import secrets
import sys
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from primus_mllog import compliance, notices
from primus_mllog.demo.arguments import megatron_arguments
from primus_mllog.demo.progress import show_progress
from primus_mllog.demo.summary import summarize
from primus_mllog.errors import MissingDependencyError
from primus_mllog.run import MLPerfRun
from primus_mllog.sinks import LogFile

if TYPE_CHECKING:
    from primus_mllog.demo.options import DemoOptions
    from primus_mllog.demo.training import DemoResult
    from primus_mllog.settings import Settings

__all__ = ["INTERRUPTED", "run_demo", "train_here"]

INTERRUPTED = 130  # what a shell gives for a command that Ctrl-C ended


def run_demo(options: DemoOptions) -> int:
    """Train the demo's model, have its log checked, and print a summary to stdout.

    Returns:
        The exit code: 0 when the target was reached and the official checker passes the log, 1
        when not; 130 after Ctrl-C; with several processes, that of the first that failed.

    Raises:
        ConfigurationError: options or environment variables that cannot be used.
        MissingDependencyError: torch or megatron-core is not installed.
        OutputError: the log cannot be written.
    """
    options.check()
    settings = options.settings()
    compliance.resolve_ruleset(settings.mllog_ruleset)
    _require("torch", "megatron.core")
    if options.seed is None:
        options = replace(options, seed=secrets.randbits(31))
    code = 0
    try:
        if options.nproc > 1:
            code = _launch(options, settings)
        else:
            train_here(options, settings)
    except KeyboardInterrupt:
        notices.tell("interrupted")
        code = INTERRUPTED
    if code == 0:
        summary = summarize(settings.mllog_output_file, settings.mllog_ruleset)
        print(summary)  # noqa: T201 - a command
        code = 0 if summary.is_good else 1
    print(f"log: {settings.mllog_output_file}")  # noqa: T201 - a command
    return code


def train_here(options: DemoOptions, settings: Settings) -> DemoResult:
    """Train in this process, one of ``options.nproc``, and return what it saw."""
    args = megatron_arguments(
        seed=options.seed or 0,
        train_iters=options.steps,
        world_size=options.nproc,
        tensor_parallel=options.tensor_parallel,
        pipeline_parallel=options.pipeline_parallel,
    )
    run = MLPerfRun(settings, stdout=False)
    run.init_start()
    # The last rank is of the last pipeline stage, which has the losses.
    is_shown = run.group.rank == options.nproc - 1
    with warnings.catch_warnings():
        # They warn of everything that they would have on an accelerator.
        warnings.filterwarnings("ignore", module=r"(megatron|torch)\.")
        from primus_mllog.demo.training import train

        with show_progress(args, settings.mllog_target_eval_loss, is_shown) as progress:
            return train(args, run, progress)


def _launch(options: DemoOptions, settings: Settings) -> int:
    """Train in ``options.nproc`` processes of this machine; the exit code.

    Through torchrun's own interface instead of its command, which would turn every failure into
    exit code 1 and a traceback of its own. A signal that ends this process is passed on to the
    others by torch's agent, which waits for them.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Refuse a log that cannot be written here, with one message, before anything is started.
    LogFile(settings.mllog_output_file, settings.mllog_existing_file).close()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=options.nproc,
        run_id=secrets.token_hex(8),
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
    )
    chosen = {
        "nproc": options.nproc,
        "tensor-parallel": options.tensor_parallel,
        "pipeline-parallel": options.pipeline_parallel,
        "steps": options.steps,
        "seed": options.seed,
        "target": settings.mllog_target_eval_loss,
        "output": settings.mllog_output_file,
    }
    arguments = ["-m", "primus_mllog.demo", "--worker", *(f"--{k}={v}" for k, v in chosen.items())]
    try:
        elastic_launch(config, sys.executable)(*arguments)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        code = int(failure.exitcode)
        return code if code >= 0 else 128 - code
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


def _require(*modules: str) -> None:
    for module in modules:
        with contextlib.suppress(ModuleNotFoundError):  # raised where its parent is missing
            if importlib.util.find_spec(module) is not None:
                continue
        package = {"megatron.core": "megatron-core"}.get(module, module)
        raise MissingDependencyError(package, "the demo", "pip install 'primus-mllog[demo]'")
