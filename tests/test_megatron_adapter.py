"""The Megatron-LM adapter against small loops with the signatures of three generations.

Each stand-in is Megatron's ``megatron.training.training`` reduced to what the adapter touches: who
calls whom, with which arguments, and what is returned. The real loop is in tests/integration.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

import rpd
from grammar import assert_finished, letters, samples
from primus_mllog.adapters.import_hook import when_imported
from primus_mllog.adapters.megatron_lm import MegatronHooks, mlperf_logging_for
from primus_mllog.run import MLPerfRun
from primus_mllog.settings import PretrainSettings
from primus_mllog.testing import capture_events


class Optimizer:
    """Stands for Megatron's optimizer: after a step its groups hold the next step's rate."""

    def __init__(self) -> None:
        self.param_groups = [
            {"params": [1], "lr": 9.0, "is_decoupled_lr": True},
            {"params": [1], "lr": 0.1, "is_decoupled_lr": False},
        ]

    def step(self) -> None:
        self.param_groups[1]["lr"] += 0.1


class Loop(types.ModuleType):
    """``megatron.training.training`` in small; see the module's docstring."""

    def __init__(self, generation: str, eval_losses: list[Any], **options: Any) -> None:
        super().__init__("megatron.training.training")
        self.generation = generation
        self.eval_losses = iter(eval_losses)
        self.options = options
        self.skips: set[int] = options.get("skips", set())
        self.exit_at = options.get("exit_at")
        self.num_sets = options.get("num_sets", 1)
        self.evaluated: list[str] = []
        self.args = types.SimpleNamespace(
            global_batch_size=16,
            micro_batch_size=2,
            data_parallel_size=2,
            world_size=2,
            train_iters=6,
            eval_interval=2,
            eval_iters=1,
            seq_length=8,
            iteration=options.get("iteration", 0),
            consumed_train_samples=options.get("iteration", 0) * 16,
            do_valid=True,
            do_test=True,
        )
        self.train_step = {"old": _train_step_old, "mid": _train_step_mid, "new": _train_step_new}[
            generation
        ](self)

    def get_args(self) -> Any:
        return self.args

    def get_num_microbatches(self) -> int:
        return 4

    def build_train_valid_test_data_iterators(self, _provider: Any) -> Any:
        self.options.get("on_data", lambda: None)()
        return iter(()), iter(()), iter(())

    def evaluate(self, *_: Any, **__: Any) -> Any:
        loss = next(self.eval_losses)
        if loss == "time limit":
            return None, None, True
        return ({} if loss is None else {"lm loss": loss}), None, False

    def evaluate_and_print_results(self, prefix: str, *_: Any, **__: Any) -> None:
        self.evaluated.append(prefix)
        for _set in range(self.num_sets):
            _, _, is_over = self.evaluate(None)
            if is_over:
                return

    def train(self, forward_step_func: Any, model: Any, optimizer: Any, *rest: Any) -> Any:
        args, iteration = self.args, self.args.iteration
        while iteration < args.train_iters:
            if self.generation == "old":
                self.train_step(forward_step_func, None, model, optimizer, None, None)
            else:
                step = self.train_step
                step(forward_step_func, None, model, optimizer, None, None, None, iteration=0)
            iteration += 1
            args.consumed_train_samples += 16
            if iteration % args.eval_interval == 0 and args.do_valid:
                self.evaluate_and_print_results(f"iteration {iteration}")
            if iteration == self.exit_at:
                sys.exit(3)
        return iteration, 0

    def pretrain(self) -> None:
        self.build_train_valid_test_data_iterators(None)
        self.train(None, [None], Optimizer())
        if self.args.do_valid:
            self.evaluate_and_print_results("validation")
        if self.args.do_test:
            self.evaluate_and_print_results("test")


def _step(loop: Loop, optimizer: Any, num_values: int) -> tuple[Any, ...]:
    """Losses, whether the step was skipped, and as many other values as the release returns."""
    skipped = loop.args.consumed_train_samples // 16 in loop.skips
    optimizer.step()
    loss = loop.options.get("train_loss", 2.0)
    return ({} if loss is None else {"lm loss": loss}, int(skipped), *[0] * (num_values - 2))


