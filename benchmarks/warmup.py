"""Capturing and restoring a training's state, beside copying the same tensors.

The training is that of a mixed-precision Adam: bf16 parameters, fp32 main parameters, two moments,
and gradient buffers of zeros, which are remembered and not copied.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks import Row, side_by_side

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_PARAMETERS = 16 * 1024 * 1024
NUM_LAYERS = 32
NUM_TURNS = 9


def rows() -> Iterator[Row]:
    import torch

    from primus_mllog.warmup import TrainingStateSnapshot

    size = NUM_PARAMETERS // NUM_LAYERS
    model = torch.nn.ModuleList(torch.nn.Linear(1, size, bias=False) for _ in range(NUM_LAYERS))
    model.to(torch.bfloat16)
    model.grads = [torch.zeros(size) for _ in range(NUM_LAYERS)]
    optimizer = torch.optim.AdamW([p.detach().float() for p in model.parameters()])
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    snapshot = TrainingStateSnapshot([model], optimizer)
    state = optimizer.state.values()
    tensors = [p.detach() for p in model.parameters()] + optimizer.param_groups[0]["params"]
    tensors += [t for values in state for t in values.values()]
    copies = [tensor.clone() for tensor in tensors]

    def seconds(act: object) -> float:
        began = time.perf_counter()
        act()  # type: ignore[operator]
        return time.perf_counter() - began

    def copy_out() -> None:
        [tensor.clone() for tensor in tensors]

    def copy_back() -> None:
        for tensor, copy in zip(tensors, copies, strict=True):
            tensor.copy_(copy)

    peer = f"memcpy of {snapshot.num_bytes / 1024**2:.0f} MiB"
    for what, ours, theirs in (
        ("capture", lambda: TrainingStateSnapshot([model], optimizer), copy_out),
        ("restore", snapshot.restore, copy_back),
    ):
        mine, its, ratio = side_by_side(
            lambda ours=ours: seconds(ours), lambda theirs=theirs: seconds(theirs), NUM_TURNS
        )
        yield Row(what, "s", mine, peer, its, ratio, "≤ 2×", ratio <= 2)
