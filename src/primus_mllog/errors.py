"""Every exception this package raises.

::

    PrimusMllogError
    ├── ConfigurationError            something the user set cannot be used
    │   ├── SettingsError             environment variables
    │   └── PreflightError            the log's header would be refused (MLLOG_PREFLIGHT=error)
    ├── OutputError                   the log file cannot be created or must not be touched
    ├── EncodingError (TypeError)     a value has no JSON form
    ├── LifecycleError                a call that would break the order of events (strict mode)
    ├── WarmupError                   the synthetic warmup left something changed
    ├── MissingDependencyError (ImportError)   an optional package is not installed
    ├── PackageError                  a submission cannot be laid out
    ├── ArrayFileError                a data file that samples are counted in cannot be read
    └── LogFileError                  a log cannot be read
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "ArrayFileError",
    "ConfigurationError",
    "EncodingError",
    "LifecycleError",
    "LogFileError",
    "MissingDependencyError",
    "OutputError",
    "PackageError",
    "PreflightError",
    "PrimusMllogError",
    "Problem",
    "SettingsError",
    "WarmupError",
]


class Problem(NamedTuple):
    """One thing that cannot be used: its name, what was found, what is wanted."""

    name: str
    found: str
    wanted: str


class PrimusMllogError(Exception):
    """Root of every exception raised by primus-mllog."""


class ConfigurationError(PrimusMllogError):
    """Something the user set cannot be used; ``problems`` lists all of it at once."""

    heading = "the configuration cannot be used"
    advice = ""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        left = max((len(f"{p.name}={p.found}") for p in problems), default=0)
        lines = [f"  {f'{p.name}={p.found}':<{left}}   wanted: {p.wanted}" for p in problems]
        super().__init__("\n".join(filter(None, [f"{self.heading}:", *lines, self.advice])))


class SettingsError(ConfigurationError):
    """Environment variables whose values cannot be used."""

    heading = "these environment variables cannot be used"
    advice = "Correct them or unset them; the README has a table of every variable."


class PreflightError(ConfigurationError):
    """The official checker would refuse the header of this run's log."""

    heading = "the submission checker would refuse this run's log (MLLOG_PREFLIGHT=error)"
    advice = "Correct these, or set MLLOG_PREFLIGHT=warn to train all the same."


class OutputError(PrimusMllogError):
    """The log file cannot be used.

    Attributes:
        path: the file as it was given.
        reason: what is in the way.
    """

    def __init__(self, path: str, reason: str, advice: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"the MLPerf log {path!r} cannot be written: {reason}. {advice}")


class EncodingError(PrimusMllogError, TypeError):
    """A value cannot be written as JSON.

    Attributes:
        key: the MLPerf key of the event.
        type_name: the qualified type that has no JSON form.
    """

    def __init__(self, key: str, type_name: str) -> None:
        self.key = key
        self.type_name = type_name
        super().__init__(
            f"event {key!r}: a value of type {type_name} has no JSON form; pass a number, a "
            "string, a boolean, None, an array or tensor, or a list or mapping of these"
        )


class LifecycleError(PrimusMllogError):
    """A call that would break the order of MLPerf events.

    Attributes:
        call: the method that was called.
        phase: where the run is.
    """

    def __init__(self, call: str, phase: str, wanted: str) -> None:
        self.call = call
        self.phase = phase
        super().__init__(f"{call}() was called while the run is {phase}; {wanted}")


class WarmupError(PrimusMllogError):
    """The synthetic warmup left something changed (SYNTH_WARMUP_VERIFY=1).

    Attributes:
        names: what differs, in the order of the walk: modules, optimizer, scheduler, the rest.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = names
        super().__init__(
            f"after the warmup {len(names)} parts of the training's state are not what they were, "
            f"first of all {names[0]}. Train without a warmup (SYNTH_WARMUP_STEPS=0) and report it."
        )


class MissingDependencyError(PrimusMllogError, ImportError):
    """An optional package is not installed.

    Attributes:
        package: what is missing.
    """

    def __init__(self, package: str, purpose: str, install: str) -> None:
        self.package = package
        super().__init__(
            f"{purpose} needs {package}, which is not installed. Install it: {install}"
        )


class PackageError(PrimusMllogError):
    """A submission cannot be laid out; nothing of it was left behind.

    Attributes:
        found: what is wrong.
        wanted: what would be right.
    """

    def __init__(self, found: str, wanted: str) -> None:
        self.found = found
        self.wanted = wanted
        super().__init__(f"no package was made: {found}; wanted: {wanted}")


class ArrayFileError(PrimusMllogError):
    """A ``.npy`` file whose samples are to be counted is missing, damaged or something else.

    Attributes:
        path: the file.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        super().__init__(
            f"the samples of {path} cannot be counted: {reason}. Name the folder that holds "
            "train.npy and validation.npy."
        )


class LogFileError(PrimusMllogError):
    """A log file cannot be read.

    Attributes:
        path: the file.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        super().__init__(f"{path}: {reason}")
