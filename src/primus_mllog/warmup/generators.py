"""The random generators of a process: Python's, NumPy's, torch's, and Megatron's tracker.

Imports torch at the top: this module is imported only once a training begins.
"""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch

__all__ = ["GeneratorStates"]

_TRACKER = "megatron.core.tensor_parallel.random"


class GeneratorStates:
    """The states of all generators, captured now.

    Megatron's tracker (dropout and initialisation of parallel regions) keeps a state for each
    region by name: a tensor, or a generator where CUDA graphs need one.
    """

    def __init__(self) -> None:
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None else None
        self._cpu = torch.get_rng_state()
        num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        self._devices = [torch.cuda.get_rng_state(index) for index in range(num_devices)]
        self._tracker: dict[str, tuple[Any, torch.Tensor]] = {
            name: (state, _content(state)) for name, state in _tracker_states().items()
        }

    def restore(self) -> None:
        """Set all generators to the captured states."""
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        torch.set_rng_state(self._cpu)
        for index, state in enumerate(self._devices):
            torch.cuda.set_rng_state(state, index)
        states = _tracker_states()
        for name in [name for name in states if name not in self._tracker]:
            del states[name]
        for name, (state, content) in self._tracker.items():
            if isinstance(state, torch.Generator):
                state.set_state(content)
                states[name] = state
            else:
                states[name] = content.clone()

    def digest(self) -> dict[str, str]:
        """A digest of each generator's state, by name."""
        parts: dict[str, Any] = {"python": repr(self._python).encode(), "torch": self._cpu.numpy()}
        if self._numpy is not None:
            parts["numpy"] = self._numpy[1].tobytes() + repr(self._numpy[2:]).encode()
        for index, state in enumerate(self._devices):
            parts[f"device {index}"] = state.cpu().numpy()
        for name, (_, content) in self._tracker.items():
            parts[f"tracker {name}"] = content.cpu().numpy()
        return {
            f"random generator ({name})": hashlib.blake2b(content, digest_size=16).hexdigest()
            for name, content in parts.items()
        }


def _tracker_states() -> dict[str, Any]:
    """The states that Megatron's tracker keeps, itself, not a copy; empty without Megatron."""
    module = sys.modules.get(_TRACKER)
    tracker = module.get_cuda_rng_tracker() if module is not None else None
    states = getattr(tracker, "states_", None)
    return states if isinstance(states, dict) else {}


def _content(state: Any) -> torch.Tensor:
    if isinstance(state, torch.Generator):
        return state.get_state()
    return state.clone()
