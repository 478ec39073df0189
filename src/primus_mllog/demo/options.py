"""What the demo can be asked for, and what of it is possible."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_mllog.demo.arguments import megatron_arguments
from primus_mllog.errors import ConfigurationError, Problem
from primus_mllog.settings import PretrainSettings, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["DemoOptions", "OptionsError", "parse"]

DEFAULT_STEPS = 300
DEFAULT_TARGET = 0.95
DEFAULT_OUTPUT = "demo-results/mlperf_output.log"
_MAX_SEED = 2**31 - 1


class OptionsError(ConfigurationError):
    """Options of the demo that do not go together."""

    heading = "the demo cannot run like this"


@dataclass(frozen=True)
class DemoOptions:
    """The options of ``primus-mllog demo``."""

    nproc: int = 1
    """Number of processes."""
    tensor_parallel: int = 1
    """Processes that share each layer."""
    pipeline_parallel: int = 1
    """Pipeline stages."""
    steps: int = DEFAULT_STEPS
    """Training steps at most."""
    target: float | None = None
    """Evaluation loss to reach, in nats per byte; MLLOG_TARGET_EVAL_LOSS or 0.95 when None."""
    seed: int | None = None
    """Seed of weights and data order; from the system's randomness when None, as the rules of
    the closed division want it."""
    output: str | None = None
    """The log; MLLOG_OUTPUT_FILE or demo-results/mlperf_output.log when None."""

    def check(self) -> None:
        """Refuse what cannot run.

        Raises:
            OptionsError: everything that is wrong, at once.
        """
        problems = list(self._problems())
        if problems:
            raise OptionsError(*problems)

    def settings(self) -> Settings:
        """The environment's settings with the demo's defaults; an option wins over a variable.

        Raises:
            SettingsError: environment variables that cannot be used.
            OptionsError: the environment switches the log file off.
        """
        settings = PretrainSettings.from_environment()
        if not settings.mllog_save_to_file:
            wanted = "1: the demo reads its log back to check it"
            raise OptionsError(Problem("MLLOG_SAVE_TO_FILE", "0", wanted))
        defaults = {
            "mllog_submission_benchmark": "llama31_8b",
            "mllog_submission_division": "open",
            "mllog_submission_status": "research",
            "mllog_submission_org": "primus-mllog demo",
            "mllog_submission_platform": "CPU demo (not a submission)",
            "mllog_config_filename": "primus_mllog.demo",
            "mllog_target_eval_loss": DEFAULT_TARGET,
            "mllog_output_file": DEFAULT_OUTPUT,
        }
        chosen = {"mllog_target_eval_loss": self.target, "mllog_output_file": self.output}
        update = {name: value for name, value in defaults.items() if not settings.is_set(name)}
        update |= {name: value for name, value in chosen.items() if value is not None}
        return settings.model_copy(update=update)

    def _problems(self) -> Iterator[Problem]:
        for name in ("nproc", "tensor_parallel", "pipeline_parallel", "steps"):
            if getattr(self, name) < 1:
                yield self._problem(name, "at least 1")
                return  # the questions below divide by it
        args = megatron_arguments(seed=0, train_iters=self.steps)
        if args.num_attention_heads % self.tensor_parallel:
            yield self._problem("tensor_parallel", f"a divisor of {args.num_attention_heads}")
        if args.num_layers % self.pipeline_parallel:
            yield self._problem("pipeline_parallel", f"a divisor of {args.num_layers}")
        model_parallel = self.tensor_parallel * self.pipeline_parallel
        if self.nproc % model_parallel:
            wanted = f"a multiple of {model_parallel} (tensor-parallel x pipeline-parallel)"
            yield self._problem("nproc", wanted)
        elif args.global_batch_size % (self.nproc // model_parallel):
            wanted = f"a data-parallel size that divides the {args.global_batch_size} samples"
            yield self._problem("nproc", wanted)
        if self.target is not None and not math.isfinite(self.target):
            yield self._problem("target", "a finite loss in nats per byte")
        if self.seed is not None and not 0 <= self.seed <= _MAX_SEED:
            yield self._problem("seed", f"0 to {_MAX_SEED}")
        if self.output == "":
            yield self._problem("output", "a file name")

    def _problem(self, name: str, wanted: str) -> Problem:
        return Problem(f"--{name.replace('_', '-')}", str(getattr(self, name)), wanted)


def parse(arguments: Sequence[str] | None = None) -> tuple[DemoOptions, bool]:
    """The options of ``python -m primus_mllog.demo``, and whether this is one of its processes.

    Args:
        arguments: the command line without the program; this process's own when None.
    """
    parser = argparse.ArgumentParser(
        prog="python -m primus_mllog.demo",
        description="Train a small GPT on the CPU and write its MLPerf log.",
    )
    parser.add_argument("--nproc", type=int, default=1, help="number of processes")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="tensor-parallel size")
    parser.add_argument("--pipeline-parallel", type=int, default=1, help="pipeline stages")
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS, help="steps at most")
    parser.add_argument("--target", type=float, help="evaluation loss to reach, nats per byte")
    parser.add_argument("--seed", type=int, help="seed (default: from the system's randomness)")
    parser.add_argument("--output", help=f"the log (default: {DEFAULT_OUTPUT})")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    values = vars(parser.parse_args(arguments))
    is_worker = values.pop("worker")
    return DemoOptions(**values), is_worker
