"""The README says what is true."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import small_bridge
import small_primus
from grammar import assert_finished
from primus_mllog import MLPerfRun
from primus_mllog.adapters import huggingface, megatron_bridge
from primus_mllog.settings import PretrainSettings, SFTSettings
from test_megatron_adapter import Loop

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
ARGS = {"global_batch_size": 16, "eval_interval": 2, "lr": 0.1, "seed": 7}


def block(text: str) -> str:
    [found] = [code for code in BLOCKS if text in code]
    return found


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "run.log"
    monkeypatch.setenv("MLLOG_OUTPUT_FILE", str(path))
    monkeypatch.setenv("MLLOG_TARGET_EVAL_LOSS", "1.0")
    monkeypatch.setenv("MLLOG_PREFLIGHT", "off")
    return path


def events_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in path.read_text().splitlines()]


def test_every_variable_is_in_the_table() -> None:
    """The table has a row for each variable, with its default and what it means, and no other."""
    rows = re.findall(r"^\| `([A-Z_0-9]+)` \| (.*?) \| (.*) \|$", README, re.MULTILINE)
    expected = []
    for name, field in PretrainSettings.model_fields.items():
        default = f"`{default_text(field.default)}`"
        other = SFTSettings.model_fields[name].default
        if other != field.default:
            default += f"; fine-tuning `{default_text(other)}`"
        meaning = " ".join((field.description or "").split())
        expected.append((name.upper(), default, meaning))
    assert rows == expected


def default_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value) or '""'


def test_the_loop_of_the_readme_writes_a_whole_run(log: Path) -> None:
    """The loop stops at the target and leaves one finished run."""
    losses = iter([2.0, 1.5, 0.9, 0.1])
    names = {
        "build_model": lambda: (None, ARGS),
        "training_data": lambda: range(100),
        "train_step": lambda _model, batch: 3.0 / (batch + 1),
        "evaluate": lambda _model: next(losses),
    }
    exec(block("build_model()"), names)  # noqa: S102 - that is the point
    events = events_in(log)
    assert_finished(events)
    assert events[-1]["metadata"]["samples_count"] == 16 * 6


@pytest.mark.parametrize("text", ["MLPerfMegatronPretrainTrainer", "mlperf_logging_for"])
def test_the_pretraining_of_the_readme_is_logged(
    log: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Both blocks leave one finished run; Primus and Megatron-LM are small ones."""
    loop = Loop("new", [2.0, 0.9])
    small_primus.install(monkeypatch, loop)
    anything = (
        "train_valid_test_datasets_provider",
        "model_provider",
        "model_type",
        "forward_step",
    )
    names = {**dict.fromkeys(anything), "pretrain": lambda *_: loop.pretrain()}
    exec(block(text), names)  # noqa: S102
    events = events_in(log)
    assert_finished(events)
    assert events[-1]["metadata"]["status"] == "success"


def test_the_fine_tuning_of_the_readme_is_logged(log: Path, tmp_path: Path) -> None:
    """The first evaluation is the fourth that there could be; the loop stops at the target."""
    for name, count in (("train", 3901), ("validation", 173)):
        np.save(tmp_path / f"{name}.npy", np.zeros(count))
    losses = iter([1.2, 0.9])
    names = {
        "training_data": lambda: range(1024),
        "train_step": lambda _batch: {"lm loss": 1.0},
        "run_eval": lambda: next(losses),
    }
    exec(block("MLPerfSFTLogger").replace("/data", str(tmp_path)), names)  # noqa: S102
    events = events_in(log)
    assert_finished(events)
    assert [e["metadata"]["samples_count"] for e in events if e["key"] == "eval_start"] == [
        1536,
        1920,
    ]


