"""Run a script as ``primus_mllog.pretrain`` does, and note what really happened.

The moments when verdicts were agreed (milliseconds since the epoch), this rank's last iteration and
a digest of its parameters and optimizer state go to ``TOY_NOTES.<rank>``.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from optimizer_digest import digest

from primus_mllog import MLPerfRun
from primus_mllog.adapters.megatron_lm import mlperf_logging_for

run = MLPerfRun(stdout=False)
agree = run.group.agree
moments: list[float] = []


def noted(values: Any) -> Any:
    agreed = agree(values)
    moments.append(time.time_ns() / 1e6)
    return agreed


run.group.agree = noted  # type: ignore[method-assign]
sys.argv = sys.argv[1:]
sys.path[0] = str(Path(sys.argv[0]).parent)
try:
    with run, mlperf_logging_for(run):
        runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    from megatron.training import get_args

    notes = {
        "moments": moments,
        "iteration": getattr(get_args(), "curr_iteration", None),
        "status": run.status,
        "digest": digest(),
    }
    Path(f"{os.environ['TOY_NOTES']}.{os.environ['RANK']}").write_text(json.dumps(notes))
