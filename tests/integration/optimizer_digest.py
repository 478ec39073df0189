"""A digest of a training's state, written apart from the warmup that must not change it."""

from __future__ import annotations

import gc
import hashlib


def digest() -> str:
    """Of all that the process's optimizers hold: (main) parameters and their state."""
    import torch

    digests = []
    for optimizer in (o for o in gc.get_objects() if isinstance(o, torch.optim.Optimizer)):
        content = hashlib.sha256()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                for value in (parameter, *(state[name] for name in sorted(state))):
                    content.update(repr(torch.as_tensor(value).tolist()).encode())
        digests.append(content.hexdigest())
    return " ".join(sorted(digests))  # where there are several, in no order
