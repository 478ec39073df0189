"""Traces of chosen parts of a run, by ROCm's RPD tracer or by PyTorch's profiler.

Only what lies between run_start and run_stop is traced, so no warmup step is. A tracer that
cannot be used is said once, and the training goes on without a trace.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from primus_mllog import notices
from primus_mllog.errors import MissingDependencyError
from primus_mllog.sinks import rotated_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from primus_mllog.settings import Settings

__all__ = ["Profile", "start_profiler"]


class Tracer(Protocol):
    """What records a trace; ``start`` and ``stop`` take turns and may raise."""

    def start(self, what: str) -> None:
        """Record from now on; ``what`` names the segment."""

    def stop(self) -> None:
        """Record no more."""

    def close(self) -> None:
        """The run is over: there will be no other start."""


def start_profiler(settings: Settings, rank: int) -> Profile | None:
    """The trace of this rank, or None where there is to be none.

    Before the clock starts, so that no tracer is loaded on it.

    Args:
        settings: PROFILER, PROFILE_SEGMENT, PROF_WARMUP_STEPS, PROF_ACTIVE_STEPS, PROFILE_RANKS,
            PROFILE_OUTPUT_DIR, ENABLE_PYTHON_TRACE.
        rank: this process's.
    """
    ranks = settings.profile_ranks
    if not settings.profiler or (ranks != "all" and str(rank) not in ranks.split(",")):
        return None
    folder = Path(settings.profile_output_dir or Path(settings.mllog_output_file).parent)
    tracers: dict[str, Callable[..., Tracer]] = {"rpd": RPDTracer, "torch": TorchTracer}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tracer = tracers[settings.profiler](
            folder / f"trace_rank{rank}", python_calls=settings.enable_python_trace
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not cost the run
        _tell(settings.profiler, error)
        return None
    return Profile(
        tracer,
        settings.profiler,
        settings.profile_segment,
        settings.prof_warmup_steps,
        settings.prof_active_steps,
    )


class Profile:
    """Starts and stops a tracer at the ends of the chosen segment, within the chosen window.

    No method raises: a tracer that does is given up.

    Args:
        tracer: records.
        name: PROFILER, for what is said.
        segment: ``"train"`` (a block's steps and what lies between them), ``"train_step"`` (the
            steps only) or ``"eval"``.
        num_warmup: training steps before the first that is traced.
        num_active: steps that are traced, or evaluations with ``"eval"``; 0: all.
    """

    def __init__(
        self, tracer: Tracer, name: str, segment: str, num_warmup: int, num_active: int
    ) -> None:
        self._tracer: Tracer | None = tracer
        self._name = name
        self._segment = segment
        self._num_warmup = num_warmup
        self._num_left = num_active or sys.maxsize
        self._num_steps = 0
        self._is_running = False

    def step_start(self) -> None:
        """A training step begins."""
        if self._segment != "eval":
            self._begin("step", self._num_steps + 1)

    def step_stop(self) -> None:
        """A training step is done."""
        self._num_steps += 1
        if self._segment != "eval" and self._is_running:
            self._num_left -= 1
            if self._segment == "train_step" or not self._num_left:
                self._end()

    def eval_start(self) -> None:
        """A block is done and an evaluation begins."""
        self._end()
        if self._segment == "eval":
            self._begin("eval_after_step", self._num_steps)

    def eval_stop(self) -> None:
        """An evaluation is done."""
        if self._is_running:
            self._num_left -= 1
            self._end()

    def stop(self) -> None:
        """The run is over, in whatever way."""
        self._end()
        self._call(lambda tracer: tracer.close())
        self._tracer = None

    def _begin(self, what: str, number: int) -> None:
        if self._is_running or not self._num_left or self._num_steps < self._num_warmup:
            return
        self._is_running = self._call(lambda tracer: tracer.start(f"{what}{number}"))

    def _end(self) -> None:
        if self._is_running:
            self._is_running = False
            self._call(lambda tracer: tracer.stop())

    def _call(self, act: Callable[[Tracer], None]) -> bool:
        """Whether there is a tracer and it did so."""
        if self._tracer is None:
            return False
        try:
            act(self._tracer)
        except Exception as error:  # noqa: BLE001 - see the class
            self._tracer = None
            _tell(self._name, error)
            return False
        return True


class RPDTracer:
    """ROCm's tracer (``rpdTracerControl``): one SQLite file.

    It is one for the process. Where another user has it, or this process is the child of one that
    has, it refuses, and where its library is missing it fails when it is started.

    Args:
        path: the trace, without its suffix.
        python_calls: whether Python calls are traced too.
    """

    def __init__(self, path: Path, *, python_calls: bool) -> None:
        try:
            control = importlib.import_module("rpdTracerControl").rpdTracerControl
        except ImportError as error:
            raise MissingDependencyError(
                str(error.name), "PROFILER=rpd", "https://github.com/ROCm/rocmProfileData"
            ) from error
        control.setFilename(_free(f"{path}.rpd"), append=False)
        self._control = control()
        self._python_calls = python_calls
        self._python_hook: Any = None

    def start(self, _what: str) -> None:
        """Record from now on."""
        self._control.start()
        if not self._python_calls:
            return
        if sys.getprofile() is not None:
            reason = "another tool has sys.setprofile; Python calls are not traced"
            notices.tell_once("python trace", f"ENABLE_PYTHON_TRACE: {reason}")
            return
        self._control.setPythonTrace(True)
        self._python_hook = sys.getprofile()

    def stop(self) -> None:
        """Record no more."""
        hook, self._python_hook = self._python_hook, None
        if hook is not None and sys.getprofile() == hook:  # it would take away another's, too
            self._control.setPythonTrace(False)
        self._control.stop()

    def close(self) -> None:
        """Write out what is in memory: a process that a signal ends does not do so by itself."""
        if hasattr(self._control, "flush"):  # not in older releases
            self._control.flush()


class TorchTracer:
    """PyTorch's profiler: a Chrome trace (chrome://tracing, Perfetto) for each start and stop.

    Args:
        path: the traces, without what is traced and their suffix.
        python_calls: whether Python calls are traced too.
    """

    def __init__(self, path: Path, *, python_calls: bool) -> None:
        self._torch = importlib.import_module("torch")
        self._path = path
        self._python_calls = python_calls
        self._profile: Any = None
        self._what = ""
        if not self._is_recording():  # the first start loads libraries, for a second, say
            with self._torch.profiler.profile():
                pass

    def start(self, what: str) -> None:
        """Record from now on."""
        if self._is_recording():  # a second session crashes the process when both have ended
            raise RuntimeError("another user of PyTorch's profiler is recording")
        self._what = what
        self._profile = self._torch.profiler.profile(with_stack=self._python_calls)
        self._profile.start()

    def stop(self) -> None:
        """Record no more, and write the trace."""
        if not self._is_recording():  # writing a trace would crash the process
            raise RuntimeError("another user of PyTorch's profiler has ended the recording")
        profile, self._profile = self._profile, None
        profile.stop()
        profile.export_chrome_trace(_free(f"{self._path}_{self._what}.json"))

    def close(self) -> None:
        """Every trace was written when it was stopped."""

    def _is_recording(self) -> bool:
        return bool(self._torch.autograd._profiler_enabled())  # noqa: SLF001 - there is no other


def _free(path: str) -> str:
    """``path``; an earlier trace there is renamed to ``path.1``, ``path.2`` and so on."""
    if Path(path).exists():
        os.replace(path, rotated_name(path))  # noqa: PTH105 - the reserved name is replaced
    return path


def _tell(profiler: str, error: Exception) -> None:
    if not isinstance(error, MissingDependencyError):
        error = RuntimeError(f"PROFILER={profiler} cannot be used: {error!r}.")
    notices.tell_once("profiler", f"{error} The training goes on without a trace.")
