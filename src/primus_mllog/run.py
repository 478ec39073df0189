"""``MLPerfRun``: the life of one MLPerf run, from cache_clear to run_stop, for any training loop.

::

    NEW ── init_start() ──▶ INIT ── start() ──▶ BLOCK ── eval_start() ──▶ EVALUATION
                                                 ▲  │                      │
                                     step_start()│  │stop()    eval_stop() │
                                                 │  ▼                      ▼
                              (aborted) STOPPED ◀── BETWEEN ◀── not reached ── reached ──▶ STOPPED
                                                                                    (success)

This is the only place that decides on order, convergence and status. Adapters say what happened;
what of it may be logged, when it counts as having happened, and that the end is written on every
way out, is settled here.
"""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING, Any, ClassVar

from primus_mllog import keys, notices
from primus_mllog.compliance import resolve_ruleset
from primus_mllog.errors import EncodingError, LifecycleError
from primus_mllog.mlperf_logger import MLPerfLogger, now_ms
from primus_mllog.phases import Phase, allowed_in
from primus_mllog.preflight import preflight
from primus_mllog.profiling import Profile, start_profiler
from primus_mllog.settings import PretrainSettings, Settings
from primus_mllog.signals import TerminationHandler
from primus_mllog.throughput import ThroughputTimer
from primus_mllog.train_losses import TrainLosses, as_number

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

    from primus_mllog.distributed import ProcessGroup

__all__ = ["MLPerfRun", "Phase"]


