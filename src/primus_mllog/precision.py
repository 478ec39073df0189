"""The lowest numerical precision of a run, by Megatron's arguments, as the rules spell it.

The names are those of mlperf-logging's rule files (``lowest_numerical_precision_in_*``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_mllog import keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from primus_mllog.settings import Settings

__all__ = ["lowest_precisions"]


def lowest_precisions(settings: Settings, read: Callable[[str], Any]) -> dict[str, str]:
    """Lowest precision in linear layers, attention and communication.

    Args:
        settings: a value that is set there wins.
        read: looks an argument of Megatron's up by name; None where it is absent.
    """
    return {
        keys.LOWEST_NUMERICAL_PRECISION_IN_LINEAR: (
            settings.mllog_lowest_numerical_precision_linear or _linear(read)
        ),
        keys.LOWEST_NUMERICAL_PRECISION_IN_ATTN: (
            settings.mllog_lowest_numerical_precision_attn or _attention(read)
        ),
        keys.LOWEST_NUMERICAL_PRECISION_IN_COMM: (
            settings.mllog_lowest_numerical_precision_comm or _communication(read)
        ),
    }


def _parameters(read: Callable[[str], Any]) -> str:
    """The precision that parameters and activations have outside quantised layers."""
    if read("bf16"):
        return "bfloat16"
    return "fp16" if read("fp16") else "fp32"


def _linear(read: Callable[[str], Any]) -> str:
    if read("fp4"):
        return "nvfp4" if "nvfp4" in str(read("fp4_recipe") or "nvfp4").lower() else "mxfp4"
    return "fp8" if read("fp8") else _parameters(read)


def _attention(read: Callable[[str], Any]) -> str:
    is_quantised = read("fp8_dot_product_attention") or read("fp8_multi_head_attention")
    return "fp8" if read("fp8") and is_quantised else _parameters(read)


def _communication(read: Callable[[str], Any]) -> str:
    """Gathered parameters and, in their precision, activations; or gradients, if those are less."""
    if read("fp8") and (read("fp8_param_gather") or read("fp8_param")):
        return "fp8"
    parameters = _parameters(read)
    return "bfloat16" if read("grad_reduce_in_bf16") and parameters == "fp32" else parameters
