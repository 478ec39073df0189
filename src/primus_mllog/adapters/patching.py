"""Wrapping the functions of somebody else's loop, and taking the wrappers off again."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

__all__ = ["argument", "call_by_name", "local_of_a_caller", "replaced", "wrapped"]


@contextlib.contextmanager
def wrapped(owner: Any, name: str, wrap: Callable[[Any], Callable[..., Any]]) -> Iterator[None]:
    """Replace the owner's function by ``wrap(function)`` in the block; nothing where it has none.

    Afterwards the function is put back, unless somebody has put another in the wrapper's place.
    """
    original = getattr(owner, name, None)
    if original is None:
        yield
        return
    attribute = vars(owner).get(name)
    wrapper = functools.wraps(original)(wrap(original))
    setattr(owner, name, wrapper)
    try:
        yield
    finally:
        if vars(owner).get(name) is not wrapper:
            pass
        elif attribute is None:  # an instance whose class has the method
            delattr(owner, name)
        else:
            setattr(owner, name, attribute)


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute in the block."""
    original = getattr(owner, name, None)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def argument(function: Any, name: str) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Any]:
    """A reader of one argument of a call, found by name in the signature; None where absent."""
    names = list(inspect.signature(function).parameters)
    index = names.index(name) if name in names else len(names)

    def read(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return args[index] if index < len(args) else kwargs.get(name)

    return read


def call_by_name(function: Any, known: Mapping[str, Any]) -> Any:
    """Call a function of a loop with those of its arguments that are known, by name."""
    parameters = inspect.signature(function).parameters
    return function(**{name: known[name] for name in parameters if name in known})


def local_of_a_caller(name: str) -> Any:
    """What the nearest caller calls ``name``; None where none does.

    For what a loop hands to nothing that could be wrapped before it is needed: Megatron opens its
    data from inside ``pretrain()``, whose argument the forward step is.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the only way
    while frame is not None:
        if name in frame.f_locals:
            return frame.f_locals[name]
        frame = frame.f_back
    return None
