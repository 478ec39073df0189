"""What became of a training of the demo, read from the log it left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from primus_mllog import compliance, keys
from primus_mllog.records.log_file import Event, read_events

if TYPE_CHECKING:
    from primus_mllog.compliance import Verdict

__all__ = ["Summary", "summarize"]


class Summary(NamedTuple):
    """A finished run and the official checker's verdict on its log."""

    rows: dict[str, Any]
    """What to show, by its name."""
    verdict: Verdict
    is_good: bool
    """Whether the target was reached and the official checker passes the log."""

    def __str__(self) -> str:
        width = max(map(len, self.rows))
        lines = [f"{name:<{width}}  {value}" for name, value in self.rows.items()]
        lines += [f"  {finding.message}" for finding in self.verdict.findings]
        return "\n".join(lines)


def summarize(path: str, ruleset: str = "") -> Summary:
    """Describe the last run in a log that the demo wrote to its end.

    Args:
        path: the log.
        ruleset: of the official checker; the newest when empty.

    Raises:
        LogFileError: the log cannot be read.
    """
    last: dict[str, Event] = {}
    num_evaluations = 0
    for event in read_events(path):
        if isinstance(event, Event):
            last[event.key] = event
            if event.key == keys.RUN_START:
                num_evaluations = 0
            elif event.key == keys.EVAL_ACCURACY:
                num_evaluations += 1
    stop = last[keys.RUN_STOP]
    samples, status = stop.metadata[keys.SAMPLES_COUNT], stop.metadata[keys.STATUS]
    loss, target = last[keys.EVAL_ACCURACY].value, last[keys.TARGET_ACCURACY].value
    batch_size = last[keys.GLOBAL_BATCH_SIZE].value
    verdict = compliance.check_file(path, ruleset)
    passed = "passed" if verdict.passed else "refused"
    rows = {
        "time to train": f"{(stop.time_ms - last[keys.RUN_START].time_ms) / 1000:.1f} s",
        "samples": f"{samples} ({samples // batch_size} steps of {batch_size})",
        "evaluations": num_evaluations,
        "final loss": f"{loss:.4g} nats per byte (target {target:g})",
        "status": status,
        "seed": last[keys.SEED].value,
        "official checker": f"{passed} (ruleset {verdict.ruleset})",
    }
    return Summary(rows, verdict, is_good=status == keys.SUCCESS and verdict.passed)
