"""The environment variables: names, defaults, messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from primus_mllog.errors import SettingsError
from primus_mllog.settings import PretrainSettings, Settings, SFTSettings

SOURCES = Path(__file__).parents[1] / "src" / "primus_mllog"

DEFAULTS = {
    "MLLOG_OUTPUT_FILE": "/results/mlperf_output.log",
    "MLLOG_SAVE_TO_FILE": True,
    "MLLOG_SUBMISSION_BENCHMARK": "",
    "MLLOG_SUBMISSION_DIVISION": "",
    "MLLOG_SUBMISSION_STATUS": "",
    "MLLOG_SUBMISSION_ORG": "",
    "MLLOG_SUBMISSION_PLATFORM": "",
    "MLLOG_CONFIG_FILENAME": "",
    "MLLOG_TENSOR_PARALLELISM": 1,
    "MLLOG_PIPELINE_PARALLELISM": 1,
    "MLLOG_CONTEXT_PARALLELISM": 1,
    "MLLOG_EXPERT_PARALLELISM": 1,
    "MLLOG_MICRO_BATCH_SIZE": 1,
    "MLLOG_LOWEST_NUMERICAL_PRECISION_LINEAR": "",
    "MLLOG_TRAIN_LOSS_LOG_FREQ": 1,
    "MLLOG_TARGET_EVAL_LOSS": 0.0,
    "MLLOG_BLOCK_TPUT_LOG": False,
    "SYNTH_WARMUP_STEPS": 3,
    "SYNTH_WARMUP_EMPTY_CACHE": True,
    "WARMUP_RECIPE": "",
    "WARMUP_FP8_RECIPE": "",
    "WARMUP_FP8_HISTORY_LEN": 4,
    "PROFILER": "",
    "PROFILE_SEGMENT": "train",
    "ENABLE_PYTHON_TRACE": False,
    "PROF_WARMUP_STEPS": 0,
    "PROF_ACTIVE_STEPS": 10,
    "PROFILE_RANKS": "0",
    "PROFILE_OUTPUT_DIR": "",
    "MLLOG_EXISTING_FILE": "rotate",
    "MLLOG_RULESET": "",
    "MLLOG_PREFLIGHT": "warn",
    "MLLOG_LOWEST_NUMERICAL_PRECISION_ATTN": "",
    "MLLOG_LOWEST_NUMERICAL_PRECISION_COMM": "",
    "MLLOG_SUBMISSION_POC_NAME": "",
    "MLLOG_SUBMISSION_POC_EMAIL": "",
    "SYNTH_WARMUP_VALID_STEPS": 0,
    "SYNTH_WARMUP_VERIFY": False,
}


def test_the_defaults_are_the_users_contract() -> None:
    """Every documented variable exists, with its documented default, and there are no others."""
    settings = PretrainSettings.from_environment()
    assert {name.upper(): value for name, value in settings} == DEFAULTS


def test_fine_tuning_has_its_own_two_defaults() -> None:
    """Fine-tuning differs from pretraining in the loss frequency and the target only."""
    differing = {
        name: value
        for name, value in SFTSettings.from_environment()
        if value != getattr(PretrainSettings(), name)
    }
    assert differing == {"mllog_train_loss_log_freq": 10, "mllog_target_eval_loss": 0.925}


@pytest.mark.parametrize("text", ["0", "false", "no", "False", "NO"])
def test_a_file_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """0, false and no all mean that only stdout is written."""
    monkeypatch.setenv("MLLOG_SAVE_TO_FILE", text)
    assert PretrainSettings.from_environment().mllog_save_to_file is False


@pytest.mark.fault("L9")
@pytest.mark.parametrize(
    ("name", "value"), [("MLLOG_TARGET_EVAL_LOSS", 0.0), ("MLLOG_TRAIN_LOSS_LOG_FREQ", 0)]
)
def test_an_explicit_zero_is_honoured(
    monkeypatch: pytest.MonkeyPatch, name: str, value: float
) -> None:
    """A zero that was set replaces a default that is not zero."""
    monkeypatch.setenv(name, "0")
    assert getattr(SFTSettings.from_environment(), name.lower()) == value


def test_set_and_left_at_its_default_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value equal to the default counts as set when it was set."""
    monkeypatch.setenv("MLLOG_TENSOR_PARALLELISM", "1")
    settings = PretrainSettings.from_environment()
    assert settings.is_set("mllog_tensor_parallelism")
    assert not settings.is_set("mllog_pipeline_parallelism")


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launch scripts pass empty values through; they leave the default."""
    monkeypatch.setenv("MLLOG_MICRO_BATCH_SIZE", "")
    settings = PretrainSettings.from_environment()
    assert settings.mllog_micro_batch_size == 1
    assert not settings.is_set("mllog_micro_batch_size")


def test_all_errors_come_in_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every unusable variable is named at once, with what was found and what is wanted."""
    monkeypatch.setenv("MLLOG_TENSOR_PARALLELISM", "two")
    monkeypatch.setenv("MLLOG_TARGET_EVAL_LOSS", "nan")
    monkeypatch.setenv("MLLOG_PREFLIGHT", "loud")
    with pytest.raises(SettingsError) as caught:
        PretrainSettings.from_environment()
    assert {(p.name, p.found) for p in caught.value.problems} == {
        ("MLLOG_TENSOR_PARALLELISM", "'two'"),
        ("MLLOG_TARGET_EVAL_LOSS", "'nan'"),
        ("MLLOG_PREFLIGHT", "'loud'"),
    }
    assert "MLLOG_PREFLIGHT='loud'" in str(caught.value)
    assert "'warn', 'error' or 'off'" in str(caught.value)


@pytest.mark.fault("X8")
def test_an_unknown_warmup_recipe_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe that does not exist is refused with the names that do."""
    monkeypatch.setenv("WARMUP_RECIPE", "fp8")
    with pytest.raises(SettingsError, match="'fp8_hybrid', 'fp8_e4m3'"):
        PretrainSettings.from_environment()


@pytest.mark.fault("L9")
@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("MLLOG_TARGET_LOSS", "MLLOG_TARGET_EVAL_LOSS"),
        ("MLLOG_OUTPUT", "MLLOG_OUTPUT_FILE"),
        ("SYNTH_WARMUP_STEP", "SYNTH_WARMUP_STEPS"),
    ],
)
def test_an_unknown_variable_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str, right: str
) -> None:
    """A mistyped variable is named together with the nearest one that exists."""
    monkeypatch.setenv(wrong, "1")
    PretrainSettings.from_environment()
    assert re.search(rf"{wrong} .*did you mean {right}\?", capsys.readouterr().err)


def test_settings_cannot_be_changed() -> None:
    """Settings are read once: nothing can change them under a run."""
    with pytest.raises(ValueError, match="frozen"):
        PretrainSettings().mllog_preflight = "off"


def test_every_setting_is_documented() -> None:
    """Each variable says what it does."""
    undocumented = [n for n, field in Settings.model_fields.items() if not field.description]
    assert undocumented == []


def test_the_environment_is_read_in_one_place() -> None:
    """No other module looks at os.environ."""
    offenders = [
        path.name
        for path in SOURCES.rglob("*.py")
        if re.search(r"os\.environ|os\.getenv|import environ", path.read_text())
        and path.name != "settings.py"
    ]
    assert offenders == []
