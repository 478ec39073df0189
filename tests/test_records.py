"""Reading logs, whatever became of their lines; and what we find in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from official import OPEN_HEADER, line, whole_log
from primus_mllog.errors import LogFileError
from primus_mllog.records.lint import lint
from primus_mllog.records.log_file import Event, Malformed, read_events

SEED = line("seed", 5, time_ms=7, samples_count=3)


def test_an_event_is_read_whole() -> None:
    """Line, time, key, value and metadata come as they were written."""
    [event] = read_events(["noise\n", SEED])
    assert isinstance(event, Event)
    assert (event.line, event.time_ms, event.key, event.value) == (2, 7, "seed", 5)
    assert event.samples_count == 3
    assert event.event_type == "POINT_IN_TIME"


DRESSED = {
    "a launcher's prefix": "[rank0]: 12:00 | " + SEED,
    "carriage return": SEED.replace("\n", "\r\n"),
    "byte-order mark": "\ufeff" + SEED,
    "another writer's tail": SEED.rstrip() + "iteration 7\n",
    "no newline": SEED.rstrip(),
}


@pytest.mark.parametrize("text", DRESSED.values(), ids=DRESSED)
def test_what_others_wrote_around_an_event_does_not_matter(tmp_path: Path, text: str) -> None:
    """Prefixes, line ends and tails are looked past."""
    path = tmp_path / "run.log"
    path.write_text(text, newline="")
    [event] = read_events(path)
    assert isinstance(event, Event)
    assert event.value == 5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SEED[:60], "cut off"),
        (':::MLLOG {"key"= 1}', "not JSON"),
        (':::MLLOG {"key": "seed"}', "without 'time_ms'"),
        (":::MLLOG [1]", "not an event"),
        (":::MLLOG ", "cut off"),
        (":::MLLOG " + "[" * 100_000, "not an event"),
        (':::MLLOG {"time_ms": Infinity, "key": "a", "value": 1}', "not an event"),
        (':::MLLOG {"time_ms": "soon", "key": "a", "value": 1}', "not an event"),
    ],
)
def test_what_is_no_event_is_said(text: str, reason: str) -> None:
    """A line that is cut off or not an event is given with its reason."""
    [item] = read_events([text])
    assert isinstance(item, Malformed)
    assert item.reason.startswith(reason)


@given(st.text())
def test_no_line_is_a_crash(text: str) -> None:
    """Anything at all after the marker is an event or a reason."""
    for item in read_events([":::MLLOG " + text]):
        assert isinstance(item, (Event, Malformed))


def test_a_log_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """A missing file is named."""
    with pytest.raises(LogFileError, match=r"missing\.log"):
        list(read_events(tmp_path / "missing.log"))


def test_an_empty_log_is_an_error(tmp_path: Path) -> None:
    """A file of no bytes is no log."""
    path = tmp_path / "empty.log"
    path.touch()
    with pytest.raises(LogFileError, match="empty"):
        list(read_events(path))


def test_lines_are_counted_as_an_editor_counts_them(tmp_path: Path) -> None:
    """The carriage returns of a progress bar begin no line, nor do those of CRLF."""
    path = tmp_path / "run.log"
    path.write_text("1%\r2%\r\n3%\r" + SEED, newline="")
    assert [event.line for event in read_events(path)] == [2]


def found(log: list[str]) -> list[tuple[str, int | None]]:
    return [(finding.key, finding.line) for finding in lint(log)]


def test_a_good_log_has_no_findings() -> None:
    """A whole run in its order has nothing to say against it."""
    assert found(whole_log(OPEN_HEADER)) == []


def line_of(log: list[str], key: str) -> int:
    return next(n for n, text in enumerate(log, start=1) if f'"{key}"' in text)


@pytest.mark.fault("L1")
def test_a_second_run_stop_is_found() -> None:
    """Success and then aborted: the second one is named."""
    log = [*whole_log(OPEN_HEADER), line("run_stop", status="aborted")]
    assert found(log) == [("run_stop", len(log))]


@pytest.mark.fault("L2")
@pytest.mark.parametrize("key", ["eval_start", "eval_accuracy", "block_start"])
def test_events_after_the_end_are_found(key: str) -> None:
    """The framework's last validation behind run_stop is named."""
    log = [*whole_log(OPEN_HEADER), line(key, 0.4, samples_count=16)]
    assert (key, len(log)) in found(log)


@pytest.mark.fault("L5")
def test_a_missing_end_is_found() -> None:
    """A run without run_stop is named where it started."""
    log = whole_log(OPEN_HEADER)[:-1]
    assert found(log) == [("run_stop", line_of(log, "run_start"))]


