"""Megatron-Bridge's training loop, through its callbacks or, where it has none, by patching.

::

    finetune(config, forward_step, callbacks=[MLPerfCallback()])

or, for releases without callbacks, before the training::

    install_bridge_hooks()

Both say the same to one translation. Bridge is imported when the callback's class is asked for.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from typing import TYPE_CHECKING, Any

from primus_mllog import benchmarks, notices
from primus_mllog.adapters.bridge_config import arguments_of
from primus_mllog.adapters.bridge_warmup import warm_up_bridge
from primus_mllog.adapters.megatron_lm import learning_rate_of, loss_of
from primus_mllog.adapters.patching import argument, local_of_a_caller, wrapped
from primus_mllog.adapters.replay import Replay
from primus_mllog.errors import ConfigurationError, MissingDependencyError, Problem
from primus_mllog.hyperparameters import extract_hyperparameters
from primus_mllog.run import MLPerfRun
from primus_mllog.settings import SFTSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    MLPerfCallback: type

__all__ = ["BridgeRun", "MLPerfCallback", "bridge_hooks", "install_bridge_hooks"]

_TRAINING = "megatron.bridge.training"


class BridgeRun:
    """What happens in Bridge's loop, said to a run.

    Args:
        run: not yet started; one with fine-tuning's defaults when not given. Its initialisation
            begins now, unless it has.
    """

    def __init__(self, run: MLPerfRun | None = None) -> None:
        self.run = run or MLPerfRun(SFTSettings.from_environment())
        self._learning_rate: float | None = None
        if self.run.phase is self.run.phase.NEW:
            self.run.init_start()

    def start(
        self, state: Any, model: Any = None, optimizer: Any = None, scheduler: Any = None
    ) -> None:
        """The model is built: header, warmup, and the clock. Does nothing when that was done.

        The warmup needs model and optimizer, and the forward step that a caller was given.
        """
        if self.run.phase is not self.run.phase.INIT:
            return
        settings, group = self.run.settings, self.run.group
        arguments = arguments_of(state.cfg, state.train_state.step)
        header = extract_hyperparameters(arguments, settings, world_size=group.world_size)
        self.run.log_hyperparameters(header)
        self.run.preflight()  # before a warmup that may compile for minutes
        if settings.has_warmup:
            forward_step = local_of_a_caller("forward_step_func")
            if forward_step is None or optimizer is None:
                notices.tell_once("warmup", "no warmup: this Bridge gives no optimizer before data")
            else:
                warm_up_bridge(
                    state, model, optimizer, scheduler, forward_step, settings=settings, group=group
                )
        self.run.start(samples_count=state.train_state.consumed_train_samples)

    def step_start(self, optimizer: Any) -> None:
        """A step begins: its learning rate is still in the optimizer."""
        with _not_killing():
            self._learning_rate = learning_rate_of(optimizer)
            self.run.step_start()

    def step_stop(self, state: Any, losses: Mapping[str, Any] | None, *, skipped: bool) -> None:
        """A step is done, and Bridge has not counted it yet."""
        with _not_killing():
            calculator = importlib.import_module("megatron.core.num_microbatches_calculator")
            num_samples = calculator.get_current_global_batch_size()
            self.run.step_stop(
                state.train_state.consumed_train_samples + num_samples,
                iteration=state.train_state.step + 1,
                loss=loss_of(losses or {}),
                learning_rate=self._learning_rate,
                skipped=bool(skipped),
            )

    def eval_start(self, state: Any) -> None:
        """An evaluation begins; those after the training are not the run's."""
        if not self.run.finished:
            self.run.eval_start(state.train_state.consumed_train_samples)

    def eval_stop(self, state: Any, losses: Mapping[str, Any] | None) -> None:
        """An evaluation is done; at the target, make the loop end after it, on every rank."""
        if self.run.phase is not self.run.phase.EVALUATION:
            return
        loss = None
        with _not_killing():  # the reading only: all ranks must come to the agreement
            loss = loss_of(losses or {})
        if self.run.eval_stop(loss):
            state.cfg.train.train_iters = state.train_state.step
            state.train_state.do_valid = state.train_state.do_test = False

    def stop(self) -> None:
        """The loop was left."""
        self.run.stop()


