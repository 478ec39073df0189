"""Text from a log on its way to a terminal."""

from __future__ import annotations

__all__ = ["plain"]


def plain(text: str) -> str:
    """``text`` with control characters shown, not obeyed: a log must not drive the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