def _train_step_old(loop: Loop) -> Any:
    """Up to 0.13: six arguments, a 7-tuple."""

    def train_step(
        forward_step_func: Any,
        data_iterator: Any,
        model: Any,
        optimizer: Any,
        opt_param_scheduler: Any,
        config: Any,
    ) -> Any:
        return _step(loop, optimizer, 7)

    return train_step


def _train_step_mid(loop: Loop) -> Any:
    """0.14 to 0.16: the schedule is an argument, the tuple grows to 8."""

    def train_step(
        forward_step_func: Any,
        data_iterator: Any,
        model: Any,
        optimizer: Any,
        opt_param_scheduler: Any,
        config: Any,
        forward_backward_func: Any,
        iteration: Any = None,
    ) -> Any:
        return _step(loop, optimizer, 8)

    return train_step


def _train_step_new(loop: Loop) -> Any:
    """0.17 and newer: process groups are arguments, too."""

    def train_step(
        forward_step_func: Any,
        data_iterator: Any,
        model: Any,
        optimizer: Any,
        opt_param_scheduler: Any,
        config: Any,
        forward_backward_func: Any,
        iteration: Any = None,
        pg_collection: Any = None,
        p2p_communicator: Any = None,
    ) -> Any:
        return _step(loop, optimizer, 8)

    return train_step


GENERATIONS = ["old", "mid", "new"]


def logged(loop: Loop, validation_set: int = 0, **settings: Any) -> tuple[MLPerfRun, list[Any]]:
    settings = {"mllog_target_eval_loss": 1.0, "mllog_preflight": "off", **settings}
    with capture_events() as events:
        run = MLPerfRun(PretrainSettings(**settings))
        run.init_start()
        with MegatronHooks(run, loop, validation_set=validation_set).installed():
            loop.pretrain()
    return run, events


def values(events: list[Any], key: str) -> list[Any]:
    return [event["value"] for event in events if event["key"] == key]


@pytest.mark.fault("L2")
@pytest.mark.fault("L4")
@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_target_ends_training(generation: str) -> None:
    """The loop returns after the deciding evaluation, and evaluates no more."""
    loop = Loop(generation, [2.0, 0.9])
    run, events = logged(loop)
    assert run.status == "success"
    assert_finished(events)
    assert values(events, "eval_accuracy") == [2.0, 0.9]
    assert loop.evaluated == ["iteration 2", "iteration 4"]
    assert loop.args.consumed_train_samples == 64


@pytest.mark.fault("L2")
@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_frameworks_last_evaluations_leave_no_event(generation: str) -> None:
    """Validation and test after the loop run, and are not in the log."""
    loop = Loop(generation, [2.0] * 5)
    run, events = logged(loop)
    assert run.status == "aborted"
    assert_finished(events)
    assert len(values(events, "eval_accuracy")) == 3
    assert loop.evaluated[-2:] == ["validation", "test"]


@pytest.mark.fault("T3")
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_step_is_logged_with_what_it_was_taken_with(generation: str) -> None:
    """Samples include the step; the learning rate is this step's, not the next one's."""
    _, events = logged(Loop(generation, [0.5]))
    steps = [e["metadata"] for e in events if e["key"] == "train_loss"]
    assert [(s["step"], s["samples_count"]) for s in steps] == [(1, 16), (2, 32)]
    assert [s["lr"] for s in steps] == pytest.approx([0.1, 0.2])


@pytest.mark.fault("C1")
def test_evaluations_are_counted_where_training_is() -> None:
    """eval_accuracy carries Megatron's consumed samples, the last step's included."""
    _, events = logged(Loop("new", [2.0, 0.5]))
    found = [samples(e) for e in events if e["key"] in {"block_stop", "eval_accuracy"}]
    assert found == [32, 32, 64, 64]


