"""The losses of training steps, on their way to the log without holding up a step.

A loss on the host is logged at once. One on an accelerator is logged when the device has computed
it, which is looked up and never waited for, and at latest at the end of the block. One that only
another rank has (the last pipeline stage) is asked for at the end of the block. Each is logged
with the samples and the time of its own step.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any, Final

from primus_mllog import notices

if TYPE_CHECKING:
    from collections.abc import Callable

    from primus_mllog.distributed import ProcessGroup

__all__ = ["TrainLosses", "as_number"]

# A kept loss holds memory of the device. All ranks keep equally many, so all come to this at the
# same step, and none waits for a rank that does not come.
MOST_KEPT: Final = 1024


@dataclasses.dataclass
class _Step:
    """A step whose loss is kept, on the rank that logs."""

    metadata: dict[str, Any]
    time_ms: int
    is_computed: Callable[[], bool] | None
    """Whether reading the loss would not wait; None where that is not known."""


class TrainLosses:
    """The losses of one block.

    Args:
        log: logs one loss: value, metadata, time in milliseconds since the epoch.
        group: the ranks of the run.
    """

    def __init__(
        self, log: Callable[[Any, dict[str, Any], int], None], group: ProcessGroup
    ) -> None:
        self._log = log
        self._group = group
        self._kept: list[Any] = []  # equally many on every rank
        self._steps: list[_Step] = []  # one for each on the rank that logs; none on others
        self._num_logged = 0  # of these, from the first on

    def keep(self, loss: Any) -> None:
        """A step's loss, on a rank that does not log; None where this rank does not have it."""
        self._kept.append(loss)
        self._log_if_many()

    def add(self, loss: Any, metadata: dict[str, Any], time_ms: int) -> None:
        """The same on the rank that logs: logged at once if it can be."""
        self._steps.append(_Step(metadata, time_ms, _computed(loss)))
        self._kept.append(loss)
        self._log_computed()
        self._log_if_many()

    def log_kept(self, *, collective: bool) -> None:
        """Log all that is kept.

        Args:
            collective: whether the other ranks are here too, so that a loss which only they have
                can be asked for. On an abort they are not.
        """
        kept, self._kept = self._kept, []
        steps, self._steps = self._steps, []
        num_logged, self._num_logged = self._num_logged, 0
        if not kept or (self._group.world_size == 1 and num_logged == len(kept)):
            return
        values = [as_number(loss) for loss in kept]
        if collective:
            values = self._group.agree(values)
        for value, step in list(zip(values, steps, strict=False))[num_logged:]:
            if value is not None:
                self._log(value, step.metadata, step.time_ms)

    def _log_computed(self) -> None:
        """Log what can be read without waiting, in the order of the steps."""
        while self._num_logged < len(self._steps):
            step = self._steps[self._num_logged]
            if step.is_computed is None or not step.is_computed():
                return
            self._log(self._kept[self._num_logged], step.metadata, step.time_ms)
            self._num_logged += 1

    def _log_if_many(self) -> None:
        if len(self._kept) == MOST_KEPT:
            self.log_kept(collective=True)


def as_number(loss: Any) -> float | None:
    """``loss`` as a float; None where there is none, or nothing that is one number."""
    try:
        return None if loss is None else float(loss)
    except (TypeError, ValueError, RuntimeError) as error:
        notices.tell_once("loss", f"a loss of type {type(loss).__name__} is not used: {error}")
        return None


def _computed(loss: Any) -> Callable[[], bool] | None:
    """How to see whether ``loss`` is computed, without waiting for it."""
    if loss is None:
        return None
    device = getattr(getattr(loss, "device", None), "type", "cpu")
    if device == "cpu":
        return lambda: True
    torch = sys.modules.get("torch")
    if device != "cuda" or torch is None:
        return None
    try:
        computed = torch.cuda.Event()
        computed.record()
    except RuntimeError:  # a build without an accelerator: it is read at the end of the block
        return None
    return computed.query  # type: ignore[no-any-return]
