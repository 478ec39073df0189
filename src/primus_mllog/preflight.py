"""What would be refused, said before the clock starts.

The official checker is run on the log's header, completed in memory with a minimal body; to what
it finds we add what the rules fix but the checker lets pass: the target, the evaluation cadence,
the sample counts. All findings are reported at once. The preflight itself never stops a training:
only its findings do, and only with MLLOG_PREFLIGHT=error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_mllog import benchmarks, compliance, keys, notices
from primus_mllog.compliance import Finding
from primus_mllog.errors import PreflightError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from primus_mllog.distributed import ProcessGroup
    from primus_mllog.settings import Settings

__all__ = ["findings_of", "preflight"]


def preflight(header: Mapping[str, Any], settings: Settings, group: ProcessGroup) -> None:
    """Check ``header`` on rank 0 and report on stderr; a collective with MLLOG_PREFLIGHT=error.

    Args:
        header: MLPerf keys and values in the order in which they were logged.
        settings: MLLOG_PREFLIGHT and MLLOG_RULESET.
        group: the ranks of the run.

    Raises:
        PreflightError: on every rank, when there is a finding and MLLOG_PREFLIGHT=error.
    """
    if settings.mllog_preflight == "off":
        return
    findings: list[Finding] = []
    if group.rank == 0:
        try:
            findings = findings_of(header, settings)
        except Exception as error:  # noqa: BLE001 - our own trouble must not stop a training
            notices.tell(f"the preflight itself failed ({error!r}); the header is not checked")
    if settings.mllog_preflight == "error":
        [num_findings] = group.agree([float(len(findings)) if group.rank == 0 else None])
        if num_findings:
            raise PreflightError(*map(_as_problem, findings))
    elif findings:
        notices.tell(_table(findings, compliance.resolve_ruleset(settings.mllog_ruleset)))


def findings_of(header: Mapping[str, Any], settings: Settings) -> list[Finding]:
    """Everything in ``header`` that the official checker or the rules would refuse.

    Args:
        header: MLPerf keys and values in the order in which they were logged.
        settings: MLLOG_RULESET, and the evaluation target.

    Returns:
        The official checker's findings first, then ours; one for each key and reason.
    """
    findings = list(compliance.check_header(header, settings.mllog_ruleset))
    official = {finding.key for finding in findings}
    ours = [f for check in _CHECKS for f in check(header, settings) if f.key not in official]
    return findings + ours


def _check_names(header: Mapping[str, Any], _settings: Settings) -> Iterator[Finding]:
    """Benchmark and division are set: without one, the checker does not get as far as the other."""
    for key, wanted in (
        (keys.SUBMISSION_DIVISION, "closed or open"),
        (keys.SUBMISSION_BENCHMARK, f"for instance {', '.join(benchmarks.BENCHMARKS)}"),
    ):
        if not header.get(key):
            yield _finding(key, repr(header.get(key, "")), wanted, f"Set MLLOG_{key.upper()}.")


def _check_target(header: Mapping[str, Any], settings: Settings) -> Iterator[Finding]:
    """The target is set, and is not above what the closed division accepts."""
    target = settings.mllog_target_eval_loss
    benchmark = _closed_benchmark(header)
    if not settings.is_set("mllog_target_eval_loss") and target <= 0.0:
        wanted = "the loss at which the run has succeeded"
        if benchmark is not None:
            wanted += f": {benchmark.target} for {benchmark.name}"
        yield _finding(
            keys.TARGET_ACCURACY, target, wanted, "Set MLLOG_TARGET_EVAL_LOSS; 0 is never reached."
        )
    elif benchmark is not None and target > benchmark.target:
        hint = "Set MLLOG_TARGET_EVAL_LOSS to it; the checker refuses a success above it."
        yield _finding(keys.TARGET_ACCURACY, target, f"at most {benchmark.target}", hint)


def _check_cadence(header: Mapping[str, Any], _settings: Settings) -> Iterator[Finding]:
    """Evaluations come when the closed division's rules say, rounded up to whole batches."""
    benchmark = _closed_benchmark(header)
    found = header.get(keys.EVALUATION_FREQUENCY)
    global_batch_size = header.get(keys.GLOBAL_BATCH_SIZE)
    if benchmark is None or not isinstance(found, int) or not isinstance(global_batch_size, int):
        return
    wanted = benchmark.eval_interval_samples
    if wanted is None or found == wanted(global_batch_size):
        return
    interval = wanted(global_batch_size)
    hint = f"Evaluate every {interval // global_batch_size} steps (eval_interval)."
    yield _finding(keys.EVALUATION_FREQUENCY, found, f"{interval} samples", hint)


def _check_eval_samples(header: Mapping[str, Any], _settings: Settings) -> Iterator[Finding]:
    """An evaluation looks at something."""
    if header.get(keys.EVAL_SAMPLES) == 0:
        hint = "Set eval_iters: an evaluation of no iterations has no loss."
        yield _finding(keys.EVAL_SAMPLES, 0, "at least 1", hint)


def _check_accumulation(header: Mapping[str, Any], _settings: Settings) -> Iterator[Finding]:
    """The global batch divides into whole micro batches on every data-parallel rank."""
    found = header.get(keys.GRADIENT_ACCUMULATION_STEPS)
    if isinstance(found, float) and not found.is_integer():
        hint = "global batch size = micro batch size · data-parallel size · a whole number."
        yield _finding(keys.GRADIENT_ACCUMULATION_STEPS, found, "a whole number, at least 1", hint)


_CHECKS = (_check_names, _check_target, _check_cadence, _check_eval_samples, _check_accumulation)


def _closed_benchmark(header: Mapping[str, Any]) -> benchmarks.Benchmark | None:
    if header.get(keys.SUBMISSION_DIVISION) != "closed":
        return None
    return benchmarks.find(str(header.get(keys.SUBMISSION_BENCHMARK, "")))


def _finding(key: str, found: Any, wanted: str, hint: str) -> Finding:
    return Finding(
        source="primus-mllog",
        key=key,
        message=f"{key} is {found}, wanted: {wanted}",
        found=str(found),
        wanted=wanted,
        line=None,
        hint=hint,
    )


def _as_problem(finding: Finding) -> Problem:
    return Problem(finding.key, finding.found, finding.wanted)


def _table(findings: list[Finding], ruleset: str) -> str:
    """The findings as aligned text; plain, because it goes to the stderr of a cluster job."""
    rows = [
        ("key", "found", "wanted", "by"),
        *((f.key, f.found, f.wanted, f.source) for f in findings),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    heading = (
        f"preflight: this run's log would be refused (ruleset {ruleset}); correct these before "
        "the hours are spent (MLLOG_PREFLIGHT=error stops here, =off is silent):"
    )
    lines = [heading]
    for key, found, wanted, by in rows:
        lines.append(f"  {key:<{widths[0]}}  {found:<{widths[1]}}  {wanted:<{widths[2]}}  {by}")
    lines += [f"  → {f.key}: {f.hint}" for f in findings if f.hint]
    return "\n".join(lines)
