"""Every environment variable, typed, in one place: read once, then passed on.

Nothing else in the package looks at ``os.environ``. A variable that is set but empty counts as
unset, because launch scripts pass ``--env=NAME=${NAME:-}``. Whether a value was set or left at
its default is kept (:meth:`Settings.is_set`): an explicit value wins over what the framework says,
a default does not.
"""

from __future__ import annotations

import difflib
import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from primus_mllog import notices
from primus_mllog.errors import Problem, SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PretrainSettings", "SFTSettings", "Settings", "launch_environment", "launcher_value"]

_OUR_PREFIXES = ("MLLOG_", "SYNTH_WARMUP_")

Count = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]


class Settings(BaseSettings):
    """The environment, as one frozen object; field names are the variables in lower case."""

    model_config = SettingsConfigDict(
        alias_generator=str.upper,
        populate_by_name=True,
        case_sensitive=True,
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    # -- the log file
    mllog_output_file: str = "/results/mlperf_output.log"
    """The log file. Missing folders are made."""
    mllog_save_to_file: bool = True
    """0, false or no: events go to stdout only."""
    mllog_existing_file: Literal["rotate", "error", "append"] = "rotate"
    """What happens to a log file that already holds a run: renamed to NAME.1, NAME.2, …; refused;
    or appended to (two runs in one file are not a valid log)."""

    # -- the submission
    mllog_submission_benchmark: str = ""
    """Benchmark as the rules spell it, for instance llama31_8b."""
    mllog_submission_division: str = ""
    """closed or open."""
    mllog_submission_status: str = ""
    """onprem, cloud, research or preview; not logged when empty."""
    mllog_submission_org: str = ""
    """The submitting organisation."""
    mllog_submission_platform: str = ""
    """The system, for instance 1xMI355X."""
    mllog_submission_poc_name: str = ""
    """Point of contact: name; not logged when empty."""
    mllog_submission_poc_email: str = ""
    """Point of contact: e-mail; not logged when empty."""
    mllog_config_filename: str = ""
    """The configuration file that the run was started with."""

    # -- what the log says of the run; the framework's own value is used unless one is set here
    mllog_tensor_parallelism: int = 1
    """Tensor-parallel size. Set: wins over the framework's, with a warning when they differ."""
    mllog_pipeline_parallelism: int = 1
    """Pipeline-parallel size; as above."""
    mllog_context_parallelism: int = 1
    """Context-parallel size; as above."""
    mllog_expert_parallelism: int = 1
    """Expert-parallel size; as above."""
    mllog_micro_batch_size: int = 1
    """Micro batch size in samples; as above."""
    mllog_lowest_numerical_precision_linear: str = ""
    """Lowest precision in linear layers (key lowest_numerical_precision_in_linear)."""
    mllog_lowest_numerical_precision_attn: str = ""
    """Lowest precision in attention (key lowest_numerical_precision_in_attn)."""
    mllog_lowest_numerical_precision_comm: str = ""
    """Lowest precision in communication (key lowest_numerical_precision_in_comm)."""

    # -- the run
    mllog_train_loss_log_freq: Count = 1
    """Log train_loss every this many steps; 0 logs none."""
    mllog_target_eval_loss: float = 0.0
    """The run succeeds at the first evaluation loss that is not above this."""
    mllog_block_tput_log: bool = False
    """1: log each block's throughput as tracked_stats, and at the end run_duration and the overall
    throughput."""
    mllog_ruleset: str = ""
    """Ruleset of the preflight, for instance 6.1.0; empty is the newest that mlperf-logging has."""
    mllog_preflight: Literal["warn", "error", "off"] = "warn"
    """What happens when the submission checker would refuse the header: a table on stderr, an
    error before training, or nothing."""

    # -- synthetic warmup
    synth_warmup_steps: Count = 3
    """Warmup training steps before run_start; 0 disables."""
    synth_warmup_valid_steps: Count = 0
    """Warmup evaluation steps before run_start."""
    synth_warmup_empty_cache: bool = True
    """1: release the allocator's cache after the warmup."""
    synth_warmup_verify: bool = False
    """1: compare digests of all state before and after the warmup; a difference is an error."""
    warmup_recipe: Literal["", "bf16", "fp8_hybrid", "fp8_e4m3", "fp4_mxfp4", "fp4_nvfp4"] = ""
    """Low-precision recipe of the warmup steps; empty or bf16: none."""
    warmup_fp8_recipe: Literal["", "hybrid", "e4m3"] = ""
    """Legacy form of WARMUP_RECIPE=fp8_hybrid or fp8_e4m3."""
    warmup_fp8_history_len: Size = 4
    """Length of the amax history in warmup steps with delayed scaling."""

    # -- profiling
    profiler: Literal["", "rpd", "torch"] = ""
    """What records a trace: rpd (ROCm's tracer, SQLite) or torch (PyTorch's, Chrome traces)."""
    profile_segment: Literal["train", "eval", "train_step"] = "train"
    """What is traced: training between evaluations, evaluations, or training steps only."""
    prof_warmup_steps: Count = 0
    """Training steps of the run before tracing begins."""
    prof_active_steps: Count = 10
    """Training steps to trace (evaluations with PROFILE_SEGMENT=eval); 0: no limit."""
    profile_ranks: Annotated[str, Field(pattern=r"^(all|\d+(,\d+)*)$")] = "0"
    """Ranks that trace: numbers with commas, or all."""
    profile_output_dir: str = ""
    """Folder of the traces; empty is the log file's."""
    enable_python_trace: bool = False
    """1: Python calls are traced too."""

    @classmethod
    def from_environment(cls) -> Settings:
        """Read the environment, and warn about variables of ours that do not exist.

        Raises:
            SettingsError: values that cannot be used, all of them in one message.
        """
        try:
            settings = cls()
        except ValidationError as error:
            raise SettingsError(*_problems(error)) from None
        for name in _unknown_names(os.environ):
            notices.tell_once(name, _unknown_message(name))
        return settings

    @property
    def has_warmup(self) -> bool:
        """Whether any warmup steps are asked for."""
        return bool(self.synth_warmup_steps or self.synth_warmup_valid_steps)

    def is_set(self, field: str) -> bool:
        """Whether ``field`` was set (in the environment or by keyword), not left at its default."""
        return field in self.model_fields_set


class PretrainSettings(Settings):
    """Defaults of pretraining."""


class SFTSettings(Settings):
    """Defaults of fine-tuning (llama2_70b_lora)."""

    mllog_train_loss_log_freq: Count = 10
    """Log train_loss every this many steps; 0 logs none."""
    mllog_target_eval_loss: float = 0.925
    """The run succeeds at the first evaluation loss that is not above this."""


def launcher_value(*names: str) -> int | None:
    """The first of the launcher's variables (RANK, WORLD_SIZE, …) that holds an integer."""
    for name in names:
        value = os.environ.get(name, "")
        if value.isdecimal():
            return int(value)
    return None


def launch_environment(**overrides: str) -> dict[str, str]:
    """A copy of this process's environment for a process that we start."""
    return {**os.environ, **overrides}


def _problems(error: ValidationError) -> list[Problem]:
    problems = []
    for item in error.errors(include_url=False):
        wanted = item["msg"].removeprefix("Input should be ").split(", unable to")[0]
        problems.append(Problem(str(item["loc"][0]), repr(item["input"]), wanted))
    return problems


def _known_names() -> list[str]:
    return [name.upper() for name in Settings.model_fields]


def _unknown_names(environment: Mapping[str, Any]) -> list[str]:
    known = set(_known_names())
    return sorted(n for n in environment if n.startswith(_OUR_PREFIXES) and n not in known)


def _unknown_message(name: str) -> str:
    near = difflib.get_close_matches(name, _known_names(), n=1, cutoff=0.0)[0]
    return f"{name} is not a variable that is read here and has no effect; did you mean {near}?"
