"""The order of events that the design promises, written apart from the code it checks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LETTERS = {
    "cache_clear": "c",
    "init_start": "i",
    "init_stop": "I",
    "run_start": "r",
    "epoch_start": "p",
    "block_start": "b",
    "train_loss": "t",
    "tracked_stats": "k",
    "block_stop": "B",
    "eval_start": "e",
    "eval_accuracy": "a",
    "eval_stop": "E",
    "epoch_stop": "P",
    "run_duration": "d",
    "run_stop": "R",
}

# Anything else is a hyperparameter.
FINISHED = re.compile(r"cih*Irp(bt*k?B(ea?E)*)+(dk?)?PR")
NOT_STARTED = re.compile(r"(cih*)?")


def letters(events: Iterable[Mapping[str, Any]]) -> str:
    """The events as one letter each."""
    return "".join(LETTERS.get(event["key"], "h") for event in events)


def assert_finished(events: list[dict[str, Any]]) -> None:
    """The log is one whole run: every event in its place, one end, nothing after it."""
    assert FINISHED.fullmatch(letters(events)), letters(events)


def assert_allowed(events: list[dict[str, Any]]) -> None:
    """The log is one whole run, or one that never started."""
    text = letters(events)
    assert FINISHED.fullmatch(text) or NOT_STARTED.fullmatch(text), text


def samples(event: Mapping[str, Any]) -> Any:
    """The event's samples_count."""
    return event["metadata"].get("samples_count")
