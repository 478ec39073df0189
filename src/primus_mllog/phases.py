"""Where a run is, and what may be called there."""

from __future__ import annotations

import enum
import functools
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from primus_mllog.run import MLPerfRun

__all__ = ["Phase", "allowed_in"]


class Phase(enum.Enum):
    """Where a run is; the value reads after "while the run is"."""

    NEW = "not begun"
    INIT = "initialising"
    BLOCK = "in a training block"
    BETWEEN = "between two blocks"
    EVALUATION = "in an evaluation"
    STOPPED = "over"


Method = TypeVar("Method", bound="Callable[..., Any]")


def allowed_in(*phases: Phase, otherwise: Any = None) -> Callable[[Method], Method]:
    """Run the method in these phases only.

    In any other phase, a strict run raises :class:`LifecycleError`; otherwise the call is refused
    with one notice and returns ``otherwise``: no wrong line is written and the training goes on.
    Signals that arrive during the method are acted on after it, when log and phase agree again.
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def guarded(self: MLPerfRun, *args: Any, **kwargs: Any) -> Any:
            if self._phase not in phases:
                self._refuse(method.__name__, phases)
                return otherwise
            with self._termination.deferred():
                return method(self, *args, **kwargs)

        return cast("Method", guarded)

    return decorate
