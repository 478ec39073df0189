"""The MLPerf training log of a Primus, Megatron-LM or Megatron-Bridge run, right the first time.

Importing this package imports nothing else: each public name is loaded when it is first used
(PEP 562), so neither torch nor a framework needs to be installed to look at a log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_mllog._version import __version__

if TYPE_CHECKING:
    from primus_mllog.mlperf_logger import MLPerfLogger
    from primus_mllog.mlperf_pre_training import MLPerfMegatronPretrainTrainer
    from primus_mllog.mlperf_sft import MLPerfSFTLogger
    from primus_mllog.run import MLPerfRun
    from primus_mllog.throughput import ThroughputTimer
    from primus_mllog.warmup import (
        reset_fp4_state,
        reset_fp8_state,
        run_synthetic_warmup,
        seed_fp8_amax,
    )

__all__ = [
    "MLPerfLogger",
    "MLPerfMegatronPretrainTrainer",
    "MLPerfRun",
    "MLPerfSFTLogger",
    "ThroughputTimer",
    "__version__",
    "reset_fp4_state",
    "reset_fp8_state",
    "run_synthetic_warmup",
    "seed_fp8_amax",
]

_HOMES = {
    "MLPerfLogger": "mlperf_logger",
    "MLPerfMegatronPretrainTrainer": "mlperf_pre_training",
    "MLPerfRun": "run",
    "MLPerfSFTLogger": "mlperf_sft",
    "ThroughputTimer": "throughput",
    "reset_fp4_state": "warmup",
    "reset_fp8_state": "warmup",
    "run_synthetic_warmup": "warmup",
    "seed_fp8_amax": "warmup",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
