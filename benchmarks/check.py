"""Checking finished logs, beside MLCommons' checker called on one after the other.

The logs are those of runs of 2,000 steps, every one logged. Ours gives the verdict and every
finding, lints, and reads the run, on all cores; the official one gives the verdict.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_LOGS = 60
NUM_STEPS = 2_000
RULESET = "6.1.0"


def rows() -> Iterator[Row]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from official import OPEN_HEADER, line, whole_log
    from primus_mllog.records.log_file import read_events

    log = whole_log(OPEN_HEADER)
    after_block_start = next(i for i, text in enumerate(log) if '"block_start"' in text) + 1
    log[after_block_start:after_block_start] = [
        line("train_loss", 2.0, samples_count=step * 16, step=step, lr=1e-4)
        for step in range(NUM_STEPS)
    ]
    text = "".join(log)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(NUM_LOGS):
            Path(folder, f"run_{number}.log").write_text(text)
        logs = sorted(Path(folder).iterdir())
        ours, theirs = _seconds(_check, folder), _seconds(_official, logs)
        ratio = ours / theirs
        what = f"{NUM_LOGS} logs, all cores"
        yield Row(what, "s", ours, "official main()", theirs, ratio, "≤ 0.6×", ratio <= 0.6)
        seconds = _seconds(lambda path: sum(1 for _ in read_events(path)), logs[0])
        rate = len(text) / 1e6 / seconds
        yield Row("the reader alone", "MB/s", rate, goal="≥ 50 MB/s", is_met=rate >= 50)


def _seconds(act: object, argument: object) -> float:
    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        act(argument)  # type: ignore[operator]
    return time.perf_counter() - began


def _check(folder: str) -> None:
    from typer.testing import CliRunner

    from primus_mllog.cli.app import app

    result = CliRunner().invoke(app, ["check", folder, "--json", "--ruleset", RULESET])
    assert result.exit_code == 0, result.output


def _official(logs: list[Path]) -> None:
    from mlperf_logging.compliance_checker import mlp_compliance

    logging.disable(logging.CRITICAL)
    try:
        for log in logs:
            checker = mlp_compliance.make_checker("training", RULESET, quiet=True, werror=False)
            passed, *_ = mlp_compliance.main(str(log), f"training_{RULESET}/common.yaml", checker)
            assert passed
    finally:
        logging.disable(logging.NOTSET)
