"""What we have to tell the user while a training runs: one line on stderr, never an exception.

Standard logging is not used for it: frameworks raise its levels, redirect it or switch it off,
and a notice is only written when something needs a person.
"""

from __future__ import annotations

import contextlib
import sys

_told: set[str] = set()


def tell(message: str) -> None:
    """Write ``message`` to stderr, prefixed with our name. Never raises."""
    # stderr may be closed, full or replaced by something broken; there is nowhere left to say so.
    with contextlib.suppress(Exception):
        print(f"primus-mllog: {message}", file=sys.stderr, flush=True)  # noqa: T201


def tell_once(topic: str, message: str) -> None:
    """Write ``message`` unless something was already said about ``topic`` in this process."""
    if topic not in _told:
        _told.add(topic)
        tell(message)


def forget() -> None:
    """Forget what was said: a new run may say it again (and so may the next test)."""
    _told.clear()
