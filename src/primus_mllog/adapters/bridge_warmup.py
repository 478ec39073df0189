"""Synthetic warmup in Megatron-Bridge."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from primus_mllog.adapters.megatron_warmup import data_iterators, own_rerun_machine, trackers
from primus_mllog.adapters.patching import call_by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from primus_mllog.distributed import ProcessGroup
    from primus_mllog.settings import Settings

__all__ = ["warm_up_bridge"]


def warm_up_bridge(  # noqa: PLR0913 - what a step is made of
    state: Any,
    model: Sequence[Any],
    optimizer: Any,
    scheduler: Any,
    forward_step: Callable[..., Any],
    *,
    settings: Settings,
    group: ProcessGroup,
) -> None:
    """Take steps of Bridge's own on random tokens; leave everything as it was.

    Args:
        state: Bridge's ``GlobalState``.
        model: the model's chunks, with Bridge's functions in their configuration.
        optimizer: Megatron's optimizer.
        scheduler: its scheduler.
        forward_step: as given to ``pretrain()`` or ``finetune()``.
        settings: SYNTH_WARMUP_* and WARMUP_*.
        group: the ranks of the run.
    """
    from megatron.bridge.training import eval as evaluation
    from megatron.bridge.training import train as training
    from megatron.bridge.training.utils.pg_utils import get_pg_collection
    from megatron.bridge.training.utils.train_utils import prepare_forward_step_func
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
    from megatron.core.utils import get_model_config

    from primus_mllog.warmup.runner import run_warmup

    groups = get_pg_collection(model)
    known = {
        "forward_step_func": prepare_forward_step_func(forward_step, state),
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "global_state": state,
        "pg_collection": groups,
        "forward_backward_func": get_forward_backward_func(),
        "p2p_communicator": P2PCommunicator(groups.pp, get_model_config(model[0])),
    }
    cadence = getattr(state.cfg, "validation", None) or state.cfg.train

    def train_step(_index: int) -> None:
        for chunk in model:
            chunk.train()
        data = _data_iterator(state.cfg, model, groups)
        call_by_name(training.train_step, {**known, "data_iterator": data})

    def evaluate(num_steps: int) -> None:
        cadence.eval_iters = num_steps  # put back with the rest of the configuration
        evaluation.evaluate(
            state, forward_step, _data_iterator(state.cfg, model, groups), model, None, state.cfg
        )

    with own_rerun_machine():
        run_warmup(
            settings,
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            train_step=train_step,
            evaluate=evaluate,
            also=[state.train_state, state.timers, state.cfg.train, cadence, *trackers()],
            group=group,
        )


def _data_iterator(config: Any, model: Sequence[Any], groups: Any) -> Any:
    """Synthetic batches as Bridge's loaders give them."""
    from primus_mllog.warmup.synthetic_data import gpt_batches, packed_batches

    train, dataset = config.train, config.dataset
    num_rows = train.micro_batch_size
    if dataset.dataloader_type == "batch":  # all micro batches of a step at once
        num_rows = train.global_batch_size // groups.dp.size()
    is_packed = getattr(dataset, "packed_sequence_specs", None) is not None
    make = partial(
        packed_batches if is_packed else gpt_batches,
        micro_batch_size=num_rows,
        seq_length=dataset.seq_length,
        vocab_size=getattr(config.model, "transformer", config.model).vocab_size,
    )
    return data_iterators(model, make)
