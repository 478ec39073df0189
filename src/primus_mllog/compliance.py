"""The one wrapper around MLCommons' compliance checker: its verdict, with findings to act on.

Verdicts are the official ones. What is added: every failure is kept, a crash of the official code
is a finding, and lines are counted as an editor counts them. mlperf_logging's checker is imported
when a log is checked, not before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import io
import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_mllog.encoding import json_value
from primus_mllog.errors import ConfigurationError, EncodingError, LogFileError, Problem
from primus_mllog.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "Finding",
    "Verdict",
    "available_rulesets",
    "check_convergence",
    "check_file",
    "check_header",
    "check_lines",
    "check_package",
    "newest_ruleset",
    "resolve_ruleset",
]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the official checker says of one log."""

    passed: bool
    ruleset: str
    findings: tuple[Finding, ...]
    """Why it does not pass."""
    warnings: tuple[Finding, ...] = ()
    """What the official checker only warns about."""


@functools.cache
def available_rulesets() -> tuple[str, ...]:
    """The training rulesets of the installed mlperf-logging, oldest first."""
    spec = importlib.util.find_spec("mlperf_logging.compliance_checker")
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders:
        return ()
    names = [p.name.removeprefix("training_") for p in Path(folders[0]).glob("training_*")]
    names = [name for name in names if re.fullmatch(r"\d+\.\d+\.\d+", name)]
    return tuple(sorted(names, key=lambda name: [int(part) for part in name.split(".")]))


def newest_ruleset() -> str:
    """The newest training ruleset of the installed mlperf-logging."""
    return available_rulesets()[-1]


def resolve_ruleset(name: str) -> str:
    """``name``, or the newest ruleset if it is empty.

    Raises:
        ConfigurationError: there is no such ruleset.
    """
    if not name:
        return newest_ruleset()
    if name not in available_rulesets():
        wanted = f"one of {', '.join(available_rulesets()[::-1])}"
        raise ConfigurationError(Problem("MLLOG_RULESET or --ruleset", repr(name), wanted))
    return name


def check_file(path: str | Path, ruleset: str = "") -> Verdict:
    """The official verdict on a log file.

    Args:
        path: the log.
        ruleset: for instance ``"6.1.0"``; the newest when empty.

    Raises:
        LogFileError: the file cannot be read.
        ConfigurationError: there is no such ruleset.
    """
    try:
        # The official reader's encoding, in which any bytes at all are text, and its ends of
        # lines; untranslated, so that lines can be counted as an editor counts them.
        with Path(path).open(encoding="latin-1", newline="") as file:
            return check_lines(file, ruleset)
    except OSError as error:
        raise LogFileError(str(path), error.strerror or str(error)) from error


def check_convergence(folder: str | Path, ruleset: str = "") -> str:
    """What the official check against the reference convergence points says of a folder of logs.

    Args:
        folder: with ``result_*.txt`` of one benchmark, as a submission has them.
        ruleset: for instance ``"6.1.0"``; the newest when empty.

    Returns:
        ``"pass"`` or ``"fail"`` with the checker's words, or why it could not say.
    """
    from mlperf_logging.rcp_checker import rcp_checker

    try:
        with _overheard():
            passed, words, _ = rcp_checker.check_directory(
                str(folder),
                "training",
                resolve_ruleset(ruleset),
                False,
                False,
                rcp_pass="pruned_rcps",  # noqa: S106 - a name of theirs
            )
    except Exception as error:  # noqa: BLE001 - whatever it meets in a log
        return f"not checked ({type(error).__name__}: {error})"
    return f"{'pass' if passed else 'fail'} ({words})"


@contextlib.contextmanager
def _overheard() -> Iterator[list[logging.LogRecord]]:
    """What an official tool tells the root logger in the block; nothing of it is printed."""
    told: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = told.append  # type: ignore[method-assign,assignment]
    logger = logging.getLogger()
    level, others = logger.level, logger.handlers
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield told
    finally:
        logger.handlers = others
        logger.setLevel(level)


def check_package(folder: str | Path, ruleset: str = "") -> tuple[bool, list[str]]:
    """What the official package checker says of a submission's folder.

    Returns:
        Whether it found no errors, and its warnings and errors, in order.
    """
    from mlperf_logging.package_checker import package_checker

    scaled_before = set(Path(folder).rglob("scaling.json"))
    crash = ""
    with _overheard() as told:
        try:
            package_checker.check_training_package(
                str(folder),
                "training",
                resolve_ruleset(ruleset),
                quiet=False,
                werror=False,
                rcp_bypass=False,
                rcp_bert_train_samples=False,
                seed_checker_bypass=False,
                log_output="",
            )
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it meets
            crash = f"the official checker stopped: {type(error).__name__}: {error}"
    for left_behind in set(Path(folder).rglob("scaling.json")) - scaled_before:
        left_behind.unlink()  # the review committee's to write
    words = [record.getMessage().strip() for record in told if record.levelno >= logging.WARNING]
    passed = any("FOUND NO ERRORS" in record.getMessage() for record in told)
    return passed and not crash, [*words, *filter(None, [crash])]


def check_lines(lines: Iterable[str], ruleset: str = "") -> Verdict:
    """The official verdict on the lines of a log; see :func:`check_file`."""
    from primus_mllog.official_checker import CollectingChecker

    ruleset = resolve_ruleset(ruleset)
    checker = CollectingChecker(ruleset)
    passed = checker.check(lines)
    return Verdict(passed, ruleset, tuple(checker.findings), tuple(checker.warning_findings))


def check_header(header: Mapping[str, Any], ruleset: str = "") -> list[Finding]:
    """What the official checker would refuse in a header, before there is a log.

    The header is completed in memory with the body of a run, and the findings about the header
    are returned, all at once.

    Args:
        header: MLPerf keys and values, in the order in which they are logged.
        ruleset: for instance ``"6.1.0"``; the newest when empty.
    """
    run = [*_BEFORE, *header.items(), *_AFTER]
    findings = check_lines([_line(key, value) for key, value in run], ruleset).findings
    of_the_run = {key for key, _ in (*_BEFORE, *_AFTER)}
    return [dataclasses.replace(f, line=None) for f in findings if f.key not in of_the_run]


# A run around a header. Whether the values are right does not matter: what is found about these
# keys is not about the header.
_BEFORE = (("cache_clear", True), ("init_start", None))
_AFTER = (
    ("init_stop", None),
    ("run_start", None),
    ("epoch_start", None),
    ("block_start", None),
    ("block_stop", None),
    ("eval_start", None),
    ("eval_accuracy", 0.5),
    ("eval_stop", None),
    ("epoch_stop", None),
    ("run_stop", None),
)


def _line(key: str, value: Any) -> str:
    try:
        value = json_value(key, value)
    except EncodingError:
        value = repr(value)
    metadata = {"file": "", "lineno": 0, "samples_count": 0, "status": "success"}
    return (
        f":::MLLOG {json.dumps({'time_ms': 0, 'key': key, 'value': value, 'metadata': metadata})}"
    )
