"""The command line, as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from official import OPEN_HEADER, line, whole_log
from primus_mllog import __version__
from primus_mllog.cli.app import app

runner = CliRunner()


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.log"
    path.write_text("".join(whole_log(OPEN_HEADER)))
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.log"
    log = [*whole_log({**OPEN_HEADER, "submission_org": ""}), line("run_stop", status="aborted")]
    path.write_text("".join(log))
    return path


def test_a_log_that_passes(good: Path) -> None:
    """Exit code 0, and the verdict with its ruleset."""
    result = runner.invoke(app, ["check", str(good), "--ruleset", "6.1.0"])
    assert result.exit_code == 0
    assert result.output.split() == ["PASS", str(good), "(MLCommons,", "ruleset", "6.1.0)"]


def test_a_log_that_fails(good: Path, bad: Path) -> None:
    """Exit code 1, every file has its verdict, official findings stand apart from ours."""
    result = runner.invoke(app, ["check", str(good), str(bad)])
    assert result.exit_code == 1
    official, ours = result.output.split("our findings, which do not change the verdict")
    assert "submission_org: found '', wanted: not empty" in official
    assert f"{bad}:5" in official
    assert "another run_stop (aborted)" in ours


def test_our_findings_do_not_change_the_verdict(tmp_path: Path) -> None:
    """A log that the official checker passes is passed, with our findings said."""
    path = tmp_path / "run.log"
    log = whole_log(OPEN_HEADER)
    log[-1:-1] = [line("train_loss", float("nan"), samples_count=16)]
    path.write_text("".join(log))
    result = runner.invoke(app, ["check", str(path)])
    assert result.exit_code == 0
    assert "NaN" in result.output


def test_a_log_that_cannot_be_read(good: Path, tmp_path: Path) -> None:
    """Exit code 2, and the other logs are still checked."""
    result = runner.invoke(app, ["check", str(tmp_path / "missing.log"), str(good)])
    assert result.exit_code == 2
    assert "CANNOT READ" in result.output
    assert "PASS" in result.output


@pytest.mark.parametrize("command", ["check", "summary"])
def test_a_folder_without_logs_is_said(tmp_path: Path, command: str) -> None:
    """Exit code 2: nothing was checked."""
    (tmp_path / "notes.txt").write_text("no event\n")
    result = runner.invoke(app, [command, str(tmp_path)])
    assert result.exit_code == 2
    assert "there are no logs in there" in result.output


def test_what_is_no_log_at_all_cannot_be_read(tmp_path: Path) -> None:
    """Exit code 2 and one line, not a list of everything that an empty log lacks."""
    path = tmp_path / "empty.log"
    path.touch()
    result = runner.invoke(app, ["check", str(path)])
    assert result.exit_code == 2
    assert result.output.startswith(f"CANNOT READ  {path}")


def test_a_file_without_events_is_said_shortly(tmp_path: Path) -> None:
    """Not the log: a failure with one official finding instead of every missing key."""
    path = tmp_path / "other.txt"
    path.write_text("iteration 1\n")
    result = runner.invoke(app, ["check", str(path)])
    assert result.exit_code == 1
    assert "No log lines detected" in result.output
    assert "found nothing" not in result.output


@pytest.mark.fault("C1")
def test_findings_of_one_kind_are_folded(tmp_path: Path) -> None:
    """The same finding in every evaluation is printed three times and counted."""
    path = tmp_path / "run.log"
    log = whole_log(OPEN_HEADER)
    pair = [line("eval_start", samples_count=8), line("eval_accuracy", 0.6, samples_count=4)]
    log[-5:-5] = [*pair, line("eval_stop", samples_count=8)] * 5
    path.write_text("".join(log))
    output = runner.invoke(app, ["check", str(path)]).output
    assert output.count("found samples_count 4") == 3
    assert "2 more like these (eval_accuracy)" in output


def test_json_has_its_schema(good: Path, bad: Path) -> None:
    """The machine-readable form holds the verdict and all findings of each log."""
    result = runner.invoke(app, ["check", str(good), str(bad), "--json", "--ruleset", "6.1.0"])
    content = json.loads(result.output)
    assert content["schema"] == 1
    assert [log["passed"] for log in content["logs"]] == [True, False]
    [official] = [f for f in content["logs"][1]["official"] if f["key"] == "submission_org"]
    assert official["line"] == 5
    assert set(content["logs"][0]) == {
        "path",
        "passed",
        "ruleset",
        "error",
        "official",
        "warnings",
        "lint",
    }


def test_a_log_cannot_drive_the_terminal(tmp_path: Path) -> None:
    """Escape codes and markup in a value are shown, not obeyed."""
    path = tmp_path / "run.log"
    header = {**OPEN_HEADER, "submission_division": "\x1b[31m[bold]closed"}
    path.write_text("".join(whole_log(header)))
    result = runner.invoke(app, ["check", str(path)], color=True)
    assert "\x1b[31m[bold]" not in result.output
    assert "[bold]closed" in result.output


def test_a_key_cannot_drive_the_terminal(tmp_path: Path) -> None:
    """Nor can the key of an event, where it is named once for many findings."""
    path = tmp_path / "run.log"
    path.write_text(line("\x1b[31mred", float("nan")) * 4)
    result = runner.invoke(app, ["check", str(path)], color=True)
    assert "1 more like these (\\x1b[31mred)" in result.output
    assert "\x1b[31mred" not in result.output


def test_the_lines_fit_a_terminal(bad: Path) -> None:
    """At 80 columns only paths, which must stay in one piece, are longer."""
    result = runner.invoke(app, ["check", str(bad)], env={"COLUMNS": "80"})
    long = [text for text in result.output.splitlines() if len(text) > 80]
    assert all(str(bad) in text for text in long)


def run(
    *arguments: str, before: str = "pass", **environment: str
) -> subprocess.CompletedProcess[str]:
    code = f"import sys; {before}; sys.argv[0] = 'primus-mllog'\n"
    code += "from primus_mllog.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_a_terminal_without_unicode_is_no_crash(bad: Path) -> None:
    """What its encoding lacks is shown as an escape."""
    done = run("check", str(bad), PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert "\\u2192" in done.stdout
    assert "Traceback" not in done.stderr


def test_an_unknown_ruleset_is_one_message(good: Path) -> None:
    """No traceback: what was found and what there is, exit code 2."""
    done = run("check", str(good), "--ruleset", "9.9.9")
    assert done.returncode == 2
    assert "MLLOG_RULESET or --ruleset='9.9.9'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_is_one_message(missing: str) -> None:
    """Without the [cli] extra the command says what to install."""
    blocker = (
        "import importlib.util as u; find = u.find_spec; "
        f"u.find_spec = lambda n, *a: None if n == {missing!r} else find(n, *a)"
    )
    done = run("check", "x", before=blocker)
    assert done.returncode == 2
    assert "pip install 'primus-mllog[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_version_is_said() -> None:
    """--version names it."""
    assert run("--version").stdout.strip() == f"primus-mllog {__version__}"


def test_exit_codes_reach_the_shell(bad: Path) -> None:
    """The console script's exit code is the command's."""
    done = run("check", str(bad))
    assert done.stdout.startswith("FAIL")
    assert done.returncode == 1