class MLPerfRun:
    """One run and its log. Call every method on every rank, at the same points of the training.

    As a context manager it ends the run on every way out of the block. Without one, the end is
    still written when the interpreter exits or SIGTERM or SIGHUP ends the process.

    Args:
        settings: the environment; read from it when not given.
        logger: writes the events; one that opens MLLOG_OUTPUT_FILE is made when not given.
        group: the ranks of the run.
        stdout: whether events go to stdout as well as to the file.
        strict: raise :class:`LifecycleError` on a call that would break the order of events,
            instead of refusing it with a notice. Off, except in
            :func:`primus_mllog.testing.capture_events`.

    Raises:
        SettingsError: environment variables that cannot be used.
        ConfigurationError: MLLOG_RULESET names a ruleset that mlperf-logging does not have.
        OutputError: the log cannot be written (rank 0).
    """

    strict_by_default: ClassVar[bool] = False

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        logger: MLPerfLogger | None = None,
        group: ProcessGroup | None = None,
        stdout: bool = True,
        strict: bool | None = None,
    ) -> None:
        self.settings = settings or PretrainSettings.from_environment()
        if self.settings.mllog_preflight != "off":
            resolve_ruleset(self.settings.mllog_ruleset)
        if logger is None:
            logger = MLPerfLogger(self.settings, group=group, stdout=stdout)
            logger.open()
        self.logger = logger
        self.group = group or logger.group
        self.status: str | None = None
        """``"success"`` or ``"aborted"`` once the run is over."""
        self._strict = self.strict_by_default if strict is None else strict
        self._phase = Phase.NEW
        self._header: dict[str, Any] = {}
        self._is_checked = False
        self._samples_count = 0
        self._block_since_ms = self._run_since_ms = 0
        self._num_steps = self._step = 0
        self._train_loss_frequency = self.settings.mllog_train_loss_log_freq
        self._train_losses = TrainLosses(self._log_train_loss, self.group)
        self._logs = True
        self._timer: ThroughputTimer | None = None
        self._profile: Profile | None = None
        self._termination = TerminationHandler(self._abort)
        self._pid = os.getpid()

    @property
    def phase(self) -> Phase:
        """Where the run is."""
        return self._phase

    @property
    def finished(self) -> bool:
        """Whether run_stop was written (on rank 0) or is due no more."""
        return self._phase is Phase.STOPPED

    @property
    def log_file(self) -> str | None:
        """Path of the log on rank 0; None elsewhere, or when only stdout is written."""
        return self.logger.log_file

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._abort()

    @allowed_in(Phase.NEW)
    def init_start(self, *, all_ranks: bool = False) -> None:
        """The initialisation begins: cache_clear, init_start.

        Args:
            all_ranks: log both on every rank (the others to stdout), as some submissions do.
        """
        if all_ranks:
            self.logger.log_event_all_ranks(keys.CACHE_CLEAR, value=True)
            self.logger.log_event_all_ranks(keys.INIT_START)
        else:
            self.logger.log_event(keys.CACHE_CLEAR, value=True)
            self.logger.log_start(keys.INIT_START)
        self._phase = Phase.INIT

    @allowed_in(Phase.INIT)
    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Log the header in the order given; a key that was logged before is not logged again.

        Args:
            hyperparameters: MLPerf keys and values, see
                :func:`primus_mllog.hyperparameters.extract_hyperparameters`.
        """
        for key, value in hyperparameters.items():
            if key not in self._header:
                self._header[key] = value
                self._event(key, value)

    @allowed_in(Phase.INIT)
    def preflight(self) -> None:
        """Say what the official checker would refuse in the header; :meth:`start` does it, too.

        To be called before what takes long, such as a warmup. Raises as :meth:`start`.
        """
        if not self._is_checked:
            preflight(self._header, self.settings, self.group)
            self._is_checked = True

    @allowed_in(Phase.INIT)
    def start(self, samples_count: int = 0) -> None:
        """The clock starts: init_stop, run_start, epoch_start, block_start.

        To be called before any part of the system touches the training data. Every rank's
        init_start is written before init_stop is: there is a barrier.

        Args:
            samples_count: samples trained on before, for a run resumed from a checkpoint.

        Raises:
            PreflightError: on every rank, if the official checker would refuse the header and
                MLLOG_PREFLIGHT=error.
        """
        self.preflight()
        self._profile = start_profiler(self.settings, self.group.rank)
        self.group.barrier()
        self._samples_count = samples_count
        self._logs = self.group.rank == 0
        global_batch_size = self._header.get(keys.GLOBAL_BATCH_SIZE)
        if self._logs and self.settings.mllog_block_tput_log and isinstance(global_batch_size, int):
            self._timer = ThroughputTimer(global_batch_size)
        atexit.register(self._abort)
        self._termination.install()
        self._run_since_ms = now = now_ms()
        self._end(keys.INIT_STOP, time_ms=now)
        self._begin(keys.RUN_START, time_ms=now)
        self._begin(keys.EPOCH_START, self._where(), now)
        self._begin(keys.BLOCK_START, self._where(), now)
        self._phase = Phase.BLOCK

    def step_start(self) -> None:
        """A training step begins."""
        if self._phase is not Phase.BLOCK and not self._resume_block("step_start"):
            return
        if self._profile is not None:
            with self._termination.deferred():
                self._profile.step_start()
        if self._timer is not None:
            self._timer.step_start()

    def step_stop(
        self,
        samples_count: int,
        *,
        iteration: int | None = None,
        loss: Any = None,
        learning_rate: float | None = None,
        skipped: bool = False,
    ) -> None:
        """A training step is done.

        Every MLLOG_TRAIN_LOSS_LOG_FREQ-th step is logged as train_loss. A loss that lies on an
        accelerator is read when it is computed, one on another rank at the end of the block; both
        are logged with this step's own time.

        Args:
            samples_count: samples trained on so far, this step's included.
            iteration: number of this step, counted from 1.
            loss: number or one-element tensor; None on ranks that do not have it.
            learning_rate: the rate this step was taken with.
            skipped: the optimizer did not step (an overflow, say): the samples count, the step
                is no work done and its loss is not logged.
        """
        if self._phase is not Phase.BLOCK and not self._resume_block("step_stop"):
            return
        if self._timer is not None:
            self._timer.step_stop(skipped=skipped)
        if self._profile is not None:
            with self._termination.deferred():
                self._profile.step_stop()
        self._samples_count = samples_count
        self._num_steps += 1
        frequency = self._train_loss_frequency
        self._step = step = self._num_steps if iteration is None else iteration
        if frequency and step % frequency == 0 and not skipped:
            if self._logs:
                with self._termination.deferred():
                    metadata = {**self._where(), keys.STEP: step, keys.LR: learning_rate}
                    if learning_rate is None:
                        del metadata[keys.LR]
                    self._train_losses.add(loss, metadata, now_ms())
            else:
                self._train_losses.keep(loss)

    @allowed_in(Phase.BLOCK, Phase.BETWEEN)
    def eval_start(self, samples_count: int | None = None) -> None:
        """An evaluation begins: tracked_stats, block_stop, eval_start.

        Args:
            samples_count: samples trained on so far; as of the last step when not given.
        """
        if samples_count is not None:
            self._samples_count = samples_count
        self._end_block(now_ms(), collective=True)
        if self._profile is not None:
            self._profile.eval_start()
        self._begin(keys.EVAL_START, self._where())
        self._phase = Phase.EVALUATION

    @allowed_in(Phase.EVALUATION, otherwise=False)
    def eval_stop(self, loss: Any = None) -> bool:
        """The evaluation is done: eval_accuracy, eval_stop; at the target also the end of the run.

        A collective: all ranks agree on the loss of the lowest rank that has one, and so on the
        verdict. eval_accuracy and, at the target, run_stop carry the instant of the agreement.

        Args:
            loss: the evaluation loss: a number or one-element tensor; None on ranks that do not
                have it. None on all ranks (a time limit ended the evaluation) closes the
                evaluation without eval_accuracy.

        Returns:
            Whether the target is reached (loss ≤ MLLOG_TARGET_EVAL_LOSS, as the checker compares)
            and training must stop; the same on every rank.
        """
        [agreed] = self.group.agree([as_number(loss)])
        instant = now_ms()
        if agreed is not None:
            self._event(keys.EVAL_ACCURACY, agreed, self._where(), instant)
        self._close_evaluation(instant)
        # "not above" would let NaN pass
        reached = agreed is not None and agreed <= self.settings.mllog_target_eval_loss
        if reached:
            self._stop(keys.SUCCESS, instant)
        if self._profile is not None:
            self._profile.eval_stop()
        return reached

    def eval_cancel(self) -> None:
        """Close an evaluation that ended without a value, if there is one; not a collective."""
        if self._phase is Phase.EVALUATION:
            with self._termination.deferred():
                self._close_evaluation(now_ms())
                if self._profile is not None:
                    self._profile.eval_stop()

    def stop(self) -> None:
        """The training is over: epoch_stop and run_stop, "aborted" unless the target was reached.

        Does nothing when the run is over already, as it is after the deciding evaluation.
        """
        self._abort()

    def _abort(self) -> None:
        """End a run that is under way as aborted; every way out of the training comes here."""
        if os.getpid() != self._pid:
            return  # a forked child (a data loader's worker) is not the run
        with self._termination.deferred():
            if self._phase in {Phase.BLOCK, Phase.BETWEEN, Phase.EVALUATION}:
                now = now_ms()
                if self._phase is Phase.EVALUATION:
                    self._close_evaluation(now)
                self._end_block(now, collective=False)
                self._stop(keys.ABORTED, now)

    def _close_evaluation(self, instant: int) -> None:
        self._end(keys.EVAL_STOP, self._where(), instant)
        self._block_since_ms = instant
        self._phase = Phase.BETWEEN

    def _stop(self, status: str, instant: int) -> None:
        self._log_totals(instant)
        self._end(keys.EPOCH_STOP, self._where(), instant)
        self._end(keys.RUN_STOP, {**self._where(), keys.STATUS: status}, instant)
        self.status = status
        self._phase = Phase.STOPPED
        atexit.unregister(self._abort)
        if self._profile is not None:  # after the log: it may take long to write a trace
            self._profile.stop()
        self._termination.uninstall()

    def _resume_block(self, call: str) -> bool:
        """Open the block that began when the last evaluation ended; False if no block may begin.

        Only a training step opens it: no block follows the last evaluation of a run.
        """
        if self._phase is not Phase.BETWEEN:
            self._refuse(call, (Phase.BLOCK, Phase.BETWEEN))
            return False
        with self._termination.deferred():
            self._begin(keys.BLOCK_START, self._where(), self._block_since_ms)
            self._phase = Phase.BLOCK
        return True

    def _end_block(self, instant: int, *, collective: bool) -> None:
        if self._phase is not Phase.BLOCK:
            return
        self._train_losses.log_kept(collective=collective)
        throughput = self._timer.get_throughput() if self._timer is not None else None
        if throughput is not None:
            stats = {keys.THROUGHPUT: throughput}
            self._event(keys.TRACKED_STATS, stats, self._progress(), instant)
        self._end(keys.BLOCK_STOP, self._where(), instant)
        self._phase = Phase.BETWEEN

    def _log_totals(self, instant: int) -> None:
        if not self.settings.mllog_block_tput_log:
            return
        duration = (instant - self._run_since_ms) / 1000
        self._event(keys.RUN_DURATION, duration, self._progress(), instant)
        throughput = self._timer.get_overall_throughput() if self._timer is not None else None
        if throughput is not None:
            stats = {keys.OVERALL_THROUGHPUT: throughput}
            self._event(keys.TRACKED_STATS, stats, self._progress(), instant)

    def _log_train_loss(self, value: Any, metadata: dict[str, Any], time_ms: int) -> None:
        self._event(keys.TRAIN_LOSS, value, metadata, time_ms)

    def _where(self) -> dict[str, Any]:
        return {keys.SAMPLES_COUNT: self._samples_count}

    def _progress(self) -> dict[str, Any]:
        return {**self._where(), keys.STEP: self._step}

    def _event(self, key: str, value: Any, metadata: Any = None, time_ms: Any = None) -> None:
        try:
            self.logger.log_event(key, value, metadata, time_ms)
        except EncodingError as error:
            if self._strict or self._phase in {Phase.NEW, Phase.INIT}:
                raise
            notices.tell_once(f"encode {key}", f"not logged: {error}")

    def _begin(self, key: str, metadata: Any = None, time_ms: Any = None) -> None:
        self.logger.log_start(key, None, metadata, time_ms)

    def _end(self, key: str, metadata: Any = None, time_ms: Any = None) -> None:
        self.logger.log_end(key, None, metadata, time_ms)

    def _refuse(self, call: str, phases: tuple[Phase, ...]) -> None:
        wanted = " or ".join(phase.value for phase in phases)
        error = LifecycleError(call, self._phase.value, f"it is only right while it is {wanted}")
        if self._strict:
            raise error
        notices.tell_once(f"refused {call} {self._phase}", f"not logged: {error}")
