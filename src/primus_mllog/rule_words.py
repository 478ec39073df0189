"""A rule file's test in a person's words.

MLCommons writes its rules as Python expressions (``v['value'] == 8192``, ``not
s['run_started']``): ``v`` is the event's value and metadata, ``s`` what earlier events left.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

__all__ = ["Explanation", "explain"]

_VALUE = r"v\['value'\]"
_METADATA = r"v\['metadata'\]"
_BOOKKEEPING = {"file", "lineno"}


class Explanation(NamedTuple):
    """Why an event fails a test."""

    found: str
    wanted: str
    hint: str = ""


def explain(test: str, event: Any, state: dict[str, Any]) -> Explanation:
    """What ``test`` found in ``event`` and what it wants.

    Args:
        test: an expression of a rule file.
        event: the official checker's log line; None for a test of a value that no event has.
        state: what the official checker has gathered so far, by which ``s['…']`` are worked out.
    """
    value = repr(event.value["value"]) if event is not None else "nothing"
    metadata = event.value["metadata"] if event is not None else None
    if not isinstance(metadata, dict):
        metadata = {}
    if match := re.fullmatch(r"\(? ?(not )?s\['(\w+?)p?ed'\](?: == True)? ?\)?", test):
        wanted, found = ("before", "after") if match[1] else ("after", "before")
        return Explanation(f"it {found} {match[2]}", f"{wanted} {match[2]}")
    so_far = state.get("s", {})
    if "s['first_init_start']" in test and "compile_time_mins" in so_far:
        return _initialisation(event, so_far)
    if match := re.match(rf"(?:int\()?{_METADATA}\['(\w+)'\]\)? (==|>=?) (\S.*?)(?: if |$)", test):
        wanted, hint = _worked_out(match[3], state)
        number = f"{match[1]} {_COMPARISONS[match[2]]}{wanted}"
        return Explanation(f"{match[1]} {metadata.get(match[1])!r}", number, hint)
    if names := re.findall(rf"'(\w+)' in {_METADATA}", test):
        present = sorted(set(metadata) - _BOOKKEEPING)
        return Explanation(
            f"only {', '.join(present)} in its metadata" if present else "no metadata",
            f"{' or '.join(dict.fromkeys(names))} in its metadata",
        )
    return Explanation(value, *_of_value(test, state))


_COMPARISONS = {"==": "", ">=": "at least ", ">": "more than "}


def _of_value(test: str, state: dict[str, Any]) -> tuple[str, str]:
    """What a test wants of an event's value, and a hint."""
    if match := re.fullmatch(rf"{_VALUE} == (.+)|abs\({_VALUE} - (.+)\) < 1e-\d+", test):
        return _worked_out(match[1] or match[2], state)
    if match := re.fullmatch(rf"{_VALUE} in \[(.+)\]", test):
        return f"one of {match[1]}", ""
    if match := re.fullmatch(rf"(is_integer\({_VALUE}\) and )?{_VALUE} (>=?) (\S+)", test):
        whole = "a whole number, " if match[1] else ""
        return f"{whole}{_COMPARISONS[match[2]]}{match[3]}", ""
    if re.fullmatch(rf"{_VALUE} != ''", test):
        return "not empty", ""
    if match := re.fullmatch(rf"\(?{_VALUE} (<=?) ([\d.]+)\)? and {_VALUE} > 0\.0", test):
        return f"{'at most' if match[1] == '<=' else 'below'} {match[2]}", ""
    return _worked_out(re.sub(_VALUE, "value", test), state)


def _initialisation(event: Any, so_far: dict[str, Any]) -> Explanation:
    """init_stop comes within the time that the division has for initialisation."""
    minutes = so_far["compile_time_mins"]
    hint = "" if minutes else "Log submission_division before init_stop: it sets the time allowed."
    found = "no init_start before it"
    if so_far["init_started"]:
        took = (event.timestamp - so_far["first_init_start"]) / 60_000
        found = f"it {took:.1f} min after the first init_start"
    return Explanation(found, f"less than {minutes} min", hint)


def _worked_out(expression: str, state: dict[str, Any]) -> tuple[str, str]:
    """The number that an expression stands for in this log, where it has one, and a hint."""
    try:
        # the rule file's own code, which the official checker evaluates just so
        return repr(eval(expression, dict(state))), ""  # noqa: S307
    except Exception:  # noqa: BLE001 - it refers to something that this log does not have
        known = state.get("s", {})
        missing = [name for name in re.findall(r"s\['(\w+)'\]", expression) if name not in known]
        hint = f"Log {' and '.join(missing)} before it." if missing else ""
        return re.sub(r"s\['(\w+)'\]", r"\1", expression), hint