@pytest.mark.parametrize("text", ["MLPerfCallback()", "install_bridge_hooks("])
def test_the_bridge_of_the_readme_is_logged(
    log: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Both blocks leave one finished run; Bridge is a small one."""
    monkeypatch.setenv("MLLOG_SUBMISSION_BENCHMARK", "llama2_70b_lora")
    monkeypatch.setenv("SYNTH_WARMUP_STEPS", "0")
    finetune = small_bridge.install(monkeypatch, [2.0, 0.9])
    megatron_bridge._callback_class.cache_clear()
    names = {"finetune": finetune, "config": small_bridge.configuration(400), "forward_step": None}
    exec(block(text), names)  # noqa: S102
    for hooks in megatron_bridge._installed:
        hooks.close()
    events = events_in(log)
    assert_finished(events)
    assert events[-1]["metadata"]["status"] == "success"


def test_the_trainer_of_the_readme_is_logged(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers is a small one here; the real one is in tests/integration."""
    transformers = types.ModuleType("transformers")
    transformers.TrainerCallback = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    huggingface._callback_class.cache_clear()
    args = types.SimpleNamespace(
        per_device_train_batch_size=2,
        gradient_accumulation_steps=1,
        world_size=1,
        lr_scheduler_type="linear",
        optim="adamw_torch",
        learning_rate=0.1,
        seed=1,
        weight_decay=0.0,
        max_grad_norm=1.0,
        adam_beta1=0.9,
        adam_beta2=0.9,
        adam_epsilon=1e-8,
        bf16=False,
        fp16=False,
        get_warmup_steps=lambda _: 0,
    )

    class Trainer:
        def __init__(self, *_: Any, callbacks: Any, **__: Any) -> None:
            [self.callback] = callbacks

        def train(self) -> None:
            state = types.SimpleNamespace(global_step=0, max_steps=3, eval_steps=1)
            control = types.SimpleNamespace(should_log=False, should_evaluate=True)
            self.callback.on_train_begin(args, state, control)
            for loss in (2.0, 0.9):
                self.callback.on_step_begin(args, state, control)
                state.global_step += 1
                self.callback.on_step_end(args, state, control)
                self.callback.on_evaluate(args, state, control, metrics={"eval_loss": loss})
            assert control.should_training_stop

    data = [0] * 8
    names = {"Trainer": Trainer, "model": None, "args": args, "train_data": data, "eval_data": data}
    exec(block("MLPerfTrainerCallback"), names)  # noqa: S102
    huggingface._callback_class.cache_clear()
    events = events_in(log)
    assert_finished(events)
    assert [e["value"] for e in events if e["key"] == "eval_samples"] == [8]


def test_the_warmup_of_the_readme_changes_nothing() -> None:
    """It takes the steps it is told to, and parameters are what they were."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    before = model.weight.tolist()
    taken: list[Any] = []

    def train_step(model: Any, batch: Any) -> None:
        model(batch).sum().backward()
        optimizer.step()
        taken.append(model.weight.tolist())

    names = {
        "run": types.SimpleNamespace(settings=PretrainSettings(synth_warmup_valid_steps=2)),
        "model": model,
        "optimizer": optimizer,
        "scheduler": None,
        "train_step": train_step,
        "random_batch": lambda: torch.ones(1, 2),
        "evaluate": lambda _model, num_steps: taken.append(num_steps),
    }
    exec(block("run_warmup("), names)  # noqa: S102
    assert len(taken) == 4
    assert taken[3] == 2
    assert taken[2] != before
    assert model.weight.tolist() == before


def test_the_logger_of_the_readme_logs(tmp_path: Path, log: Path) -> None:
    """Events alone reach the file that configure names."""
    path = tmp_path / "alone.log"
    code = block("MLPerfLogger()").replace("/results/run.log", str(path))
    exec(code, {"args": ARGS})  # noqa: S102
    keys = [event["key"] for event in events_in(path)]
    assert keys == ["cache_clear", "seed", "run_start", "run_stop"]


def test_the_test_of_the_readme_tests(log: Path) -> None:
    """Captured events can be asserted on."""

    def your_training() -> None:
        with MLPerfRun() as run:
            run.init_start()
            run.start()

    exec(block("capture_events()"), {"your_training": your_training})  # noqa: S102
    assert not log.exists()


def test_every_block_is_run() -> None:
    """No Python block of the README is left untested."""
    texts = (
        "MLPerfMegatronPretrainTrainer",
        "mlperf_logging_for",
        "MLPerfSFTLogger",
        "MLPerfCallback()",
        "install_bridge_hooks(",
        "MLPerfTrainerCallback",
        "build_model()",
        "run_warmup(",
        "MLPerfLogger()",
        "capture_events()",
    )
    assert sorted(map(block, texts)) == sorted(BLOCKS)