@pytest.mark.fault("C1")
def test_an_evaluation_with_two_sample_counts_is_found() -> None:
    """eval_accuracy one batch behind eval_start is named with both numbers."""
    log = whole_log(OPEN_HEADER)
    at = line_of(log, "eval_accuracy")
    log[at - 1] = line("eval_accuracy", 0.5, samples_count=8)
    [finding] = lint(log)
    assert (finding.key, finding.line, finding.found) == ("eval_accuracy", at, "samples_count 8")
    assert finding.wanted.startswith("16, as eval_start in line")


@pytest.mark.fault("L6")
def test_an_evaluation_without_a_value_is_found() -> None:
    """An evaluation that a time limit ended is named."""
    log = whole_log(OPEN_HEADER)
    at = line_of(log, "eval_start")
    del log[line_of(log, "eval_accuracy") - 1]
    assert found(log) == [("eval_accuracy", at)]


@pytest.mark.fault("W1")
def test_two_runs_in_one_file_are_found() -> None:
    """The second run_start is named."""
    log = [*whole_log(OPEN_HEADER), *whole_log(OPEN_HEADER)]
    assert [key for key, _ in found(log)] == ["run_start"]


@pytest.mark.fault("W5")
def test_nan_is_found() -> None:
    """A NaN literal is named."""
    log = whole_log(OPEN_HEADER)
    log.insert(-6, line("train_loss", float("nan"), samples_count=16))
    assert [key for key, _ in found(log)] == ["train_loss"]


def test_the_word_nan_is_not_nan() -> None:
    """A string may say NaN or Infinity."""
    log = whole_log({**OPEN_HEADER, "submission_poc_name": "NaN of Infinity"})
    assert found(log) == []


@pytest.mark.fault("W6")
def test_two_events_on_one_line_are_found_and_read() -> None:
    """Both events are read, and the line is named."""
    log = whole_log(OPEN_HEADER)
    log[2:4] = [log[2].rstrip() + log[3]]
    assert found(log) == [("", 3)]
    assert sum(isinstance(item, Event) for item in read_events(log)) == len(log) + 1


@pytest.mark.fault("W9")
def test_a_line_that_was_cut_off_is_found() -> None:
    """A truncated last line is named."""
    log = whole_log(OPEN_HEADER)
    log.append(SEED[:50])
    assert found(log) == [("", len(log))]


@pytest.mark.fault("C11")
def test_a_benchmark_name_near_a_right_one_is_found() -> None:
    """The name that the rules have is what is wanted."""
    [finding] = lint(whole_log({**OPEN_HEADER, "submission_benchmark": "llama3.1-8b"}))
    assert finding.wanted == "'llama31_8b'"


def test_time_that_goes_back_is_found() -> None:
    """An event earlier than the one before it is named; a train_loss written late is not."""
    log = whole_log(OPEN_HEADER)
    log[-1] = line("run_stop", time_ms=-5, status="success", samples_count=16)
    log.insert(-1, line("train_loss", 1.0, time_ms=-9, samples_count=16))
    assert found(log) == [("run_stop", len(log))]


@pytest.mark.parametrize(
    ("target", "status", "is_true"),
    [(1.0, "success", True), (0.4, "success", False), (1.0, "aborted", False)],
)
def test_a_status_that_is_not_true_is_found(target: float, status: str, is_true: bool) -> None:
    """Success above the target, and aborted below it, are named."""
    log = whole_log({**OPEN_HEADER, "target_accuracy": target})
    log[-1] = line("run_stop", status=status, samples_count=16)
    assert (found(log) == []) is is_true


def test_a_nan_hides_no_status() -> None:
    """An evaluation that gave NaN before the one that reached the target changes nothing."""
    log = whole_log({**OPEN_HEADER, "target_accuracy": 1.0})
    nan = line("eval_accuracy", float("nan"), samples_count=16)
    log.insert(line_of(log, "eval_accuracy") - 1, nan)
    assert [key for key, _ in found(log)] == ["eval_accuracy"]


def test_a_metric_that_grows_is_not_judged_as_a_loss() -> None:
    """The status of a benchmark whose accuracy grows is left alone."""
    header = {**OPEN_HEADER, "submission_benchmark": "bert", "target_accuracy": 0.72}
    log = whole_log(header)
    log[-1] = line("run_stop", status="aborted", samples_count=16)
    assert found(log) == []


def test_a_file_without_events_is_found() -> None:
    """A file that is not a log says so."""
    [finding] = lint(["iteration 1\n"])
    assert finding.found == "no event"
