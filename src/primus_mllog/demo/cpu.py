"""Megatron-Core on a CPU: what it asks of ``torch.cuda``, answered by the CPU.

Megatron names the accelerator outright in a few places that a CPU run passes through. Each
replacement below gives the CPU's true answer to that question and is taken back at the end of
the block. No arithmetic is replaced: kernels, schedules, optimizer and collectives are torch's
and Megatron's own.

Imports torch at the top: this module is imported only once a training begins.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["megatron_on_cpu"]

_CPU = torch.device("cpu")


@contextlib.contextmanager
def megatron_on_cpu() -> Iterator[None]:
    """Let Megatron-Core run on the CPU inside the block."""
    # Imported here because the module binds torch.cuda's functions when it is imported.
    from megatron.core.tensor_parallel import random as megatron_random

    generator = torch.default_generator
    replacements: list[tuple[Any, str, Any]] = [
        # Gradient buffers, pipeline receive buffers and the causal mask are allocated on it.
        (torch.cuda, "current_device", lambda: _CPU),
        # The schedules count tokens, and gradient clipping its norm, in tensors on "cuda".
        (torch, "zeros", _on_cpu(torch.zeros)),
        (torch, "tensor", _on_cpu(torch.tensor)),
        # Gradient clipping asserts the type's name, which says where a float32 tensor lives.
        (torch.Tensor, "type", _type_as_if_on_cuda(torch.Tensor.type)),
        # The random tracker (dropout, sharded weights) keeps states of the device's generator.
        (torch.cuda, "manual_seed", generator.manual_seed),
        (torch.cuda, "get_rng_state", generator.get_state),
        (megatron_random, "_get_cuda_rng_state", lambda **_: generator.get_state()),
        (megatron_random, "_set_cuda_rng_state", lambda state, **_: generator.set_state(state)),
    ]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in replacements]
    try:
        for owner, name, replacement in replacements:
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def create(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("device") == "cuda":
            kwargs["device"] = _CPU
        return factory(*args, **kwargs)

    return create


def _type_as_if_on_cuda(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def tensor_type(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = original(tensor, *args, **kwargs)
        return answer.replace("torch.", "torch.cuda.", 1) if isinstance(answer, str) else answer

    return tensor_type
