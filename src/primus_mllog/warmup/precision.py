"""FP8 and FP4 state of Transformer Engine, and the recipes of the warmup steps.

Transformer Engine keeps a delayed-scaling state (``amax_history``, ``scale``, in older releases
``scale_inv``) for each module in ``fp8_meta["scaling_fwd" | "scaling_bwd"]``, quantised copies of
weights in ``_fp8_workspaces``, and what modules share in a global manager. Names and places have
changed between releases, so they are looked up, not assumed. Other recipes (current scaling, block
scaling) keep no history, and have nothing to reset but cached weights.

The warmup itself needs none of the functions that reset: the snapshot restores modules and manager
to what they were. They are for loops that run steps of their own before the timed run.

Imports torch at the top: this module is imported only once a training begins.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

import torch

from primus_mllog.errors import ConfigurationError, MissingDependencyError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from primus_mllog.settings import Settings

__all__ = [
    "global_state",
    "reset_fp4_state",
    "reset_fp8_state",
    "seed_fp8_amax",
    "warmup_autocast",
]

_ENGINE: Final = "transformer_engine.pytorch"
# Where releases keep the global manager, the newest first.
_MANAGERS: Final = (f"{_ENGINE}.quantization", f"{_ENGINE}.fp8")
_DIRECTIONS: Final = ("scaling_fwd", "scaling_bwd")
# Recipe class and FP8 format by the value of WARMUP_RECIPE.
_RECIPES: Final = {
    "fp8_hybrid": ("DelayedScaling", "HYBRID"),
    "fp8_e4m3": ("DelayedScaling", "E4M3"),
    "fp4_mxfp4": ("MXFP4BlockScaling", None),
    "fp4_nvfp4": ("NVFP4BlockScaling", None),
}


def reset_fp8_state(model: Iterable[torch.nn.Module]) -> None:
    """Forget the amax history and scales of delayed scaling: zeros and ones, as on the first step.

    In every module that has such state, and in the global manager's buffers. Modules with other
    recipes are left alone.

    Args:
        model: the model's chunks.
    """
    with torch.no_grad():
        for state in _delayed_scaling_states(model):
            state.amax_history.zero_()
            for name in ("scale", "scale_inv"):
                if isinstance(getattr(state, name, None), torch.Tensor):
                    getattr(state, name).fill_(1.0)
        for name, buffers in _global_buffers():
            for tensor in buffers:
                tensor.fill_(1.0) if "scale" in name else tensor.zero_()


def seed_fp8_amax(model: Iterable[torch.nn.Module], value: float = 1.0) -> None:
    """Fill the amax history of delayed scaling: older releases divide by an amax of zero.

    ``scale = fp8_max / amax`` is infinite for 0 there, and the next cast gives NaN.

    Args:
        model: the model's chunks.
        value: the amax to begin with.
    """
    with torch.no_grad():
        for state in _delayed_scaling_states(model):
            state.amax_history.fill_(value)
        for name, buffers in _global_buffers():
            for tensor in buffers:
                if "amax" in name:
                    tensor.fill_(value)


def reset_fp4_state(model: Iterable[torch.nn.Module]) -> None:
    """Drop cached quantised weights, which block-scaled FP4 and FP8 recipes keep between steps.

    They are quantised anew from the weights at the next forward pass.

    Args:
        model: the model's chunks.
    """
    for module in _modules(model):
        for name in ("_fp8_workspaces", "_fp4_workspaces"):
            workspaces = getattr(module, name, None)
            if isinstance(workspaces, dict):
                workspaces.clear()


def global_state() -> list[Any]:
    """Transformer Engine's global manager, and the object it keeps its state in, if it has one."""
    for name in _MANAGERS:
        manager = getattr(sys.modules.get(name), "FP8GlobalStateManager", None)
        if manager is not None:
            inner = getattr(manager, "quantization_state", None)
            return [manager] if inner is None else [manager, inner]
    return []


def warmup_autocast(settings: Settings) -> contextlib.AbstractContextManager[Any]:
    """The autocast that WARMUP_RECIPE names, for the warmup steps.

    Raises:
        MissingDependencyError: the recipe needs Transformer Engine, which is not installed.
        ConfigurationError: the installed Transformer Engine does not have the recipe.
    """
    name: str = settings.warmup_recipe
    if not name and settings.warmup_fp8_recipe:
        name = f"fp8_{settings.warmup_fp8_recipe}"
    if name in {"", "bf16"}:
        return contextlib.nullcontext()
    recipe = _recipe(name, settings.warmup_fp8_history_len)
    engine = importlib.import_module(_ENGINE)
    context: contextlib.AbstractContextManager[Any]
    if hasattr(engine, "autocast"):
        context = engine.autocast(enabled=True, recipe=recipe)
    else:  # the name and the argument that it had before
        context = engine.fp8_autocast(enabled=True, fp8_recipe=recipe)
    return context


def _recipe(name: str, history_len: int) -> Any:
    class_name, fp8_format = _RECIPES[name]
    try:
        recipes = importlib.import_module("transformer_engine.common.recipe")
    except ImportError as error:
        raise MissingDependencyError(
            "Transformer Engine",
            f"WARMUP_RECIPE={name}",
            "use a container that has it, or unset WARMUP_RECIPE: the model's own precision "
            "applies in the warmup steps without it, too",
        ) from error
    recipe = getattr(recipes, class_name, None)
    if recipe is None:
        had = ", ".join(n for n, (c, _) in _RECIPES.items() if hasattr(recipes, c))
        wanted = f"a recipe that the installed Transformer Engine has: bf16, {had}"
        raise ConfigurationError(Problem("WARMUP_RECIPE", name, wanted))
    if fp8_format is None:
        return recipe()
    return recipe(fp8_format=getattr(recipes.Format, fp8_format), amax_history_len=history_len)


def _modules(model: Iterable[torch.nn.Module]) -> Iterator[torch.nn.Module]:
    for chunk in model:
        yield from chunk.modules()


def _delayed_scaling_states(model: Iterable[torch.nn.Module]) -> Iterator[Any]:
    """The states that have an amax history; other recipes' have none."""
    for module in _modules(model):
        meta = getattr(module, "fp8_meta", None)
        if not isinstance(meta, dict):
            continue
        for direction in _DIRECTIONS:
            state = meta.get(direction)
            if isinstance(getattr(state, "amax_history", None), torch.Tensor):
                yield state


def _global_buffers() -> Iterator[tuple[str, list[torch.Tensor]]]:
    """The global manager's buffers by name; each holds a list of tensors for each of its keys."""
    for owner in global_state():
        for name, buffers in list(vars(owner).items()):
            if not (name.startswith("global_") and isinstance(buffers, dict)):
                continue
            for tensors in buffers.values():
                if isinstance(tensors, (list, tuple)):
                    yield name, [t for t in tensors if isinstance(t, torch.Tensor)]
