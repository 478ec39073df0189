"""MLCommons' compliance checker, extended to keep what it finds.

Imports mlperf_logging at the top: :mod:`primus_mllog.compliance` imports this module when a log is
checked, not before.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import types
from typing import TYPE_CHECKING, Any
from unittest import mock

from mlperf_logging.compliance_checker import mlp_compliance, mlp_parser

from primus_mllog.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["CollectingChecker"]

_EVENT = ":::MLLOG "


class CollectingChecker(mlp_compliance.ComplianceChecker):  # type: ignore[misc] # untyped base
    """Decides as its base class does, and remembers every failure and the line it is about.

    The base class keeps the last failure for each key.

    Args:
        ruleset: for instance ``"6.1.0"``.
    """

    def __init__(self, ruleset: str) -> None:
        super().__init__("training", ruleset, quiet=False, werror=False)
        self._findings: list[tuple[str | None, Finding]] = []
        self._file_lines: list[int] = []
        self._event: Any = None
        self._state: dict[str, Any] = {}

    @property
    def findings(self) -> list[Finding]:
        """Every failure so far, in the order in which they were found."""
        return [finding for _, finding in self._findings]

    def check(self, lines: Iterable[str]) -> bool:
        """The official verdict; a crash of the official code is a finding and a failure."""
        with _kept_to_itself():
            try:
                events = _Watched(self._parse(lines), self)
                self.check_loglines(events, f"training_{self.ruleset}/common.yaml")
            except FileNotFoundError:  # rules that do not exist: it says so, then dies of it
                return False
            except Exception as error:  # noqa: BLE001 - whatever else it dies of is a finding
                self._findings.append((None, self._crash(error)))
                return False
        return not self.has_messages()

    def look_at(self, event: Any) -> None:
        """Remember the event that the checker is about to judge."""
        self._event = event

    # -- called by the base class

    def run_check_eval(self, ll: Any, tests: Any, state: dict[str, Any]) -> None:
        """Judge one line; its state is what the tests' ``s['…']`` refer to."""
        self._state = state
        super().run_check_eval(ll, tests, state)

    def put_message(self, msg: str, key: str | None = None) -> None:
        """A failure."""
        super().put_message(msg, key)
        self._findings.append((key, self._finding(msg, key)))

    def overwrite_messages(self, keys: Iterable[str]) -> None:
        """A rule file that defines a key again discards what earlier ones said of it."""
        super().overwrite_messages(keys)
        again = set(keys)
        self._findings = [(k, finding) for k, finding in self._findings if k not in again]

    # -- ours

    def _parse(self, lines: Iterable[str]) -> list[Any]:
        """The events, by the ruleset's own parser, one line at a time to know which one failed."""
        name = f"{mlp_parser.__name__}.ruleset_{self.ruleset.replace('.', '')}"
        parse = importlib.import_module(name).parse_generator
        events = []
        for number, line in enumerate(lines, start=1):
            if _EVENT not in line:
                continue
            self._file_lines.append(number)
            self._event = types.SimpleNamespace(lineno=len(self._file_lines) - 1)
            parsed, errors = parse([line])
            for event in parsed:
                event.lineno = self._event.lineno
                events.append(event)
            for _, error in errors:
                self.put_message(f"Log lines had parsing errors: {error}")
        self._event = None
        return events

    @property
    def _line(self) -> int | None:
        return None if self._event is None else self._file_lines[self._event.lineno]

    def _finding(self, message: str, key: str | None) -> Finding:
        """A failure's message, taken apart."""
        test = re.search(r"(?:failed test: |CHECK code:\n)(.*)", message)
        if test and key:
            found = repr(self._event.value["value"])
            wanted = _in_words(test[1].strip(), self._state)
            text = f"{key} is {found}, wanted: {wanted}"
            return Finding("official", key, text, found, wanted, self._line)
        if occurrences := re.match(
            r"Required (\S+) occurrence of (.+?)(?: but found (.*))?$", message
        ):
            wanted = occurrences[1].lower().replace("_", " ")
            found = "nothing" if occurrences[3] in {None, "0"} else occurrences[3]
            names = sorted(re.findall(r"'(\w+)'", occurrences[2]))  # the rules' order is a set's
            text = f"{' or '.join(names)}: found {found}, wanted: {wanted}"
            return Finding("official", names[0], text, found, wanted)
        if aim := re.match(r"Failed checks for (\w+) : (.*)", message):
            wanted = f"at least one that is {_in_words(aim[2].strip(), self._state)}"
            return Finding(
                "official", aim[1], f"{aim[1]}: none is as wanted: {wanted}", "none", wanted
            )
        if message.startswith("Could not find config file"):
            hint = "Correct submission_division and submission_benchmark."
            return Finding(
                "official", "", "there are no rules for this division and benchmark", hint=hint
            )
        line = self._line if message.startswith("Log lines had parsing errors") else None
        return Finding("official", "", " ".join(message.split()), line=line)

    def _crash(self, error: Exception) -> Finding:
        message = f"the official checker dies of this log: {type(error).__name__}: {error}"
        hint = "This line holds something that the checker does not expect; correct it."
        return Finding(
            "official", "", message, wanted="a log it can read", line=self._line, hint=hint
        )


class _Watched(list[Any]):
    """Events that tell the checker which of them is being judged, should it die there."""

    def __init__(self, events: list[Any], checker: CollectingChecker) -> None:
        super().__init__(events)
        self._checker = checker

    def __iter__(self) -> Iterator[Any]:
        for event in super().__iter__():
            self._checker.look_at(event)
            yield event
        self._checker.look_at(None)


@contextlib.contextmanager
def _kept_to_itself() -> Iterator[None]:
    """Keep the official module from touching the process while the block lasts.

    It speaks through the root logger, to which its first word adds a handler, and it keeps the
    rule files still to be read in a list of the module, which a crash leaves filled.
    """
    silent = types.SimpleNamespace(info=lambda *_: None, warning=lambda *_: None)
    with mock.patch.object(mlp_compliance, "logging", silent):
        mlp_compliance.enqueued_configs.clear()
        try:
            yield
        finally:
            mlp_compliance.enqueued_configs.clear()


def _in_words(test: str, state: dict[str, Any]) -> str:  # noqa: PLR0911 - one for each form
    """A rule's test as what a person would want to read."""
    value = r"v\['value'\]"
    if match := re.fullmatch(rf"{value} == (.+)", test):
        return _evaluated(match[1], state)
    if match := re.fullmatch(rf"abs\({value} - (.+)\) < 1e-\d+", test):
        return _evaluated(match[1], state)
    if match := re.fullmatch(rf"{value} in \[(.+)\]", test):
        return f"one of {match[1]}"
    if match := re.fullmatch(rf"(is_integer\({value}\) and )?{value} >(=?) (\S+)", test):
        whole = "a whole number, " if match[1] else ""
        return f"{whole}{'at least' if match[2] else 'more than'} {match[3]}"
    if re.fullmatch(rf"{value} != ''", test):
        return "not empty"
    if match := re.fullmatch(rf"\(?{value} (<=?) ([\d.]+)\)? and {value} > 0\.0", test):
        return f"{'at most' if match[1] == '<=' else 'below'} {match[2]}"
    return re.sub(value, "value", test)


def _evaluated(expression: str, state: dict[str, Any]) -> str:
    """The number that an expression of a rule stands for in this log, where it has one."""
    try:
        # the rule file's own code, which the official checker evaluates just so
        return repr(eval(expression, dict(state)))  # noqa: S307
    except Exception:  # noqa: BLE001 - it refers to something that this log does not have
        return expression
