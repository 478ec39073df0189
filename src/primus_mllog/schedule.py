"""The learning-rate schedule, in optimizer steps, from however it was given to Megatron.

Megatron takes the length of training, warmup and decay in iterations, in samples, or (warmup) as
a fraction of the decay; it counts the decay from step 0, warmup included
(``get_optimizer_param_scheduler`` in ``megatron/training/training.py``). MLPerf wants steps, and
the decay without the warmup.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Schedule", "exact_or_given"]


class Schedule(NamedTuple):
    """Lengths in optimizer steps; None where the arguments do not say."""

    max_steps: int | None
    warmup_steps: int | None
    decay_steps: int | None

    @classmethod
    def of(cls, read: Callable[[str], Any]) -> Schedule:
        """The schedule that Megatron makes of its arguments.

        Args:
            read: looks an argument up by name; None where it is absent.
        """
        global_batch_size = read("global_batch_size")

        def steps(name: str) -> float | None:
            """``name`` in iterations, or in samples; not rounded."""
            samples = read(f"{name}_samples")
            if samples and global_batch_size:
                return float(samples / global_batch_size)
            iterations: float | None = read(f"{name}_iters")
            return iterations

        training, decay = steps("train"), steps("lr_decay")
        if decay is None:
            decay = training
        warmup, fraction = steps("lr_warmup"), read("lr_warmup_fraction")
        if fraction is not None and decay is not None:
            # rounded: 0.01 · 1200 must not become 13 by a last bit
            warmup = round(fraction * decay, 6)
        # Megatron trains whole batches only: a last part of one is not trained on
        max_steps = None if training is None else math.floor(training)
        warmup_steps = None if warmup is None else math.ceil(warmup)
        end_of_decay = max_steps if decay in (None, training) else math.ceil(decay)
        return cls(max_steps, warmup_steps, _decay(max_steps, warmup_steps, end_of_decay))


def _decay(max_steps: int | None, warmup_steps: int | None, end: int | None) -> int | None:
    """The steps of decay after the warmup.

    Some configurations (Primus' for MLPerf) give Megatron "training minus warmup" as the decay,
    which is the number that the rules want: there the warmup is taken off already.
    """
    if warmup_steps is None or end is None:
        return end
    if end + warmup_steps == max_steps:
        return end
    return end - warmup_steps


def exact_or_given(
    learning_rate: float | None, global_batch_size: int | None, benchmark: str
) -> float | None:
    """The learning rate, with its last bits as the rule for llama31_405b compares them.

    The rule is ``lr · 1152 == global_batch_size · 8e-5``, in floating point and without a
    tolerance, so a rate that was rounded for a configuration file fails. One that is the rule's
    to six digits is replaced by the rule's own quotient, the only float near it that can pass. At
    some batch sizes (496, for instance) none does: there the rate stays as it was given, and the
    preflight says so.
    """
    if benchmark != "llama31_405b" or learning_rate is None or not global_batch_size:
        return learning_rate
    wanted = global_batch_size * 8e-5
    exact = wanted / 1152
    passes = exact * 1152 == wanted
    is_near = math.isclose(learning_rate, exact, rel_tol=1e-6)
    return exact if passes and is_near else learning_rate
