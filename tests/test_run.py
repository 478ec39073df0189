"""The life of a run."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from grammar import assert_finished, letters, samples
from official import OPEN_HEADER, official_verdict
from primus_mllog.errors import ConfigurationError, LifecycleError, OutputError, PreflightError
from primus_mllog.run import MLPerfRun, Phase
from primus_mllog.settings import PretrainSettings
from primus_mllog.testing import FakeClock, capture_events, run_ranks

HEADER = {"global_batch_size": 16, "seed": 1}


def make(**settings: Any) -> MLPerfRun:
    return MLPerfRun(PretrainSettings(mllog_preflight="off", **settings))


def started(**settings: Any) -> MLPerfRun:
    run = make(**settings)
    run.init_start()
    run.log_hyperparameters(HEADER)
    run.start()
    return run


def train(run: MLPerfRun, losses: list[Any], eval_losses: list[Any]) -> bool:
    """One block of steps of 16 samples for each evaluation loss."""
    done = 0
    for eval_loss in eval_losses:
        for loss in losses:
            run.step_start()
            done += 16
            run.step_stop(done, loss=loss, learning_rate=0.1)
        run.eval_start(done)
        if run.eval_stop(eval_loss):
            return True
    return False


def values(events: list[dict[str, Any]], key: str) -> list[Any]:
    return [event["value"] for event in events if event["key"] == key]


def last(events: list[dict[str, Any]], key: str) -> dict[str, Any]:
    return [event for event in events if event["key"] == key][-1]


def test_a_run_that_reaches_its_target() -> None:
    """The events of a whole run, in the promised order, ending in success."""
    with capture_events() as events:
        run = started(mllog_target_eval_loss=1.0)
        assert train(run, [2.0, 1.5], [1.2, 0.9])
    assert letters(events) == "cihhIrpbttBeaEbttBeaEPR"
    assert last(events, "run_stop")["metadata"]["status"] == "success"
    assert samples(last(events, "run_stop")) == 64
    assert run.status == "success"
    assert run.finished


def test_a_run_that_uses_up_its_iterations() -> None:
    """Without the target, stop() ends the run as aborted, and no empty block follows the last
    evaluation.
    """
    with capture_events() as events:
        run = started(mllog_target_eval_loss=0.5)
        assert not train(run, [2.0], [1.2, 0.9])
        run.stop()
    assert letters(events) == "cihhIrpbtBeaEbtBeaEPR"
    assert run.status == "aborted"


@pytest.mark.fault("L1")
def test_a_run_ends_once() -> None:
    """After success, stop() and leaving the context write no second run_stop."""
    with capture_events() as events:
        with started(mllog_target_eval_loss=1.0) as run:
            train(run, [2.0], [0.9])
            run.stop()
        run.stop()
    assert letters(events).count("R") == 1
    assert run.status == "success"


@pytest.mark.fault("L2")
@pytest.mark.parametrize("call", ["step_start", "eval_start", "eval_stop", "init_start", "start"])
def test_nothing_is_logged_after_the_end(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The framework's further steps and evaluations leave no event behind run_stop."""
    with capture_events(strict=False) as events:
        run = started(mllog_target_eval_loss=1.0)
        train(run, [2.0], [0.9])
        assert not getattr(run, call)()
        assert not getattr(run, call)()
    assert letters(events).endswith("PR")
    assert capsys.readouterr().err.count(f"{call}() was called while the run is over") == 1


@pytest.mark.fault("L8")
@pytest.mark.parametrize(("loss", "reached"), [(1.0, True), (math.nextafter(1.0, 2), False)])
def test_the_target_itself_is_a_success(loss: float, reached: bool) -> None:
    """The loss is compared as the checker does: at most the target."""
    with capture_events():
        assert train(started(mllog_target_eval_loss=1.0), [2.0], [loss]) is reached


