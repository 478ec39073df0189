"""Laying out a submission."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from official import OPEN_HEADER, line, whole_log
from primus_mllog.cli.app import app
from primus_mllog.errors import PackageError
from primus_mllog.records import package
from primus_mllog.records.package import make_package

if TYPE_CHECKING:
    from collections.abc import Sequence

runner = CliRunner()
SHARED_LOGS = Path(__file__).parents[2] / "shared" / "logs"


@pytest.fixture
def system(tmp_path: Path) -> Path:
    path = tmp_path / "1xMI355X.json"
    path.write_text(json.dumps({"division": "open", "status": "onprem"}))
    return path


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"run_{number}.log" for number in range(3)]
    for path in paths:
        path.write_text("".join(whole_log(OPEN_HEADER)))
    return paths


def test_logs_get_the_names_of_a_submission(
    tmp_path: Path, system: Path, logs: Sequence[Path]
) -> None:
    """In their order, with the system's description and a place for the code."""
    folder = tmp_path / "submission"
    make_package(folder, system, "llama31_8b", logs)
    found = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())
    assert found == [
        *(f"results/1xMI355X/llama31_8b/result_{number}.txt" for number in range(3)),
        "systems/1xMI355X.json",
    ]
    assert (folder / "benchmarks/llama31_8b").is_dir()


def test_nothing_is_overwritten(tmp_path: Path, system: Path, logs: Sequence[Path]) -> None:
    """Neither results nor another system's description of the same name."""
    folder = tmp_path / "submission"
    make_package(folder, system, "llama31_8b", logs)
    with pytest.raises(PackageError, match="nothing is overwritten"):
        make_package(folder, system, "llama31_8b", logs[:1])
    system.write_text(json.dumps({"division": "closed"}))
    with pytest.raises(PackageError, match="one description of a system"):
        make_package(folder, system, "gpt_oss_20b", logs)
    assert len(list((folder / "results/1xMI355X/llama31_8b").iterdir())) == 3


@pytest.mark.parametrize("name", ["..", "../up", "/etc", "", ".hidden", "a b", "a\x1b[31m"])
def test_paths_that_lead_elsewhere_are_refused(
    tmp_path: Path, system: Path, logs: Sequence[Path], name: str
) -> None:
    """Before anything is made."""
    folder = tmp_path / "submission"
    with pytest.raises(PackageError, match="a name of letters"):
        make_package(folder, system, name, logs)
    assert not folder.exists()


@pytest.mark.parametrize("content", ["", "[1]", "{", "null"])
def test_a_description_is_a_json_object(
    tmp_path: Path, system: Path, logs: Sequence[Path], content: str
) -> None:
    """Anything else is refused before anything is made."""
    system.write_text(content)
    with pytest.raises(PackageError, match="the system's description"):
        make_package(tmp_path / "submission", system, "llama31_8b", logs)
    assert not (tmp_path / "submission").exists()


def test_a_large_log_is_shortened_around_its_events(
    tmp_path: Path, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every event is there, as it was, and what was left out is said."""
    log = tmp_path / "run.log"
    events = [line("train_loss", number) for number in range(50)]
    log.write_text("".join(f"noise {number}\n" * 40 + text for number, text in enumerate(events)))
    monkeypatch.setattr(package, "MAX_LOG_BYTES", 12_000)
    results = make_package(tmp_path / "submission", system, "llama31_8b", [log])
    text = (results / "result_0.txt").read_text()
    assert len(text) <= 12_000
    assert [found + "\n" for found in text.splitlines() if ":::MLLOG" in found] == events
    assert "no MLPerf events were left out" in text


def test_what_fails_leaves_nothing(tmp_path: Path, system: Path, logs: Sequence[Path]) -> None:
    """A log whose events alone are too many ends it, without half a folder."""
    folder = tmp_path / "submission"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(PackageError, match="at most"):
        patch.setattr(package, "MAX_LOG_BYTES", 100)
        make_package(folder, system, "llama31_8b", logs)
    assert not [p for p in folder.rglob("*") if p.is_file()]


def test_the_official_findings_are_said(tmp_path: Path, system: Path, logs: Sequence[Path]) -> None:
    """Exit code 1, and what the package checker has to say."""
    folder = tmp_path / "submission"
    options = ["--system", str(system), "--benchmark", "llama31_8b"]
    result = runner.invoke(app, ["package", str(folder), *map(str, logs), *options])
    assert result.exit_code == 1
    assert "found 3, expected 10" in result.output
    assert f"FAIL  {folder}" in result.output


@pytest.mark.skipif(
    not SHARED_LOGS.exists(), reason="the published logs are not beside the project"
)
def test_a_published_submission_passes(tmp_path: Path) -> None:
    """The official package checker finds no error, and leaves no file of its own behind."""
    logs = SHARED_LOGS / "AMD/results/MI355X_EPYC_9575F_pytorch/llama31_8b"
    system = SHARED_LOGS / "AMD/systems/MI355X_EPYC_9575F_pytorch.json"
    folder = tmp_path / "submission"
    options = ["--system", str(system), "--benchmark", "llama31_8b", "--ruleset", "5.1.0"]
    result = runner.invoke(app, ["package", str(folder), str(logs), *options])
    assert result.exit_code == 0, result.output
    assert not list(folder.rglob("scaling.json"))
