"""``python -m primus_mllog.demo``: the demo without the ``[cli]`` extra, and its processes."""

from __future__ import annotations

import sys

from primus_mllog import notices
from primus_mllog.demo.launcher import INTERRUPTED, run_demo, train_here
from primus_mllog.demo.options import parse
from primus_mllog.errors import PrimusMllogError
from primus_mllog.settings import launcher_value


def main() -> int:
    """Run with this process's command line; the exit code, 2 for what cannot be used."""
    options, is_worker = parse()
    try:
        if not is_worker:
            return run_demo(options)
        train_here(options, options.settings())
    except KeyboardInterrupt:  # the launcher says so
        return INTERRUPTED
    except PrimusMllogError as error:
        if not is_worker or launcher_value("RANK") == 0:  # once, not once for each process
            notices.tell(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
