"""Any sequence of calls at all leaves a log in the promised order."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from grammar import assert_allowed, letters, samples
from primus_mllog.errors import LifecycleError
from primus_mllog.run import MLPerfRun, Phase
from primus_mllog.settings import PretrainSettings
from primus_mllog.testing import capture_events

losses = st.none() | st.floats() | st.sampled_from(["text", object()])
TARGET = 1.0


class AnyCalls(RuleBasedStateMachine):
    """Calls every public method in any order; after each, the log must still be a good one."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = contextlib.ExitStack()
        self._samples = 0

    @initialize(strict=st.booleans(), throughput=st.booleans(), frequency=st.integers(0, 3))
    def begin(self, *, strict: bool, throughput: bool, frequency: int) -> None:
        self.events = self._stack.enter_context(capture_events(strict=strict))
        self.run = MLPerfRun(
            PretrainSettings(
                mllog_preflight="off",
                mllog_target_eval_loss=TARGET,
                mllog_block_tput_log=throughput,
                mllog_train_loss_log_freq=frequency,
            )
        )

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method; where that is out of order, it must leave the log as it was."""
        before = list(self.events)
        try:
            result = getattr(self.run, name)(*args, **kwargs)
        except LifecycleError:
            assert self.events == before
            return None
        self.check()
        return result

    def check(self) -> None:
        text = letters(self.events)
        assert text.count("R") == (1 if self.run.phase is Phase.STOPPED else 0)
        times = [event["time_ms"] for event in self.events]
        assert times == sorted(times)
        for key in ("block_start", "eval_start", "run_start"):
            assert all(e["event_type"] == "INTERVAL_START" for e in self.events if e["key"] == key)

    @rule()
    def init_start(self) -> None:
        self.call("init_start")

    @rule(seed=st.integers())
    def log_hyperparameters(self, seed: int) -> None:
        self.call("log_hyperparameters", {"seed": seed, "global_batch_size": 16})

    @rule(samples_count=st.integers(0, 100))
    def start(self, samples_count: int) -> None:
        self.call("start", samples_count)

    @rule()
    def step_start(self) -> None:
        self.call("step_start")

    @rule(loss=losses)
    def step_stop(self, loss: Any) -> None:
        self._samples += 16
        # an object() cannot be encoded; strict runs say so, which is not what is tested here
        loss = None if self.run._strict and type(loss) is object else loss
        self.call("step_stop", self._samples, loss=loss)

    @rule()
    def eval_start(self) -> None:
        self.call("eval_start")

    @rule(loss=losses)
    def eval_stop(self, loss: Any) -> None:
        in_evaluation = self.run.phase is Phase.EVALUATION
        reached = self.call("eval_stop", loss)
        if in_evaluation:
            assert reached is (isinstance(loss, float) and loss <= TARGET)
            assert self.run.status == ("success" if reached else None)

    @rule()
    def stop(self) -> None:
        self.call("stop")

    @precondition(lambda self: self.run.phase is not Phase.NEW)
    @rule()
    def leave(self) -> None:
        self.run.__exit__(None, None, None)
        self.check()

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.stop()
            self.check()
            assert_allowed(self.events)
            open_eval = None
            for event in self.events:
                if event["key"] == "eval_start":
                    open_eval = samples(event)
                if event["key"] in {"eval_accuracy", "eval_stop"}:
                    assert samples(event) == open_eval
        self._stack.close()


AnyCalls.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


class TestAnyCalls(AnyCalls.TestCase):  # type: ignore[misc, name-defined]
    """Promise 1 holds for every sequence of calls."""

    pytestmark = pytest.mark.filterwarnings("error")
