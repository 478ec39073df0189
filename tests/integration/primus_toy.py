"""Pretrain with the real Primus trainer, as its runtime or as a script by hand would.

``python primus_toy.py runtime|by-hand ARGUMENTS…`` with Megatron's arguments; the model and data
are those of ``pretrain_toy``, which poses as Megatron's ``pretrain_gpt`` (the wheels lack it).
"""

from __future__ import annotations

import sys
from typing import Any

import pretrain_toy  # first: it prepares the CPU

sys.modules["pretrain_gpt"] = pretrain_toy
pretrain_toy.train_valid_test_datasets_provider = pretrain_toy.datasets  # type: ignore[attr-defined]


def trainer_of_the_stage() -> type:
    """What Primus loads for ``stage: mlperf_pretrain``."""
    from primus.core.backend.backend_registry import BackendRegistry

    adapter = BackendRegistry.get_adapter("megatron")
    return adapter.load_trainer_class(stage="mlperf_pretrain")


def backend_args(arguments: list[str]) -> Any:
    """The arguments as Primus builds them: its own builder over what a configuration says."""
    from megatron.training.arguments import parse_args
    from primus.backends.megatron.argument_builder import MegatronArgBuilder

    sys.argv = ["primus", *arguments]
    said = vars(parse_args())
    sys.argv = ["primus"]
    return MegatronArgBuilder().update(said).finalize()


def main() -> None:
    kind, *arguments = sys.argv[1:]
    from primus.core.utils import logger  # noqa: F401 - Primus' own order of imports

    trainer = trainer_of_the_stage()(backend_args=backend_args(arguments))
    if kind == "runtime":
        trainer.setup()
        trainer.init()
        trainer.train()
        trainer.cleanup()
    else:
        trainer.init()
        trainer.run()


if __name__ == "__main__":
    main()
    pretrain_toy.cpu_megatron.finish()
