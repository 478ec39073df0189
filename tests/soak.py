"""``make soak``: the demo under faults, and a table of what survived.

Not collected by pytest: it takes minutes. Each fault happens to a real training; everything is on
this machine, is bounded, and ends by itself. ``--record`` also puts the table into BENCHMARKS.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grammar import FINISHED, letters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 240
NUM_KILLS = 5
# A clock that is set back an hour in the middle of the run.
CLOCK = """
import runpy, sys, time
real, calls = time.time_ns, 0
def time_ns():
    global calls
    calls += 1
    return real() - (3600 * 10**9 if calls > 60 else 0)
time.time_ns = time_ns
sys.argv = ["demo", *sys.argv[1:]]
runpy.run_module("primus_mllog.demo", run_name="__main__")
"""


class Training:
    """The demo in a process group of its own, and what it has said."""

    def __init__(self, log: Path, *options: str, program: tuple[str, ...] = (), **how: Any) -> None:
        command = [sys.executable, *(program or ("-m", "primus_mllog.demo")), f"--output={log}"]
        self.log = log
        self.process = subprocess.Popen(
            [*command, "--steps=60", "--target=0.01", *options],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            **{"stdout": subprocess.DEVNULL, **how},
        )
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.said.extend(iter(self.process.stderr.readline, ""))

    def wait_for_step(self, step: int) -> None:
        """Return when the demo has told of that step, or ended."""
        while self.process.poll() is None and self.last_step < step:
            time.sleep(0.02)

    @property
    def last_step(self) -> int:
        steps = [line.split()[1] for line in list(self.said) if line.startswith("step")]
        return int(steps[-1].partition("/")[0]) if steps else 0

    def workers(self) -> list[int]:
        """The processes that train, where there are several."""
        me = str(self.process.pid)
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", me], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in listed.stdout.split()]

    def end(self) -> int | str:
        """The exit code; "hung" where it had to be ended."""
        try:
            code: int | str = self.process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            code = "hung"
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._reader.join(10)
        return code


def verdict(training: Training, wanted: Callable[[int | str], bool], status: str | None) -> str:
    """What is wrong with what the fault left behind; empty if nothing is."""
    code = training.end()
    if not wanted(code):
        return f"exit {code}: {''.join(training.said)[-300:]}"
    lines = training.log.read_bytes().splitlines() if training.log.exists() else []
    events, num_broken = [], 0
    for line in lines:
        try:
            events.append(json.loads(line.removeprefix(b":::MLLOG ")))
        except ValueError:
            num_broken += 1
    if num_broken > (status is None):  # the last line of a process that was killed
        return f"{num_broken} lines do not parse"
    steps = [e["metadata"]["step"] for e in events if e["key"] == "train_loss"]
    if max(steps, default=0) < training.last_step:
        return f"step {training.last_step} was taken, the log ends with {max(steps, default=0)}"
    if status is None:
        return ""
    if not FINISHED.fullmatch(letters(events)):
        return f"order of events: {letters(events)}"
    found = events[-1]["metadata"]["status"]
    return "" if found == status else f"status {found}, wanted {status}"


def is_signal(number: int) -> Callable[[int | str], bool]:
    return lambda code: code in {-number, 128 + number}


def sigkill(folder: Path) -> str:
    for turn in range(NUM_KILLS):
        training = Training(folder / f"{turn}.log")
        training.wait_for_step(20)
        time.sleep(random.random() * 2)  # noqa: S311
        training.process.kill()
        if said := verdict(training, is_signal(9), None):
            return said
    return ""


def sigterm(folder: Path) -> str:
    training = Training(folder / "run.log")
    training.wait_for_step(20)
    training.process.terminate()
    return verdict(training, is_signal(15), "aborted")


def full_disk(folder: Path) -> str:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        return "not run: mounting a small tmpfs is not allowed here"
    try:
        training = Training(folder / "run.log")
        code = training.end()
        told = sum("WRITING THE MLPERF LOG FAILED" in line for line in training.said)
        if training.last_step != 60 or told != 1:
            return f"exit {code}, step {training.last_step} of 60, told {told} times"
        lines = (folder / "run.log").read_bytes().splitlines()[:-1]
        for line in lines:
            json.loads(line.removeprefix(b":::MLLOG "))
        return ""
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def dying_rank(folder: Path) -> str:
    training = Training(folder / "run.log", "--nproc=2")
    training.wait_for_step(20)
    os.kill(training.workers()[-1], signal.SIGKILL)
    return verdict(training, lambda code: code not in {0, "hung"}, "aborted")


def late_rank(folder: Path) -> str:
    training = Training(folder / "run.log", "--nproc=2")
    training.wait_for_step(20)
    late = training.workers()[-1]
    os.kill(late, signal.SIGSTOP)
    time.sleep(30)
    with contextlib.suppress(ProcessLookupError):
        os.kill(late, signal.SIGCONT)
    return verdict(training, lambda code: code == 1, "aborted")


def clock_set_back(folder: Path) -> str:
    training = Training(folder / "run.log", program=("-c", CLOCK))
    return verdict(training, lambda code: code == 1, "aborted")


def closed_stdout(folder: Path) -> str:
    training = Training(folder / "run.log", preexec_fn=lambda: os.close(1))
    return verdict(training, lambda code: code in {1, 120}, "aborted")


def removed_folder(folder: Path) -> str:
    training = Training(folder / "results" / "run.log")
    training.wait_for_step(20)
    shutil.rmtree(folder / "results")
    return verdict(training, lambda code: code == 1, "aborted")


FAULTS: dict[str, tuple[Callable[[Path], str], str]] = {
    f"SIGKILL, {NUM_KILLS} times": (sigkill, "every line logged is in the file, whole"),
    "SIGTERM": (sigterm, "run_stop aborted, ended by the signal"),
    "disk full (16 KiB)": (full_disk, "trained to the end, one loud line, whole lines"),
    "a rank dies": (dying_rank, "run_stop aborted, nobody hangs"),
    "a rank is 30 s late": (late_rank, "trained to the end, log whole"),
    "clock set back an hour": (clock_set_back, "trained to the end, order kept"),
    "stdout closed": (closed_stdout, "trained to the end, log whole"),
    "output folder removed": (removed_folder, "the file is there again, whole"),
}


def table() -> Iterator[str]:
    yield "| fault | what has to survive | result | seconds |"
    yield "|---|---|---|---:|"
    for name, (fault, promise) in FAULTS.items():
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            said = fault(Path(folder))
        result = "survived" if not said else f"**{said}**"
        yield f"| {name} | {promise} | {result} | {time.monotonic() - began:.0f} |"


def main() -> int:
    lines = []
    for line in table():
        print(line, flush=True)
        lines.append(line)
    if "--record" in sys.argv[1:]:
        sys.path.insert(0, str(ROOT))
        from benchmarks import _record

        _record.write("soak", lines)
    return int(any("**" in line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
