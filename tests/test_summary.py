"""Runs, scores and folders of logs."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from official import OPEN_HEADER, line, whole_log
from primus_mllog.cli.app import app
from primus_mllog.records.lint import lint
from primus_mllog.records.run_record import read_runs
from primus_mllog.records.scoring import read_all, score

if TYPE_CHECKING:
    from collections.abc import Callable

runner = CliRunner()
SHARED_LOGS = Path(__file__).parents[2] / "shared" / "logs"
published = pytest.mark.skipif(
    not SHARED_LOGS.exists(), reason="the published logs are not beside the project"
)


def timed_log(minutes: float, header: dict[str, Any] | None = None, **options: Any) -> str:
    """A log of a run that took so long."""
    lines = whole_log({**OPEN_HEADER, **(header or {})}, **options)
    began = next(i for i, text in enumerate(lines) if '"run_start"' in text)
    for index in range(began + 1, len(lines)):
        event = json.loads(lines[index].removeprefix(":::MLLOG "))
        lines[index] = lines[index].replace('"time_ms": 0', f'"time_ms": {int(minutes * 60_000)}')
        assert event["time_ms"] == 0
    return "".join(lines)


@pytest.fixture
def results(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder of ten runs of 10, 11, … minutes; what is changed is by number."""

    def make(changed: dict[int, str] | None = None) -> Path:
        folder = tmp_path / "results" / "system" / "llama31_8b"
        folder.mkdir(parents=True)
        for number in range(10):
            header = {"seed": number, "submission_benchmark": "llama31_8b"}
            text = (changed or {}).get(number, timed_log(10 + number, header))
            (folder / f"result_{number}.txt").write_text(text)
        return folder

    return make


def summary_of(folder: Path, *options: str) -> Any:
    result = runner.invoke(app, ["summary", str(folder), "--json", *options])
    assert result.exit_code == 0, result.output
    [found] = json.loads(result.output)["scores"]
    return found


def test_the_score_leaves_out_the_fastest_and_the_slowest(results: Callable[..., Path]) -> None:
    """The mean of the other eight."""
    found = summary_of(results())
    assert found["score_minutes"] == pytest.approx(14.5)
    assert found["failed"] == 0
    assert len(found["runs"]) == 10


def test_one_failed_run_counts_as_the_slowest(results: Callable[..., Path]) -> None:
    """The fastest of the nine others is left out beside it."""
    failed = timed_log(1, {"submission_benchmark": "llama31_8b", "submission_org": ""})
    found = summary_of(results({0: failed}))
    assert found["failed"] == 1
    assert found["score_minutes"] == pytest.approx(sum(range(12, 20)) / 8)


def test_two_failed_runs_have_no_score(results: Callable[..., Path]) -> None:
    """And the table says why."""
    failed = timed_log(1, {"submission_benchmark": "llama31_8b", "submission_org": ""})
    folder = results({0: failed, 1: failed})
    assert summary_of(folder)["score_minutes"] is None
    assert "no score: 10 runs, 2 failed" in runner.invoke(app, ["summary", str(folder)]).output


def test_rows_are_for_programs_too(results: Callable[..., Path]) -> None:
    """One CSV row a run."""
    result = runner.invoke(app, ["summary", str(results()), "--csv"])
    rows = list(csv.DictReader(io.StringIO(result.output)))
    assert [row["minutes"] for row in rows] == [str(float(10 + number)) for number in range(10)]
    assert {row["status"] for row in rows} == {"success"}


def test_a_log_of_two_runs_is_two(tmp_path: Path) -> None:
    """Where a relaunch appended to its file."""
    path = tmp_path / "run.log"
    path.write_text(timed_log(5) + timed_log(7))
    assert [run.minutes for run in read_runs(path)] == [5.0, 7.0]


@pytest.mark.fault("L1")
def test_the_first_run_stop_is_the_end(tmp_path: Path) -> None:
    """As for the official scores."""
    path = tmp_path / "run.log"
    late = line("run_stop", time_ms=9 * 60_000, status="aborted")
    path.write_text(timed_log(5) + late)
    [run] = read_runs(path)
    assert (run.minutes, run.status) == (5.0, "success")


@published
@pytest.mark.parametrize("benchmark", ["llama31_8b", "llama2_70b_lora"])
def test_published_scores_are_the_official_ones(benchmark: str) -> None:
    """To the last digit of MLCommons' result summarizer."""
    from mlperf_logging.result_summarizer import result_summarizer

    folder = SHARED_LOGS / "AMD/results/MI355X_EPYC_9575F_pytorch" / benchmark
    with contextlib.redirect_stdout(io.StringIO()):
        official, *_ = result_summarizer._compute_strong_score_standalone(
            benchmark, "system", False, str(folder), "training", "5.1.0"
        )
    [found] = score(read_all(sorted(folder.iterdir()), "5.1.0"), "5.1.0")
    assert found.minutes == official
    assert found.rcp == "pass (RCP found)"


