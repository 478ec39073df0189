"""What a check has found."""

from __future__ import annotations

import dataclasses

__all__ = ["Finding"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be."""

    source: str
    """``"official"`` for MLCommons' checker, ``"primus-mllog"`` for ours."""
    key: str
    """The MLPerf key it is about; empty if it is about a line or the file."""
    message: str
    """All of it in one line."""
    found: str = ""
    wanted: str = ""
    line: int | None = None
    """Line of the file, counted from 1; None if it is not about one line."""
    hint: str = ""
    """How to put it right."""
