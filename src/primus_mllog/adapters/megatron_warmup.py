"""Synthetic warmup in Megatron-LM: what its loop sets up for a step, set up and put back."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from primus_mllog.adapters.patching import call_by_name, replaced
from primus_mllog.settings import PretrainSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from primus_mllog.distributed import ProcessGroup
    from primus_mllog.settings import Settings

__all__ = ["data_iterators", "own_rerun_machine", "run_synthetic_warmup", "trackers"]

_RERUN = "megatron.core.rerun_state_machine"
_GLOBALS = "megatron.training.global_vars"
# What a step adds to for the loop's reports, by module: dictionaries, classes, or functions that
# return an object. Releases have different ones.
_TRACKERS = {
    "megatron.core.parallel_state": "_MOE_LAYER_WISE_LOGGING_TRACKER",
    "megatron.core.transformer.moe.moe_utils": "_MOE_LAYER_WISE_LOGGING_TRACKER",
    "megatron.core.transformer.moe.moe_logging": "get_moe_metrics_tracker",
    "megatron.core.transformer.multi_token_prediction": "MTPLossLoggingHelper",
    "megatron.core.transformer.experimental_attention_variant.dsa": "DSAIndexerLossLoggingHelper",
}


def run_synthetic_warmup(  # noqa: PLR0913, PLR0917 - the names and their order are public
    train_step_func: Callable[..., Any],
    forward_step_func: Callable[..., Any],
    model: Sequence[Any],
    optimizer: Any,
    opt_param_scheduler: Any,
    config: Any,
    megatron_args: Any,
    *,
    evaluate_func: Callable[..., Any] | None = None,
    settings: Settings | None = None,
    group: ProcessGroup | None = None,
) -> None:
    """Take SYNTH_WARMUP_STEPS steps of Megatron's own on random tokens; leave everything as it was.

    To be called on every rank when the model is built, before the timed run starts; the training
    data is not touched.

    Args:
        train_step_func: Megatron's ``train_step``, of any release.
        forward_step_func: the script's forward step, as given to ``pretrain()``. It must be
            content with batches of tokens, labels, loss_mask, position_ids and, where the
            arguments ask for it, attention_mask.
        model: the model's chunks.
        optimizer: Megatron's optimizer.
        opt_param_scheduler: its scheduler.
        config: the model's configuration.
        megatron_args: Megatron's arguments.
        evaluate_func: Megatron's ``evaluate``, for SYNTH_WARMUP_VALID_STEPS; without it there
            is no evaluation warmup.
        settings: the environment; read from it when not given.
        group: the ranks of the run.

    Raises:
        MissingDependencyError, ConfigurationError: WARMUP_RECIPE cannot be had.
        WarmupError: SYNTH_WARMUP_VERIFY=1, and something is not what it was.
    """
    settings = settings or PretrainSettings.from_environment()
    if not settings.has_warmup:
        return
    from megatron.core.pipeline_parallel import get_forward_backward_func

    from primus_mllog.warmup.runner import run_warmup

    known = {
        "forward_step_func": forward_step_func,
        "model": model,
        "optimizer": optimizer,
        "opt_param_scheduler": opt_param_scheduler,
        "config": config,
        "forward_backward_func": get_forward_backward_func(),
        "process_non_loss_data_func": None,
    }

    def train_step(index: int) -> None:
        for chunk in model:
            chunk.train()
        megatron_args.curr_iteration = megatron_args.iteration
        data = {"data_iterator": _data_iterator(model, megatron_args), "iteration": index}
        call_by_name(train_step_func, {**known, **data})

    def evaluate(num_steps: int) -> None:
        megatron_args.eval_iters = num_steps  # older releases take no eval_iters
        data = {"data_iterator": _data_iterator(model, megatron_args), "eval_iters": num_steps}
        call_by_name(evaluate_func, {**known, **data})

    with (
        _step_functions(config, model, optimizer, megatron_args),
        _no_param_gather_hooks(model),
        own_rerun_machine(),
        _own_timers(config),
    ):
        run_warmup(
            settings,
            model=model,
            optimizer=optimizer,
            scheduler=opt_param_scheduler,
            train_step=train_step,
            evaluate=evaluate if evaluate_func is not None else None,
            also=[megatron_args, config, *trackers()],
            group=group,
        )


def trackers() -> list[Any]:
    """What Megatron's steps add to for reports of the loop, where the release has it."""
    found = []
    for module, name in _TRACKERS.items():
        tracker = getattr(sys.modules.get(module), name, None)
        if name.startswith("get_") and tracker is not None:
            tracker = tracker()
        if tracker is not None:
            found.append(tracker)
    return found


