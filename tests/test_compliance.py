"""MLCommons' checker, wrapped: the same verdicts, more to read."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlperf_logging.compliance_checker import mlp_compliance

from official import OPEN_HEADER, line, official_verdict, official_verdict_of, whole_log
from primus_mllog.compliance import (
    available_rulesets,
    check_file,
    check_header,
    check_lines,
    newest_ruleset,
    resolve_ruleset,
)
from primus_mllog.errors import ConfigurationError, LogFileError

SHARED_LOGS = Path(__file__).parents[2] / "shared" / "logs"
CLOSED_HEADER = {**OPEN_HEADER, "submission_division": "closed"}


def test_rulesets_come_from_the_installed_package() -> None:
    """The newest ruleset is the last of those installed, and is taken when none is named."""
    assert {"5.1.0", "6.0.0", "6.1.0"} <= set(available_rulesets())
    assert newest_ruleset() == available_rulesets()[-1] == resolve_ruleset("")


def test_an_unknown_ruleset_is_refused() -> None:
    """The message names the variable and the rulesets there are."""
    with pytest.raises(ConfigurationError, match=r"MLLOG_RULESET or --ruleset='7'.*6\.1\.0"):
        resolve_ruleset("7")


def test_a_good_log_passes() -> None:
    """A log that the official checker passes has no findings."""
    verdict = check_lines(whole_log(OPEN_HEADER), "6.1.0")
    assert verdict.passed
    assert verdict.findings == ()


def test_findings_say_what_was_found_and_wanted_and_where() -> None:
    """A failing check names key, value, wanted value and the line of the file."""
    noise = ["framework noise\n", "launcher: "]
    log = [*noise, *whole_log({**CLOSED_HEADER, "max_sequence_length": 4096})]
    [finding] = [f for f in check_lines(log, "6.1.0").findings if f.key == "max_sequence_length"]
    assert (finding.source, finding.found, finding.wanted) == ("official", "4096", "8192")
    assert finding.line is not None
    assert "max_sequence_length" in log[finding.line - 1]


def test_every_failure_of_a_key_is_kept() -> None:
    """Where the official checker shows the last failure only, all are found."""
    log = whole_log(OPEN_HEADER)
    log.insert(-1, line("block_start"))  # neither samples_count nor epoch_count
    log[-2] = line("block_start", samples_count=-1)
    log.insert(0, line("block_start", samples_count=-2))  # before run_start, and negative
    lines = [f.line for f in check_lines(log, "6.1.0").findings if f.key == "block_start"]
    assert len(lines) >= 3
    assert lines.count(1) == 2


def test_values_that_depend_on_others_are_worked_out() -> None:
    """What is wanted is a number where the rule is an expression."""
    header = {
        **CLOSED_HEADER,
        "opt_learning_rate_warmup_steps": 100,
        "opt_learning_rate_decay_steps": 5,
    }
    findings = {f.key: f for f in check_lines(whole_log(header), "6.1.0").findings}
    assert findings["opt_learning_rate_decay_steps"].wanted == "1199900"
    assert findings["opt_learning_rate_decay_steps"].found == "5"


CRASHES = {
    "a string as evaluation loss": [line("eval_accuracy", "3.1", samples_count=16)],
    "an event without a key": [':::MLLOG {"time_ms": 0, "value": 1, "metadata": {}}\n'],
    "an event without a value": [':::MLLOG {"time_ms": 0, "key": "seed", "metadata": {}}\n'],
    "a JSON array": [":::MLLOG [1, 2]\n"],
}


@pytest.mark.parametrize("broken", CRASHES.values(), ids=CRASHES)
def test_a_crash_of_the_official_checker_is_a_finding(broken: list[str]) -> None:
    """What it dies of is said with its line, and the log does not pass."""
    log = whole_log(CLOSED_HEADER)
    log[-3:-3] = broken
    verdict = check_lines(log, "6.1.0")
    [finding] = [f for f in verdict.findings if "dies of this log" in f.message]
    assert not verdict.passed
    assert finding.line == log.index(broken[0]) + 1


@pytest.mark.fault("C11")
def test_a_misspelt_benchmark_is_no_traceback() -> None:
    """The right name is proposed, and the rest of the log is judged by its rules."""
    header = {**CLOSED_HEADER, "submission_benchmark": "gpt-oss-20b", "eval_samples": 4096}
    verdict = check_lines(whole_log(header), "6.1.0")
    findings = {finding.key: finding for finding in verdict.findings}
    assert not verdict.passed
    assert "gpt_oss_20b" in findings["submission_benchmark"].hint
    assert (findings["eval_samples"].found, findings["eval_samples"].wanted) == ("4096", "1024")
    assert "" not in findings


@pytest.mark.fault("C11")
def test_only_the_name_of_a_benchmark_may_be_wrong() -> None:
    """A log that is right by the rules of the nearest name still does not pass."""
    verdict = check_lines(whole_log({**OPEN_HEADER, "submission_benchmark": "llama3.1_8b"}))
    assert not verdict.passed
    assert [finding.key for finding in verdict.findings] == ["submission_benchmark"]


@pytest.mark.parametrize(
    ("name", "ruleset", "hint"),
    [
        (
            "llama31_405b",
            "6.1.0",
            "Rulesets that have llama31_405b: 5.0.0, 5.1.0, 6.0.0 (--ruleset).",
        ),
        ("gpt-oss-20b", "5.1.0", "Rulesets that have gpt_oss_20b: 6.0.0, 6.1.0 (--ruleset)."),
        ("nonsense", "6.1.0", ""),
    ],
)
def test_a_benchmark_of_other_rulesets_names_them(name: str, ruleset: str, hint: str) -> None:
    """A benchmark that this ruleset does not have is told from one that none has."""
    log = whole_log({**CLOSED_HEADER, "submission_benchmark": name})
    [finding] = [f for f in check_lines(log, ruleset).findings if f.key == "submission_benchmark"]
    assert finding.hint.startswith(hint)
    assert bool(finding.hint) is bool(hint)


@pytest.mark.parametrize("ruleset", available_rulesets())
def test_every_ruleset_of_the_package_works(ruleset: str, tmp_path: Path) -> None:
    """Old rulesets give the official verdict too, and are not died of."""
    path = tmp_path / "run.log"
    log = whole_log({**OPEN_HEADER, "submission_benchmark": "resnet"})
    try:
        official = official_verdict_of(log, path, ruleset)
    except FileNotFoundError:  # it has no such benchmark
        official = False
    verdict = check_file(path, ruleset)
    assert verdict.passed is official
    assert not [f for f in verdict.findings if "dies of this log" in f.message]


IN_WORDS = {
    "too early": ("run_stop", {}, 0, "it before run_start", "after run_start"),
    "too late": ("init_start", {}, -1, "it after init_stop", "before init_stop"),
    "no metadata": (
        "eval_stop",
        {},
        -1,
        "no metadata",
        "epoch_num or samples_count in its metadata",
    ),
    "negative": (
        "block_start",
        {"samples_count": -3},
        -1,
        "samples_count -3",
        "samples_count at least 0",
    ),
}


@pytest.mark.parametrize(
    ("key", "metadata", "at", "found", "wanted"), IN_WORDS.values(), ids=IN_WORDS
)
def test_rules_are_read_out_in_words(
    key: str, metadata: dict[str, Any], at: int, found: str, wanted: str
) -> None:
    """What a rule says as an expression, a finding says in words."""
    log = whole_log(OPEN_HEADER)
    log.insert(at, line(key, **metadata))
    findings = [(f.found, f.wanted) for f in check_lines(log, "6.1.0").findings if f.key == key]
    assert (found, wanted) in findings


@pytest.mark.fault("C12")
def test_a_division_after_init_stop_says_what_it_is_for() -> None:
    """The time allowed for initialisation is none until the division is known."""
    log = whole_log({k: v for k, v in OPEN_HEADER.items() if k != "submission_division"})
    log.insert(-1, line("submission_division", "open"))
    [finding] = check_lines(log, "6.1.0").findings
    assert (finding.key, finding.wanted) == ("init_stop", "less than 0 min")
    assert "submission_division before init_stop" in finding.hint


def test_lines_are_counted_as_an_editor_counts_them(tmp_path: Path) -> None:
    """The carriage returns of a progress bar begin no line, nor do those of CRLF."""
    path = tmp_path / "run.log"
    bars = "1%\r2%\r3%\r\n"
    log = [bars, *whole_log({**CLOSED_HEADER, "max_sequence_length": 1})]
    path.write_text("".join(log), newline="")
    [finding] = [f for f in check_file(path, "6.1.0").findings if f.key == "max_sequence_length"]
    assert finding.line is not None
    assert "max_sequence_length" in log[finding.line - 1]


def test_a_crash_leaves_nothing_behind() -> None:
    """The log after one that crashed the checker is judged by its own rules only."""
    check_lines(whole_log({**CLOSED_HEADER, "submission_benchmark": "nonsense"}))
    assert check_lines(whole_log(OPEN_HEADER), "6.1.0").passed


def test_rule_files_that_another_call_left_are_not_applied() -> None:
    """The official module keeps its queue in a global, which a crash leaves filled."""
    mlp_compliance.enqueued_configs.append("training_6.1.0/nothing.yaml")
    assert check_lines(whole_log(OPEN_HEADER), "6.1.0").passed
    assert mlp_compliance.enqueued_configs == []


def test_the_process_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No handler is added to the root logger, nothing is logged, no file is written."""
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    check_lines(whole_log(CLOSED_HEADER))
    assert root.handlers == []
    assert mlp_compliance.logging is logging
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """A missing log, or a folder, is an error that names it."""
    for path in (tmp_path / "missing.log", tmp_path):
        with pytest.raises(LogFileError, match=str(path)):
            check_file(path)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_verdicts_are_the_official_ones_whatever_happens_to_a_log(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Lines dropped, doubled, swapped or cut: where the official checker answers, so do we."""
    log = whole_log(data.draw(st.sampled_from([OPEN_HEADER, CLOSED_HEADER])))
    for _ in range(data.draw(st.integers(0, 3))):
        kind = data.draw(st.sampled_from(["drop", "double", "swap", "cut", "value"]))
        at = data.draw(st.integers(0, len(log) - 1))
        other = data.draw(st.integers(0, len(log) - 1))
        if kind == "drop" and len(log) > 1:
            del log[at]
        elif kind == "double":
            log.insert(other, log[at])
        elif kind == "swap":
            log[at], log[other] = log[other], log[at]
        elif kind == "cut":
            log[at] = log[at][: len(log[at]) // 2] + "\n"
        else:
            log[at] = log[at].replace('"open"', '"closed"').replace("0.5", "4.5")
    ruleset = data.draw(st.sampled_from(["5.1.0", "6.0.0", "6.1.0"]))
    path = tmp_path_factory.mktemp("log") / "run.log"
    try:
        official = official_verdict_of(log, path, ruleset)
    except Exception:  # noqa: BLE001 - it gives no verdict
        official = False
    assert check_file(path, ruleset).passed is official


@pytest.mark.skipif(
    not SHARED_LOGS.exists(), reason="the published logs are not beside the project"
)
@pytest.mark.parametrize("ruleset", ["5.1.0", "6.1.0"])
def test_verdicts_on_published_logs_are_the_official_ones(ruleset: str) -> None:
    """File by file, as the official checker has it."""
    logs = [*SHARED_LOGS.rglob("result_*.txt"), *SHARED_LOGS.rglob("*.log")]
    assert len(logs) > 40

    def official(path: Path) -> bool:
        try:
            return official_verdict(path, ruleset)
        except Exception:  # noqa: BLE001 - it dies of a benchmark name
            return False

    assert {p: check_file(p, ruleset).passed for p in logs} == {p: official(p) for p in logs}


# -- the header alone


def test_a_good_header_has_no_findings() -> None:
    """What an open llama31_8b run needs is enough."""
    assert check_header(OPEN_HEADER, "6.1.0") == []


def test_everything_wrong_in_a_header_is_found_at_once() -> None:
    """Missing, empty and wrong values of one header come together."""
    header: dict[str, Any] = {**OPEN_HEADER, "submission_org": "", "tensor_parallelism": 0}
    del header["config_filename"]
    findings = check_header(header, "6.1.0")
    assert {f.key for f in findings} == {"submission_org", "tensor_parallelism", "config_filename"}
    assert {f.key: f.found for f in findings}["config_filename"] == "nothing"


@pytest.mark.fault("C11")
def test_a_misspelt_benchmark_hides_nothing() -> None:
    """The right name is proposed, and the rest is checked by its rules."""
    header = {**CLOSED_HEADER, "submission_benchmark": "llama3.1_8b", "max_sequence_length": 1}
    findings = {f.key: f for f in check_header(header, "6.1.0")}
    hint = "The rules spell it llama31_8b (MLLOG_SUBMISSION_BENCHMARK)."
    assert findings["submission_benchmark"].hint == hint
    assert findings["max_sequence_length"].wanted == "8192"


@pytest.mark.fault("C12")
def test_the_order_of_a_header_matters_as_it_does_officially() -> None:
    """Decay steps before warmup steps are refused, though both values are right."""
    right = {"opt_learning_rate_warmup_steps": 100, "opt_learning_rate_decay_steps": 1_199_900}
    wrong = dict(reversed(list(right.items())))
    keys = [{f.key for f in check_header({**CLOSED_HEADER, **order})} for order in (right, wrong)]
    assert "opt_learning_rate_decay_steps" not in keys[0]
    assert "opt_learning_rate_decay_steps" in keys[1]


def test_a_value_that_the_rules_cannot_work_with_is_found() -> None:
    """It is named beside the other findings, though the rule itself fails to run."""
    header = {**CLOSED_HEADER, "submission_benchmark": "flux1", "global_batch_size": "many"}
    keys = [finding.key for finding in check_header(header, "6.1.0")]
    assert "global_batch_size" in keys
    assert "opt_name" in keys


@pytest.mark.parametrize("header", [{}, {"submission_division": "ajar"}, {"seed": object()}])
def test_a_hopeless_header_is_no_crash(header: dict[str, Any]) -> None:
    """Empty or absurd headers have findings."""
    assert check_header(header)