@pytest.mark.fault("L9")
def test_a_target_of_zero_is_a_target() -> None:
    """A target that was set to 0 ends no run at a loss above 0."""
    with capture_events():
        run = started(mllog_target_eval_loss=0.0)
        assert not train(run, [2.0], [0.1])
        assert train(run, [2.0], [0.0])


@pytest.mark.fault("W5")
@pytest.mark.parametrize("loss", [math.nan, math.inf, torch.tensor(math.nan)])
def test_a_loss_that_is_no_number_is_not_converged(loss: Any) -> None:
    """NaN is logged as a number above every target, is named, and does not end the run."""
    with capture_events() as events:
        run = started(mllog_target_eval_loss=1.0)
        assert not train(run, [2.0], [loss])
        run.stop()
    event = last(events, "eval_accuracy")
    assert event["value"] > 1e308
    assert event["metadata"]["non_finite"] in {"NaN", "Infinity"}
    assert run.status == "aborted"


@pytest.mark.fault("L10")
def test_the_clock_stops_when_the_target_is_known() -> None:
    """run_stop carries the instant of the verdict, as eval_accuracy does, not that of the write."""
    with capture_events() as events, FakeClock() as clock:
        run = started(mllog_target_eval_loss=1.0)

        def agree(values: Any) -> Any:
            clock.now_ms += 5
            return list(values)

        run.group.agree = agree  # type: ignore[method-assign]
        train(run, [2.0], [0.9])
    verdict = last(events, "eval_accuracy")["time_ms"]
    assert verdict == last(events, "eval_start")["time_ms"] + 5
    assert last(events, "run_stop")["time_ms"] == verdict


@pytest.mark.fault("L6")
def test_an_evaluation_without_a_loss_is_closed() -> None:
    """A time limit inside the evaluation leaves eval_stop, no eval_accuracy, and no verdict."""
    with capture_events() as events:
        run = started(mllog_target_eval_loss=1.0)
        assert not train(run, [2.0], [1.5, None])
        run.stop()
    assert letters(events) == "cihhIrpbtBeaEbtBeEPR"
    assert values(events, "eval_accuracy") == [1.5]


@pytest.mark.fault("L13")
def test_a_resumed_run_goes_on_counting() -> None:
    """A run resumed from a checkpoint begins at the samples it has seen."""
    with capture_events() as events:
        run = make()
        run.init_start()
        run.start(samples_count=4800)
    assert [samples(e) for e in events if e["key"] in {"epoch_start", "block_start"}] == [4800] * 2


@pytest.mark.fault("C1")
def test_one_evaluation_has_one_samples_count() -> None:
    """eval_start, eval_accuracy, eval_stop and the block around agree on the samples."""
    with capture_events() as events:
        train(started(), [2.0, 2.0], [1.0])
    keys = {"block_stop", "eval_start", "eval_accuracy", "eval_stop"}
    assert {samples(e) for e in events if e["key"] in keys} == {32}
    assert samples(last(events, "train_loss")) == 32


def test_the_first_two_events_come_at_once() -> None:
    """cache_clear and init_start are written when the initialisation begins."""
    with capture_events() as events:
        make().init_start()
    assert letters(events) == "ci"
    assert events[0]["value"] is True
    assert events[1]["event_type"] == "INTERVAL_START"


@pytest.mark.fault("L11")
def test_the_clock_starts_when_initialisation_ends() -> None:
    """init_stop, run_start and the first block carry one instant."""
    with capture_events() as events:
        started()
    begin = {"init_stop", "run_start", "epoch_start", "block_start"}
    assert len({event["time_ms"] for event in events if event["key"] in begin}) == 1


def test_a_key_is_logged_once() -> None:
    """A hyperparameter that was logged before is not logged again."""
    with capture_events() as events:
        run = make()
        run.init_start()
        run.log_hyperparameters({"seed": 1})
        run.log_hyperparameters({"seed": 2, "max_steps": 3})
    assert letters(events) == "cihh"
    assert values(events, "seed") == [1]


