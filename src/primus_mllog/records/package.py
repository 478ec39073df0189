"""A submission's folder, made of finished logs; checked by MLCommons' package checker.

::

    FOLDER/systems/SYSTEM.json
    FOLDER/results/SYSTEM/BENCHMARK/result_0.txt, result_1.txt, …
    FOLDER/benchmarks/BENCHMARK/                 (for the code)
"""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any, Final

from primus_mllog.errors import PackageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["MAX_LOG_BYTES", "make_package"]

# Submission repositories refuse larger files.
MAX_LOG_BYTES: Final = 100 * 1024 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_LEFT_OUT: Final = b"[... %d lines that are no MLPerf events were left out ...]\n"


def make_package(folder: Path, system: Path, benchmark: str, logs: Sequence[Path]) -> Path:
    """Lay out a submission; nothing that exists is touched, and nothing is left half done.

    Args:
        folder: of the submission; more systems and benchmarks may be in it.
        system: the description, whose name without ``.json`` is the system's.
        benchmark: as the rules spell it.
        logs: in the order in which they become ``result_0.txt`` and so on. One of more than
            100 MiB loses lines that are no events, from its end on, and no event.

    Returns:
        The folder of the results.

    Raises:
        PackageError: a name that is no name, a description that is no JSON object, a log that
            cannot be read or shortened, or something is in the way.
    """
    name = system.name.removesuffix(".json")
    for what, text in (("system", name), ("benchmark", benchmark)):
        if not _NAME.fullmatch(text):
            raise PackageError(f"{what} {text!r}", "a name of letters, digits and . _ + -")
    _check_description(system)
    results = folder / "results" / name / benchmark
    description = folder / "systems" / f"{name}.json"
    if results.exists():
        raise PackageError(f"{results} exists", "a submission without it: nothing is overwritten")
    if description.exists() and description.read_bytes() != system.read_bytes():
        raise PackageError(f"another {description} exists", "one description of a system")
    for log in logs:
        if not log.is_file():
            raise PackageError(f"no log {log}", "files that can be read")
    made = results.with_name(f".{benchmark}.part")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    try:
        for number, log in enumerate(logs):
            _copy(log, made / f"result_{number}.txt")
        made.rename(results)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    description.parent.mkdir(parents=True, exist_ok=True)
    if not description.exists():
        shutil.copyfile(system, description)
    (folder / "benchmarks" / benchmark).mkdir(parents=True, exist_ok=True)
    return results


def _check_description(system: Path) -> None:
    try:
        content: Any = json.loads(system.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PackageError(f"{system}: {error}", "the system's description, in JSON") from error
    if not isinstance(content, dict):
        raise PackageError(f"{system} holds no JSON object", "the system's description")


def _copy(log: Path, result: Path) -> None:
    """The log, or as much of it as a submission may hold."""
    size = log.stat().st_size
    if size <= MAX_LOG_BYTES:
        shutil.copyfile(log, result)
        return
    with log.open("rb") as file:
        events = sum(len(line) for line in file if b":::MLLOG" in line)
    room = MAX_LOG_BYTES - events - len(_LEFT_OUT) - 20
    if room < 0:
        raise PackageError(f"{log}: its events alone are {events} bytes", "at most 100 MiB")
    with log.open("rb") as source, result.open("wb") as target:
        num_left_out = 0
        for line in source:
            if b":::MLLOG" in line:
                target.write(line)
            elif len(line) <= room:
                room -= len(line)
                target.write(line)
            else:
                num_left_out += 1
        target.write(_LEFT_OUT % num_left_out)
