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

        def steps(name: str) -> int | None:
            """``name`` in iterations, or in samples."""
            iterations, samples = read(f"{name}_iters"), read(f"{name}_samples")
            if samples and global_batch_size:
                iterations = math.ceil(samples / global_batch_size)
            return None if iterations is None else int(iterations)

        # Megatron trains whole batches only: a last part of one is not trained on
        samples = read("train_samples")
        in_samples = samples is not None and bool(global_batch_size)
        max_steps = int(samples // global_batch_size) if in_samples else steps("train")
        end_of_decay = steps("lr_decay")
        if end_of_decay is None:
            end_of_decay = max_steps
        fraction = read("lr_warmup_fraction")
        if fraction is not None and end_of_decay is not None:
            # rounded first: 0.01 · 1200 must not become 13 by a last bit
            warmup_steps: int | None = math.ceil(round(fraction * end_of_decay, 6))
        else:
            warmup_steps = steps("lr_warmup")
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
    to six digits is replaced by the rule's own quotient. At some batch sizes (496, for instance)
    no float at all passes; the preflight says so.
    """
    if benchmark != "llama31_405b" or learning_rate is None or not global_batch_size:
        return learning_rate
    exact = global_batch_size * 8e-5 / 1152
    return exact if math.isclose(learning_rate, exact, rel_tol=1e-6) else learning_rate
