"""Acting on the signals that end a job, without losing the end of its log."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["TerminationHandler"]

# What each signal does where nobody has said otherwise.
_DEFAULTS: Final[dict[signal.Signals, Any]] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}


class TerminationHandler:
    """Calls ``on_termination`` before SIGTERM or SIGHUP ends the process.

    Only where the signal would end it: a handler that the framework installed (Megatron's
    ``--exit-signal-handler`` finishes the step and saves a checkpoint) keeps its say, and an
    ignored signal stays ignored. The process then ends by the same signal, so that whoever sent
    it sees the status it expects. SIGINT raises KeyboardInterrupt, as always, but not between an
    event and what it means for the run (:meth:`deferred`).
    """

    def __init__(self, on_termination: Callable[[], None]) -> None:
        self._on_termination = on_termination
        self._installed: list[signal.Signals] = []
        self._depth = 0
        self._pending: int | None = None
        self._pid = os.getpid()

    def install(self) -> None:
        """Take over the signals whose action is still the default. Main thread only, else no-op."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, default in _DEFAULTS.items():
            if signal.getsignal(number) is default:
                signal.signal(number, self._handle)
                self._installed.append(number)

    def uninstall(self) -> None:
        """Give the signals back, unless somebody else has taken them since."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._installed:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, _DEFAULTS[number])
        self._installed.clear()

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Put off a signal that arrives in the block until its end. Blocks may nest."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._pending is not None and self._depth == 0:
                number, self._pending = self._pending, None
                self._terminate(number)

    def _handle(self, number: int, _frame: Any) -> None:
        if self._depth and os.getpid() == self._pid:
            self._pending = number
        else:
            self._terminate(number)

    def _terminate(self, number: int) -> None:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        try:
            if os.getpid() == self._pid:
                self._on_termination()
        finally:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
