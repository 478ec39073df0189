"""``primus-mllog``: one thin module for each command.

typer and rich are an extra; without them the command says what to install.
"""

from __future__ import annotations

import importlib.util
import io
import sys

from primus_mllog import notices
from primus_mllog.errors import PrimusMllogError

__all__ = ["CANNOT_RUN", "main"]

CANNOT_RUN = 2
"""Exit code where a command could not do its work at all."""


def main() -> int:
    """The console script. Our own errors are one message and exit code 2, never a traceback."""
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        notices.tell(
            f"the command line needs {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed. "
            "Install it: pip install 'primus-mllog[cli]'"
        )
        return CANNOT_RUN
    from primus_mllog.cli.app import app

    if isinstance(sys.stdout, io.TextIOWrapper):
        # a terminal of another encoding shows what it does not have as an escape, not a traceback
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except PrimusMllogError as error:
        notices.tell(str(error))
        return CANNOT_RUN
    return 0


if __name__ == "__main__":
    sys.exit(main())
