"""Following a log while it is written."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from official import OPEN_HEADER, line, whole_log
from primus_mllog.cli.app import app
from primus_mllog.records.follow import Following, follow
from primus_mllog.records.log_file import Event, Malformed, read_events

runner = CliRunner()


def followed(path: Path, *acts: Callable[[], object]) -> list[Any]:
    """What is found, while one act after the other happens whenever there is nothing new."""
    pending: Iterator[Callable[[], object]] = iter(acts)
    is_done = [not acts]

    def act(_seconds: float) -> None:
        try:
            next(pending)()
        except StopIteration:
            is_done[0] = True

    found = follow(path, is_over=lambda: is_done[0], wait=act)
    return [event for event in found if event is not None]


def append(path: Path, text: str) -> Callable[[], object]:
    def act() -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)

    return act


def test_events_come_as_they_are_written(tmp_path: Path) -> None:
    """Of a log that does not exist yet, in pieces that end anywhere, with their lines."""
    path = tmp_path / "run.log"
    text = line("seed", 1) + "noise\n" + line("run_start")
    acts = [append(path, piece) for piece in (text[:20], text[20:150], text[150:])]
    found = followed(path, *acts)
    assert [(event.key, event.line) for event in found] == [("seed", 1), ("run_start", 3)]


def test_a_log_that_is_rotated_is_followed_into_the_new_one(tmp_path: Path) -> None:
    """What was written last into the old one is not lost."""
    path = tmp_path / "run.log"
    path.write_text(line("seed", 1))

    def rotate() -> None:
        append(path, line("seed", 2))()
        os.replace(path, tmp_path / "run.log.1")  # noqa: PTH105
        append(path, line("seed", 3))()

    assert [event.value for event in followed(path, rotate, lambda: None)] == [1, 2, 3]


def test_a_log_that_is_cut_is_read_anew(tmp_path: Path) -> None:
    """As by a writer that opens it for writing again."""
    path = tmp_path / "run.log"
    path.write_text(line("seed", 1) + line("seed", 2))
    again = followed(path, lambda: path.write_text(line("seed", 3)), lambda: None)
    assert [event.value for event in again] == [1, 2, 3]


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    """And does not end the following."""
    path = tmp_path / "run.log"
    path.write_text(":::MLLOG {broken\n" + line("seed", 1))
    broken, good = followed(path)
    assert isinstance(broken, Malformed)
    assert isinstance(good, Event)


def following(losses: list[float], target: float = 1.0) -> Following:
    """A run after evaluations every 1,000 samples, at 100 samples a second."""
    state = Following()
    lines = [line("target_accuracy", target), line("run_start"), line("block_start")]
    for number, loss in enumerate(losses, start=1):
        lines += [line("eval_accuracy", loss, samples_count=number * 1000)]
    lines += [line("block_start")]
    for step in (0, 10):
        lines += [line("train_loss", 2.0, time_ms=step * 1000, samples_count=step * 100, step=step)]
    for text in lines:
        for event in read_events([text]):
            assert isinstance(event, Event)
            state.add(event)
    return state


def test_what_is_left_is_read_off_the_curve() -> None:
    """A loss that falls with the logarithm of the samples meets the target where it must."""
    losses = [4.0 - math.log(number) for number in (1, 2, 3, 4)]
    state = following(losses, target=4.0 - math.log(8))
    estimate = state.estimate()
    assert estimate is not None
    assert estimate.samples == pytest.approx(8000 - 1000)
    assert state.samples_per_second == pytest.approx(100)
    assert estimate.minutes == pytest.approx(70 / 60)


@pytest.mark.parametrize(
    "losses",
    [[], [3.0], [3.0, 2.5], [2.0, 2.0, 2.0], [2.0, 2.1, 2.2], [2.0, float("nan"), 1.9]],
    ids=str,
)
def test_where_the_curve_leads_nowhere_it_is_unknown(losses: list[float]) -> None:
    """Too few evaluations, or none that fall."""
    assert following(losses).estimate() is None


@pytest.mark.parametrize("name", ["llama31_8b\x1b[31m", "a\nb"])
def test_a_hostile_log_does_not_drive_the_terminal(tmp_path: Path, name: str) -> None:
    """Control characters are shown, not obeyed."""
    path = tmp_path / "run.log"
    log = whole_log(OPEN_HEADER)
    log[-1] = line("run_stop", status=name)
    path.write_text("".join(log))
    output = runner.invoke(app, ["watch", str(path), "--once"]).output
    assert "\x1b" not in output
    assert output.splitlines()[-1].startswith("over: ")


def test_a_finished_log_is_told_in_lines(tmp_path: Path) -> None:
    """And the following ends with the run."""
    path = tmp_path / "run.log"
    path.write_text("".join(whole_log({**OPEN_HEADER, "target_accuracy": 0.6})))
    result = runner.invoke(app, ["watch", str(path)])
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "initialising",
        "initialised",
        "training",
        "evaluation at 16 samples: 0.5000 (target 0.6), left: unknown",
        "over: success",
    ]