@pytest.mark.fault("C10")
def test_a_folder_is_looked_at_as_a_whole(results: Callable[..., Path]) -> None:
    """Seeds that come twice, a wrong number of runs, names that the official tools pass over."""
    twice = timed_log(12, {"seed": 3, "submission_benchmark": "llama31_8b"})
    folder = results({4: twice})
    (folder / "result_9.txt").rename(folder / "result_11.txt")
    (folder / "result_8.txt").unlink()
    result = runner.invoke(app, ["check", str(folder)])
    told = " ".join(result.output.split())
    assert "seed: found 3 in result_3.txt, result_4.txt, wanted: another in each" in told
    assert "found 9 runs, wanted: 10 for llama31_8b" in told
    assert "wanted: result_0.txt to result_8.txt" in told
    assert "9 of 9 logs pass" in told


def test_a_folder_that_is_right_has_no_findings(results: Callable[..., Path]) -> None:
    """Ten runs, ten seeds, ten names."""
    result = runner.invoke(app, ["check", str(results()), "--json"])
    assert json.loads(result.output)["folders"] == []


def test_a_report_for_ci_systems(results: Callable[..., Path], tmp_path: Path) -> None:
    """JUnit: a case for each log, a failure with its findings for one that fails."""
    hostile = {"submission_org": "", "submission_platform": "\x1b[31m<&>"}
    report = tmp_path / "junit.xml"
    folder = results({2: timed_log(1, hostile)})
    runner.invoke(app, ["check", str(folder), "--junit", str(report)])
    suite = ET.fromstring(report.read_text())  # noqa: S314 - our own
    assert (suite.get("tests"), suite.get("failures")) == ("10", "1")
    [failure] = suite.iter("failure")
    assert "submission_org" in (failure.text or "")


@pytest.mark.fault("L12")
@pytest.mark.parametrize(
    ("evaluations", "is_found"),
    [([12288, 24576], False), ([1024, 24576], True), ([12288, 20000], True), ([24576], True)],
)
def test_evaluations_off_the_benchmarks_rule_are_found(
    evaluations: list[int], is_found: bool
) -> None:
    """Every 12,288 samples, from the first on; no official tool checks it."""
    header: dict[str, Any] = {"submission_division": "closed", "global_batch_size": 16}
    header["submission_benchmark"] = "llama31_8b"
    lines = [line(key, value) for key, value in header.items()]
    lines += [line("run_start"), *(line("eval_start", samples_count=n) for n in evaluations)]
    found = [f for f in lint(lines) if f.key == "eval_start"]
    assert bool(found) == is_found


@published
def test_published_logs_are_evaluated_as_the_rules_want_it() -> None:
    """The rule finds nothing in logs that were accepted."""
    logs = sorted(SHARED_LOGS.rglob("result_*.txt"))
    assert logs
    assert not [f for log in logs for f in lint(log) if f.key == "eval_start"]


def test_two_folders_are_compared(tmp_path: Path) -> None:
    """Score and hyperparameters that differ, and that it is more than the spread."""
    for name, minutes, rate in (("a", 10, 1e-4), ("b", 20, 2e-4)):
        (tmp_path / name).mkdir()
        for number in range(4):
            header = {"seed": number, "opt_base_learning_rate": rate}
            path = tmp_path / name / f"result_{number}.txt"
            path.write_text(timed_log(minutes + number / 10, header))
    result = runner.invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"])
    [found] = json.loads(result.output)["comparisons"]
    assert found["hyperparameters"] == {"opt_base_learning_rate": [1e-4, 2e-4]}
    assert found["is_more_than_spread"] is True
    assert found["score"]["first"] == pytest.approx(10.15)
    text = runner.invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b")]).output
    assert "opt_base_learning_rate: 0.0001 → 0.0002" in text
    assert "differ by more than their spread" in text


def test_nothing_in_common_is_said(tmp_path: Path) -> None:
    """Exit code 2."""
    for name, benchmark in (("a", "llama31_8b"), ("b", "gpt_oss_20b")):
        header = {"submission_benchmark": benchmark}
        (tmp_path / f"{name}.log").write_text(timed_log(1, header))
    result = runner.invoke(app, ["compare", str(tmp_path / "a.log"), str(tmp_path / "b.log")])
    assert result.exit_code == 2
    assert "no benchmark in common" in result.output
