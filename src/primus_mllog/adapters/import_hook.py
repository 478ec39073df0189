"""Acting on a module as soon as it is imported, without importing it earlier than its user does."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["when_imported"]


@contextlib.contextmanager
def when_imported(name: str, act: Callable[[ModuleType], None]) -> Iterator[None]:
    """Call ``act`` with the module ``name``: now if it is imported, else when it is in the block.

    Args:
        name: the module's full name.
        act: what to do with it, after its own code has run.
    """
    if name in sys.modules:
        act(sys.modules[name])
        yield
        return
    finder = _Finder(name, act)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # it has left by itself
            sys.meta_path.remove(finder)


class _Finder:
    """Finds one module, once, by asking the other finders, and acts on it after its import."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: Any = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            exec_module = spec.loader.exec_module

            def exec_and_act(module: ModuleType) -> None:
                exec_module(module)
                self._act(module)

            spec.loader.exec_module = exec_and_act  # type: ignore[method-assign]
        return spec
