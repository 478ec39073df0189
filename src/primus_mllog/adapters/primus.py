"""Primus' Megatron pretraining trainers, with an MLPerf log.

Two generations of them: the current one is driven by Primus' runtime (``setup``, ``init``,
``train``, ``cleanup``) and calls Megatron's ``pretrain()``; the older one has ``init`` and ``run``
and a training loop of its own, made of the same functions. Primus is imported when the trainer's
class is asked for, because Primus imports this package while it is being imported itself.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import Any

from primus_mllog.adapters.megatron_lm import MegatronHooks, mlperf_logging_for
from primus_mllog.errors import MissingDependencyError
from primus_mllog.run import MLPerfRun

__all__ = ["trainer_class"]

_NAME = "MLPerfMegatronPretrainTrainer"
_LIFECYCLE = "primus.core.trainer.base_trainer"
_CURRENT = "primus.backends.megatron.megatron_pretrain_trainer"
_OLDER = "primus.modules.trainer.megatron.pre_trainer"
_OLDER_LOOP = "primus.modules.trainer.megatron.trainer"
_MEGATRON_LOOP = "megatron.training.training"


@functools.cache
def _logged(mixin: type, base: type) -> type:
    return type(_NAME, (mixin, base), {"__module__": __name__, "__doc__": mixin.__doc__})


def trainer_class() -> type:
    """The installed Primus' pretraining trainer with an MLPerf log.

    Where there is no Primus, a class that says so when it is used: importing its name must work
    everywhere.
    """
    try:
        is_current = hasattr(importlib.import_module(_LIFECYCLE).BaseTrainer, "train")
    except ImportError:
        is_current = False
    module, mixin = (_CURRENT, _CurrentTrainer) if is_current else (_OLDER, _OlderTrainer)
    try:
        base = importlib.import_module(module).MegatronPretrainTrainer
    except ImportError as error:
        return _without_primus(error)
    return _logged(mixin, base)


class _CurrentTrainer:
    """Primus' ``MegatronPretrainTrainer`` with an MLPerf log; its loop is unchanged.

    cache_clear and init_start are logged when the trainer is made. Primus' runtime calls
    ``setup → init → train → cleanup``; by hand, ``init()`` and ``run()`` do the same.

    Raises:
        ConfigurationError: environment variables that cannot be used.
        OutputError: the log cannot be written.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.mlperf_run = MLPerfRun()
        self.mlperf_run.init_start()
        self._is_set_up = False
        super().__init__(*args, **kwargs)

    def setup(self, *args: Any, **kwargs: Any) -> Any:
        """Primus' ``setup``."""
        self._is_set_up = True
        return self._primus.setup(*args, **kwargs)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Primus' ``train``, logged."""
        with mlperf_logging_for(self.mlperf_run):
            return self._primus.train(*args, **kwargs)

    def cleanup(self, *args: Any, **kwargs: Any) -> Any:
        """Primus' ``cleanup``, which may end the process: the run ends before."""
        self.mlperf_run.stop()
        return self._primus.cleanup(*args, **kwargs)

    def run(self) -> None:
        """What Primus' runtime calls: ``setup`` if that was not done, ``train``, ``cleanup``."""
        if not self._is_set_up:
            self.setup()
        self.train()
        self.cleanup()

    @property
    def _primus(self) -> Any:
        return super()


class _OlderTrainer:
    """Primus' older ``MegatronPretrainTrainer`` with an MLPerf log; its loop is unchanged.

    cache_clear and init_start are logged when the trainer is made. ``init()`` builds the model and
    opens the data, so the clock starts in it; ``run()`` trains.

    Raises:
        ConfigurationError: environment variables that cannot be used.
        OutputError: the log cannot be written.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.mlperf_run = MLPerfRun()
        self.mlperf_run.init_start()
        self._hooks = contextlib.ExitStack()
        super().__init__(*args, **kwargs)

    def init(self, *args: Any, **kwargs: Any) -> Any:
        """Primus' ``init``, with the hooks in place that ``run`` needs, too."""
        loop = importlib.import_module(_OLDER_LOOP)
        megatron = importlib.import_module(_MEGATRON_LOOP)
        hooks = MegatronHooks(self.mlperf_run, megatron, forward_step=self._primus.forward_step)
        installed = hooks.installed(
            build_train_valid_test_data_iterators=loop,
            evaluate_and_print_results=loop,
            setup_model_and_optimizer=self,
            train=self,
            train_step=self,
        )
        self._hooks.enter_context(installed)
        return self._primus.init(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Primus' ``run``, logged."""
        with self._hooks, self.mlperf_run:
            return self._primus.run(*args, **kwargs)

    @property
    def _primus(self) -> Any:
        return super()


def _without_primus(error: ImportError) -> type:
    """A class of the trainer's name that cannot be used, and says why."""
    reason = str(error)

    def __init__(_self: Any, *_args: Any, **_kwargs: Any) -> None:  # noqa: N807 - a method
        raise MissingDependencyError(
            "Primus",
            _NAME,
            "add your Primus checkout to PYTHONPATH (https://github.com/AMD-AGI/Primus). "
            f"Its import failed with: {reason}",
        )

    return type(_NAME, (), {"__init__": __init__, "__module__": __name__})
