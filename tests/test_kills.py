"""SIGKILL at any moment: what was emitted is in the file, whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Forks a run, lets it emit for a random time, kills it; the run counts what it has emitted in
# memory that it shares with its parent.
PROGRAM = """
import json, mmap, os, random, signal, sys, time
from pathlib import Path
from primus_mllog.run import MLPerfRun
from primus_mllog.settings import PretrainSettings

folder, num_kills = Path(sys.argv[1]), int(sys.argv[2])
for kill in range(num_kills):
    emitted = mmap.mmap(-1, 8)
    path = folder / f"{kill}.log"
    pid = os.fork()
    if pid == 0:
        settings = PretrainSettings(
            mllog_output_file=str(path), mllog_target_eval_loss=0.0, mllog_preflight="off"
        )
        run = MLPerfRun(settings, stdout=False)
        run.init_start()
        run.start()
        samples = 0
        while True:
            for _ in range(5):
                samples += 16
                run.step_start()
                run.step_stop(samples, loss=1.0)
            run.eval_start(samples)
            run.eval_stop(1.0)
            emitted[:] = samples.to_bytes(8, "little")
    deadline = time.monotonic() + 30
    while emitted[:] == bytes(8) and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.03))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    (folder / f"{kill}.json").write_text(json.dumps(int.from_bytes(emitted[:], "little")))
"""


@pytest.mark.fault("W9")
def test_fifty_kills_lose_nothing(tmp_path: Path) -> None:
    """Every evaluation that was emitted is in the file; at most the last line is cut off."""
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), "50"], check=True)
    for kill in range(50):
        emitted = json.loads((tmp_path / f"{kill}.json").read_text())
        *lines, last = (tmp_path / f"{kill}.log").read_text().split("\n")
        events = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
        done = [e["metadata"]["samples_count"] for e in events if e["key"] == "eval_stop"]
        assert emitted > 0
        assert done[-1] >= emitted
        assert done == list(range(80, done[-1] + 1, 80))
        assert last == "" or last.startswith(":")
