"""Megatron-LM's own training loop, watched from outside.

::

    from primus_mllog import MLPerfRun
    from primus_mllog.adapters.megatron_lm import mlperf_logging_for

    with MLPerfRun() as run, mlperf_logging_for(run):
        pretrain(...)

While the block lasts, functions of ``megatron.training.training`` are wrapped by ones that
say what happened; the loop itself is Megatron's. Arguments are found by name in the signature of
the installed release and results by what they are, because both have changed between releases.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from primus_mllog import notices
from primus_mllog.adapters.import_hook import when_imported
from primus_mllog.adapters.megatron_warmup import run_synthetic_warmup
from primus_mllog.adapters.patching import argument, local_of_a_caller, wrapped
from primus_mllog.errors import PrimusMllogError
from primus_mllog.hyperparameters import extract_hyperparameters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from primus_mllog.run import MLPerfRun

__all__ = ["MegatronHooks", "learning_rate_of", "loss_of", "mlperf_logging_for"]

_TRAINING = "megatron.training.training"
_LOSS = "lm loss"


@contextlib.contextmanager
def mlperf_logging_for(run: MLPerfRun, *, validation_set: int = 0) -> Iterator[None]:
    """Log the ``pretrain()`` call of the block as ``run``.

    The initialisation begins when the block is entered, unless ``run.init_start()`` was called
    before. The clock starts before Megatron opens the training data; ``run_stop`` is written on
    every way out of Megatron's ``train()``. Megatron need not be imported yet, and is not
    imported here: the script keeps its own order of imports.

    Args:
        run: the run, not yet started.
        validation_set: which set decides, counted from 0, where
            ``--multiple-validation-sets`` gives several.
    """
    if run.phase is run.phase.NEW:
        run.init_start()
    with contextlib.ExitStack() as stack:

        def install(training: ModuleType) -> None:
            hooks = MegatronHooks(run, training, validation_set=validation_set)
            stack.enter_context(hooks.installed())

        stack.enter_context(when_imported(_TRAINING, install))
        yield


class MegatronHooks:
    """What Megatron's loop does, said to a run.

    Args:
        run: the run.
        training: the module that holds the loop (``megatron.training.training``).
        validation_set: as for :func:`mlperf_logging_for`.
        forward_step: for the warmup; that of Megatron's ``pretrain()`` when not given.
    """

    def __init__(
        self, run: MLPerfRun, training: Any, *, validation_set: int = 0, forward_step: Any = None
    ) -> None:
        self.run = run
        self._training = training
        self._validation_set = validation_set
        self._owners: dict[str, Any] = {}
        self._forward_step = forward_step
        self._model_and_optimizer: Any = (None, None, None)
        self._sets_evaluated = 0
        self._iteration = 0
        self._logs = True

    @contextlib.contextmanager
    def installed(self, **owners: Any) -> Iterator[None]:
        """Wrap the loop's functions in the block; what they were is put back on every way out.

        Inner functions are wrapped when the outer one is called: a framework may have replaced
        them until then.

        Args:
            owners: by function name, the object in which the loop looks the function up, where
                that is not Megatron's training module.
        """
        self._owners = owners
        with (
            self._wrapped("setup_model_and_optimizer", self._around_setup),
            self._wrapped("build_train_valid_test_data_iterators", self._before_the_data),
            self._wrapped("train", self._around_training),
            self._wrapped("evaluate_and_print_results", self._around_evaluation),
        ):
            yield

    def _wrapped(
        self, name: str, wrap: Callable[[Any], Callable[..., Any]]
    ) -> contextlib.AbstractContextManager[None]:
        return wrapped(self._owners.get(name, self._training), name, wrap)

    @property
    def args(self) -> Any:
        """Megatron's global arguments."""
        return self._training.get_args()

    def _around_setup(self, original: Any) -> Callable[..., Any]:
        def setup_model_and_optimizer(*args: Any, **kwargs: Any) -> Any:
            self._model_and_optimizer = original(*args, **kwargs)
            return self._model_and_optimizer

        return setup_model_and_optimizer

    def _start(self, forward_step: Any = None) -> None:
        """The model is built and no data is open yet: warmup, the header, and the clock."""
        if self.run.phase is not self.run.phase.INIT:
            return
        args = self.args
        header = extract_hyperparameters(
            args, self.run.settings, world_size=self.run.group.world_size
        )
        self.run.log_hyperparameters(header)
        self.run.preflight()  # before a warmup that may compile for minutes
        self._warm_up(forward_step)
        self.run.start(samples_count=args.consumed_train_samples)

    def _warm_up(self, forward_step: Any) -> None:
        """Steps on random tokens, where the loop has said what a step is."""
        settings = self.run.settings
        if not settings.has_warmup:
            return
        model, optimizer, scheduler, *_ = self._model_and_optimizer
        if forward_step is None or optimizer is None:
            notices.tell_once("warmup", "no warmup: this loop gives no forward step and optimizer")
            return
        run_synthetic_warmup(
            self._owners.get("train_step", self._training).train_step,
            forward_step,
            model,
            optimizer,
            scheduler,
            self._training.get_model_config(model[0]),
            self.args,
            evaluate_func=self._training.evaluate,
            settings=settings,
            group=self.run.group,
        )

    def _before_the_data(self, original: Any) -> Callable[..., Any]:
        def build_train_valid_test_data_iterators(*args: Any, **kwargs: Any) -> Any:
            self._start(self._forward_step or local_of_a_caller("forward_step_func"))
            return original(*args, **kwargs)

        return build_train_valid_test_data_iterators

    def _around_training(self, original: Any) -> Callable[..., Any]:
        def train(*args: Any, **kwargs: Any) -> Any:
            self._start()
            self._iteration = self.args.iteration
            self._logs = self.run.group.rank == 0  # other ranks need not know the rest
            try:
                with self._wrapped("train_step", self._around_step):
                    return original(*args, **kwargs)
            finally:  # returned, sys.exit (exit interval, duration, signal) or exception
                self.run.stop()

        return train

    def _around_step(self, original: Any) -> Callable[..., Any]:
        optimizer_of = argument(original, "optimizer")
        step_start = self.run.step_start

        def train_step(*args: Any, **kwargs: Any) -> Any:
            learning_rate = None
            try:
                if self._logs:
                    # read before the step: afterwards the groups hold the next step's rate
                    learning_rate = learning_rate_of(optimizer_of(args, kwargs))
                step_start()
            except Exception as error:  # noqa: BLE001 - see _tell
                _tell(error)
            result = original(*args, **kwargs)
            try:
                self._step_done(result, learning_rate)
            except Exception as error:  # noqa: BLE001 - see _tell
                _tell(error)
            return result

        return train_step

    def _step_done(self, result: Any, learning_rate: float | None) -> None:
        self._iteration += 1
        losses, is_skipped = _step_result(result)
        self.run.step_stop(
            self._samples_count() if self._logs else 0,
            iteration=self._iteration,
            loss=loss_of(losses),
            learning_rate=learning_rate,
            skipped=is_skipped,
        )

    def _samples_count(self) -> int:
        """Samples up to the step that is done: Megatron counts it only after it has returned."""
        args, num_microbatches = self.args, self._training.get_num_microbatches()
        batch_size = args.data_parallel_size * args.micro_batch_size * num_microbatches
        return int(args.consumed_train_samples + batch_size)

    def _around_evaluation(self, original: Any) -> Callable[..., Any]:
        def evaluate_and_print_results(*args: Any, **kwargs: Any) -> Any:
            if self.run.finished:  # the framework's last validation and its test set
                return original(*args, **kwargs)
            self._sets_evaluated = 0
            self.run.eval_start(self.args.consumed_train_samples)
            with self._wrapped("evaluate", self._around_validation_set):
                result = original(*args, **kwargs)
            if self._in_evaluation:  # the deciding set was not among those evaluated
                self._decide({})
            return result

        return evaluate_and_print_results

    def _around_validation_set(self, original: Any) -> Callable[..., Any]:
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            losses = _eval_losses(result)
            is_deciding = self._sets_evaluated == self._validation_set
            self._sets_evaluated += 1
            if self._in_evaluation and (is_deciding or losses is None):
                self._decide(losses or {})
            return result

        return evaluate

    @property
    def _in_evaluation(self) -> bool:
        return self.run.phase is self.run.phase.EVALUATION

    def _decide(self, losses: Mapping[str, Any]) -> None:
        """End the evaluation; at the target, make ``train()`` return after it, on every rank."""
        if self.run.eval_stop(loss_of(losses)):
            args = self.args
            args.train_iters = self._iteration
            args.do_valid = args.do_test = False


