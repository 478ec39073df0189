"""Transformer Engine in small: linear layers that really quantise, and the state it keeps.

``install(monkeypatch, variant)`` puts modules of the library's names where Python looks for them:

* ``"new"``: ``transformer_engine.pytorch.quantization.FP8GlobalStateManager`` keeps its state in
  the object ``quantization_state``; ``autocast(enabled, recipe)``. A scale stays where the amax
  is 0.
* ``"old"``: ``transformer_engine.pytorch.fp8.FP8GlobalStateManager`` keeps it in class attributes;
  ``fp8_autocast(enabled, fp8_recipe)``; states have ``scale_inv``. An amax of 0 makes a scale
  infinite.

``Linear`` stands for ``transformer_engine.pytorch.Linear``: attributes ``fp8_meta``,
``fp8_initialized``, ``quantizers`` and ``_fp8_workspaces`` are made and changed when the library
does so. Delayed scaling casts with the scale of the step before, and updates it when the
autocast ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

FP8_MAX = 448.0


class Format(enum.Enum):
    """``transformer_engine.common.recipe.Format``."""

    HYBRID = "hybrid"
    E4M3 = "e4m3"


@dataclasses.dataclass
class DelayedScaling:
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024


@dataclasses.dataclass
class Float8CurrentScaling: ...


@dataclasses.dataclass
class MXFP8BlockScaling: ...


@dataclasses.dataclass
class NVFP4BlockScaling: ...


@dataclasses.dataclass
class MXFP4BlockScaling:
    """Of AMD's fork."""


RECIPES = (DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling, NVFP4BlockScaling)


class DelayedScalingState:
    """``DelayedScalingRecipeState``: one column for the input, one for the weight."""

    def __init__(self, recipe: DelayedScaling, *, has_inverse: bool) -> None:
        self.recipe = recipe
        self.scale = torch.ones(2)
        self.amax_history = torch.zeros(recipe.amax_history_len, 2)
        if has_inverse:
            self.scale_inv = torch.ones(2)


class Quantizer:
    """``Float8Quantizer``: its scale is a view of the state's, or its own."""

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        scaled = (tensor * self.scale).clamp(-FP8_MAX, FP8_MAX)
        return scaled.to(torch.float8_e4m3fn).to(tensor.dtype) / self.scale


class _State:
    """``FP8GlobalState``."""

    def __init__(self) -> None:
        self.autocast_depth = 0
        self.recipe: Any = None
        self.is_first_fp8_module = False
        self.global_amax_buffer: dict[str, list[Any]] = {}
        self.global_amax_history_buffer: dict[str, list[Any]] = {}
        self.global_scale_buffer: dict[str, list[Any]] = {}


def install(monkeypatch: pytest.MonkeyPatch, variant: str) -> type[torch.nn.Module]:  # noqa: C901 - its parts refer to each other, as the library's do
    """Put the variant in place; the ``Linear`` of it."""
    is_new = variant == "new"
    if is_new:

        class FP8GlobalStateManager:
            quantization_state = _State()

        state: Any = FP8GlobalStateManager.quantization_state
    else:

        class FP8GlobalStateManager:  # type: ignore[no-redef]
            autocast_depth = 0
            recipe = None
            is_first_fp8_module = False
            global_amax_buffer: dict[str, list[Any]] = {}  # noqa: RUF012 - as there
            global_amax_history_buffer: dict[str, list[Any]] = {}  # noqa: RUF012
            global_scale_buffer: dict[str, list[Any]] = {}  # noqa: RUF012

        state = FP8GlobalStateManager

    def update() -> None:
        for key, histories in state.global_amax_history_buffer.items():
            amaxes, scales = state.global_amax_buffer[key], state.global_scale_buffer[key]
            for history, amax, scale in zip(histories, amaxes, scales, strict=True):
                largest = history.max(dim=0).values
                new = FP8_MAX / largest
                scale.copy_(torch.where(largest > 0, new, scale) if is_new else new)
                history.copy_(history.roll(-1, dims=0))
                history[0].zero_()
                amax.zero_()

    @contextlib.contextmanager
    def autocast_of(recipe: Any) -> Iterator[None]:
        state.autocast_depth += 1
        outer, state.recipe = state.recipe, recipe
        state.is_first_fp8_module = True
        try:
            yield
        finally:
            state.autocast_depth -= 1
            state.recipe = outer
            if state.autocast_depth == 0:
                update()

    def autocast(enabled: bool = True, recipe: Any = None) -> Any:
        return autocast_of(recipe or DelayedScaling())

    def fp8_autocast(enabled: bool = True, fp8_recipe: Any = None) -> Any:
        return autocast_of(fp8_recipe or DelayedScaling())

    class Linear(torch.nn.Linear):
        def __init__(self, *sizes: int) -> None:
            super().__init__(*sizes)
            self.fp8_initialized = False
            self.fp8_meta: dict[str, Any] = {"fp8_checkpoint": False}
            self.quantizers: dict[str, list[Any]] = {"scaling_fwd": []}
            self._fp8_workspaces: dict[str, torch.Tensor] = {}

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            if state.autocast_depth == 0:
                return super().forward(values)
            if not self.fp8_initialized:
                self._initialize(state.recipe)
            quantized = []
            for index, tensor in enumerate((values, self.weight)):
                quantizer = self.quantizers["scaling_fwd"][index]
                amax = tensor.detach().abs().max()
                if isinstance(state.recipe, DelayedScaling):
                    history = self.fp8_meta["scaling_fwd"].amax_history
                    history[0, index] = torch.maximum(history[0, index], amax)
                else:
                    quantizer.scale.copy_(FP8_MAX / amax)
                cast = quantizer(tensor.detach())
                quantized.append(tensor + (cast - tensor.detach()))  # straight-through
            if not isinstance(state.recipe, DelayedScaling):
                self._fp8_workspaces["weight"] = quantized[1].detach().clone()
            state.is_first_fp8_module = False
            return torch.nn.functional.linear(*quantized, self.bias)

        def _initialize(self, recipe: Any) -> None:
            self.fp8_initialized = True
            self.fp8_meta["recipe"] = recipe
            if isinstance(recipe, DelayedScaling):
                own = DelayedScalingState(recipe, has_inverse=not is_new)
                self.fp8_meta["scaling_fwd"] = own
                self.quantizers["scaling_fwd"] = [Quantizer(own.scale[i]) for i in range(2)]
                for name, tensor in (
                    ("global_amax_buffer", own.amax_history[0]),
                    ("global_amax_history_buffer", own.amax_history),
                    ("global_scale_buffer", own.scale),
                ):
                    getattr(state, name).setdefault("forward", []).append(tensor)
            else:
                self.fp8_meta["scaling_fwd"] = types.SimpleNamespace(recipe=recipe)
                self.quantizers["scaling_fwd"] = [Quantizer(torch.ones(())) for _ in range(2)]

    where = "quantization" if is_new else "fp8"
    recipes = {recipe.__name__: recipe for recipe in RECIPES}
    names: dict[str, dict[str, Any]] = {
        "transformer_engine": {},
        "transformer_engine.common": {},
        "transformer_engine.common.recipe": {"Format": Format, **recipes},
        "transformer_engine.pytorch": (
            {"autocast": autocast} if is_new else {"fp8_autocast": fp8_autocast}
        ),
        f"transformer_engine.pytorch.{where}": {"FP8GlobalStateManager": FP8GlobalStateManager},
    }
    for name, attributes in names.items():
        module = types.ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    return Linear
