"""The drop-in trainer against Primus in small, current and older."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import primus_mllog
import small_primus
from grammar import assert_finished
from primus_mllog.errors import MissingDependencyError
from primus_mllog.testing import capture_events
from test_megatron_adapter import Loop, Optimizer, values


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLLOG_TARGET_EVAL_LOSS", "1.0")
    monkeypatch.setenv("MLLOG_PREFLIGHT", "off")


def small_loop(eval_losses: list[Any]) -> Loop:
    loop = Loop("old", eval_losses)
    loop.optimizer = Optimizer()  # type: ignore[attr-defined]
    return loop


WAYS = {
    "runtime": ("setup", "init", "train", "cleanup"),
    "by hand": ("init", "run"),
}


@pytest.mark.fault("L1")
@pytest.mark.parametrize("calls", WAYS.values(), ids=WAYS)
def test_the_current_trainer_logs_one_run(
    monkeypatch: pytest.MonkeyPatch, calls: tuple[str, ...]
) -> None:
    """Primus' runtime and a script by hand leave the same log, and call what Primus calls."""
    small_primus.install(monkeypatch, small_loop([2.0, 0.5]))
    with capture_events() as events:
        trainer = primus_mllog.MLPerfMegatronPretrainTrainer(backend_args=None)
        for call in calls:
            getattr(trainer, call)()
    assert_finished(events)
    assert values(events, "eval_accuracy") == [2.0, 0.5]
    assert sorted(trainer.calls) == ["cleanup", "init", "setup", "train"]


@pytest.mark.fault("L11")
def test_the_older_trainer_logs_its_own_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock starts in ``init``, before the data is opened; ``run`` logs the loop's methods."""
    loop = small_loop([2.0, 0.5])
    opened: list[str] = []
    loop.options["on_data"] = lambda: opened.extend(event["key"] for event in events)
    small_primus.install(monkeypatch, loop, current=False)
    with capture_events() as events:
        trainer = primus_mllog.MLPerfMegatronPretrainTrainer("pre_trainer")
        trainer.init()
        trainer.run()
    assert opened[-3:] == ["run_start", "epoch_start", "block_start"]
    assert_finished(events)
    assert values(events, "eval_accuracy") == [2.0, 0.5]
    assert len(values(events, "train_loss")) == 4


@pytest.mark.fault("W12")
def test_without_primus_the_name_imports_and_use_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Importing works everywhere; making a trainer names what is missing."""
    monkeypatch.setitem(sys.modules, "primus", None)
    with pytest.raises(MissingDependencyError, match="Primus"):
        primus_mllog.MLPerfMegatronPretrainTrainer()
