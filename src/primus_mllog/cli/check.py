"""``primus-mllog check``."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path  # noqa: TC003 - typer reads it at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from primus_mllog import compliance
from primus_mllog.cli.text import plain
from primus_mllog.errors import LogFileError
from primus_mllog.records.collection import logs_in, on_all_cores
from primus_mllog.records.folder_lint import lint_folders
from primus_mllog.records.lint import lint_events
from primus_mllog.records.log_file import read_events
from primus_mllog.records.run_record import runs_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from primus_mllog.compliance import Finding, Verdict
    from primus_mllog.records.run_record import RunRecord

__all__ = ["check"]

_FAILED, _UNREADABLE = 1, 2
_SHOWN = 3
"""Findings of one kind that are printed for each log."""


def check(
    paths: Annotated[
        list[Path], typer.Argument(help="Logs, or folders of logs.", show_default=False)
    ],
    ruleset: Annotated[
        str, typer.Option(help="MLPerf ruleset, for instance 6.1.0.", show_default="newest")
    ] = "",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    junit: Annotated[
        Path | None,
        typer.Option(help="Also write a JUnit report, for CI systems.", show_default=False),
    ] = None,
) -> None:
    """Ask MLCommons' compliance checker about each log, and add what it lets pass.

    The verdict is the official one; our findings stand beside it, labelled, and do not change it.
    Folders are searched for logs. Exit code: 0 all logs pass, 1 some fail, 2 some cannot be read.
    """
    ruleset = compliance.resolve_ruleset(ruleset)
    logs = logs_in(paths)
    if not logs:
        raise typer.BadParameter("there are no logs in there", param_hint="PATHS")
    results = on_all_cores(partial(_check, ruleset=ruleset), logs)
    records = {r.path: r.record for r in results if r.record is not None}
    folders = lint_folders(records) if any(path.is_dir() for path in paths) else {}
    if junit is not None:
        junit.write_bytes(_as_junit(results))
    if as_json:
        content = {
            "schema": 1,
            "logs": [_as_json(result) for result in results],
            "folders": [
                {"path": str(folder), "lint": [dataclasses.asdict(f) for f in findings]}
                for folder, findings in folders.items()
            ],
        }
        typer.echo(json.dumps(content, indent=2))
    else:
        for result in results:
            _print(result)
        for folder, findings in folders.items():
            _print_folder(folder, findings)
        _print_sum(results)
    raise typer.Exit(max(result.exit_code for result in results))


@dataclasses.dataclass(frozen=True)
class _Result:
    """One log: the official verdict and our findings, or why it cannot be read."""

    path: Path
    verdict: Verdict | None = None
    lint: tuple[Finding, ...] = ()
    record: RunRecord | None = None
    error: str = ""

    @property
    def exit_code(self) -> int:
        if self.verdict is None:
            return _UNREADABLE
        return 0 if self.verdict.passed else _FAILED


def _check(path: Path, ruleset: str) -> _Result:
    try:
        verdict = compliance.check_file(path, ruleset)
        items = list(read_events(path))
        return _Result(path, verdict, tuple(lint_events(items)), next(runs_of(path, items), None))
    except LogFileError as error:
        return _Result(path, error=str(error))


def _as_json(result: _Result) -> dict[str, Any]:
    """One log in the ``--json`` output; keys are only ever added within a schema number."""
    verdict = result.verdict
    return {
        "path": str(result.path),
        "passed": None if verdict is None else verdict.passed,
        "ruleset": None if verdict is None else verdict.ruleset,
        "error": result.error or None,
        "official": [dataclasses.asdict(f) for f in (verdict.findings if verdict else ())],
        "warnings": [dataclasses.asdict(f) for f in (verdict.warnings if verdict else ())],
        "lint": [dataclasses.asdict(f) for f in result.lint],
    }


def _as_junit(results: list[_Result]) -> bytes:
    """One test case for each log, as CI systems show them; our findings are its output."""
    from xml.etree import ElementTree as ET

    failed = sum(result.exit_code == _FAILED for result in results)
    errors = sum(result.exit_code == _UNREADABLE for result in results)
    counts = {"tests": str(len(results)), "failures": str(failed), "errors": str(errors)}
    suite = ET.Element("testsuite", {"name": "primus-mllog check", **counts})
    for result in results:
        name = {"name": plain(result.path.name), "classname": plain(str(result.path.parent))}
        case = ET.SubElement(suite, "testcase", name)
        if result.verdict is None:
            ET.SubElement(case, "error", {"message": plain(result.error)})
        elif not result.verdict.passed:
            messages = [plain(f"{_place(f)}{f.message}") for f in result.verdict.findings]
            failure = ET.SubElement(case, "failure", {"message": messages[0] if messages else ""})
            failure.text = "\n".join(messages)
        if result.lint:
            output = ET.SubElement(case, "system-out")
            output.text = "\n".join(plain(f"{_place(f)}{f.message}") for f in result.lint)
    return bytes(ET.tostring(suite, encoding="utf-8", xml_declaration=True))


def _place(finding: Finding) -> str:
    return "" if finding.line is None else f"line {finding.line}: "


def _print_folder(folder: Path, findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(plain(str(folder)), style="bold"), soft_wrap=True)
    console.print(Text("  our findings in the folder", style="yellow"))
    for finding in findings:
        _print_finding(console, str(folder), finding)


def _print_sum(results: list[_Result]) -> None:
    if len(results) > 1:
        passed = sum(result.exit_code == 0 for result in results)
        unread = sum(result.exit_code == _UNREADABLE for result in results)
        rest = f", {unread} cannot be read" if unread else ""
        typer.echo(f"{passed} of {len(results)} logs pass{rest}")


def _print(result: _Result) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    path = plain(str(result.path))
    if result.verdict is None:
        error = Text.assemble(("CANNOT READ  ", "bold red"), plain(result.error))
        console.print(error, soft_wrap=True)
        return
    verdict = ("PASS  ", "bold green") if result.verdict.passed else ("FAIL  ", "bold red")
    by = f"  (MLCommons, ruleset {result.verdict.ruleset})"
    console.print(Text.assemble(verdict, (path, "bold"), (by, "dim")), soft_wrap=True)
    sections = (
        ("official findings", result.verdict.findings, "red"),
        ("official warnings", result.verdict.warnings, "yellow"),
        ("our findings, which do not change the verdict", result.lint, "yellow"),
    )
    for title, findings, style in sections:
        if findings:
            console.print(Text(f"  {title}", style=style))
        for alike in _grouped(findings):
            for finding in alike[:_SHOWN]:
                _print_finding(console, path, finding)
            if num_more := len(alike[_SHOWN:]):
                key = plain(alike[0].key)
                text = f"    … and {num_more} more like these ({key}); --json has all"
                console.print(Text(text, style="dim"))


def _grouped(findings: Iterable[Finding]) -> Iterable[list[Finding]]:
    """Findings of one kind together: an evaluation that is wrong is wrong every time."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.key, finding.hint), []).append(finding)
    return groups.values()


def _print_finding(console: Console, path: str, finding: Finding) -> None:
    from rich.padding import Padding
    from rich.text import Text

    if finding.line is not None:  # in one piece, so that an editor can follow it
        console.print(Text(f"    {path}:{finding.line}"), soft_wrap=True)
    indent = 4 if finding.line is None else 6
    console.print(Padding(Text(plain(finding.message)), (0, 0, 0, indent), expand=False))
    if finding.hint:
        hint = Text(f"→ {plain(finding.hint)}", style="dim")
        console.print(Padding(hint, (0, 0, 0, 6), expand=False))