@pytest.mark.fault("L3")
def test_a_rank_without_losses_says_so() -> None:
    """Off the last pipeline stage both dictionaries are empty: no value is made up."""
    _, events = logged(Loop("new", [None] * 5, train_loss=None))
    assert values(events, "eval_accuracy") == []
    assert values(events, "train_loss") == []


@pytest.mark.fault("L5")
def test_sys_exit_in_the_loop_ends_the_run() -> None:
    """The exit goes on unchanged with its code."""
    loop = Loop("new", [2.0] * 5, exit_at=3)
    with capture_events() as events, pytest.raises(SystemExit) as caught:
        run = MLPerfRun(PretrainSettings(mllog_preflight="off"))
        run.init_start()
        with MegatronHooks(run, loop).installed():
            loop.pretrain()
    assert caught.value.code == 3
    assert_finished(events)
    assert run.status == "aborted"


@pytest.mark.fault("L6")
def test_a_time_limit_closes_the_evaluation() -> None:
    """No value, no verdict; the loss of the evaluation before is not repeated."""
    _, events = logged(Loop("new", [2.0, "time limit", 3.0, 3.0, 3.0]))
    assert values(events, "eval_accuracy") == [2.0, 3.0]
    assert letters(events).count("eE") == 1


@pytest.mark.fault("L7")
@pytest.mark.parametrize(("validation_set", "decides"), [(0, [2.0, 0.9]), (1, [0.5])])
def test_one_of_several_validation_sets_decides(validation_set: int, decides: list[float]) -> None:
    """The named set counts, the first by default; the others are evaluated and not logged."""
    loop = Loop("new", [2.0, 0.5, 0.9, 3.0], num_sets=2)
    run, events = logged(loop, validation_set=validation_set)
    assert values(events, "eval_accuracy") == decides
    assert run.status == "success"


@pytest.mark.fault("L7")
def test_a_set_that_does_not_exist_decides_nothing() -> None:
    """Where the named set is not evaluated, the evaluation is closed and training goes on."""
    run, events = logged(Loop("new", [0.5] * 5), validation_set=3)
    assert_finished(events)
    assert values(events, "eval_accuracy") == []
    assert run.status == "aborted"


@pytest.mark.fault("L11")
def test_the_clock_starts_before_the_data_is_opened() -> None:
    """init_stop and run_start are in the log when Megatron opens its data sets."""
    seen: list[str] = []
    with capture_events() as events:
        loop = Loop("new", [0.5], on_data=lambda: seen.extend(e["key"] for e in events))
        run = MLPerfRun(PretrainSettings(mllog_preflight="off", mllog_target_eval_loss=1.0))
        run.init_start()
        with MegatronHooks(run, loop).installed():
            loop.pretrain()
    assert seen[-4:] == ["init_stop", "run_start", "epoch_start", "block_start"]
    assert "global_batch_size" in seen


@pytest.mark.parametrize("name", ["train_step", "evaluate"])
def test_a_function_replaced_by_a_framework_is_logged(name: str) -> None:
    """Primus' patches come after the hooks: what the loop calls counts, and stays in place."""
    loop = Loop("new", [2.0, 0.5])
    original = getattr(loop, name)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    loop.options["on_data"] = lambda: setattr(loop, name, replaced)
    run, events = logged(loop)
    assert run.status == "success"
    assert len(values(events, "train_loss")) == 4
    assert getattr(loop, name) is replaced


@pytest.mark.fault("L13")
def test_a_resumed_loop_goes_on_counting() -> None:
    """Iterations and samples go on from the checkpoint's."""
    _, events = logged(Loop("new", [0.5], iteration=2))
    steps = [e["metadata"] for e in events if e["key"] == "train_loss"]
    assert [(s["step"], s["samples_count"]) for s in steps] == [(3, 48), (4, 64)]
    assert samples(next(e for e in events if e["key"] == "epoch_start")) == 32


@pytest.mark.fault("T2")
def test_a_skipped_step_is_counted_and_not_logged() -> None:
    """A step whose optimizer did not step has no train_loss."""
    _, events = logged(Loop("new", [0.5], skips={0}))
    assert [e["metadata"]["step"] for e in events if e["key"] == "train_loss"] == [2]


