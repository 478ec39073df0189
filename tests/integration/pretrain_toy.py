"""A pretraining program for the real Megatron-LM loop, as a user's ``pretrain_gpt.py`` is one.

Run as a script with Megatron's own arguments. It knows nothing of primus-mllog. Its data are
arithmetic sequences, which a tiny model learns in a few steps. ``TOY_TROUBLE=kind@iteration``
makes trouble in a forward pass of that iteration, counted from 0: ``raise``, ``sigterm``, or
``limit`` (the time limit is over).
"""

from __future__ import annotations

import inspect
import os
import signal
from functools import partial
from typing import Any

import cpu_megatron

cpu_megatron.install()

import torch  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.training import get_args, pretrain  # noqa: E402

cpu_megatron.install_late()

VOCABULARY = 64


class Sequences(torch.utils.data.Dataset[Any]):
    """Sample i counts upwards from a start that only i decides."""

    def __init__(self, num_samples: int, seed: int) -> None:
        self.num_samples, self.seed = num_samples, seed

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        length = get_args().seq_length
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + int(index))
        start = torch.randint(0, VOCABULARY, (1,), generator=generator)
        tokens = (start + torch.arange(length + 1)) % VOCABULARY
        sample = {
            "tokens": tokens[:-1],
            "labels": tokens[1:],
            "loss_mask": torch.ones(length),
            "position_ids": torch.arange(length),
        }
        if get_args().create_attention_mask_in_dataloader:
            sample["attention_mask"] = torch.ones(1, length, length, dtype=torch.bool).triu(1)
        return sample


def datasets(num_samples: Any, vp_stage: int | None = None) -> tuple[Any, Any, Any]:
    """Training, validation (as many sets as asked for) and test data."""
    valid: Any = Sequences(1024, 2)
    test: Any = Sequences(1024, 4)
    if get_args().multiple_validation_sets:
        valid = [Sequences(16, 2), Sequences(40, 3)]  # of unequal length
        test = None  # Megatron cannot evaluate one beside several validation sets
    return Sequences(max(num_samples[0], 1), 1), valid, test


# every rank builds its own loader, as pretrain_gpt.py says too
datasets.is_distributed = True  # type: ignore[attr-defined]


def model_provider(
    pre_process: bool = True,
    post_process: bool = True,
    vp_stage: int | None = None,
    config: Any = None,
    pg_collection: Any = None,
) -> Any:
    """A GPT of the arguments' size, without Transformer Engine."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.training.arguments import core_transformer_config_from_args

    args = get_args()
    spec = get_gpt_layer_local_spec(args.num_experts, args.moe_grouped_gemm, args.qk_layernorm)
    return GPTModel(
        config or core_transformer_config_from_args(args),
        spec,
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=pre_process,
        post_process=post_process,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
        vp_stage=vp_stage,
    )


def loss_function(mask: torch.Tensor, losses: torch.Tensor) -> tuple[Any, Any, dict[str, Any]]:
    """Sum, number of tokens, and both for the report: as Megatron's own."""
    mask = mask.view(-1).float()
    loss = torch.sum(losses.view(-1).float() * mask)
    num_tokens = mask.sum().to(torch.int)
    report = torch.cat([loss.detach().clone().view(1), num_tokens.view(1)])
    return loss, num_tokens, {"lm loss": report}


def forward_step(data_iterator: Any, model: Any) -> tuple[Any, Any]:
    """One micro batch."""
    batch = next(data_iterator)
    make_trouble()
    length = batch["tokens"].shape[1]
    mask = torch.ones(1, 1, length, length, dtype=torch.bool).triu(1)
    losses = model(batch["tokens"], batch["position_ids"], mask, labels=batch["labels"])
    return losses, partial(loss_function, batch["loss_mask"])


def make_trouble() -> None:
    """What ``TOY_TROUBLE`` says, if this iteration is the one."""
    kind, _, iteration = os.environ.get("TOY_TROUBLE", "").partition("@")
    if kind and get_args().curr_iteration == int(iteration):
        if kind == "sigterm":
            os.kill(os.getpid(), signal.SIGTERM)
        elif kind == "limit":
            get_args().exit_duration_in_mins = 1e-9
        else:
            raise RuntimeError("trouble in a step")


def main() -> None:
    """Call pretrain() as the installed release wants it called."""
    kind = ModelType.encoder_or_decoder
    if "cfg_container" in inspect.signature(pretrain).parameters:  # 0.18 and newer
        from megatron.training.argument_utils import pretrain_cfg_container_from_args
        from megatron.training.arguments import parse_and_validate_args

        config = pretrain_cfg_container_from_args(parse_and_validate_args())
        pretrain(
            cfg_container=config,
            train_valid_test_dataset_provider=datasets,
            model_type=kind,
            forward_step_func=forward_step,
            model_provider=model_provider,
        )
    else:
        pretrain(datasets, model_provider, kind, forward_step)


if __name__ == "__main__":
    main()
    cpu_megatron.finish()
