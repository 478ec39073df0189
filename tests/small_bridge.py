"""Megatron-Bridge in small: the functions and callback events that the adapter touches.

``install`` puts ``megatron.bridge.training`` where Python looks for it and returns its
``finetune``. The real Bridge is in tests/integration.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

_TRAINING = "megatron.bridge.training"


def configuration(train_iters: int = 6) -> Any:
    """A ``ConfigContainer`` of two evaluations and more."""
    section = types.SimpleNamespace
    return section(
        train=section(
            global_batch_size=8,
            micro_batch_size=2,
            train_iters=train_iters,
            eval_interval=2,
            eval_iters=3,
        ),
        model=section(seq_length=16, tensor_model_parallel_size=1, bf16=True, fp8=None),
        optimizer=section(optimizer="adam", lr=4e-4, weight_decay=1e-4, clip_grad=0.3),
        scheduler=section(lr_warmup_iters=0, lr_decay_style="cosine"),
        rng=section(seed=5),
        peft=section(dim=16, alpha=32),
    )


def install(  # noqa: C901, PLR0915 - a loop in one piece
    monkeypatch: pytest.MonkeyPatch, eval_losses: list[Any], **options: Any
) -> Callable[..., Any]:
    """Its ``finetune``, whose evaluations give these losses; ``"time limit"`` is one."""
    losses = iter(eval_losses)
    modules = {
        name: types.ModuleType(f"{_TRAINING}.{name}")
        for name in ("callbacks", "setup", "pretrain", "train", "eval")
    }
    setup, pretrain, train, evaluation = (
        vars(modules[name]) for name in ("setup", "pretrain", "train", "eval")
    )
    vars(modules["callbacks"])["Callback"] = type("Callback", (), {})
    calculator = types.ModuleType("megatron.core.num_microbatches_calculator")
    calculator.get_current_global_batch_size = lambda: 8  # type: ignore[attr-defined]
    named: dict[str, Any] = {module.__name__: module for module in modules.values()}
    named[calculator.__name__] = calculator
    for name in ("megatron", "megatron.core", "megatron.bridge", _TRAINING):
        named[name] = types.ModuleType(name)
    for name, module in named.items():
        monkeypatch.setitem(sys.modules, name, module)

    def fire(callbacks: Any, event: str, **context: Any) -> None:
        for callback in callbacks:
            getattr(callback, event, lambda _: None)(types.SimpleNamespace(**context))

    def setup_data_iterators(cfg: Any, train_state: Any) -> Any:
        return options.get("on_data", lambda: None)()

    def train_step(
        forward_step_func: Any, data_iterator: Any, model: Any, optimizer: Any, global_state: Any
    ) -> Any:
        is_skipped = global_state.train_state.step in options.get("skips", ())
        return {"lm loss": 2.0}, int(is_skipped), False, False, 0, None, None

    def evaluate(state: Any, forward_step_func: Any, data_iterator: Any, model: Any) -> Any:
        loss = next(losses)
        options.get("drawn", []).append(next(data_iterator))
        return (None, None, True) if loss == "time limit" else ({"lm loss": loss}, None, False)

    def evaluate_and_print_results(
        state: Any, prefix: str, forward_step_func: Any, data_iterator: Any, callbacks: Any = ()
    ) -> None:
        fire(callbacks, "on_eval_start", state=state)
        found, _, is_over = evaluation["evaluate"](state, forward_step_func, data_iterator, None)
        if not is_over:
            fire(callbacks, "on_eval_end", state=state, total_loss_dict=found)

    def loop(
        forward_step_func: Any,
        model: Any,
        optimizer: Any,
        valid_data_iterator: Any,
        global_state: Any,
        callbacks: Any = (),
    ) -> None:
        now, cfg = global_state.train_state, global_state.cfg.train
        context = {"state": global_state, "model": model, "optimizer": optimizer}
        fire(callbacks, "on_train_start", **context, scheduler=None)
        while now.step < cfg.train_iters:
            fire(callbacks, "on_train_step_start", **context)
            result = train["train_step"](forward_step_func, None, model, optimizer, global_state)
            fire(
                callbacks,
                "on_train_step_end",
                **context,
                loss_dict=result[0],
                skipped_iter=result[1],
            )
            now.step += 1
            now.consumed_train_samples += 8
            if now.step == options.get("exit_at"):
                sys.exit(3)
            if now.step % cfg.eval_interval == 0:
                train["evaluate_and_print_results"](
                    global_state, "", forward_step_func, valid_data_iterator, callbacks
                )
        fire(callbacks, "on_train_end", **context)

    def finetune(config: Any, forward_step_func: Any, callbacks: Any = ()) -> Any:
        now = types.SimpleNamespace(step=0, consumed_train_samples=0, do_valid=True, do_test=True)
        state = types.SimpleNamespace(cfg=config, train_state=now)
        optimizer = types.SimpleNamespace(param_groups=[{"params": [1], "lr": 0.1}])
        setup["setup_data_iterators"](config, now)
        valid = iter(range(100))
        pretrain["train"](forward_step_func, [], optimizer, valid, state, callbacks)
        if now.do_valid:
            pretrain["evaluate_and_print_results"](state, "", forward_step_func, valid, callbacks)
        return state

    setup["setup_data_iterators"] = setup_data_iterators
    pretrain.update(train=loop, evaluate_and_print_results=evaluate_and_print_results)
    train.update(train_step=train_step, evaluate_and_print_results=evaluate_and_print_results)
    evaluation["evaluate"] = evaluate
    return finetune
