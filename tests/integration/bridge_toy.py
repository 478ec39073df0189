"""Fine-tune or pretrain a tiny model in the real Megatron-Bridge loop, logged in one of its ways.

``python bridge_toy.py base|lora callback|hooks CHECKPOINT``; ``base`` trains a dense model and
leaves the checkpoint that ``lora`` adapts. Options are environment variables: TP, PP, ITERS,
EXIT_INTERVAL, DROPOUT, LOAD, TOY_TROUBLE. What really happened goes to ``TOY_NOTES.<rank>``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cpu_bridge
from optimizer_digest import digest

cpu_bridge.install()

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812 - its name everywhere

cpu_bridge.install_late()

from megatron.bridge.models.gpt_provider import GPTModelProvider, local_layer_spec  # noqa: E402
from megatron.bridge.peft.lora import LoRA  # noqa: E402
from megatron.bridge.training import config as bridge  # noqa: E402
from megatron.bridge.training.finetune import finetune  # noqa: E402
from megatron.bridge.training.gpt_step import forward_step  # noqa: E402
from megatron.bridge.training.pretrain import pretrain  # noqa: E402

from primus_mllog import MLPerfRun  # noqa: E402
from primus_mllog.settings import SFTSettings  # noqa: E402

LENGTH, VOCABULARY, GLOBAL_BATCH_SIZE = 32, 128, 4
NEWEST = cpu_bridge.is_newest()
opened: list[float] = []
evaluated: list[int] = []  # samples of the validation set, as they are read


def option(name: str, default: float = 0) -> Any:
    return type(default)(os.environ.get(name) or default)


class Sequences(torch.utils.data.Dataset[Any]):
    """Sample i counts upwards from a start that only i decides."""

    def __init__(self, num_samples: int, seed: int) -> None:
        self.num_samples, self.seed = num_samples, seed

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        make_trouble(index)
        if self.seed == 2:
            evaluated.append(int(index))
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + int(index))
        start = torch.randint(0, 64, (1,), generator=generator)
        tokens = (start + torch.arange(LENGTH + 1)) % 64
        return {
            "tokens": tokens[:-1],
            "labels": tokens[1:],
            "loss_mask": torch.ones(LENGTH),
            "position_ids": torch.arange(LENGTH),
        }


@dataclass
class Data(bridge.DatasetProvider):
    seq_length: int = LENGTH

    def build_datasets(self, context: Any) -> Any:
        opened.append(time.time_ns() / 1e6)
        valid = Sequences(max(context.valid_samples, 1), 2)
        return Sequences(max(context.train_samples, 1), 1), valid, None


def make_trouble(index: int) -> None:
    """``raise@N``: where sample N of the training set is read."""
    kind, _, number = os.environ.get("TOY_TROUBLE", "").partition("@")
    if kind == "raise" and index == int(number):
        raise RuntimeError("trouble in a step")


def configuration(mode: str, checkpoint: str) -> Any:
    is_lora = mode == "lora"
    model = GPTModelProvider(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        ffn_hidden_size=128,
        seq_length=LENGTH,
        vocab_size=VOCABULARY,
        normalization="RMSNorm",
        position_embedding_type="rope",
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=F.silu,
        share_embeddings_and_output_weights=False,
        attention_dropout=option("DROPOUT", 0.0),
        hidden_dropout=option("DROPOUT", 0.0),
        transformer_layer_spec=local_layer_spec,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        apply_rope_fusion=False,
        cross_entropy_loss_fusion=False,
        persist_layer_norm=False,
        tensor_model_parallel_size=option("TP", 1),
        pipeline_model_parallel_size=option("PP", 1),
        pipeline_dtype=torch.float32,
    )
    evaluation = {"eval_interval": 4, "eval_iters": 2}
    training: dict[str, Any] = {
        "train_iters": option("ITERS", 40),
        "global_batch_size": GLOBAL_BATCH_SIZE,
        "micro_batch_size": 1,
        "exit_interval": option("EXIT_INTERVAL") or None,
    }
    sections: dict[str, Any] = {}
    if NEWEST:
        sections["validation"] = bridge.ValidationConfig(**evaluation)
    else:
        training |= evaluation
    keep = os.environ.get("LOAD")
    return bridge.ConfigContainer(
        model=model,
        mixed_precision=None,
        rng=bridge.RNGConfig(seed=1234),
        train=bridge.TrainingConfig(**training),
        optimizer=bridge.OptimizerConfig(
            optimizer="adam",
            lr=4e-3 if is_lora else 1e-2,
            min_lr=0.0,
            weight_decay=1e-4,
            clip_grad=0.3 if is_lora else 1.0,
        ),
        scheduler=bridge.SchedulerConfig(
            lr_decay_style="cosine",
            lr_warmup_iters=0,
            lr_decay_iters=40,
            start_weight_decay=1e-4,
            end_weight_decay=1e-4,
        ),
        dataset=Data(dataloader_type="batch", num_workers=0, data_sharding=True),
        ddp=bridge.DistributedDataParallelConfig(
            use_distributed_optimizer=False, overlap_grad_reduce=False
        ),
        dist=bridge.DistributedInitConfig(
            distributed_backend="gloo", use_gloo_process_groups=False
        ),
        logger=bridge.LoggerConfig(log_interval=4),
        tokenizer=bridge.TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=VOCABULARY - 1),
        checkpoint=bridge.CheckpointConfig(
            save=None if is_lora else checkpoint,
            save_interval=None if is_lora else 8,
            load=keep,
            pretrained_checkpoint=checkpoint if is_lora else None,
            finetune=is_lora,
            async_save=False,
            fully_parallel_save=False,
            ckpt_format="torch_dist",
        ),
        peft=LoRA(dim=16, alpha=32, dropout=0.1, target_modules=["linear_qkv", "linear_proj"])
        if is_lora
        else None,
        **sections,
    )


def main() -> None:
    from primus_mllog.adapters.megatron_bridge import MLPerfCallback, install_bridge_hooks

    mode, way, checkpoint = sys.argv[1:]
    run = MLPerfRun(SFTSettings.from_environment(), stdout=False)
    agree, moments = run.group.agree, []

    def noted(values: Any) -> Any:
        agreed = agree(values)
        moments.append(time.time_ns() / 1e6)
        return agreed

    run.group.agree = noted  # type: ignore[method-assign]
    train: Any = finetune if mode == "lora" else pretrain
    config = configuration(mode, checkpoint)
    try:
        if way == "callback":
            if mode == "lora" and not NEWEST:
                train = pretrain  # finetune() takes no callbacks there, and is this call
            train(config, forward_step, callbacks=[MLPerfCallback(run)])
        elif way == "hooks":
            helpers = dict.fromkeys(os.environ.get("HELPERS", "").split(), True)
            install_bridge_hooks(run, **helpers)
            train(config, forward_step)
        else:
            train(config, forward_step)
    finally:
        notes = {
            "moments": moments,
            "opened": opened,
            "status": run.status,
            "digest": digest(),
            "evaluated": evaluated,
        }
        with contextlib.suppress(KeyError):
            name = f"{os.environ['TOY_NOTES']}.{os.environ.get('RANK', '0')}"
            Path(name).write_text(json.dumps(notes))


if __name__ == "__main__":
    main()