@pytest.mark.parametrize(("frequency", "steps"), [(0, []), (1, [1, 2, 3, 4, 5, 6]), (3, [3, 6])])
def test_train_loss_comes_at_its_frequency(frequency: int, steps: list[int]) -> None:
    """Every n-th step's loss is logged with its iteration and learning rate; 0 logs none."""
    with capture_events() as events:
        run = started(mllog_train_loss_log_freq=frequency)
        for step in range(1, 7):
            run.step_start()
            run.step_stop(16 * step, iteration=step, loss=2.0 / step, learning_rate=step / 10)
    logged = [e for e in events if e["key"] == "train_loss"]
    assert [e["metadata"]["step"] for e in logged] == steps
    assert [e["metadata"]["lr"] for e in logged] == [step / 10 for step in steps]


class LossOnDevice:
    """Stands for a loss tensor on an accelerator: reading it waits for the device."""

    device = torch.device("cuda")

    def __init__(self, value: float) -> None:
        self.value = value
        self.num_reads = 0

    def __float__(self) -> float:
        self.num_reads += 1
        return self.value


@pytest.mark.fault("T3")
def test_a_loss_on_a_device_is_read_at_the_end_of_the_block() -> None:
    """No step waits for the device; the line still carries the step's own time and samples."""
    with capture_events() as events, FakeClock() as clock:
        run = started()
        losses = [LossOnDevice(2.0), LossOnDevice(1.5)]
        for step, loss in enumerate(losses, start=1):
            clock.now_ms += 100
            run.step_start()
            run.step_stop(16 * step, loss=loss)
        assert [loss.num_reads for loss in losses] == [0, 0]
        clock.now_ms += 1000
        run.eval_start()
    logged = [e for e in events if e["key"] == "train_loss"]
    assert [(e["value"], samples(e)) for e in logged] == [(2.0, 16), (1.5, 32)]
    assert logged[1]["time_ms"] - logged[0]["time_ms"] == 100
    assert letters(events).endswith("ttBe")


def test_throughput_is_logged_before_the_block_ends() -> None:
    """With MLLOG_BLOCK_TPUT_LOG=1 each block has its samples per second, with samples and step."""
    with capture_events() as events:
        run = started(mllog_block_tput_log=True)
        train(run, [2.0, 1.9], [1.5, 1.4])
    assert letters(events) == "cihhIrpbttkBeaEbttkBeaE"
    stats = last(events, "tracked_stats")
    assert stats["value"]["throughput"] > 0
    assert (stats["metadata"]["samples_count"], stats["metadata"]["step"]) == (64, 4)


@pytest.mark.fault("T2")
def test_warmup_and_evaluation_are_not_in_the_throughput(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block's is that of its steps, as the overall one is that of all steps."""
    seconds = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: seconds[0])
    with capture_events(strict=False) as events:
        run = make(mllog_block_tput_log=True)
        run.init_start()
        run.log_hyperparameters(HEADER)
        run.step_start()  # a warmup step that reaches us all the same
        seconds[0] += 1000
        run.step_stop(0)
        run.start()
        for step in (1, 2):
            run.step_start()
            seconds[0] += step
            run.step_stop(16 * step)
            run.eval_start()
            seconds[0] += 1000
            run.eval_stop(1.0)
        run.stop()
    assert values(events, "tracked_stats") == [
        {"throughput": 16.0},
        {"throughput": 8.0},
        {"overall_throughput": pytest.approx(32 / 3)},
    ]


def test_the_end_says_how_long_the_run_was() -> None:
    """With MLLOG_BLOCK_TPUT_LOG=1, before run_stop: seconds from run_start, and all throughput."""
    with capture_events() as events, FakeClock() as clock:
        run = started(mllog_block_tput_log=True, mllog_target_eval_loss=1.0)
        run.step_start()
        run.step_stop(16)
        run.eval_start()
        clock.now_ms += 90_500
        assert run.eval_stop(0.9)
    assert letters(events).endswith("eaEdkPR")
    assert values(events, "run_duration") == [90.5]
    assert last(events, "run_duration")["time_ms"] == last(events, "run_stop")["time_ms"]
    assert "overall_throughput" in last(events, "tracked_stats")["value"]


