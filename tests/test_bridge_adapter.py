"""The Megatron-Bridge adapter against Bridge in small."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import pytest

import small_bridge
from grammar import assert_finished, letters, samples
from primus_mllog import MLPerfSFTLogger
from primus_mllog.adapters import megatron_bridge
from primus_mllog.errors import ConfigurationError, MissingDependencyError
from primus_mllog.testing import capture_events

if TYPE_CHECKING:
    from collections.abc import Iterator

WAYS = ["callback", "hooks"]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in {"PREFLIGHT": "off", "TRAIN_LOSS_LOG_FREQ": "1"}.items():
        monkeypatch.setenv(f"MLLOG_{name}", value)
    monkeypatch.setenv("SYNTH_WARMUP_STEPS", "0")
    megatron_bridge._callback_class.cache_clear()
    yield
    megatron_bridge._callback_class.cache_clear()


def finetuned(
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    eval_losses: list[Any],
    train_iters: int = 6,
    helpers: dict[str, bool] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """The events of one fine-tuning, all ways out of it included."""
    finetune = small_bridge.install(monkeypatch, eval_losses, **options)
    config = small_bridge.configuration(train_iters)
    with capture_events() as events, contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(SystemExit))
        if way == "callback":
            callback = megatron_bridge.MLPerfCallback()
            stack.callback(callback.bridge.run._abort)  # as the interpreter's exit does
            finetune(config, None, callbacks=[callback])
        else:
            stack.enter_context(megatron_bridge.bridge_hooks(**helpers or {}))
            finetune(config, None)
    return events


def values(events: list[dict[str, Any]], key: str) -> list[Any]:
    return [event["value"] for event in events if event["key"] == key]


@pytest.mark.fault("L1")
@pytest.mark.fault("L8")
@pytest.mark.parametrize("way", WAYS)
def test_the_target_ends_the_training(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """At the evaluation that is not above it; no later evaluation, and one end."""
    events = finetuned(monkeypatch, way, [0.95, 0.925, 0.1])
    assert_finished(events)
    assert values(events, "eval_accuracy") == [0.95, 0.925]
    assert events[-1]["metadata"]["status"] == "success"


@pytest.mark.fault("L2")
@pytest.mark.parametrize("way", WAYS)
def test_the_frameworks_last_evaluation_leaves_no_event(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It runs after the training, and is not in the log."""
    events = finetuned(monkeypatch, way, [2.0] * 4)
    assert_finished(events)
    assert len(values(events, "eval_accuracy")) == 3
    assert events[-1]["metadata"]["status"] == "aborted"


