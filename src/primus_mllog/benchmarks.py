"""What the MLPerf training rules fix for each benchmark that Megatron-family frameworks train.

Targets, sample counts and run counts are also in mlperf-logging's rule files, and a test compares
them. The evaluation cadence is only in the rules' text
(https://github.com/mlcommons/training_policies/blob/master/training_rules.adoc).
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BENCHMARKS", "Benchmark", "find", "nearest_name"]


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """One benchmark of the closed division."""

    name: str
    """As ``submission_benchmark`` spells it."""
    target: float
    """The evaluation loss that must be reached (``<=``)."""
    num_runs: int
    """Result files in a submission."""
    eval_samples: int | None = None
    """Samples in one evaluation, where the rules fix it."""
    train_samples: int | None = None
    """Samples in the training set, where the rules fix it."""
    eval_interval_samples: Callable[[int], int] | None = None
    """Training samples between two evaluations, from the global batch size."""
    first_eval_samples: Callable[[int], int] | None = None
    """Training samples before the first evaluation, from the global batch size."""


def _whole_batches(num_samples: int) -> Callable[[int], int]:
    """At least ``num_samples``, rounded up to whole global batches."""
    return lambda global_batch_size: math.ceil(num_samples / global_batch_size) * global_batch_size


def _after_skipped(
    interval: Callable[[int], int], num_skipped: Callable[[int], int]
) -> Callable[[int], int]:
    """The first evaluation, where the rules let a run skip ``num_skipped`` of them."""
    return lambda global_batch_size: (
        interval(global_batch_size) * (num_skipped(global_batch_size) + 1)
    )


_EVERY_384 = _whole_batches(384)
_EVERY_12288 = _whole_batches(12288)
_EVERY_18432 = _whole_batches(18432)
_EVERY_262144 = _whole_batches(262144)

BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            "llama31_8b",
            target=3.3,
            num_runs=10,
            eval_samples=1024,
            eval_interval_samples=_EVERY_12288,
            first_eval_samples=_EVERY_12288,
        ),
        Benchmark(
            "gpt_oss_20b",
            target=3.34,
            num_runs=10,
            eval_samples=1024,
            eval_interval_samples=_EVERY_12288,
            first_eval_samples=_EVERY_12288,
        ),
        Benchmark(
            "llama2_70b_lora",
            target=0.925,
            num_runs=10,
            eval_samples=173,
            train_samples=3901,
            eval_interval_samples=_EVERY_384,
            first_eval_samples=_after_skipped(_EVERY_384, lambda gbs: math.floor(0.125 * gbs + 2)),
        ),
        Benchmark(
            "llama31_405b",
            target=5.6,
            num_runs=3,
            eval_samples=5760,
            eval_interval_samples=_EVERY_18432,
            first_eval_samples=_after_skipped(
                _EVERY_18432, lambda gbs: math.floor(0.0026 * gbs + 12)
            ),
        ),
        Benchmark(
            "deepseekv3_671b",
            target=3.6,
            num_runs=3,
            eval_samples=1024,
            first_eval_samples=lambda gbs: gbs * math.floor(42 + 24576 / gbs),
        ),
        Benchmark(
            "flux1",
            target=0.586,
            num_runs=10,
            eval_interval_samples=_EVERY_262144,
        ),
    )
}


def find(name: str) -> Benchmark | None:
    """The benchmark of that exact name."""
    return BENCHMARKS.get(name)


def nearest_name(name: str) -> str | None:
    """The benchmark that ``name`` was probably meant to be; None if it resembles none.

    ``gpt-oss-20b``, ``GPT_OSS_20B`` and ``gptoss20b`` are all gpt_oss_20b.
    """
    plain = {_plain(known): known for known in BENCHMARKS}
    nearest = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.75)
    return plain[nearest[0]] if nearest else None


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
