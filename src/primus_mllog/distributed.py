"""Rank, world size, and the few things all ranks must do together.

Works without torch and without a process group: then rank and world size come from the launcher's
environment, a barrier is nothing to wait for and an agreement is one's own value. As soon as
``torch.distributed`` is initialised, it is asked instead; torch is never imported here, only used
when the training has imported it.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Protocol

from primus_mllog import settings

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ProcessGroup", "WorldGroup"]

# What launchers call the rank and the world size: torchrun, Open MPI, Slurm.
_RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_WORLD_SIZE_NAMES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")

Values = list[float | None]


class ProcessGroup(Protocol):
    """All the ranks of a run, as the lifecycle needs them."""

    @property
    def rank(self) -> int:
        """This process's rank, 0 to ``world_size - 1``."""

    @property
    def world_size(self) -> int:
        """Number of processes."""

    def barrier(self) -> None:
        """Return when every rank has come here."""

    def agree(self, values: Sequence[float | None]) -> Values:
        """The same values on every rank; see :meth:`WorldGroup.agree`."""


class WorldGroup:
    """The ranks of ``torch.distributed``'s default group, or of the launcher before it exists."""

    def __init__(self) -> None:
        self._rank: int | None = None
        self._launched_rank: int | None = None

    @property
    def rank(self) -> int:
        """This process's rank, 0 to ``world_size - 1``."""
        if self._rank is not None:  # asked for at every event, also where none is written
            return self._rank
        dist = _torch_distributed()
        if dist is not None:
            self._rank = int(dist.get_rank())
            return self._rank
        if self._launched_rank is None:  # the launcher's word does not change
            self._launched_rank = settings.launcher_value(*_RANK_NAMES) or 0
        return self._launched_rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        dist = _torch_distributed()
        if dist is not None:
            return int(dist.get_world_size())
        return settings.launcher_value(*_WORLD_SIZE_NAMES) or 1

    def barrier(self) -> None:
        """Return when every rank has come here; at once without a process group."""
        dist = _torch_distributed()
        if dist is not None:
            dist.barrier()

    def agree(self, values: Sequence[float | None]) -> Values:
        """Give every rank the values of the lowest rank that has any.

        Two small collectives, so every rank must call it at the same point with equally many
        values: the lowest rank with a value is found (minimum of rank numbers), then its values
        are broadcast. Bits are kept, NaN included: that is why this is not a reduction of the
        values themselves.

        Args:
            values: numbers, or None where this rank has none (for instance the loss on every
                pipeline stage but the last).

        Returns:
            The agreed numbers (float64), None where the chosen rank had none either.
        """
        dist = _torch_distributed()
        if dist is None or dist.get_world_size() == 1:
            return list(values)
        torch = sys.modules["torch"]
        device = _collective_device(dist, torch)
        nobody = dist.get_world_size()
        mine = nobody if all(v is None for v in values) else dist.get_rank()
        owner = torch.tensor([mine], dtype=torch.int64, device=device)
        dist.all_reduce(owner, op=dist.ReduceOp.MIN)
        source = int(owner.item())
        if source == nobody:
            return [None] * len(values)
        present = [float(v is not None) for v in values]
        numbers = [math.nan if v is None else v for v in values]
        agreed = torch.tensor([present, numbers], dtype=torch.float64, device=device)
        dist.broadcast(agreed, src=source)
        present, numbers = agreed.tolist()
        return [number if there else None for there, number in zip(present, numbers, strict=True)]


def _torch_distributed() -> Any:
    """``torch.distributed`` if the training has brought it up, else None."""
    dist = sys.modules.get("torch.distributed")
    # absent in a build without it, and while it is being imported
    is_initialized = getattr(dist, "is_initialized", None)
    return dist if is_initialized is not None and is_initialized() else None


def _collective_device(dist: Any, torch: Any) -> Any:
    """The CPU where the backend can reduce there (gloo, mpi), else this rank's accelerator."""
    backend = str(dist.get_backend())
    if "gloo" in backend or "mpi" in backend:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
