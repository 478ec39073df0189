"""The preflight, beside the official checker called on the same header in a file."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import Row, side_by_side

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RULESET = "6.1.0"
HEADER = {
    "submission_benchmark": "llama31_8b",
    "submission_division": "closed",
    "submission_org": "org",
    "submission_platform": "platform",
    "config_filename": "config.yaml",
    "global_batch_size": 32,
    "max_sequence_length": 8192,
    "opt_name": "adamw",
    "eval_samples": 1024,
    "train_samples": 1_574_207_408,
}
"""Some of what a header holds; what it lacks is looked for, too."""


def rows() -> Iterator[Row]:
    from primus_mllog.compliance import check_header

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.log"
        write_log(path, HEADER)
        mine, theirs, ratio = side_by_side(
            lambda: milliseconds(lambda: check_header(HEADER, RULESET)),
            lambda: milliseconds(lambda: official(path)),
        )
    yield Row("the header of a run", "ms", mine, "official main()", theirs, ratio)


def milliseconds(work: Any, num_times: int = 3) -> float:
    started = time.perf_counter()
    for _ in range(num_times):
        work()
    return (time.perf_counter() - started) / num_times * 1e3


def official(path: Path) -> None:
    from mlperf_logging.compliance_checker import mlp_compliance

    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        checker = mlp_compliance.make_checker("training", RULESET, quiet=True, werror=False)
        mlp_compliance.main(str(path), f"training_{RULESET}/common.yaml", checker)
    logging.disable(logging.NOTSET)


def write_log(path: Path, header: Mapping[str, Any]) -> None:
    """A run of that header with one evaluation, written by our own logger."""
    from primus_mllog import MLPerfRun
    from primus_mllog.settings import PretrainSettings

    settings = PretrainSettings(mllog_output_file=str(path), mllog_preflight="off")
    with MLPerfRun(settings, stdout=False) as run:
        run.init_start()
        run.log_hyperparameters(header)
        run.start()
        run.eval_start(32)
        run.eval_stop(3.2)
