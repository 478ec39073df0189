"""Warmup steps before the timed run, after which the training is as if there had been none.

Kernels are compiled, communicators set up, optimizer state and workspaces allocated by real steps
on random tokens; then everything is restored, bit for bit. Framework-neutral: an adapter hands over
what a step is.

Imports torch at the top: this module is imported only once a training begins.
"""

from __future__ import annotations

import gc
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from primus_mllog import notices
from primus_mllog.distributed import ProcessGroup, WorldGroup
from primus_mllog.errors import WarmupError
from primus_mllog.warmup.precision import global_state, warmup_autocast
from primus_mllog.warmup.snapshot import TrainingStateSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from primus_mllog.settings import Settings

__all__ = ["run_warmup"]

_GIB = 1024**3


def run_warmup(  # noqa: PLR0913 - keywords, of which a framework has what it has
    settings: Settings,
    *,
    model: Iterable[torch.nn.Module],
    train_step: Callable[[int], Any],
    evaluate: Callable[[int], Any] | None = None,
    optimizer: Any = None,
    scheduler: Any = None,
    also: Iterable[Any] = (),
    group: ProcessGroup | None = None,
) -> None:
    """Take SYNTH_WARMUP_STEPS training and SYNTH_WARMUP_VALID_STEPS evaluation steps.

    Afterwards model, optimizer, scheduler, random generators, low-precision state and ``also`` are
    what they were, in place; also when a step raises. To be called on every rank, before the run
    starts: a step is a collective.

    Args:
        settings: SYNTH_WARMUP_* and WARMUP_*.
        model: the model's chunks.
        train_step: takes one whole step (forward, backward, optimizer, scheduler) on synthetic
            data; its argument counts from 0.
        evaluate: takes as many evaluation steps as its argument says.
        optimizer: the framework's optimizer, or one of torch.
        scheduler: the learning-rate scheduler.
        also: objects whose attributes, or mappings whose entries, the steps change.
        group: the ranks; rank 0 tells how far the warmup is.

    Raises:
        WarmupError: SYNTH_WARMUP_VERIFY=1, and something is not what it was.
        MissingDependencyError, ConfigurationError: WARMUP_RECIPE cannot be had.
    """
    num_steps, num_valid_steps = settings.synth_warmup_steps, settings.synth_warmup_valid_steps
    if evaluate is None:
        num_valid_steps = 0
    if num_steps == 0 and num_valid_steps == 0:
        return
    autocast = warmup_autocast(settings)  # what it cannot have is an error before anything else
    is_told = (group or WorldGroup()).rank == 0
    chunks, also = list(model), [*also, *global_state()]

    def capture() -> TrainingStateSnapshot:
        return TrainingStateSnapshot(chunks, optimizer, scheduler, also)

    began = time.perf_counter()
    snapshot = capture()
    captured = time.perf_counter()
    try:
        with autocast:
            for index in range(num_steps):
                _timed(f"step {index + 1}/{num_steps}", partial(train_step, index), is_told)
        if evaluate is not None and num_valid_steps:
            _timed("evaluation", partial(evaluate, num_valid_steps), is_told)
    except Exception:
        notices.tell("warmup: a step failed; SYNTH_WARMUP_STEPS=0 trains without a warmup")
        raise
    finally:
        stepped = time.perf_counter()
        snapshot.restore()
        restored = time.perf_counter()
        gc.collect()
        if settings.synth_warmup_empty_cache and torch.cuda.is_available():
            torch.cuda.empty_cache()
    verified = ""
    if settings.synth_warmup_verify:
        _verify(snapshot.digest(), capture().digest())
        verified = ", verified to be what it was"
    if is_told:
        notices.tell(
            f"warmup: {num_steps} training and {num_valid_steps} evaluation steps in "
            f"{stepped - captured:.1f} s; {_size(snapshot.num_bytes)} of state captured in "
            f"{captured - began:.1f} s and restored in {restored - stepped:.1f} s{verified}"
        )


def _timed(what: str, take: Callable[[], Any], is_told: bool) -> None:
    """Take a step and tell rank 0's reader its seconds and memory."""
    began = time.perf_counter()
    take()
    memory = ""
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # outside the timed run: seconds, not launches
        memory = f", peak memory {_size(torch.cuda.max_memory_allocated())}"
    if is_told:
        notices.tell(f"warmup: {what} took {time.perf_counter() - began:.2f} s{memory}")


def _size(num_bytes: float) -> str:
    unit, name = (_GIB, "GiB") if num_bytes >= _GIB else (1024**2, "MiB")
    return f"{num_bytes / unit:.1f} {name}"


def _verify(before: dict[str, str], after: dict[str, str]) -> None:
    different = [name for name in before | after if before.get(name) != after.get(name)]
    if different:
        raise WarmupError(different)
