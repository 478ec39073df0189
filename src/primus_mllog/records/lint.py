"""What the official checker lets pass and a submission engineer would not.

Each rule is a small function over the events of one log. Every finding is labelled as ours: the
verdict stays with MLCommons' tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_mllog import benchmarks, keys
from primus_mllog.findings import Finding
from primus_mllog.records.log_file import Event, Malformed, read_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

__all__ = ["lint", "lint_events"]

_INTERVALS = {
    keys.EPOCH_START,
    keys.EPOCH_STOP,
    keys.BLOCK_START,
    keys.BLOCK_STOP,
    keys.EVAL_START,
    keys.EVAL_STOP,
    keys.EVAL_ACCURACY,
}
# Every rank may log these, and ranks do not write in the order of their clocks.
_OF_EVERY_RANK = {keys.CACHE_CLEAR, keys.INIT_START}


def lint(source: str | Path | Iterable[str]) -> list[Finding]:
    """Our findings in one log, in the order of its lines.

    Raises:
        LogFileError: the file cannot be read.
    """
    return lint_events(list(read_events(source)))


def lint_events(items: Sequence[Event | Malformed]) -> list[Finding]:
    """Our findings in a log that is read already; see :func:`lint`."""
    events = [item for item in items if isinstance(item, Event)]
    findings = [_of_malformed(item) for item in items if isinstance(item, Malformed)]
    if not events:
        return [
            *findings,
            _finding("", None, "no event", "a log of MLPerf events", "Is this the log?"),
        ]
    for rule in _RULES:
        findings.extend(rule(events))
    return sorted(findings, key=lambda finding: finding.line or 0)


def _shared_lines(events: list[Event]) -> Iterator[Finding]:
    lines = {event.line for event in events if event.shares_line}
    for line in sorted(lines):
        hint = "Split the line before each :::MLLOG: official tools see only the last event of it."
        yield _finding("", line, "two events on one line", "one event a line", hint)


def _nan(events: list[Event]) -> Iterator[Finding]:
    for event in events:
        if event.has_nan:
            hint = "NaN and Infinity are not JSON: other readers stop here."
            yield _finding(event.key, event.line, "NaN or Infinity", "valid JSON", hint)


def _one_run(events: list[Event]) -> Iterator[Finding]:
    for event in _all(events, keys.RUN_START)[1:]:
        hint = "A relaunch appended to the first run's file; split the file at cache_clear."
        yield _finding(event.key, event.line, "another run_start", "one run a file", hint)


def _one_end(events: list[Event]) -> Iterator[Finding]:
    stops = _all(events, keys.RUN_STOP)
    starts = _all(events, keys.RUN_START)
    if starts and not stops:
        hint = "The run was killed before it could end, or the log was cut off."
        yield _finding(keys.RUN_STOP, starts[-1].line, "no run_stop", "one", hint)
    for event in stops[max(len(starts), 1) :]:
        status = event.metadata.get(keys.STATUS)
        hint = "RCP takes the last: a success followed by aborted counts as not converged."
        yield _finding(event.key, event.line, f"another run_stop ({status})", "one", hint)


def _nothing_after_the_end(events: list[Event]) -> Iterator[Finding]:
    over = False
    for event in events:
        if event.key == keys.RUN_STOP:
            over = True
        elif event.key in {keys.RUN_START, *_OF_EVERY_RANK}:
            over = False
        elif over and event.key in _INTERVALS:
            hint = "A last validation or test was logged; RCP reads the last eval_accuracy."
            yield _finding(event.key, event.line, f"{event.key} after run_stop", "nothing", hint)


def _one_samples_count(events: list[Event]) -> Iterator[Finding]:
    start: Event | None = None
    for event in events:
        if event.key == keys.EVAL_START:
            start = event
        elif event.key == keys.EVAL_ACCURACY and start is not None:
            ours, its = start.samples_count, event.samples_count
            if None not in (ours, its) and ours != its:
                hint = "The convergence point is read from here: it must be that of eval_start."
                wanted = f"{ours}, as eval_start in line {start.line}"
                yield _finding(event.key, event.line, f"samples_count {its}", wanted, hint)


def _every_evaluation_has_a_value(events: list[Event]) -> Iterator[Finding]:
    start: Event | None = None
    for event in events:
        if event.key == keys.EVAL_START:
            start = event
        elif event.key == keys.EVAL_ACCURACY:
            start = None
        elif event.key == keys.EVAL_STOP and start is not None:
            hint = "A time limit may have ended it; it counts for nothing."
            yield _finding(keys.EVAL_ACCURACY, start.line, "none in this evaluation", "one", hint)
            start = None


def _time_goes_forward(events: list[Event]) -> Iterator[Finding]:
    previous: Event | None = None
    for event in events:
        if event.key in _OF_EVERY_RANK:
            continue
        if event.key in _BACKDATED:  # written later than they happened, with their own time
            continue
        if previous is not None and event.time_ms < previous.time_ms:
            found = f"{previous.time_ms - event.time_ms} ms before line {previous.line}"
            hint = (
                "A clock was set back, or lines of two runs are mixed; the time to train is wrong."
            )
            yield _finding(event.key, event.line, found, "time that goes forward", hint)
        previous = event


_BACKDATED = {keys.TRAIN_LOSS, keys.TRACKED_STATS}


def _benchmark_name(events: list[Event]) -> Iterator[Finding]:
    for event in _all(events, keys.SUBMISSION_BENCHMARK):
        name = str(event.value)
        nearest = benchmarks.nearest_name(name)
        if nearest is not None and nearest != name:
            hint = "Every official tool stops at a name that the rules do not have."
            yield _finding(event.key, event.line, repr(name), repr(nearest), hint)


def _status_is_true(events: list[Event]) -> Iterator[Finding]:
    names = _all(events, keys.SUBMISSION_BENCHMARK)
    if not names or benchmarks.find(str(names[-1].value)) is None:
        return  # other benchmarks may have a metric that grows
    targets = [e.value for e in _all(events, keys.TARGET_ACCURACY) if _is_number(e.value)]
    losses = [e.value for e in _all(events, keys.EVAL_ACCURACY) if _is_number(e.value)]
    stops = _all(events, keys.RUN_STOP)
    if not (targets and losses and len(stops) == 1):
        return
    status, reached = stops[0].metadata.get(keys.STATUS), min(losses) <= targets[-1]
    wanted = keys.SUCCESS if reached else keys.ABORTED
    if status != wanted:
        best = f"the best eval_accuracy is {min(losses)}, the target {targets[-1]}"
        yield _finding(keys.RUN_STOP, stops[0].line, f"status {status}", wanted, f"{best}.")


def _cadence(events: list[Event]) -> Iterator[Finding]:
    """Evaluations where the closed division wants them, which no official tool checks."""
    header = {e.key: e.value for e in events if e.key in _OF_CADENCE}
    benchmark = benchmarks.find(str(header.get(keys.SUBMISSION_BENCHMARK)))
    batch = header.get(keys.GLOBAL_BATCH_SIZE)
    if header.get(keys.SUBMISSION_DIVISION) != "closed":
        return
    if benchmark is None or benchmark.eval_interval_samples is None or not isinstance(batch, int):
        return
    if batch < 1:
        return
    interval = benchmark.eval_interval_samples(batch)
    first = benchmark.first_eval_samples
    # evaluations may be left out at the start, up to the rules' first
    latest = first(batch) if first is not None else None
    previous = 0
    for event in _all(events, keys.EVAL_START):
        samples = event.samples_count
        if not isinstance(samples, int):
            return
        step = samples - previous
        may_be_first = not previous and step % interval == 0 and (latest or samples) >= samples
        if step != interval and not may_be_first:
            wanted = f"after {interval} more" if previous else f"the first at {latest or interval}"
            hint = f"The rules of {benchmark.name} want one every {interval} samples."
            yield _finding(event.key, event.line, f"an evaluation at {samples}", wanted, hint)
            return
        previous = samples


_OF_CADENCE = {keys.SUBMISSION_DIVISION, keys.SUBMISSION_BENCHMARK, keys.GLOBAL_BATCH_SIZE}


_RULES: tuple[Callable[[list[Event]], Iterator[Finding]], ...] = (
    _shared_lines,
    _nan,
    _one_run,
    _one_end,
    _nothing_after_the_end,
    _one_samples_count,
    _every_evaluation_has_a_value,
    _time_goes_forward,
    _benchmark_name,
    _status_is_true,
    _cadence,
)


def _all(events: list[Event], key: str) -> list[Event]:
    return [event for event in events if event.key == key]


def _is_number(value: Any) -> bool:
    """Whether it can be compared: a number, and not NaN."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value  # noqa: PLR0124 - only NaN is not itself


def _of_malformed(item: Malformed) -> Finding:
    hint = "The writer was killed, or another one wrote into the line."
    return _finding("", item.line, f"a line that is {item.reason}", "one whole JSON object", hint)


def _finding(key: str, line: int | None, found: str, wanted: str, hint: str) -> Finding:
    message = f"{key + ': ' if key else ''}found {found}, wanted: {wanted}"
    return Finding("primus-mllog", key, message, found, wanted, line, hint)
