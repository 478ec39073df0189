"""Primus in small: the modules and methods that the drop-in trainer touches.

``install`` puts them where Python looks for modules. The real Primus is in tests/integration.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


def install(monkeypatch: pytest.MonkeyPatch, loop: Any, *, current: bool = True) -> None:
    """Primus, current or older, over ``loop``, which stands for Megatron's training module."""
    named = {"megatron.training.training": loop} | (_current(loop) if current else _older(loop))
    for name in list(named):
        parts = name.split(".")
        for package in (".".join(parts[:depth]) for depth in range(1, len(parts))):
            named.setdefault(package, types.ModuleType(package))
    for name, module in named.items():
        monkeypatch.setitem(sys.modules, name, module)


def _module(name: str, **names: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(names)
    return module


def _current(loop: Any) -> dict[str, Any]:
    class BaseTrainer:
        """From 2026-06 on; its runtime calls the four methods."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.calls: list[str] = []

        def setup(self) -> None:
            self.calls.append("setup")

        def init(self) -> None:
            self.calls.append("init")

        def train(self) -> None:
            self.calls.append("train")
            loop.pretrain()

        def cleanup(self, on_error: bool = False) -> None:
            self.calls.append("cleanup")

    base, pretraining = (
        "primus.core.trainer.base_trainer",
        "primus.backends.megatron.megatron_pretrain_trainer",
    )
    return {
        base: _module(base, BaseTrainer=BaseTrainer),
        pretraining: _module(pretraining, MegatronPretrainTrainer=BaseTrainer),
    }


def _older(loop: Any) -> dict[str, Any]:
    names = ("build_train_valid_test_data_iterators", "evaluate_and_print_results")
    functions = {name: getattr(loop, name) for name in names}
    module = _module("primus.modules.trainer.megatron.trainer", **functions)

    class MegatronPretrainTrainer:
        """Up to 2026-05; Megatron's functions are imported by name, two are methods."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.calls: list[str] = []

        def init(self) -> None:
            self.calls.append("init")
            module.build_train_valid_test_data_iterators(None)

        def run(self) -> None:
            self.calls.append("run")
            self.train(None, [None], loop.optimizer)
            if loop.args.do_valid:
                module.evaluate_and_print_results("validation")

        def train(self, forward_step_func: Any, model: Any, optimizer: Any) -> None:
            for iteration in range(loop.args.train_iters):
                if iteration >= loop.args.train_iters:
                    return
                self.train_step(forward_step_func, None, model, optimizer, None, None)
                loop.args.consumed_train_samples += 16
                if (iteration + 1) % loop.args.eval_interval == 0:
                    module.evaluate_and_print_results("iteration")

        def train_step(
            self,
            forward_step_func: Any,
            data_iterator: Any,
            model: Any,
            optimizer: Any,
            opt_param_scheduler: Any,
            config: Any,
        ) -> Any:
            optimizer.step()
            return {"lm loss": 2.0}, 0, 0, 0, 0, 0, 0

    pretraining = "primus.modules.trainer.megatron.pre_trainer"
    return {
        module.__name__: module,
        pretraining: _module(pretraining, MegatronPretrainTrainer=MegatronPretrainTrainer),
    }
