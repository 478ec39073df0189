"""MLCommons' compliance checker, extended to keep what it finds.

Imports mlperf_logging at the top: :mod:`primus_mllog.compliance` imports this module when a log is
checked, not before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import re
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mlperf_logging.compliance_checker import mlp_compliance, mlp_parser

from primus_mllog import benchmarks, rule_words
from primus_mllog.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["CollectingChecker"]

_EVENT = ":::MLLOG "
_BENCHMARK, _DIVISION = "submission_benchmark", "submission_division"
_RULES = Path(mlp_compliance.__file__).parent


class _Placed(NamedTuple):
    """An event, and its line of the file, counted from 1."""

    event: Any
    line: int


class CollectingChecker(mlp_compliance.ComplianceChecker):  # type: ignore[misc] # untyped base
    """Decides as its base class does, and remembers every failure and the line it is about.

    The base class keeps the last failure for each key.

    Args:
        ruleset: for instance ``"6.1.0"``.
    """

    warnings: dict[str, str]

    def __init__(self, ruleset: str) -> None:
        super().__init__("training", ruleset, quiet=False, werror=False)
        self._findings: list[tuple[str | None, Finding]] = []
        self._event: Any = None
        self._line: int | None = None
        self._state: dict[str, Any] = {}

    @property
    def findings(self) -> list[Finding]:
        """Every failure so far, in the order in which they were found."""
        return [finding for _, finding in self._findings]

    @property
    def warning_findings(self) -> list[Finding]:
        """What the checker only warns about."""
        return [self._finding(message, key) for key, message in self.warnings.items()]

    def check(self, lines: Iterable[str]) -> bool:
        """The official verdict; a crash of the official code is a finding and a failure."""
        with _kept_to_itself():
            try:
                events = self._parse(lines)
            except Exception as error:  # noqa: BLE001 - whatever it dies of is a finding
                self._findings.append((None, self._crash(error)))
                return False
            return self._judge(events)

    def look_at(self, placed: _Placed | None) -> None:
        """Remember the event that the checker is about to judge."""
        self._event, self._line = placed or (None, None)

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

    def _parse(self, lines: Iterable[str]) -> list[_Placed]:
        """The events, by the ruleset's own parser, one line at a time to know which one failed."""
        name = f"{mlp_parser.__name__}.ruleset_{self.ruleset.replace('.', '')}"
        parse = importlib.import_module(name).parse_generator
        events = []
        number = 1
        for line in lines:
            if _EVENT in line:
                self._line = number
                parsed, errors = parse([line])
                events += [_Placed(event, number) for event in parsed]
                for _, error in errors:
                    self.put_message(f"Log lines had parsing errors: {error}")
            # a lone carriage return (a progress bar) ends a line for the parser, for no editor
            number += not line.endswith("\r")
        self._line = None
        return events

    def _judge(self, events: list[_Placed]) -> bool:
        mlp_compliance.enqueued_configs.clear()
        not_parsed = list(self._findings)
        try:
            self.check_loglines(_Watched(events, self), f"training_{self.ruleset}/common.yaml")
        except FileNotFoundError:  # rules that do not exist: it says so, then dies of it
            self._judge_as_meant(events)
            return False
        except Exception as error:  # noqa: BLE001 - whatever else it dies of is a finding
            self._findings.append((None, self._crash(error)))
            return False
        if not events:  # all that is missing follows from this
            nothing = Finding("official", "", "No log lines detected", hint="Is this the log?")
            self._findings = [*not_parsed, (None, nothing)]
        return not self.has_messages()

    def _judge_as_meant(self, events: list[_Placed]) -> None:
        """There are no rules for this benchmark or division: say so, and what was meant.

        A benchmark is judged by the rules of the nearest name, so that it hides nothing else.
        """
        named = [(k, f) for k, f in self._findings if k in {_BENCHMARK, _DIVISION}]
        # compared, not looked up: a key of a broken log may be anything
        said = {e.key: e.value["value"] for e, _ in events if e.key in (_BENCHMARK, _DIVISION)}
        name, division = str(said.get(_BENCHMARK, "")), str(said.get(_DIVISION, ""))
        meant = benchmarks.nearest_name(name)
        if meant is not None and self.ruleset in _rulesets_with(meant, division):
            for event, _ in events:
                if event.key == _BENCHMARK:
                    event.value["value"] = meant
            hint = f"The rules spell it {meant} (MLLOG_SUBMISSION_BENCHMARK)."
            by_what_was_meant = CollectingChecker(self.ruleset)
            by_what_was_meant._judge(events)
            self.warnings = by_what_was_meant.warnings
            others = by_what_was_meant._findings
        else:
            name = meant or name
            rulesets = ", ".join(_rulesets_with(name, division))
            hint = f"Rulesets that have {name}: {rulesets} (--ruleset)." if rulesets else ""
            others = [] if named else self._findings
        self._findings = [
            (key, dataclasses.replace(f, hint=hint) if key == _BENCHMARK else f) for key, f in named
        ] + others

    def _finding(self, message: str, key: str | None) -> Finding:
        """A failure's message, taken apart."""
        if key and (test := re.search(r"(?:failed test: |CHECK code:\n)(.*)", message)):
            found, wanted, hint = rule_words.explain(test[1].strip(), self._event, self._state)
            text = f"{key}: found {found}, wanted: {wanted}"
            return Finding("official", key, text, found, wanted, self._line, hint)
        if key and message.startswith("Failed executing code"):
            found, wanted = repr(self._event.value["value"]), "a value that the rules work with"
            text = f"{key}: found {found}, wanted: {wanted}"
            return Finding("official", key, text, found, wanted, self._line)
        if occurrences := re.match(
            r"Required (\S+) occurrence of (.+?)(?: but found (.*))?$", message, re.DOTALL
        ):
            wanted = occurrences[1].lower().replace("_", " ")
            found = occurrences[3] or "0"
            if found.isdecimal():
                found = "nothing" if found == "0" else f"{found} of them"
            names = sorted(re.findall(r"'(\w+)'", occurrences[2]))  # the rules' order is a set's
            text = f"{' or '.join(names)}: found {found}, wanted: {wanted}"
            return Finding("official", names[0], text, found, wanted)
        if aim := re.match(r"Failed checks for (\w+) : (.*)", message):
            _, wanted, _ = rule_words.explain(aim[2].strip(), None, self._state)
            wanted = f"at least one that is {wanted}"
            return Finding(
                "official", aim[1], f"{aim[1]}: found none, wanted: {wanted}", "none", wanted
            )
        if message.startswith("Could not find config file"):
            hint = "Correct submission_division and submission_benchmark."
            text = "there are no rules for this division and benchmark"
            return Finding("official", "", text, hint=hint)
        return Finding("official", "", " ".join(message.split()), line=self._line)

    def _crash(self, error: Exception) -> Finding:
        message = f"the official checker dies of this log: {type(error).__name__}: {error}"
        hint = "This line holds something that the checker does not expect; correct it."
        return Finding(
            "official", "", message, wanted="a log it can read", line=self._line, hint=hint
        )


class _Watched(list[Any]):
    """Events that tell the checker which of them is being judged, should it die there."""

    def __init__(self, events: list[_Placed], checker: CollectingChecker) -> None:
        super().__init__(events)
        self._checker = checker

    def __iter__(self) -> Iterator[Any]:
        for placed in super().__iter__():
            self._checker.look_at(placed)
            yield placed.event
        self._checker.look_at(None)


def _rulesets_with(name: str, division: str) -> list[str]:
    """The rulesets that have rules for a benchmark in a division, oldest first."""
    folders = [f for f in _RULES.glob("training_*") if (f / f"{division}_{name}.yaml").exists()]
    return sorted(folder.name.removeprefix("training_") for folder in folders)


@contextlib.contextmanager
def _kept_to_itself() -> Iterator[None]:
    """Keep the official module from touching the process while the block lasts.

    It speaks through the root logger, to which its first word adds a handler, and it keeps the
    rule files still to be read in a list of the module, which a crash leaves filled.
    """
    spoken_through = mlp_compliance.logging
    mlp_compliance.logging = types.SimpleNamespace(info=lambda *_: None, warning=lambda *_: None)
    try:
        yield
    finally:
        mlp_compliance.logging = spoken_through
        mlp_compliance.enqueued_configs.clear()
