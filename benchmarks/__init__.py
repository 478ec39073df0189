"""What the package costs, each figure beside its peer's: ``make bench``, ``python -m benchmarks``.

A module of this folder without a leading underscore is one section of the table. It says what it
measures in its docstring's first line and has ``rows()``, which yields :class:`Row` objects as it
measures them.
"""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Row", "side_by_side"]

NUM_TURNS = 31


@dataclasses.dataclass(frozen=True)
class Row:
    """One figure and its peer's."""

    what: str
    """What is measured, short."""
    unit: str
    """Of ``ours`` and ``peers``: µs, ms, s, MB."""
    ours: float
    """Of the fastest turn: what slowed the others down was something else."""
    peer: str = ""
    """What it stands beside, short; empty where there is no peer."""
    peers: float | None = None
    """The peer's, likewise."""
    ratio: float | None = None
    """Ours over the peer's: the median of the turns' own ratios, because the two sides of a turn
    were measured under the same load."""
    goal: str = ""
    """What was promised, to be read beside ``is_met``; empty where nothing was."""
    is_met: bool | None = None
    """Whether it is so."""


def side_by_side(
    ours: Callable[[], float], peers: Callable[[], float], num_turns: int = NUM_TURNS
) -> tuple[float, float, float]:
    """Measure in turns, each side first in every other turn.

    Args:
        ours: does one turn of the work and returns what it took, in the row's unit for one
            operation. Enough operations for a millisecond or more.
        peers: the same for the peer.
        num_turns: turns of each.

    Returns:
        Ours and the peer's of the fastest turn of each, and the median of the turns' ratios.
    """
    pairs = []
    for turn in range(num_turns):
        if turn % 2:
            theirs, mine = peers(), ours()
        else:
            mine, theirs = ours(), peers()
        pairs.append((mine, theirs))
    mine, theirs = (min(side) for side in zip(*pairs, strict=True))
    return mine, theirs, statistics.median(a / b for a, b in pairs)
