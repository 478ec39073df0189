"""Synthetic warmup: steps on random tokens before the timed run, then everything as it was.

Names are loaded when they are used: this package imports neither torch nor a framework by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from primus_mllog.adapters.megatron_warmup import run_synthetic_warmup
    from primus_mllog.warmup.precision import reset_fp4_state, reset_fp8_state, seed_fp8_amax
    from primus_mllog.warmup.runner import run_warmup
    from primus_mllog.warmup.snapshot import TrainingStateSnapshot

__all__ = [
    "TrainingStateSnapshot",
    "reset_fp4_state",
    "reset_fp8_state",
    "run_synthetic_warmup",
    "run_warmup",
    "seed_fp8_amax",
]

_HOMES = {
    "TrainingStateSnapshot": "warmup.snapshot",
    "reset_fp4_state": "warmup.precision",
    "reset_fp8_state": "warmup.precision",
    "run_synthetic_warmup": "adapters.megatron_warmup",
    "run_warmup": "warmup.runner",
    "seed_fp8_amax": "warmup.precision",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"primus_mllog.{_HOMES[name]}"), name)
