"""A CPU model of the fused Adam of Transformer Engine and Apex (their ``adam_w_mode``).

Unlike torch's AdamW it counts steps in the parameter group, where the count appears with the first
step, and makes its moments then, too.
"""

from __future__ import annotations

from typing import Any

import torch


class FusedAdam(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float = 1e-3, **options: Any) -> None:
        defaults = {
            "lr": lr,
            "betas": options.get("betas", (0.9, 0.999)),
            "eps": options.get("eps", 1e-8),
            "weight_decay": options.get("weight_decay", 0.0),
            "bias_correction": options.get("bias_correction", True),
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None, **_: Any) -> None:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            beta1, beta2 = group["betas"]
            # betas of 1, one way to make a step change nothing, would divide by zero here
            correction1 = 1 - beta1 ** group["step"] if group["bias_correction"] else 1.0
            correction2 = 1 - beta2 ** group["step"] if group["bias_correction"] else 1.0
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    for name in ("exp_avg", "exp_avg_sq"):
                        state[name] = torch.zeros_like(parameter, dtype=torch.float32)
                gradient = parameter.grad.float()
                state["exp_avg"].lerp_(gradient, 1 - beta1)
                state["exp_avg_sq"].lerp_(gradient * gradient, 1 - beta2)
                size = (state["exp_avg_sq"] / correction2).sqrt() + group["eps"]
                update = state["exp_avg"] / correction1 / size
                update += group["weight_decay"] * parameter.float()
                parameter.sub_((group["lr"] * update).to(parameter.dtype))