def _tell(error: Exception) -> None:
    """Our own trouble in a step must not kill the training: say it once, unless in strict tests."""
    if isinstance(error, PrimusMllogError):
        raise error
    notices.tell_once("megatron step", f"a step is not logged: {error!r}")


def learning_rate_of(optimizer: Any) -> float | None:
    """The rate of the first group that has parameters and no rate of its own."""
    for group in getattr(optimizer, "param_groups", ()):
        if group.get("params") and not group.get("is_decoupled_lr", False):
            return float(group["lr"])
    return None


def _step_result(result: Any) -> tuple[Mapping[str, Any], bool]:
    """The losses and whether the optimizer step was skipped.

    ``train_step`` returns the losses and, next, the skip flag in every release; how many values
    follow has changed.
    """
    losses, skipped = result[0], result[1]
    return losses or {}, bool(skipped)


def loss_of(losses: Mapping[str, Any]) -> Any:
    """The language-model loss, or the first of the losses; None off the last pipeline stage."""
    if _LOSS in losses:
        return losses[_LOSS]
    return next(iter(losses.values()), None)


def _eval_losses(result: Any) -> Mapping[str, Any] | None:
    """The losses, the first of what ``evaluate`` returns.

    None where ``--exit-duration-in-mins`` was used up in the evaluation, or nothing is known.
    """
    losses = result[0] if isinstance(result, tuple) and result else None
    return losses if isinstance(losses, Mapping) else None