def data_iterators(model: Sequence[Any], make: Callable[[], Iterator[Any]]) -> Any:
    """Synthetic data as schedules take it: one iterator for each of several chunks.

    Wrapped as the rerun state machine wants them, in releases that have one.
    """
    wrap = getattr(sys.modules.get(_RERUN), "RerunDataIterator", None)
    iterators = [make() if wrap is None else wrap(make()) for _ in model]
    return iterators[0] if len(iterators) == 1 else iterators


@contextlib.contextmanager
def own_rerun_machine() -> Iterator[None]:
    """A rerun state machine of the block's own, switched off; the training's sees no step."""
    module: Any = sys.modules.get(_RERUN)
    if module is None or not hasattr(module, "_GLOBAL_RERUN_STATE_MACHINE"):
        yield
        return
    machine = module.RerunStateMachine(mode=module.RerunMode.DISABLED)
    with replaced(module, "_GLOBAL_RERUN_STATE_MACHINE", machine):
        yield


@contextlib.contextmanager
def _own_timers(config: Any) -> Iterator[None]:
    """Timers of the block's own: the loop's first report has no warmup in it."""
    module: Any = sys.modules.get(_GLOBALS)
    timers = getattr(module, "_GLOBAL_TIMERS", None)
    if timers is None:
        yield
        return
    own = type(timers)(timers._log_level, timers._log_option)  # noqa: SLF001 - no other way
    with replaced(module, "_GLOBAL_TIMERS", own), replaced(config, "timers", own):
        yield


@contextlib.contextmanager
def _step_functions(config: Any, model: Sequence[Any], optimizer: Any, args: Any) -> Iterator[None]:
    """The functions that ``train()`` sets in the configuration before its first step."""
    from megatron.core.distributed import finalize_model_grads

    def of_chunks(name: str) -> Any:
        functions = [getattr(chunk, name) for chunk in model]
        return functions[0] if len(functions) == 1 else functions

    values: dict[str, Any] = {
        "grad_scale_func": optimizer.scale_loss,
        "finalize_model_grads_func": config.finalize_model_grads_func or finalize_model_grads,
    }
    if getattr(args, "overlap_grad_reduce", False) and hasattr(model[0], "no_sync"):
        values["no_sync_func"] = config.no_sync_func or of_chunks("no_sync")
        if getattr(args, "align_grad_reduce", False):
            values["grad_sync_func"] = of_chunks("start_grad_sync")
    with contextlib.ExitStack() as stack:
        for name, value in values.items():
            stack.enter_context(replaced(config, name, value))
        yield


@contextlib.contextmanager
def _no_param_gather_hooks(model: Sequence[Any]) -> Iterator[None]:
    """Without the hooks that gather parameters ahead, as in ``train()``'s own first step."""
    hooked = [chunk for chunk in model if getattr(chunk, "remove_forward_pre_hook_handles", None)]
    for chunk in hooked:
        chunk.disable_forward_pre_hook(param_sync=False)
    try:
        yield
    finally:
        for chunk in hooked:
            chunk.enable_forward_pre_hook()


def _data_iterator(model: Sequence[Any], args: Any) -> Any:
    """Synthetic batches of the training's shape."""
    from primus_mllog.warmup.synthetic_data import gpt_batches

    make = partial(
        gpt_batches,
        micro_batch_size=args.micro_batch_size,
        seq_length=args.seq_length,
        vocab_size=args.padded_vocab_size,
        attention_mask=getattr(args, "create_attention_mask_in_dataloader", False),
    )
    return data_iterators(model, make)
