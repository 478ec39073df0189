"""A small GPT made, trained and evaluated by Megatron-Core's own parts.

Imports torch and megatron at the top: this module is imported only once a training begins.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

from primus_mllog.demo.data import micro_batches
from primus_mllog.warmup.runner import run_warmup

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from primus_mllog.settings import Settings

__all__ = ["Trainer"]


class Trainer:
    """The model on this rank, with optimizer and learning-rate schedule.

    ``parallel_state`` must be initialised and the random generators seeded.

    Args:
        args: see :func:`primus_mllog.demo.arguments.megatron_arguments`.
    """

    def __init__(self, args: Namespace) -> None:
        self._args = args
        self._model = _distributed(_gpt(args))
        self._optimizer = get_megatron_optimizer(_optimizer_config(args), [self._model])
        self._scheduler = _scheduler(self._optimizer, args)
        self._model.config.finalize_model_grads_func = finalize_model_grads
        self._forward_backward = get_forward_backward_func()
        is_future = torch.ones(1, 1, args.seq_length, args.seq_length, dtype=torch.bool).triu(1)
        self._forward_step = functools.partial(_forward_step, attention_mask=is_future)

    @property
    def learning_rate(self) -> float:
        """The rate of the step to come."""
        return float(self._optimizer.param_groups[0]["lr"])

    def train_step(self, samples: torch.Tensor) -> float | None:
        """Forward, backward, gradient reduction, optimizer and schedule.

        Args:
            samples: this data-parallel rank's part of the global batch, see :mod:`.data`.

        Returns:
            The mean loss over the global batch before the step, in nats per byte; None except on
            the last pipeline stage.
        """
        self._model.train()
        self._model.zero_grad_buffer()
        self._optimizer.zero_grad()
        loss = self._run(samples, forward_only=False)
        self._optimizer.step()
        self._scheduler.step(increment=self._args.global_batch_size)
        return loss

    def evaluate(self, samples: torch.Tensor) -> float | None:
        """The mean loss over all data-parallel ranks' ``samples``; else as :meth:`train_step`."""
        self._model.eval()
        with torch.no_grad():
            return self._run(samples, forward_only=True)

    def warm_up(self, settings: Settings) -> None:
        """Steps on random bytes, after which everything is what it was."""
        num_samples = self._args.global_batch_size // self._args.data_parallel_size
        shape = (num_samples, self._args.seq_length + 1)
        generator = torch.Generator().manual_seed(0)  # the training's own stays where it is
        random_bytes = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        run_warmup(
            settings,
            model=[self._model],
            optimizer=self._optimizer,
            scheduler=self._scheduler,
            train_step=lambda _: self.train_step(random_bytes),
            evaluate=lambda count: [self.evaluate(random_bytes) for _ in range(count)],
        )

    def _run(self, samples: torch.Tensor, *, forward_only: bool) -> float | None:
        micro_batch_size = self._args.micro_batch_size
        losses = self._forward_backward(
            forward_step_func=self._forward_step,
            data_iterator=micro_batches(samples, micro_batch_size),
            model=[self._model],
            num_microbatches=len(samples) // micro_batch_size,
            seq_length=self._args.seq_length,
            micro_batch_size=micro_batch_size,
            forward_only=forward_only,
        )
        if not parallel_state.is_pipeline_last_stage():
            return None
        mean = torch.stack(losses).mean()
        torch.distributed.all_reduce(mean, group=parallel_state.get_data_parallel_group())
        return float(mean.item() / parallel_state.get_data_parallel_world_size())


def _forward_step(
    batches: Iterator[dict[str, torch.Tensor]], model: Any, *, attention_mask: torch.Tensor
) -> tuple[torch.Tensor, Any]:
    """One micro batch, in the form that Megatron's schedules call."""
    batch = next(batches)
    positions = torch.arange(attention_mask.shape[-1]).expand_as(batch["tokens"])
    losses = model(batch["tokens"], positions, attention_mask, labels=batch["labels"])
    return losses, _mean_loss


def _mean_loss(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss to differentiate and the loss to report, from one loss for each token."""
    mean = losses.float().mean()
    # The schedule divides the first by the number of micro batches, in place.
    return mean, mean.detach().clone()


def _gpt(args: Namespace) -> GPTModel:
    config = TransformerConfig(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        ffn_hidden_size=args.ffn_hidden_size,
        num_attention_heads=args.num_attention_heads,
        normalization=args.normalization,
        layernorm_epsilon=args.norm_epsilon,
        gated_linear_unit=args.swiglu,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=args.add_bias_linear,
        attention_dropout=args.attention_dropout,
        hidden_dropout=args.hidden_dropout,
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        pipeline_dtype=torch.float32,
        # Weights are drawn whole and then split: the same model for every tensor-parallel size.
        use_cpu_initialization=True,
        # There is no stream to synchronise, and the fused kernels are CUDA's.
        batch_p2p_sync=False,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
    )
    return GPTModel(
        config,
        get_gpt_layer_local_spec(normalization=args.normalization),
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type=args.position_embedding_type,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
    )


def _distributed(model: GPTModel) -> DistributedDataParallel:
    config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=False, overlap_grad_reduce=False
    )
    model = DistributedDataParallel(model.config, config, model)
    model.broadcast_params()
    return model


def _optimizer_config(args: Namespace) -> OptimizerConfig:
    return OptimizerConfig(
        optimizer=args.optimizer,
        lr=args.lr,
        min_lr=args.min_lr,
        weight_decay=args.weight_decay,
        adam_beta1=args.adam_beta1,
        adam_beta2=args.adam_beta2,
        adam_eps=args.adam_eps,
        clip_grad=args.clip_grad,
    )


def _scheduler(optimizer: Any, args: Namespace) -> OptimizerParamScheduler:
    """As Megatron's training loop builds it: it counts samples, not iterations."""
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=args.lr,
        min_lr=args.min_lr,
        lr_warmup_steps=args.lr_warmup_iters * args.global_batch_size,
        lr_decay_steps=args.lr_decay_iters * args.global_batch_size,
        lr_decay_style=args.lr_decay_style,
        start_wd=args.weight_decay,
        end_wd=args.weight_decay,
        wd_incr_steps=args.train_iters * args.global_batch_size,
        wd_incr_style="constant",
    )
