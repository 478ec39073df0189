"""The same samples in every evaluation, from a data iterator that goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Replay"]


class Replay:
    """Keeps what an iterator gave, and gives it again after :meth:`restart`.

    MLPerf evaluates on one set, from its start, every time; loops that draw from one endless
    iterator see other samples in each evaluation. What is kept is one evaluation's batches.

    Args:
        iterator: of the evaluation's data.
    """

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self._kept: list[Any] = []
        self._next = 0

    def restart(self) -> None:
        """An evaluation begins."""
        self._next = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._next == len(self._kept):
            self._kept.append(next(self._iterator))
        self._next += 1
        return self._kept[self._next - 1]
