"""A tolerant reader of MLPerf logs: whatever a cluster has made of the lines.

Launcher prefixes before ``:::MLLOG``, framework noise, CRLF, a byte-order mark, two events on one
line, a line that was cut off, NaN: everything that can be read is, and what cannot is said.
Streams, so that a log of gigabytes needs no more memory than its longest line.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from primus_mllog.errors import LogFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Event", "Malformed", "read_events"]

_BEGIN: Final = ":::MLLOG "
_DECODER: Final = json.JSONDecoder()


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One event of a log."""

    line: int
    """Line of the file, counted from 1."""
    time_ms: int
    """Milliseconds since 1970."""
    event_type: str
    key: str
    value: Any
    metadata: dict[str, Any]
    shares_line: bool = False
    """Whether another event is on the same line: MLCommons' tools see only the last."""
    has_nan: bool = False
    """Whether it holds ``NaN`` or ``Infinity``, which are not JSON."""

    @property
    def samples_count(self) -> Any:
        """Training samples at this event, where it says so."""
        return self.metadata.get("samples_count")


@dataclasses.dataclass(frozen=True, slots=True)
class Malformed:
    """Something that begins as an event does and cannot be read as one."""

    line: int
    """Line of the file, counted from 1."""
    reason: str
    text: str


def read_events(source: str | Path | Iterable[str]) -> Iterator[Event | Malformed]:
    """The events of a log, in the order of its lines.

    Args:
        source: the path of a log, or its lines.

    Raises:
        LogFileError: the file cannot be read, or is empty.
    """
    if not isinstance(source, (str, Path)):
        yield from _events_of(source)
        return
    try:
        # ends of lines untranslated, so that lines can be counted as an editor counts them
        with Path(source).open(encoding="utf-8-sig", errors="replace", newline="") as file:
            if not os.fstat(file.fileno()).st_size and Path(source).is_file():
                raise LogFileError(str(source), "the file is empty")
            yield from _events_of(file)
    except OSError as error:
        raise LogFileError(str(source), error.strerror or str(error)) from error


def _events_of(lines: Iterable[str]) -> Iterator[Event | Malformed]:
    number = 1
    for line in lines:
        if _BEGIN in line:
            _, *texts = line.split(_BEGIN)
            for text in texts:
                yield _event(number, text.strip(), shares_line=len(texts) > 1)
        # a lone carriage return (a progress bar) ends a line for MLCommons' parser, for no editor
        number += not line.endswith("\r")


def _event(line: int, text: str, *, shares_line: bool) -> Event | Malformed:
    try:
        # what follows the object is another writer's, who did not wait for the newline
        content, _ = _DECODER.raw_decode(text)
        return Event(
            line=line,
            time_ms=int(content["time_ms"]),
            event_type=str(content.get("event_type", "")),
            key=str(content["key"]),
            value=content["value"],
            metadata=dict(content.get("metadata") or {}),
            shares_line=shares_line,
            has_nan=("NaN" in text or "Infinity" in text) and _has_constant(text),
        )
    except json.JSONDecodeError as error:
        if error.pos >= len(text) or error.msg.startswith("Unterminated"):
            return Malformed(line, "cut off", text)
        return Malformed(line, f"not JSON ({error.msg} at character {error.pos})", text)
    except KeyError as error:
        return Malformed(line, f"without {error}", text)
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        return Malformed(line, f"not an event ({error})", text)


def _has_constant(text: str) -> bool:
    """Whether there is NaN or Infinity outside strings, which Python reads as JSON."""
    constants: list[str] = []
    json.JSONDecoder(parse_constant=constants.append).raw_decode(text)
    return bool(constants)
