"""Log a Megatron-LM pretraining without touching its script.

::

    torchrun … -m primus_mllog.pretrain path/to/pretrain_gpt.py ARGUMENTS…

runs the script as ``python path/to/pretrain_gpt.py ARGUMENTS…`` would, inside
:func:`primus_mllog.adapters.megatron_lm.mlperf_logging_for`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from primus_mllog.adapters.megatron_lm import mlperf_logging_for
from primus_mllog.run import MLPerfRun

_USAGE = "usage: python -m primus_mllog.pretrain path/to/pretrain_gpt.py ARGUMENTS…"


def main(arguments: list[str]) -> None:
    """Run the script that ``arguments`` begins with; its exit code is ours."""
    if not arguments or arguments[0] in {"-h", "--help"}:
        raise SystemExit(_USAGE)
    script = Path(arguments[0])
    if not script.is_file():
        raise SystemExit(f"primus-mllog: there is no script {script}\n{_USAGE}")
    sys.argv = arguments
    sys.path[0] = str(script.parent)  # where Python would look for the script's own modules
    with MLPerfRun() as run, mlperf_logging_for(run):
        runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