def test_the_official_checker_passes_a_log_with_throughput(tmp_path: Any) -> None:
    """What MLLOG_BLOCK_TPUT_LOG=1 adds breaks no rule."""
    path = tmp_path / "run.log"
    run = MLPerfRun(
        PretrainSettings(
            mllog_output_file=str(path), mllog_block_tput_log=True, mllog_target_eval_loss=0.9
        ),
        stdout=False,
    )
    run.init_start()
    run.log_hyperparameters({**OPEN_HEADER, **HEADER})
    run.start()
    train(run, [2.0], [1.5, 0.5])
    assert official_verdict(path, "6.1.0")
    assert path.read_text().count("throughput") == 3


@pytest.mark.parametrize("loss", ["no number", [1.0, 2.0], torch.ones(2)])
def test_a_strange_loss_does_not_kill_the_training(loss: Any) -> None:
    """What is not one number is said, and the evaluation is closed without a value."""
    with capture_events(strict=False) as events:
        run = started(mllog_target_eval_loss=1.0)
        assert not train(run, [2.0], [loss])
        run.stop()
    assert letters(events) == "cihhIrpbtBeEPR"


def test_a_value_without_a_json_form_does_not_kill_the_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After run_start an event that cannot be encoded is said, not raised."""
    with capture_events(strict=False) as events:
        run = started()
        run.step_start()
        run.step_stop(16, loss=object(), learning_rate=0.1)
        run.stop()
    assert_finished(events)
    assert "not logged: event 'train_loss'" in capsys.readouterr().err


MISUSES = {
    "start before init_start": lambda run: run.start(),
    "step before start": lambda run: (run.init_start(), run.step_stop(16)),
    "evaluation before start": lambda run: (run.init_start(), run.eval_start()),
    "init_start twice": lambda run: (run.init_start(), run.init_start()),
    "eval_stop without eval_start": lambda run: (run.init_start(), run.start(), run.eval_stop(1.0)),
    "step in an evaluation": lambda run: (
        run.init_start(),
        run.start(),
        run.eval_start(),
        run.step_start(),
    ),
    "hyperparameters after start": lambda run: (
        run.init_start(),
        run.start(),
        run.log_hyperparameters({"seed": 1}),
    ),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_a_call_out_of_order_is_an_error_in_strict_mode(misuse: Any) -> None:
    """testing.capture_events turns misuse into an error that says what would be right."""
    with capture_events(), pytest.raises(LifecycleError, match="it is only right while it is"):
        misuse(make())


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_a_call_out_of_order_is_refused_in_training(
    misuse: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a training the same misuse is said once and leaves no wrong line."""
    with capture_events(strict=False) as events:
        misuse(make())
    assert "not logged: " in capsys.readouterr().err
    assert letters(events) in {"", "ci", "ciIrpb", "ciIrpbBe"}


