"""The Trainer of Hugging Face's transformers, through its callbacks.

::

    Trainer(..., callbacks=[MLPerfTrainerCallback(eval_dataset)]).train()

transformers is imported when the class is asked for.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from primus_mllog import keys, notices
from primus_mllog.errors import MissingDependencyError, PrimusMllogError
from primus_mllog.hyperparameters import extract_hyperparameters
from primus_mllog.run import MLPerfRun
from primus_mllog.settings import SFTSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    MLPerfTrainerCallback: type

__all__ = ["MLPerfTrainerCallback", "arguments_of"]


def arguments_of(args: Any, state: Any, model: Any = None) -> dict[str, Any]:
    """A training's ``TrainingArguments`` under the names that Megatron's arguments have.

    Args:
        args: ``TrainingArguments``.
        state: ``TrainerState``, which knows how many steps there will be.
        model: its PEFT configuration says the LoRA rank and alpha.
    """
    micro_batch_size = args.per_device_train_batch_size
    per_step = micro_batch_size * args.gradient_accumulation_steps * args.world_size
    lora: Any = next(iter(getattr(model, "peft_config", {}).values()), None)
    schedule, optimizer = _plain(args.lr_scheduler_type), _plain(args.optim)
    found = {
        "seed": args.seed,
        "global_batch_size": per_step,
        "micro_batch_size": micro_batch_size,
        "data_parallel_size": args.world_size,
        "train_iters": state.max_steps,
        "eval_interval": state.eval_steps or None,
        "optimizer": "adam" if optimizer.startswith("adamw") else optimizer,
        "lr": args.learning_rate,
        "lr_decay_style": schedule,
        "lr_warmup_iters": args.get_warmup_steps(state.max_steps),
        "weight_decay": args.weight_decay,
        "clip_grad": args.max_grad_norm,
        "adam_beta1": args.adam_beta1,
        "adam_beta2": args.adam_beta2,
        "adam_eps": args.adam_epsilon,
        "bf16": args.bf16,
        "fp16": args.fp16,
        "lora_rank": getattr(lora, "r", None),
        "lora_alpha": getattr(lora, "lora_alpha", None),
        "iteration": state.global_step,
    }
    return {name: value for name, value in found.items() if value is not None}


def _plain(name: Any) -> str:
    """A name, or an enum of names, as text."""
    return str(getattr(name, "value", name))


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:  # none, or a stream
        return None


def _tolerant(method: Callable[..., Any]) -> Callable[..., Any]:
    """Our own trouble is told once and does not end the training; our errors before it do."""

    @functools.wraps(method)
    def called(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        try:
            return method(self, args, state, control, **kwargs)
        except PrimusMllogError:
            raise
        except Exception as error:  # noqa: BLE001
            notices.tell_once(f"trainer {method.__name__}", f"not logged: {error!r}")
            return None

    return called


class _TrainerCallback:
    """Logs a training of transformers' ``Trainer``.

    The Trainer opens its data before any callback is called, so the clock starts after it.
    ``train_loss`` is logged where the Trainer logs a loss (``logging_steps``), as it does the
    mean since the last; the evaluation loss is ``eval_loss``.

    Args:
        eval_dataset: the Trainer's, which it does not show before the first evaluation; its
            length is logged as eval_samples.
        run: one with fine-tuning's defaults when not given. Its initialisation begins now.
    """

    def __init__(self, eval_dataset: Any = None, *, run: MLPerfRun | None = None) -> None:
        self._num_eval_samples = _length(eval_dataset)
        self.run = run or MLPerfRun(SFTSettings.from_environment())
        self._samples_in_step = 0
        self._is_loss_due = False
        if self.run.phase is self.run.phase.NEW:
            self.run.init_start()

    def on_train_begin(self, args: Any, state: Any, _control: Any, **kwargs: Any) -> None:
        known = arguments_of(args, state, kwargs.get("model"))
        self._samples_in_step = known["global_batch_size"]
        header = extract_hyperparameters(known, self.run.settings)
        loader = kwargs.get("train_dataloader")
        counts = {
            keys.TRAIN_SAMPLES: _length(getattr(loader, "dataset", None)),
            keys.EVAL_SAMPLES: self._num_eval_samples,
        }
        header |= {key: count for key, count in counts.items() if count is not None}
        self.run.log_hyperparameters(header)
        self.run.start(samples_count=state.global_step * self._samples_in_step)

    @_tolerant
    def on_step_begin(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        self.run.step_start()

    @_tolerant
    def on_step_end(self, _args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._is_loss_due = control.should_log
        if not self._is_loss_due:
            self._step_done(state, control, None, **kwargs)

    @_tolerant
    def on_log(self, _args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self._is_loss_due:
            self._is_loss_due = False
            self._step_done(state, control, logs or {}, **kwargs)

    def _step_done(self, state: Any, control: Any, logs: Any, **_: Any) -> None:
        logs = logs or {}
        samples = state.global_step * self._samples_in_step
        self.run.step_stop(
            samples,
            iteration=state.global_step,
            loss=logs.get("loss"),
            learning_rate=logs.get("learning_rate"),
        )
        if control.should_evaluate:
            self.run.eval_start(samples)

    def on_evaluate(
        self, _args: Any, _state: Any, control: Any, metrics: Any = None, **_: Any
    ) -> Any:
        if self.run.phase is not self.run.phase.EVALUATION:
            return control  # one that the training did not ask for
        if self.run.eval_stop((metrics or {}).get("eval_loss")):
            control.should_training_stop = True
        return control

    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        self.run.stop()


@functools.cache
def _callback_class() -> type:
    try:
        base = importlib.import_module("transformers").TrainerCallback
    except ImportError as error:
        raise MissingDependencyError(
            "transformers", "MLPerfTrainerCallback", "pip install 'primus-mllog[huggingface]'"
        ) from error
    members = {"__module__": __name__, "__doc__": _TrainerCallback.__doc__}
    return type("MLPerfTrainerCallback", (_TrainerCallback, base), members)


def __getattr__(name: str) -> Any:
    if name != "MLPerfTrainerCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _callback_class()