@contextlib.contextmanager
def _not_killing() -> Iterator[None]:
    """Our own trouble in a step is told once and does not end the training."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        notices.tell_once("bridge", f"a step or evaluation is not logged: {error!r}")


@functools.cache
def _callback_class() -> type:
    try:
        base: Any = importlib.import_module(f"{_TRAINING}.callbacks").Callback
    except ImportError as error:
        raise MissingDependencyError(
            "a Megatron-Bridge with callbacks (2026-01-29 or newer)",
            "MLPerfCallback",
            "pip install megatron-bridge, or call install_bridge_hooks() with an older one. Its "
            f"import failed with: {error}",
        ) from error

    class MLPerfCallback(base):  # type: ignore[misc]
        """Logs a Bridge training: ``callbacks=[MLPerfCallback()]`` of ``finetune``, ``pretrain``.

        The clock starts before Bridge opens its data where the release has
        ``on_data_init_start``, else when training begins; there is a warmup in the former only.

        Args:
            run: one with fine-tuning's defaults when not given; ``MLPerfRun()`` for pretraining.
        """

        def __init__(self, run: MLPerfRun | None = None) -> None:
            self.bridge = BridgeRun(run)

        def on_data_init_start(self, context: Any) -> None:
            self.bridge.start(context.state, context.model, context.optimizer, context.scheduler)

        def on_train_start(self, context: Any) -> None:
            self.bridge.start(context.state, context.model, context.optimizer, context.scheduler)

        def on_train_step_start(self, context: Any) -> None:
            self.bridge.step_start(context.optimizer)

        def on_train_step_end(self, context: Any) -> None:
            self.bridge.step_stop(context.state, context.loss_dict, skipped=context.skipped_iter)

        def on_eval_start(self, context: Any) -> None:
            self.bridge.eval_start(context.state)

        def on_eval_end(self, context: Any) -> None:
            self.bridge.eval_stop(context.state, context.total_loss_dict)

        def on_train_end(self, _context: Any) -> None:
            self.bridge.stop()

    MLPerfCallback.__qualname__ = "MLPerfCallback"
    return MLPerfCallback


def __getattr__(name: str) -> Any:
    if name != "MLPerfCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _callback_class()


def install_bridge_hooks(
    run: MLPerfRun | None = None,
    *,
    same_eval_samples: bool = False,
    skip_first_evals: bool = False,
) -> BridgeRun:
    """Log the next ``pretrain()`` or ``finetune()`` of this process, without a callback.

    For a Bridge without callbacks, or whose callbacks come after the data is opened. The hooks
    stay; :func:`bridge_hooks` is the same for a block.

    Args:
        run: one with fine-tuning's defaults when not given; ``MLPerfRun()`` for pretraining.
        same_eval_samples: give every evaluation the samples of the first, as the rules want it,
            where Bridge goes on through its validation data.
        skip_first_evals: leave out the evaluations that the rules of
            MLLOG_SUBMISSION_BENCHMARK let a run leave out.

    Raises:
        ConfigurationError: the rules of that benchmark name no first evaluation.
    """
    hooks = contextlib.ExitStack()
    bridge = hooks.enter_context(
        bridge_hooks(run, same_eval_samples=same_eval_samples, skip_first_evals=skip_first_evals)
    )
    _installed.append(hooks)
    return bridge


_installed: list[contextlib.ExitStack] = []  # not to be taken off when they are collected


@contextlib.contextmanager
def bridge_hooks(run: MLPerfRun | None = None, **options: bool) -> Iterator[BridgeRun]:
    """As :func:`install_bridge_hooks`, in the block only."""
    hooks = _Hooks(BridgeRun(run), **options)
    with (
        wrapped(_module("setup"), "setup_data_iterators", hooks.before_the_data),
        wrapped(_module("pretrain"), "train", hooks.around_training),
    ):
        yield hooks.bridge


def _module(name: str) -> Any:
    return importlib.import_module(f"{_TRAINING}.{name}")


class _Hooks:
    """Wrappers of the functions of Bridge's loop; inner ones are wrapped when outer ones run."""

    def __init__(
        self,
        bridge: BridgeRun,
        *,
        same_eval_samples: bool = False,
        skip_first_evals: bool = False,
    ) -> None:
        self.bridge = bridge
        self._replays: dict[int, Replay] | None = {} if same_eval_samples else None
        self._first_eval = self._rule_of_first_eval() if skip_first_evals else None

    def _rule_of_first_eval(self) -> Callable[[int], int]:
        name = self.bridge.run.settings.mllog_submission_benchmark
        benchmark = benchmarks.find(name)
        if benchmark is None or benchmark.first_eval_samples is None:
            known = [n for n, b in benchmarks.BENCHMARKS.items() if b.first_eval_samples]
            wanted = f"with skip_first_evals one of {', '.join(known)}"
            raise ConfigurationError(Problem("MLLOG_SUBMISSION_BENCHMARK", repr(name), wanted))
        return benchmark.first_eval_samples

    def _is_skipped(self, state: Any) -> bool:
        """The same on every rank: it depends on counts only."""
        if self._first_eval is None or self.bridge.run.finished:
            return False
        first = self._first_eval(state.cfg.train.global_batch_size)
        return bool(state.train_state.consumed_train_samples < first)

    def _from_the_start(self, iterator: Any) -> Any:
        """The iterator, or the list of one for each chunk, replayed; None stays None."""
        if isinstance(iterator, list):
            return [self._from_the_start(one) for one in iterator]
        if self._replays is None or iterator is None:
            return iterator
        replay = self._replays.setdefault(id(iterator), Replay(iterator))
        replay.restart()
        return replay

    def before_the_data(self, original: Any) -> Callable[..., Any]:
        def setup_data_iterators(*args: Any, **kwargs: Any) -> Any:
            names = ("state", "model", "optimizer", "scheduler")
            self.bridge.start(*(local_of_a_caller(name) for name in names))
            return original(*args, **kwargs)

        return setup_data_iterators

    def around_training(self, original: Any) -> Callable[..., Any]:
        state = argument(original, "global_state")

        def train(*args: Any, **kwargs: Any) -> Any:
            self.bridge.start(state(args, kwargs))  # unless the data was opened elsewhere
            try:
                with (
                    wrapped(_module("train"), "train_step", self.around_step),
                    wrapped(_module("train"), "evaluate_and_print_results", self.around_evaluation),
                ):
                    return original(*args, **kwargs)
            finally:
                self.bridge.stop()

        return train

    def around_step(self, original: Any) -> Callable[..., Any]:
        optimizer, state = argument(original, "optimizer"), argument(original, "global_state")

        def train_step(*args: Any, **kwargs: Any) -> Any:
            self.bridge.step_start(optimizer(args, kwargs))
            result = original(*args, **kwargs)
            self.bridge.step_stop(state(args, kwargs), result[0], skipped=result[1])
            return result

        return train_step

    def around_evaluation(self, original: Any) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def evaluate_and_print_results(*args: Any, **kwargs: Any) -> Any:
            call = signature.bind(*args, **kwargs)
            state = call.arguments["state"]
            if self._is_skipped(state):
                return None
            call.arguments["data_iterator"] = self._from_the_start(call.arguments["data_iterator"])
            self.bridge.eval_start(state)
            with wrapped(_module("eval"), "evaluate", self.around_evaluate):
                return original(*call.args, **call.kwargs)

        return evaluate_and_print_results

    def around_evaluate(self, original: Any) -> Callable[..., Any]:
        state = argument(original, "state")

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self.bridge.eval_stop(state(args, kwargs), result[0])  # None at a time limit
            return result

        return evaluate
