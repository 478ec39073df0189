"""The real Megatron-Bridge loop on a CPU under gloo: what it wants beside :mod:`cpu_megatron`."""

from __future__ import annotations

import builtins
import functools
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import cpu_megatron
import torch

# These import Transformer Engine whether it is there or not; nothing of it is used.
_WANT_ENGINE = ("megatron.bridge.peft.", "megatron.bridge.models.gpt_full_te")


def install() -> None:
    """Before the first import of megatron."""
    cpu_megatron.install()
    cuda: Any = torch.cuda
    for name in ("manual_seed_all", "set_stream", "reset_peak_memory_stats"):
        setattr(cuda, name, lambda *_, **__: None)
    cuda.nvtx.range_push = cuda.nvtx.range_pop = lambda *_, **__: None
    for name in ("Float", "Int", "Long", "Double", "Byte", "Half", "BFloat16"):
        setattr(cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))
    torch.nn.Module.cuda = lambda module, *_, **__: module  # type: ignore[assignment,method-assign]
    barrier = torch.distributed.barrier
    torch.distributed.barrier = lambda group=None, async_op=False, **_: barrier(group, async_op)
    _give_engine_to(_WANT_ENGINE)
    if is_newest():
        # Megatron's main wants a newer release than there is
        sys.modules["nvidia_resiliency_ext.checkpointing"] = None  # type: ignore[assignment]


def install_late() -> None:
    """When megatron.bridge can be imported."""
    cpu_megatron.install_late()
    import megatron.bridge.peft.utils as peft
    from megatron.bridge.training import initialize, setup

    initialize.compile_helpers = lambda: None
    setup.initialize_megatron = functools.partial(setup.initialize_megatron, allow_no_cuda=True)
    peft.HAVE_TE = False  # taken in by megatron.core's mock of it


def is_newest() -> bool:
    """Whether it is a Bridge of 2026-02 or newer, by what it has."""
    spec = importlib.util.find_spec("megatron")
    assert spec is not None
    folders = spec.submodule_search_locations or []
    return any((Path(folder) / "bridge/data/base.py").exists() for folder in folders)


def _give_engine_to(prefixes: tuple[str, ...]) -> None:
    engine = _Stub("transformer_engine")
    engine.pytorch = _Stub("transformer_engine.pytorch")
    engine.pytorch.ops = _Stub("transformer_engine.pytorch.ops")
    really_import = builtins.__import__

    def import_(
        name: str, scope: Any = None, local: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        importer = str((scope or {}).get("__name__"))
        if name == "transformer_engine.pytorch" and importer.startswith(prefixes):
            return engine.pytorch if fromlist else engine
        return really_import(name, scope, local, fromlist, level)

    builtins.__import__ = import_


class _Stub(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (torch.nn.Module,), {})
        setattr(self, name, made)
        return made
