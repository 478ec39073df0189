"""``MLPerfMegatronPretrainTrainer``: the drop-in for Primus' Megatron pretraining trainer.

::

    trainer = MLPerfMegatronPretrainTrainer(...)   # the arguments of Primus' own trainer
    trainer.init()
    trainer.run()

or ``stage: mlperf_pretrain`` in a Primus configuration. The class is made when its name is
used, on the installed Primus' own trainer; see :mod:`primus_mllog.adapters.primus`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    MLPerfMegatronPretrainTrainer: type

__all__ = ["MLPerfMegatronPretrainTrainer"]


def __getattr__(name: str) -> Any:
    if name != "MLPerfMegatronPretrainTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from primus_mllog.adapters.primus import trainer_class

    return trainer_class()
