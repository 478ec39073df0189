"""What would be refused is said before the clock starts."""

from __future__ import annotations

from typing import Any

import pytest

from official import OPEN_HEADER
from primus_mllog import preflight as preflight_module
from primus_mllog.errors import PreflightError
from primus_mllog.preflight import findings_of, preflight
from primus_mllog.run import MLPerfRun
from primus_mllog.settings import PretrainSettings
from primus_mllog.testing import capture_events
from test_hyperparameters import header_of, pretraining, settings_for


class OneRank:
    rank, world_size = 0, 1

    def barrier(self) -> None: ...

    def agree(self, values: Any) -> Any:
        return list(values)


class AnotherRank(OneRank):
    """Rank 1 of 2; rank 0 has found as many things as it is told."""

    rank, world_size = 1, 2

    def __init__(self, num_findings: float) -> None:
        self.num_findings = num_findings

    def agree(self, values: Any) -> Any:
        assert values == [None]
        return [self.num_findings]


def closed(**arguments: Any) -> tuple[dict[str, Any], PretrainSettings]:
    target = arguments.pop("target", 3.3)
    settings = settings_for("llama31_8b", mllog_target_eval_loss=target)
    return header_of(
        "llama31_8b", pretraining(32, **arguments), mllog_target_eval_loss=target
    ), settings


def keys_found(header: dict[str, Any], settings: PretrainSettings) -> set[str]:
    return {finding.key for finding in findings_of(header, settings)}


def test_a_right_header_has_no_findings() -> None:
    """Known-good arguments of a closed benchmark pass the preflight."""
    assert keys_found(*closed()) == set()


@pytest.mark.fault("L12")
@pytest.mark.parametrize("interval", [383, 385, 24])
def test_a_wrong_evaluation_cadence_is_found(interval: int) -> None:
    """An interval other than the rules', rounded up to whole batches, names the right one."""
    [finding] = findings_of(*closed(eval_interval=interval))
    assert (finding.key, finding.source) == ("evaluation_frequency", "primus-mllog")
    assert finding.wanted == "12288 samples"
    assert "every 384 steps" in finding.hint


@pytest.mark.fault("C2")
def test_evaluations_of_nothing_are_found() -> None:
    """Zero evaluation iterations are found where the rules file does not fix the samples, too."""
    header = {**OPEN_HEADER, "eval_samples": 0}
    settings = PretrainSettings(mllog_target_eval_loss=0.9)
    assert keys_found(header, settings) == {"eval_samples"}


@pytest.mark.fault("C6")
def test_a_batch_that_does_not_divide_is_found() -> None:
    """Gradient accumulation of no whole number of steps is found."""
    assert keys_found(*closed(world_size=10)) == {"gradient_accumulation_steps"}


@pytest.mark.fault("C7")
def test_an_unnamed_submitter_is_found() -> None:
    """An empty organisation and platform are found."""
    header, settings = closed()
    header |= {"submission_org": "", "submission_platform": ""}
    assert keys_found(header, settings) == {"submission_org", "submission_platform"}


@pytest.mark.fault("L9")
def test_a_target_that_was_not_set_is_found() -> None:
    """The default target is never reached; the benchmark's own is proposed."""
    header, _ = closed()
    [finding] = findings_of(header, settings_for("llama31_8b"))
    assert finding.key == "target_accuracy"
    assert "3.3 for llama31_8b" in finding.wanted


def test_a_target_that_was_set_to_zero_is_the_users_choice() -> None:
    """An explicit 0 trains to the last iteration, and is not found."""
    assert keys_found(*closed(target=0.0)) == set()


def test_a_target_above_the_rules_is_found() -> None:
    """A success that the checker would not accept is found before it happens."""
    [finding] = findings_of(*closed(target=3.34))
    assert (finding.key, finding.wanted) == ("target_accuracy", "at most 3.3")


def test_findings_are_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    """With MLLOG_PREFLIGHT=warn everything is on stderr, with keys, values and what is wanted."""
    header, settings = closed(adam_eps=1e-8, eval_interval=100)
    preflight(header, settings, OneRank())
    told = capsys.readouterr().err
    assert "opt_adamw_epsilon" in told
    assert "1e-08" in told
    assert "evaluation_frequency" in told
    assert told.startswith("primus-mllog: preflight: ")


def test_a_right_header_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing wrong, nothing said."""
    preflight(*closed(), OneRank())
    assert capsys.readouterr().err == ""


def test_findings_can_stop_the_run() -> None:
    """With MLLOG_PREFLIGHT=error all of it is in the error, before init_stop."""
    header, settings = closed(adam_eps=1e-8, seq_length=1)
    with pytest.raises(PreflightError) as caught:
        preflight(header, settings.model_copy(update={"mllog_preflight": "error"}), OneRank())
    assert {p.name for p in caught.value.problems} == {"opt_adamw_epsilon", "max_sequence_length"}


def test_every_rank_stops_with_rank_0() -> None:
    """A rank that checks nothing itself raises when rank 0 has found something, and only then."""
    settings = PretrainSettings(mllog_preflight="error")
    preflight({}, settings, AnotherRank(0.0))
    with pytest.raises(PreflightError):
        preflight({}, settings, AnotherRank(2.0))


def test_it_can_be_switched_off(capsys: pytest.CaptureFixture[str]) -> None:
    """With MLLOG_PREFLIGHT=off nothing is checked or said."""
    preflight({}, PretrainSettings(mllog_preflight="off"), OneRank())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("mode", ["warn", "error"])
def test_its_own_trouble_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mode: Any
) -> None:
    """A preflight that cannot run says so, and the training starts."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("boom")

    monkeypatch.setattr(preflight_module.compliance, "check_header", broken)
    with capture_events() as events:
        run = MLPerfRun(PretrainSettings(mllog_preflight=mode))
        run.init_start()
        run.start()
    assert "the preflight itself failed" in capsys.readouterr().err
    assert "run_start" in {event["key"] for event in events}