@pytest.mark.fault("T4")
def test_a_rank_that_does_not_log_can_be_traced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its steps are told to the run, too."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("RPDT_FILENAME", "")
    tracer = rpd.module()
    monkeypatch.setitem(sys.modules, "rpdTracerControl", tracer)
    settings = {"profiler": "rpd", "profile_segment": "train_step", "profile_ranks": "1"}
    logged(Loop("new", [0.5]), profile_output_dir=str(tmp_path), **settings)
    assert tracer.rpdTracerControl.calls == ["start", "stop"] * 2 + ["flush"]


class LossOnDevice:
    """Stands for a tensor on an accelerator, and counts what would make the host wait for it."""

    num_waits = 0
    device = types.SimpleNamespace(type="cuda")

    def __float__(self) -> float:
        LossOnDevice.num_waits += 1
        return 2.0

    item = __float__


@pytest.mark.fault("T3")
def test_no_step_waits_for_the_device() -> None:
    """Inside the steps of a block nothing reads the loss; at its end everything is read."""
    waits: list[int] = []
    LossOnDevice.num_waits = 0
    loop = Loop("new", [0.5], train_loss=LossOnDevice())

    def train(*args: Any) -> Any:
        step = loop.train_step

        def watched(*step_args: Any, **kwargs: Any) -> Any:
            result = step(*step_args, **kwargs)
            waits.append(LossOnDevice.num_waits)
            return result

        loop.train_step = watched
        return Loop.train(loop, *args)

    loop.train = train  # type: ignore[method-assign]
    _, events = logged(loop)
    assert waits == [0, 0]
    assert len(values(events, "train_loss")) == 2


@pytest.mark.parametrize("result", [(), None, ({"lm loss": 1.0},), 7])
def test_a_release_that_returns_something_else_is_trained_on(
    result: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """What we do not understand of a step is said once; the training and its run go on."""
    loop = Loop("new", [2.0, 0.5])
    loop.train_step = lambda *_, **__: result  # type: ignore[method-assign]
    run, events = logged(loop)
    assert run.status == "success"
    assert_finished(events)
    assert capsys.readouterr().err.count("a step is not logged") == 1


def test_hooks_are_taken_back_on_every_way_out() -> None:
    """After the block the module's functions are its own again."""
    loop = Loop("new", [])
    before = dict(vars(loop))
    run = MLPerfRun(PretrainSettings(mllog_save_to_file=False, mllog_preflight="off"))
    with pytest.raises(RuntimeError), MegatronHooks(run, loop).installed():
        assert vars(loop).get("train") is not before.get("train")
        raise RuntimeError
    assert vars(loop) == before


def test_a_module_is_acted_on_when_it_is_imported(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The import happens when its user imports, and the action follows at once."""
    (tmp_path / "late_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[Any] = []
    finders = list(sys.meta_path)
    with when_imported("late_module", seen.append):
        assert seen == []
        import late_module

        assert seen == [late_module]
        assert late_module.value == 1
    assert sys.meta_path == finders


def test_a_module_that_is_there_is_acted_on_at_once() -> None:
    """A module imported before the block needs no import."""
    seen: list[Any] = []
    with when_imported("sys", seen.append):
        assert seen == [sys]


def test_a_module_that_never_comes_leaves_nothing() -> None:
    """Leaving the block without the import takes the finder away."""
    finders = list(sys.meta_path)
    with when_imported("never_imported_module", pytest.fail):
        pass
    assert sys.meta_path == finders


def test_logging_a_block_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """mlperf_logging_for begins the initialisation, and logs the pretrain() of its block."""
    loop = Loop("mid", [0.5])
    monkeypatch.setitem(sys.modules, "megatron.training.training", loop)
    with capture_events() as events:
        run = MLPerfRun(PretrainSettings(mllog_preflight="off", mllog_target_eval_loss=1.0))
        with run, mlperf_logging_for(run):
            loop.pretrain()
    assert_finished(events)
    assert run.status == "success"