@pytest.mark.fault("W8")
def test_an_unwritable_log_is_refused_before_anything_is_built(tmp_path: Any) -> None:
    """The constructor raises, long before a model exists."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        MLPerfRun(PretrainSettings(mllog_output_file=str(tmp_path / "file" / "run.log")))


def test_an_unknown_ruleset_is_refused_before_anything_is_built() -> None:
    """The constructor names the rulesets that there are."""
    with capture_events(), pytest.raises(ConfigurationError, match=r"6\.1\.0"):
        MLPerfRun(PretrainSettings(mllog_ruleset="99.0.0"))


# -- many ranks


def on_ranks(world_size: int, body: Any, **settings: Any) -> tuple[list[Any], list[Any]]:
    with capture_events() as events:

        def rank(group: Any) -> Any:
            run = MLPerfRun(PretrainSettings(mllog_preflight="off", **settings), group=group)
            run.init_start()
            run.log_hyperparameters(HEADER)
            run.start()
            return body(run, group)

        # the signal handlers of a run belong to the main thread; ranks are threads here
        results = run_ranks(world_size, rank)
    return results, events


@pytest.mark.fault("L3")
@pytest.mark.fault("L4")
def test_the_last_pipeline_stage_decides_for_all() -> None:
    """Only rank 3 has a loss; rank 0 logs it and all ranks get the same verdict."""

    def body(run: MLPerfRun, group: Any) -> bool:
        has_loss = group.rank == 3
        return train(run, [2.0 if has_loss else None], [0.9 if has_loss else None])

    verdicts, events = on_ranks(4, body, mllog_target_eval_loss=1.0)
    assert verdicts == [True] * 4
    assert values(events, "eval_accuracy") == [0.9]
    assert_finished(events)


@pytest.mark.fault("L4")
def test_ranks_near_the_target_decide_alike() -> None:
    """Ranks whose losses differ in the last bit still leave the loop together."""

    def body(run: MLPerfRun, group: Any) -> bool:
        return train(run, [2.0], [math.nextafter(1.0, 2.0 if group.rank else 0.0)])

    verdicts, events = on_ranks(2, body, mllog_target_eval_loss=1.0)
    assert verdicts == [True, True]
    assert len(values(events, "eval_accuracy")) == 1


def test_losses_of_another_rank_are_logged_with_their_own_samples() -> None:
    """With pipeline parallelism rank 0 logs the last stage's train losses at the block's end."""

    def body(run: MLPerfRun, group: Any) -> None:
        train(run, [2.0, 1.5] if group.rank == 1 else [None, None], [1.2, 1.1])

    _, events = on_ranks(2, body)
    logged = [e for e in events if e["key"] == "train_loss"]
    assert [(e["value"], samples(e)) for e in logged] == [
        (2.0, 16),
        (1.5, 32),
        (2.0, 48),
        (1.5, 64),
    ]


@pytest.mark.fault("W11")
def test_init_stop_waits_for_every_rank() -> None:
    """No rank's init_start can come after init_stop: all ranks have passed a barrier."""
    order: list[str] = []

    class Group:
        rank, world_size = 0, 2

        def barrier(self) -> None:
            order.append("barrier")

        def agree(self, values: Any) -> Any:
            return list(values)

    with capture_events() as events:
        run = MLPerfRun(PretrainSettings(mllog_preflight="off"), group=Group())
        run.init_start(all_ranks=True)
        assert letters(events) == "ci"
        run.start()
    assert order == ["barrier"]
    run.stop()


def test_the_preflight_can_come_before_a_warmup(capsys: pytest.CaptureFixture[str]) -> None:
    """It is said once, and an error is one again where it was not heeded."""
    with capture_events():
        run = MLPerfRun(PretrainSettings(mllog_preflight="warn"))
        run.init_start()
        run.preflight()
        assert "submission_org" in capsys.readouterr().err
        run.start()
        assert "submission_org" not in capsys.readouterr().err
        run = MLPerfRun(PretrainSettings(mllog_preflight="error"))
        run.init_start()
        for attempt in (run.preflight, run.start):
            with pytest.raises(PreflightError):
                attempt()


def test_preflight_stops_every_rank() -> None:
    """With MLLOG_PREFLIGHT=error a bad header raises on all ranks, before run_start."""

    def rank(group: Any) -> str:
        run = MLPerfRun(PretrainSettings(mllog_preflight="error"), group=group)
        run.init_start()
        run.log_hyperparameters(HEADER)
        try:
            run.start()
        except PreflightError:
            return run.phase.value
        return "no error"

    with capture_events() as events:
        assert run_ranks(2, rank) == [Phase.INIT.value] * 2
    assert letters(events) == "cihh"
