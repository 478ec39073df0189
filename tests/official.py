"""Logs for tests, and MLCommons' own checker called as its command line calls it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mlperf_logging.compliance_checker import mlp_compliance

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

MARKERS_BEFORE = [("cache_clear", True), ("init_start", None)]


def line(key: str, value: Any = None, time_ms: int = 0, **metadata: Any) -> str:
    """One event as mllog writes it."""
    event = {
        "namespace": "",
        "time_ms": time_ms,
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
        "metadata": {"file": "train.py", "lineno": 1, **metadata},
    }
    return f":::MLLOG {json.dumps(event)}\n"


def whole_log(
    header: Mapping[str, Any], eval_loss: float = 0.5, samples_count: int = 16
) -> list[str]:
    """A run with that header and one evaluation."""
    at = {"samples_count": samples_count}
    return [
        *(line(key, value) for key, value in MARKERS_BEFORE),
        *(line(key, value) for key, value in header.items()),
        line("init_stop"),
        line("run_start"),
        line("epoch_start", samples_count=0),
        line("block_start", samples_count=0),
        line("block_stop", **at),
        line("eval_start", **at),
        line("eval_accuracy", eval_loss, **at),
        line("eval_stop", **at),
        line("epoch_stop", **at),
        line("run_stop", status="success", **at),
    ]


OPEN_HEADER = {
    "submission_division": "open",
    "submission_benchmark": "llama31_8b",
    "submission_org": "org",
    "submission_platform": "platform",
    "config_filename": "config.yaml",
    "train_samples": 100,
    "eval_samples": 10,
    "micro_batch_size": 1,
    "tensor_parallelism": 1,
    "pipeline_parallelism": 1,
    "context_parallelism": 1,
    "expert_parallelism": 1,
    "lowest_numerical_precision_in_linear": "fp32",
    "lowest_numerical_precision_in_attn": "fp32",
    "lowest_numerical_precision_in_comm": "fp32",
}


def official_verdict(path: Path, ruleset: str) -> bool:
    """What the official checker says, called without anything of ours in between."""
    mlp_compliance.enqueued_configs.clear()  # a crash of an earlier call leaves them filled
    checker = mlp_compliance.make_checker("training", ruleset, quiet=False, werror=False)
    valid, *_ = mlp_compliance.main(str(path), f"training_{ruleset}/common.yaml", checker)
    return bool(valid)


def official_verdict_of(lines: Iterable[str], path: Path, ruleset: str) -> bool:
    """The same for lines, written to ``path``."""
    path.write_text("".join(lines))
    return official_verdict(path, ruleset)
