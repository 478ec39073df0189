"""Low-precision state around a warmup, against Transformer Engine in small."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import small_transformer_engine as engine
from primus_mllog import reset_fp4_state, reset_fp8_state, seed_fp8_amax
from primus_mllog.errors import ConfigurationError, MissingDependencyError, SettingsError
from primus_mllog.settings import PretrainSettings
from primus_mllog.warmup import run_warmup
from primus_mllog.warmup.precision import global_state, warmup_autocast

VARIANTS = ["new", "old"]
CURRENT = [engine.Float8CurrentScaling, engine.MXFP8BlockScaling, engine.NVFP4BlockScaling]


class Training:
    """Two quantising layers, Adam, and data of its own."""

    def __init__(self, linear: Any, recipe: Any) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(linear(8, 8), torch.nn.GELU(), linear(8, 8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.recipe = recipe
        self.generator = torch.Generator().manual_seed(5)

    def step(self, generator: torch.Generator | None = None) -> float:
        pytorch = sys.modules["transformer_engine.pytorch"]
        values = torch.randn(4, 8, generator=generator or self.generator)
        autocast = getattr(pytorch, "autocast", None) or pytorch.fp8_autocast
        self.optimizer.zero_grad()
        with autocast(True, self.recipe):
            loss = (self.model(values) - values).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def warm_up(self, **settings: Any) -> None:
        own = torch.Generator().manual_seed(11)
        run_warmup(
            PretrainSettings(synth_warmup_verify=True, **settings),
            model=[self.model],
            optimizer=self.optimizer,
            train_step=lambda _: self.step(own),
            evaluate=lambda count: [self.step(own) for _ in range(count)],
        )

    @property
    def states(self) -> list[Any]:
        return [layer.fp8_meta["scaling_fwd"] for layer in (self.model[0], self.model[2])]

    def buffers(self) -> list[float]:
        """All of delayed scaling, in the modules and in the global manager."""
        found = [t for state in self.states for t in vars(state).values()]
        for owner in global_state():
            for name, buffers in vars(owner).items():
                if name.startswith("global_"):
                    found += [t for tensors in buffers.values() for t in tensors]
        return [x for t in found if isinstance(t, torch.Tensor) for x in t.flatten().tolist()]


@pytest.mark.fault("X6")
@pytest.mark.fault("X7")
@pytest.mark.parametrize("num_steps_before", [0, 3])
@pytest.mark.parametrize("recipe", [engine.DelayedScaling, *CURRENT])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_training_after_a_warmup_is_the_one_without(
    monkeypatch: pytest.MonkeyPatch, variant: str, recipe: Any, num_steps_before: int
) -> None:
    """Losses, weights and low-precision state; also with a history from before."""
    outcomes = []
    for is_warmed in (False, True):
        training = Training(engine.install(monkeypatch, variant), recipe())
        for _ in range(num_steps_before):
            training.step()
        if is_warmed:
            training.warm_up(synth_warmup_valid_steps=2)
        losses = [training.step() for _ in range(10)]
        weights = [p.tolist() for p in training.model.parameters()]
        outcomes.append((losses, weights, training.buffers()))
    assert outcomes[0] == outcomes[1]


@pytest.mark.fault("X7")
@pytest.mark.parametrize("variant", VARIANTS)
def test_history_from_a_checkpoint_is_kept(monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    """After the warmup, history and scales are those of before, in the same memory."""
    training = Training(engine.install(monkeypatch, variant), engine.DelayedScaling())
    for _ in range(3):
        training.step()
    before, addresses = training.buffers(), [s.amax_history.data_ptr() for s in training.states]
    training.warm_up()
    assert training.buffers() == before
    assert [s.amax_history.data_ptr() for s in training.states] == addresses
    assert any(value not in {0.0, 1.0} for value in before)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_reset_forgets_history_and_scales(monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    """Zeros and ones everywhere, in the modules and in the global manager."""
    training = Training(engine.install(monkeypatch, variant), engine.DelayedScaling())
    training.step()
    reset_fp8_state([training.model])
    assert all(state.amax_history.eq(0).all() for state in training.states)
    assert all(state.scale.eq(1).all() for state in training.states)
    assert set(training.buffers()) == {0.0, 1.0}


@pytest.mark.parametrize(("is_seeded", "is_finite"), [(False, False), (True, True)])
def test_seeding_saves_releases_that_divide_by_zero(
    monkeypatch: pytest.MonkeyPatch, is_seeded: bool, is_finite: bool
) -> None:
    """There an update over an empty history makes an infinite scale; a seeded one does not."""
    training = Training(engine.install(monkeypatch, "old"), engine.DelayedScaling())
    training.step()
    reset_fp8_state([training.model])
    if is_seeded:
        seed_fp8_amax([training.model])
    with sys.modules["transformer_engine.pytorch"].fp8_autocast(True, training.recipe):
        pass  # another part of the model; these modules do not run in it
    assert all(torch.isfinite(torch.tensor(training.buffers()))) == is_finite


@pytest.mark.fault("X6")
@pytest.mark.parametrize("recipe", CURRENT)
@pytest.mark.parametrize("variant", VARIANTS)
def test_recipes_without_history_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, variant: str, recipe: Any
) -> None:
    """Reset and seed find nothing in current and block scaling, and do not fail."""
    training = Training(engine.install(monkeypatch, variant), recipe())
    training.step()
    quantizers = [q for layer in (0, 2) for q in training.model[layer].quantizers["scaling_fwd"]]
    scales = [quantizer.scale.item() for quantizer in quantizers]
    reset_fp8_state([training.model])
    seed_fp8_amax([training.model])
    assert [quantizer.scale.item() for quantizer in quantizers] == scales


def test_cached_quantised_weights_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block scaling quantises weights anew at the next step."""
    training = Training(engine.install(monkeypatch, "new"), engine.NVFP4BlockScaling())
    training.step()
    assert training.model[0]._fp8_workspaces
    reset_fp4_state([training.model])
    assert not training.model[0]._fp8_workspaces