@pytest.mark.fault("C1")
@pytest.mark.fault("L13")
@pytest.mark.parametrize("way", WAYS)
def test_steps_are_counted_before_bridge_counts_them(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """train_loss has the step's own number, samples and learning rate."""
    events = finetuned(monkeypatch, way, [0.5], skips={0})
    [step] = [e["metadata"] for e in events if e["key"] == "train_loss"]
    assert (step["step"], step["samples_count"], step["lr"]) == (2, 16, 0.1)
    assert [samples(e) for e in events if e["key"] == "eval_accuracy"] == [16]


@pytest.mark.fault("L5")
@pytest.mark.parametrize("way", WAYS)
def test_sys_exit_in_the_loop_ends_the_run(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """No event of the callbacks says so."""
    events = finetuned(monkeypatch, way, [2.0] * 4, exit_at=3)
    assert_finished(events)
    assert samples(events[-1]) == 24


@pytest.mark.fault("L6")
@pytest.mark.parametrize("way", WAYS)
def test_a_time_limit_in_an_evaluation_closes_it(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Without a value; Bridge fires no event then."""
    events = finetuned(monkeypatch, way, [2.0, "time limit", 2.0, 2.0], train_iters=4)
    assert_finished(events)
    assert values(events, "eval_accuracy") == [2.0]
    assert letters(events).endswith("eEPR")


@pytest.mark.fault("C5")
@pytest.mark.parametrize("way", WAYS)
def test_the_header_is_bridges_configuration(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """LoRA, schedule, batches and precision."""
    monkeypatch.setenv("MLLOG_SUBMISSION_BENCHMARK", "llama2_70b_lora")
    header = {e["key"]: e["value"] for e in finetuned(monkeypatch, way, [0.5])}
    expected = {
        "lora_rank": 16,
        "lora_alpha": 32,
        "seed": 5,
        "global_batch_size": 8,
        "gradient_accumulation_steps": 4,
        "eval_samples": 24,
        "max_sequence_length": 16,
        "opt_gradient_clip_norm": 0.3,
        "lowest_numerical_precision_in_linear": "bfloat16",
    }
    assert {key: header[key] for key in expected} == expected


@pytest.mark.fault("L12")
def test_the_first_evaluations_are_left_out_by_the_benchmarks_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At a batch of 8: three of each 384 samples; nothing of them is in the log."""
    monkeypatch.setenv("MLLOG_SUBMISSION_BENCHMARK", "llama2_70b_lora")
    helpers = {"skip_first_evals": True}
    events = finetuned(monkeypatch, "hooks", [2.0, 0.5], train_iters=400, helpers=helpers)
    assert_finished(events)
    assert [samples(e) for e in events if e["key"] == "eval_start"] == [1536, 1552]


def test_without_a_rule_there_is_nothing_to_leave_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the benchmarks that have one."""
    with pytest.raises(ConfigurationError, match="llama2_70b_lora"):
        finetuned(monkeypatch, "hooks", [0.5], helpers={"skip_first_evals": True})


@pytest.mark.parametrize(("is_same", "drawn"), [(True, [0, 0]), (False, [0, 1])])
def test_every_evaluation_is_on_the_same_samples(
    monkeypatch: pytest.MonkeyPatch, is_same: bool, drawn: list[int]
) -> None:
    """With the helper; Bridge by itself goes on through its data."""
    seen: list[int] = []
    helpers = {"same_eval_samples": is_same}
    finetuned(monkeypatch, "hooks", [2.0, 0.5], helpers=helpers, drawn=seen)
    assert seen == drawn


def test_trouble_of_ours_in_a_step_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The training goes on, and so does the log."""
    monkeypatch.setattr(megatron_bridge, "learning_rate_of", lambda _: 1 / 0)
    events = finetuned(monkeypatch, "callback", [2.0, 0.5])
    assert_finished(events)
    assert capsys.readouterr().err.count("is not logged: ZeroDivisionError") == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_loss_that_cannot_be_read_does_not_end_the_training(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The rank takes part in the agreement without a value."""
    monkeypatch.setattr(megatron_bridge, "loss_of", lambda _: 1 / 0)
    events = finetuned(monkeypatch, way, [0.5, 0.5, 0.5, 0.5])
    assert_finished(events)
    assert values(events, "eval_accuracy") == []
    assert events[-1]["metadata"]["status"] == "aborted"


def test_a_bridge_without_callbacks_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the hooks, which do without."""
    monkeypatch.setitem(sys.modules, "megatron.bridge.training.callbacks", None)
    with pytest.raises(MissingDependencyError, match=r"install_bridge_hooks\(\)"):
        megatron_bridge.MLPerfCallback()


def body(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What follows the header, without when and where it was written."""
    start = next(i for i, event in enumerate(events) if event["key"] == "init_stop")
    kept = ("samples_count", "step", "lr", "status")
    return [
        (e["key"], e["value"], [(name, e["metadata"].get(name)) for name in kept])
        for e in events[start:]
    ]


@pytest.mark.parametrize("eval_losses", [[2.0, 0.9], [2.0, 1.5, 1.2, 1.1]], ids=str)
def test_callback_hooks_and_a_loop_by_hand_log_the_same(
    monkeypatch: pytest.MonkeyPatch, eval_losses: list[Any]
) -> None:
    """The same training, told in three ways."""
    callback, hooks = (body(finetuned(monkeypatch, way, list(eval_losses))) for way in WAYS)
    with capture_events() as events:
        logger = MLPerfSFTLogger(global_batch_size=8, micro_batch_size=2)
        logger.log_cache_clear_and_init_start()
        logger.log_init_params({"global_batch_size": 8})
        logger.log_init_stop_run_start()
        for step in range(1, 7):
            logger.on_train_step(step, {"lm loss": 2.0}, 0.1, 8 * step)
            if step % 2 == 0:
                logger.on_eval_start(8 * step)
                if logger.on_eval_end(8 * step, eval_losses[step // 2 - 1]):
                    break
        logger.log_run_stop(8 * step)
    assert callback == hooks == body(events)
