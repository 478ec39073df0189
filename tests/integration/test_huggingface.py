"""The callback in the real Trainer of transformers, with a tiny model of random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from grammar import assert_finished, letters, samples
from primus_mllog.adapters.huggingface import MLPerfTrainerCallback
from primus_mllog.compliance import check_file
from primus_mllog.records.lint import lint

# transformers and accelerate warn of what they find out about themselves
pytestmark = pytest.mark.filterwarnings("ignore")


class Sequences(torch.utils.data.Dataset[Any]):
    """Sample i counts upwards from i."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (index * 7 + torch.arange(16)) % 32
        return {"input_ids": tokens, "labels": tokens}


def trainer(folder: Path, **options: Any) -> transformers.Trainer:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    model = transformers.LlamaForCausalLM(config)
    arguments: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": 60,
        "eval_strategy": "steps",
        "eval_steps": 10,
        "logging_steps": 2,
        "learning_rate": 1e-2,
        "warmup_steps": 3,
        "weight_decay": 0.1,
        "adam_beta2": 0.95,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 11,
    }
    return transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(**{**arguments, **options}),
        train_dataset=Sequences(512),
        eval_dataset=Sequences(16),
        callbacks=[MLPerfTrainerCallback(Sequences(16))],
    )


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    names = {
        "OUTPUT_FILE": str(path),
        "TARGET_EVAL_LOSS": "0.9",
        "TRAIN_LOSS_LOG_FREQ": "1",
        "CONFIG_FILENAME": "toy",
        "SUBMISSION_BENCHMARK": "llama2_70b_lora",
        "SUBMISSION_DIVISION": "open",
        "SUBMISSION_ORG": "org",
        "SUBMISSION_PLATFORM": "platform",
        "PREFLIGHT": "off",
    }
    for name, value in names.items():
        monkeypatch.setenv(f"MLLOG_{name}", value)
    return path


def events_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in path.read_text().splitlines()]


@pytest.mark.fault("L10")
def test_the_target_ends_the_training(log: Path, tmp_path: Path) -> None:
    """Success at the deciding evaluation, in a log that passes; a later evaluation leaves none."""
    training = trainer(tmp_path)
    training.train()
    training.evaluate()
    events = events_in(log)
    assert_finished(events)
    *earlier, deciding = [e["value"] for e in events if e["key"] == "eval_accuracy"]
    assert all(loss > 0.9 for loss in earlier)
    assert deciding <= 0.9
    assert events[-1]["metadata"]["status"] == "success"
    assert samples(events[-1]) == training.state.global_step * 4 < 240
    assert lint(log) == []


def test_the_header_is_the_trainings(log: Path, tmp_path: Path) -> None:
    """Batches, schedule and optimizer are what the Trainer was given."""
    trainer(tmp_path, max_steps=10).train()
    header = {e["key"]: e["value"] for e in events_in(log)}
    expected = {
        "global_batch_size": 4,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "seed": 11,
        "max_steps": 10,
        "train_samples": 512,
        "eval_samples": 16,
        "evaluation_frequency": 40,
        "opt_name": "adamw",
        "opt_base_learning_rate": 0.01,
        "opt_learning_rate_warmup_steps": 3,
        "opt_learning_rate_decay_steps": 7,
        "opt_adamw_weight_decay": 0.1,
        "opt_adamw_beta_2": 0.95,
        "opt_gradient_clip_norm": 1.0,
    }
    assert {key: header[key] for key in expected} == expected


def test_losses_are_logged_where_the_trainer_logs_them(log: Path, tmp_path: Path) -> None:
    """With the step, its samples and its learning rate; then the evaluation."""
    trainer(tmp_path, max_steps=10).train()
    events = events_in(log)
    assert letters(events).endswith("rpbtttttBeaEPR")
    steps = [e["metadata"] for e in events if e["key"] == "train_loss"]
    expected = [(number, number * 4) for number in (2, 4, 6, 8, 10)]
    assert [(s["step"], s["samples_count"]) for s in steps] == expected
    assert all(step["lr"] > 0 for step in steps)


@pytest.mark.fault("L5")
def test_an_exception_ends_the_run(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aborted, once the process ends; the error goes up."""
    training = trainer(tmp_path)
    monkeypatch.setattr(training, "training_step", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        training.train()
    [callback] = [
        c for c in training.callback_handler.callbacks if isinstance(c, MLPerfTrainerCallback)
    ]
    callback.run._abort()  # as the interpreter's exit does
    events = events_in(log)
    assert_finished(events)
    assert events[-1]["metadata"]["status"] == "aborted"


def test_the_official_checker_accepts_the_log(log: Path, tmp_path: Path) -> None:
    """In the open division, with the header facts that the Trainer knows of."""
    trainer(tmp_path).train()
    findings = check_file(log, "6.1.0").findings
    # the Trainer has no LoRA here, and does not know the length of its sequences
    assert {f.key for f in findings} <= {"lora_rank", "lora_alpha", "max_sequence_length"}