ASKED = {
    "fp8_hybrid": engine.DelayedScaling(engine.Format.HYBRID, 4),
    "fp8_e4m3": engine.DelayedScaling(engine.Format.E4M3, 4),
    "fp4_nvfp4": engine.NVFP4BlockScaling(),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ASKED)
def test_a_recipe_is_what_its_name_says(
    monkeypatch: pytest.MonkeyPatch, variant: str, name: str
) -> None:
    """By the autocast of the installed release, with WARMUP_FP8_HISTORY_LEN."""
    engine.install(monkeypatch, variant)
    with warmup_autocast(PretrainSettings(warmup_recipe=name)):
        assert global_state()[-1].recipe == ASKED[name]


@pytest.mark.parametrize("recipe", ["", "bf16"])
def test_without_a_recipe_there_is_no_autocast(
    monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    """The model's own precision applies."""
    engine.install(monkeypatch, "new")
    with warmup_autocast(PretrainSettings(warmup_recipe=recipe)):
        assert global_state()[-1].recipe is None


def test_the_legacy_name_of_a_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """WARMUP_FP8_RECIPE=e4m3 is WARMUP_RECIPE=fp8_e4m3."""
    engine.install(monkeypatch, "old")
    settings = PretrainSettings(warmup_fp8_recipe="e4m3", warmup_fp8_history_len=16)
    with warmup_autocast(settings):
        assert global_state()[-1].recipe == engine.DelayedScaling(engine.Format.E4M3, 16)


@pytest.mark.fault("X8")
def test_an_unknown_recipe_is_an_error_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the names there are."""
    monkeypatch.setenv("WARMUP_RECIPE", "fp8")
    with pytest.raises(SettingsError, match=r"WARMUP_RECIPE='fp8'.*fp8_hybrid.*fp4_nvfp4"):
        PretrainSettings.from_environment()


@pytest.mark.fault("X8")
def test_a_recipe_that_this_engine_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """MXFP4 is of AMD's fork; the error names what there is."""
    engine.install(monkeypatch, "new")
    with pytest.raises(ConfigurationError, match=r"fp4_mxfp4.*bf16, fp8_hybrid, fp8_e4m3"):
        warmup_autocast(PretrainSettings(warmup_recipe="fp4_mxfp4"))


@pytest.mark.fault("X8")
def test_a_recipe_without_an_engine_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is changed."""
    monkeypatch.setitem(sys.modules, "transformer_engine", None)
    with pytest.raises(MissingDependencyError, match="Transformer Engine"):
        warmup_autocast(PretrainSettings(warmup_recipe="fp8_hybrid"))


def engine_source() -> Path | None:
    """The real package: a checkout that TRANSFORMER_ENGINE_PATH names, or the installed one."""
    named = os.environ.get("TRANSFORMER_ENGINE_PATH", "")
    folders = [named, *sys.path] if named else sys.path
    found = (Path(folder, "transformer_engine") for folder in folders)
    return next((path for path in found if (path / "pytorch").is_dir()), None)


@pytest.mark.skipif(engine_source() is None, reason="no Transformer Engine to compare with")
def test_the_small_engine_has_the_real_ones_names() -> None:
    """Each name that the warmup relies on is in the real package's source."""
    source = engine_source()
    assert source is not None
    names = set()
    for path in [*(source / "pytorch").rglob("*.py"), source / "common/recipe/__init__.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            names.add(getattr(node, "attr", getattr(node, "name", getattr(node, "value", ""))))
    relied_on = {
        *("FP8GlobalStateManager", "fp8_meta", "fp8_initialized", "quantizers", "_fp8_workspaces"),
        *("scaling_fwd", "scaling_bwd", "amax_history", "scale", "global_amax_buffer"),
        *("global_amax_history_buffer", "global_scale_buffer", "Format", "HYBRID", "E4M3"),
        *(recipe.__name__ for recipe in engine.RECIPES),
    }
    assert relied_on <= {name for name in names if isinstance(name, str)} | {"HYBRID", "E4M3"}
    assert {"autocast", "fp8_autocast"} & names
