"""Megatron-Bridge's ``ConfigContainer`` under the names that Megatron's arguments have."""

from __future__ import annotations

from typing import Any

__all__ = ["arguments_of"]

# Our names of what is called something else in Bridge.
_ELSEWHERE = {
    "seed": ("rng", "seed"),
    "lora_rank": ("peft", "dim"),
    "lora_alpha": ("peft", "alpha"),
    "num_experts": ("model", "num_moe_experts"),
}
# Where Bridge keeps what is called the same, the first that knows it. Releases have moved the
# evaluation's settings from "train" to "validation".
_SECTIONS = {
    "train": ("global_batch_size", "micro_batch_size", "train_iters", "train_samples"),
    "validation": ("eval_interval", "eval_iters"),
    "optimizer": (
        *("optimizer", "lr", "min_lr", "weight_decay", "clip_grad", "decoupled_weight_decay"),
        *("adam_beta1", "adam_beta2", "adam_eps"),
    ),
    "scheduler": (
        *("lr_decay_style", "lr_decay_iters", "lr_decay_samples", "lr_warmup_iters"),
        *("lr_warmup_samples", "lr_warmup_fraction"),
    ),
    "model": (
        *("seq_length", "tensor_model_parallel_size", "pipeline_model_parallel_size"),
        *("context_parallel_size", "expert_model_parallel_size", "moe_aux_loss_coeff"),
        *("bf16", "fp16", "fp8", "fp8_recipe", "fp4", "fp4_recipe", "fp8_param"),
        *("fp8_dot_product_attention", "fp8_multi_head_attention"),
    ),
    "ddp": ("grad_reduce_in_fp32", "fp8_param_gather"),
}
_OLDER_SECTION = {"validation": "train"}


def arguments_of(config: Any, step: int = 0) -> dict[str, Any]:
    """What the configuration says, by Megatron's names.

    Args:
        config: a ``ConfigContainer`` whose model is built: by then its mixed precision is in the
            model's configuration.
        step: of the checkpoint that training goes on from.

    Returns:
        Names and values; names that the configuration does not know are absent.
    """
    found: dict[str, Any] = {"iteration": step}
    for section_name, names in _SECTIONS.items():
        section = getattr(config, section_name, None)
        if section is None and section_name in _OLDER_SECTION:
            section = getattr(config, _OLDER_SECTION[section_name], None)
        # a model's configuration may lie inside its builder's
        section = getattr(section, "transformer", section)
        found |= {name: getattr(section, name, None) for name in names}
    for name, (section_name, attribute) in _ELSEWHERE.items():
        section = getattr(config, section_name, None)
        found[name] = getattr(getattr(section, "transformer", section), attribute, None)
    found["seq_length"] = found["seq_length"] or getattr(
        getattr(config, "dataset", None), "seq_length", None
    )
    return {name: value for name, value in found.items() if value is not None}
