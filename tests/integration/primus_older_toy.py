"""Pretrain with the real older Primus trainer (``init``, ``run``), as its launcher does.

``python primus_older_toy.py ARGUMENTS…`` with Megatron's arguments, which become the overrides of a
Primus experiment over Primus' own configuration files.
The model is Megatron's, the data that of ``pretrain_toy``.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import pretrain_toy  # first: it prepares the CPU
import yaml

# Primus' configuration files expect an accelerator.
ON_A_CPU = {
    "add_position_embedding": True,
    "transformer_impl": "local",
    "bias_swiglu_fusion": False,
    "use_distributed_optimizer": False,
    "overlap_grad_reduce": False,
    "overlap_param_gather": False,
    "use_rocm_mem_info_iters": [],  # asks rocm-smi
    "disable_last_saving": True,  # the writers of a checkpoint are forked, and want an accelerator
}


def given(arguments: list[str]) -> dict[str, Any]:
    """What the command line says, and only that."""
    from megatron.training.arguments import parse_args

    values = []
    for line in (["toy"], ["toy", *arguments]):
        sys.argv = line
        values.append(vars(parse_args()))
    sys.argv = ["toy"]
    defaults, said = values
    said = {name: value for name, value in said.items() if value != defaults.get(name)}
    del said["attention_backend"]  # no word of a YAML file
    return {**said, **ON_A_CPU}


def experiment(overrides: dict[str, Any]) -> Any:
    """A Primus experiment of these overrides, parsed by Primus."""
    from primus.core.launcher.parser import PrimusParser

    path = Path("experiment.yaml")
    trainer = {
        "framework": "megatron",
        "config": "pre_trainer.yaml",
        "model": "language_model.yaml",
        "overrides": overrides,
    }
    said = {
        "work_group": "group",
        "user_name": "user",
        "exp_name": "toy",
        "workspace": str(Path("primus").absolute()),
        "platform": {"config": "platform_local.yaml"},
        "modules": {"pre_trainer": trainer},
    }
    path.write_text(yaml.safe_dump(said), encoding="utf-8")
    cli = argparse.Namespace(config=str(path), exp=str(path), backend_path=None, data_path="data")
    return PrimusParser().parse(cli)


def main() -> None:
    from primus_mllog import MLPerfMegatronPretrainTrainer

    class Trainer(MLPerfMegatronPretrainTrainer):
        """With the toy's data: Megatron's mock data wants a compiled extension."""

        def train_valid_test_datasets_provider(self, num_samples: Any, **_: Any) -> Any:
            return pretrain_toy.datasets(num_samples)

        def get_batch(self, *args: Any, **kwargs: Any) -> Any:
            pretrain_toy.make_trouble()
            return super().get_batch(*args, **kwargs)

    config = experiment(given(sys.argv[1:]))
    trainer = Trainer(
        module_name="pre_trainer",
        primus_config=config,
        module_rank=int(os.environ["RANK"]),
        module_world_size=int(os.environ["WORLD_SIZE"]),
        module_master_addr=os.environ["MASTER_ADDR"],
        module_master_port=int(os.environ["MASTER_PORT"]),
    )
    trainer.init()
    trainer.run()


if __name__ == "__main__":
    main()
