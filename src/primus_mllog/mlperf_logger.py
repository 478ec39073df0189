"""``MLPerfLogger``: MLCommons' mllog for a training of many ranks."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from mlperf_logging.mllog import constants
from mlperf_logging.mllog.mllog import MLLogger

from primus_mllog import keys
from primus_mllog.distributed import ProcessGroup, WorldGroup
from primus_mllog.encoding import json_value, non_finite_name
from primus_mllog.settings import PretrainSettings, Settings
from primus_mllog.sinks import EventSink, LogFile
from primus_mllog.throughput import ThroughputTimer

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MLPerfLogger", "ThroughputTimer", "now_ms"]

# Lines up to this many bytes stay whole on a pipe that many ranks share (PIPE_BUF is 4096).
MAX_LINE_BYTES: Final = 4095
# Room for what mllog writes around value and metadata: namespace, time, type, key, file, line.
_FRAME_BYTES: Final = 600
# Metadata longer than this many characters gives way first where a line is too long.
_LONG: Final = 100
# The checkers compare eval_accuracy as a number, so a loss that is none must be one: the largest
# finite float is above every target.
_NOT_A_LOSS: Final = sys.float_info.max
# Our own frames are not "the caller"; the demo and the testing tools are callers like a user's.
_CALLERS_OF_OURS: Final = ("primus_mllog.demo", "primus_mllog.testing")


def now_ms() -> int:
    """Milliseconds since the Unix epoch: the ``time_ms`` of an event that happens now."""
    return time.time_ns() // 1_000_000


class MLPerfLogger:
    """Writes ``:::MLLOG`` events from rank 0, to a file and to stdout, through MLCommons' mllog.

    On every other rank the ``log_*`` methods return at once; only :meth:`log_event_all_ranks`
    writes there, to stdout. An event logged before :meth:`configure` is kept and becomes the
    file's first line.

    Numbers, strings, booleans, None, arrays, tensors, paths, bytes, enums, dataclasses and
    containers of these are accepted as values. A number that is NaN or infinite is written as
    null with ``metadata.non_finite`` naming it, because ``NaN`` is not JSON; as the value of
    eval_accuracy it is written as the largest float instead, because the official checker
    compares it and crashes on anything that is not a number. Neither counts as converged.

    Args:
        settings: the environment; read from it when not given.
        group: the ranks of the run.
        stdout: whether events go to stdout as well as to the file.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        group: ProcessGroup | None = None,
        stdout: bool = True,
    ) -> None:
        self.settings = settings or PretrainSettings.from_environment()
        self.group = group or WorldGroup()
        self._sink = EventSink(stdout=stdout)
        mllogger = MLLogger(logger=self._sink)
        self._write = {
            constants.POINT_IN_TIME: mllogger.event,
            constants.INTERVAL_START: mllogger.start,
            constants.INTERVAL_END: mllogger.end,
        }

    @property
    def log_file(self) -> str | None:
        """Path of the open log; None on ranks other than 0 or before :meth:`open`."""
        return self._sink.path

    def open(self, filepath: str | None = None) -> None:
        """Open the log on rank 0: events go there from now on, instead of to an earlier file.

        Args:
            filepath: the file; MLLOG_OUTPUT_FILE when not given. With MLLOG_SAVE_TO_FILE=0 no
                file is opened.

        Raises:
            OutputError: the file cannot be written, or holds a run and may not be touched.
        """
        if self.group.rank != 0 or not self.settings.mllog_save_to_file:
            self._sink.attach(None)
            return
        path = filepath or self.settings.mllog_output_file
        if path != self.log_file:  # opening the same log again must not rotate it away
            self._sink.attach(LogFile(path, self.settings.mllog_existing_file))

    def configure(self, filepath: str | None = None, args: Any = None) -> dict[str, Any]:
        """Open the log and read the run's hyperparameters from the framework's arguments.

        Args:
            filepath: as for :meth:`open`.
            args: Megatron's ``args`` namespace or a mapping of the same names.

        Returns:
            MLPerf keys and values in the order in which the rules want them logged; see
            :func:`primus_mllog.hyperparameters.extract_hyperparameters`.

        Raises:
            OutputError: as for :meth:`open`.
        """
        from primus_mllog.hyperparameters import extract_hyperparameters

        self.open(filepath)
        return extract_hyperparameters(
            {} if args is None else args, self.settings, world_size=self.group.world_size
        )

    def log_event(
        self,
        key: str,
        value: Any = None,
        metadata: Mapping[str, Any] | None = None,
        time_ms: float | None = None,
    ) -> None:
        """Log a point in time, on rank 0.

        Args:
            key: the MLPerf key, for instance ``"seed"``.
            value: the event's value.
            metadata: what else is known of the event, for instance ``samples_count``.
            time_ms: when it happened, in milliseconds since the epoch; now when not given.

        Raises:
            EncodingError: the value or the metadata has no JSON form.
        """
        if self.group.rank == 0:
            self._emit(constants.POINT_IN_TIME, key, value, metadata, time_ms)

    def log_start(
        self,
        key: str,
        value: Any = None,
        metadata: Mapping[str, Any] | None = None,
        time_ms: float | None = None,
    ) -> None:
        """Log the start of an interval, on rank 0; arguments as for :meth:`log_event`."""
        if self.group.rank == 0:
            self._emit(constants.INTERVAL_START, key, value, metadata, time_ms)

    def log_end(
        self,
        key: str,
        value: Any = None,
        metadata: Mapping[str, Any] | None = None,
        time_ms: float | None = None,
    ) -> None:
        """Log the end of an interval, on rank 0; arguments as for :meth:`log_event`.

        The line is on the disk, not only in the file, when this returns.
        """
        if self.group.rank == 0:
            self._emit(constants.INTERVAL_END, key, value, metadata, time_ms)
            self._sink.sync()

    def log_event_all_ranks(
        self,
        key: str,
        value: Any = None,
        metadata: Mapping[str, Any] | None = None,
        time_ms: float | None = None,
    ) -> None:
        """Log on every rank: rank 0 as always, the others to stdout only.

        Meant for cache_clear and init_start. A marker is logged as what it is (init_start opens
        an interval); arguments as for :meth:`log_event`.
        """
        self._emit(keys.event_type(key), key, value, metadata, time_ms)

    def close(self) -> None:
        """Close the log file; later events go to stdout only."""
        self._sink.attach(None)

    def _emit(
        self,
        event_type: str,
        key: str,
        value: Any,
        metadata: Mapping[str, Any] | None,
        time_ms: float | None,
    ) -> None:
        when = now_ms() if time_ms is None else int(time_ms)
        extra = dict(metadata) if metadata else {}
        if (unusable := non_finite_name(value)) is not None:
            extra["non_finite"] = unusable
            value = _NOT_A_LOSS if key == keys.EVAL_ACCURACY else None
        value, extra = _short_enough(key, json_value(key, value), json_value(key, extra))
        # An offset of 1 is this line for mllog; the caller is that many frames further up.
        write = self._write[event_type]
        write(key, value, metadata=extra, time_ms=when, stack_offset=1 + _num_frames_of_ours())


def _num_frames_of_ours() -> int:
    """How many frames the first frame outside this package is above ``MLPerfLogger._emit``.

    Never more than there are: an offset that is too deep raises inside mllog.
    """
    frame = sys._getframe(1)  # noqa: SLF001 - the only way to walk frames without copying them
    depth = 0
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
        depth += 1
    return depth


def _is_ours(module: str) -> bool:
    if module == "contextlib":  # between a ``with`` of ours and its caller
        return True
    return module.startswith("primus_mllog.") and not module.startswith(_CALLERS_OF_OURS)


def _short_enough(key: str, value: Any, metadata: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Value and metadata, cut where the line would not stay whole on a shared pipe."""
    if not any(isinstance(v, (str, list, dict)) for v in (value, *metadata.values())):
        return value, metadata
    room = MAX_LINE_BYTES - _FRAME_BYTES - len(key)
    text = json.dumps(value)
    if len(text) + len(json.dumps(metadata)) <= room:
        return value, metadata
    kept = {k: v for k, v in metadata.items() if len(json.dumps(v)) <= _LONG}
    if len(text) > room // 2:
        value = text[: room // 4] + "…"  # encoding doubles quotes and backslashes at most
    return value, {**kept, "truncated": True}
