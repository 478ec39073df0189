"""The training loop: how any loop of one's own calls :class:`primus_mllog.MLPerfRun`.

Imports numpy, torch and megatron at the top: this module is imported only once a training begins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from typing import TYPE_CHECKING

import numpy as np
import torch
from megatron.core import parallel_state, tensor_parallel

from primus_mllog.demo.cpu import megatron_on_cpu
from primus_mllog.demo.data import Corpus, share
from primus_mllog.demo.model import Trainer
from primus_mllog.hyperparameters import extract_hyperparameters

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from primus_mllog.demo.progress import Silence
    from primus_mllog.run import MLPerfRun

__all__ = ["DemoResult", "train"]


@dataclasses.dataclass
class DemoResult:
    """What the training came to, as this rank saw it; losses in nats per byte."""

    train_losses: list[float | None] = dataclasses.field(default_factory=list)
    """One for each step; None on ranks that do not have it."""
    eval_losses: list[float | None] = dataclasses.field(default_factory=list)
    """One for each evaluation; None on ranks that do not have it."""
    reached: bool = False
    """Whether the target was reached; the same on every rank."""


def train(args: Namespace, run: MLPerfRun, progress: Silence) -> DemoResult:
    """Train until the target is reached or the steps are used up. Call it on every rank.

    Args:
        args: see :func:`primus_mllog.demo.arguments.megatron_arguments`.
        run: a run whose ``init_start`` was called.
        progress: told of every step and evaluation, on this rank.

    Raises:
        PreflightError: the header would be refused and MLLOG_PREFLIGHT=error.
        ConfigurationError: this Python has no text to train on.
    """
    # The run is innermost: its end is written before anything that could hang on a dead rank.
    with megatron_on_cpu(), _process_groups(args), run:
        _seed_generators(args.seed)
        trainer = Trainer(args)
        run.log_hyperparameters(extract_hyperparameters(args, run.settings))
        run.preflight()
        trainer.warm_up(run.settings)
        run.start()
        return _loop(trainer, args, run, progress)


def _loop(trainer: Trainer, args: Namespace, run: MLPerfRun, progress: Silence) -> DemoResult:
    result = DemoResult()
    corpus = Corpus(args.seq_length)
    rank = parallel_state.get_data_parallel_rank()
    eval_samples = share(
        corpus.evaluation_set(args.eval_iters * args.global_batch_size),
        rank,
        args.data_parallel_size,
    )
    for iteration in range(1, args.train_iters + 1):
        run.step_start()
        batch = corpus.training_batch(args.seed, iteration, args.global_batch_size)
        learning_rate = trainer.learning_rate
        loss = trainer.train_step(share(batch, rank, args.data_parallel_size))
        samples_count = iteration * args.global_batch_size
        run.step_stop(samples_count, iteration=iteration, loss=loss, learning_rate=learning_rate)
        progress.step(iteration, loss)
        result.train_losses.append(loss)

        if iteration % args.eval_interval == 0 or iteration == args.train_iters:
            run.eval_start(samples_count)
            loss = trainer.evaluate(eval_samples)
            result.reached = run.eval_stop(loss)
            progress.evaluation(iteration, loss)
            result.eval_losses.append(loss)
            if result.reached:
                break
    return result


@contextlib.contextmanager
def _process_groups(args: Namespace) -> Iterator[None]:
    """``torch.distributed`` over gloo, and Megatron's groups on top of it."""
    # One thread a process, as torchrun has it. A model this small gains little from more, and on
    # cores that others use, too, threads that wait for each other make it several times slower.
    torch.set_num_threads(1)
    if args.world_size == 1:
        # Alone there is nobody to meet: no port is opened.
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    else:
        torch.distributed.init_process_group("gloo")
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=args.tensor_model_parallel_size,
            pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        )
        yield
    finally:
        # gloo's threads may abort the interpreter at its exit where groups are left over.
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def _seed_generators(seed: int) -> None:
    """As Megatron seeds them: pipeline stages differ, data-parallel ranks do not."""
    seed += 100 * parallel_state.get_pipeline_model_parallel_rank()
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the legacy generator is the one Megatron seeds
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)
