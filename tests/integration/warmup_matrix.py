"""Train tiny GPTs of Megatron-Core with and without a warmup before, and compare them bit for bit.

``python -m torch.distributed.run --nproc-per-node N warmup_matrix.py LAYOUT…`` with layouts from
``LAYOUTS``. Each combination is trained three times: after 0, 1 and 5 warmup steps and 2 evaluation
steps. Prints one line for each combination that differs, and as the last how many were compared.
Dropout is on. "Resumed" means that the optimizer has state of three steps when the warmup begins.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import sys
from typing import Any

import cpu_megatron

cpu_megatron.install()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.module import Float16Module  # noqa: E402

from primus_mllog.settings import PretrainSettings  # noqa: E402
from primus_mllog.warmup import run_warmup  # noqa: E402
from primus_mllog.warmup.synthetic_data import gpt_batches  # noqa: E402

cpu_megatron.install_late()

# tensor, pipeline, expert parallelism; distributed optimizer; experts
LAYOUTS: dict[str, dict[str, Any]] = {
    "DP": {},
    "DP distributed optimizer": {"distributed_optimizer": True},
    "TP": {"tensor": 2},
    "PP": {"pipeline": 2},
    "EP": {"expert": 2, "num_experts": 4},
}
VOCABULARY, LENGTH, NUM_STEPS = 64, 16, 10
NUM_WARMUP_STEPS = (0, 1, 5)


class Training:
    """One model from its seed, with all that changes while it is trained."""

    def __init__(self, layout: dict[str, Any], *, bf16: bool, optimizer: str) -> None:
        torch.manual_seed(7)
        tensor_parallel.model_parallel_cuda_manual_seed(7)
        config = _config(layout, bf16=bf16)
        model: Any = GPTModel(
            config,
            get_gpt_layer_local_spec(config.num_moe_experts, moe_grouped_gemm=False),
            vocab_size=VOCABULARY,
            max_sequence_length=LENGTH,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            share_embeddings_and_output_weights=False,
        )
        if bf16:
            model = Float16Module(config, model)
        is_distributed = layout.get("distributed_optimizer", False)
        ddp = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, use_distributed_optimizer=is_distributed
        )
        self.model = [DistributedDataParallel(config, ddp, model)]
        config.finalize_model_grads_func = finalize_model_grads
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer=optimizer,
                lr=1e-2,
                min_lr=1e-4,
                weight_decay=0.1,
                bf16=bf16,
                params_dtype=torch.bfloat16 if bf16 else torch.float32,
                use_distributed_optimizer=is_distributed,
                clip_grad=1.0,
            ),
            self.model,
        )
        config.grad_scale_func = self.optimizer.scale_loss
        self.scheduler = OptimizerParamScheduler(
            self.optimizer,
            init_lr=0.0,
            max_lr=1e-2,
            min_lr=1e-4,
            lr_warmup_steps=2,
            lr_decay_steps=40,
            lr_decay_style="cosine",
            start_wd=0.1,
            end_wd=0.1,
            wd_incr_steps=40,
            wd_incr_style="constant",
        )
        self.data = gpt_batches(micro_batch_size=2, seq_length=LENGTH, vocab_size=VOCABULARY)

    def step(self, data: Any) -> float | None:
        for chunk in self.model:
            chunk.train()
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        loss = self._run(data, forward_only=False)
        self.optimizer.step()
        self.scheduler.step(increment=1)
        return loss

    def evaluate(self, data: Any) -> float | None:
        for chunk in self.model:
            chunk.eval()
        with torch.no_grad():
            return self._run(data, forward_only=True)

    def _run(self, data: Any, *, forward_only: bool) -> float | None:
        losses = get_forward_backward_func()(
            forward_step_func=_forward_step,
            data_iterator=data,
            model=self.model,
            num_microbatches=2,
            seq_length=LENGTH,
            micro_batch_size=2,
            forward_only=forward_only,
        )
        return sum(float(loss) for loss in losses) if losses else None

    def warm_up(self, num_steps: int) -> None:
        settings = PretrainSettings(
            synth_warmup_steps=num_steps,
            synth_warmup_valid_steps=2 if num_steps else 0,
            synth_warmup_verify=True,
        )
        data = gpt_batches(micro_batch_size=2, seq_length=LENGTH, vocab_size=VOCABULARY)
        with contextlib.redirect_stderr(io.StringIO()):
            run_warmup(
                settings,
                model=self.model,
                optimizer=self.optimizer,
                scheduler=self.scheduler,
                train_step=lambda _: self.step(data),
                evaluate=lambda count: [self.evaluate(data) for _ in range(count)],
            )

    def digest(self) -> str:
        """Of parameters, main parameters and optimizer state; written apart from the snapshot."""
        tensors = [parameter for chunk in self.model for parameter in chunk.parameters()]
        for member in getattr(self.optimizer, "chained_optimizers", [self.optimizer]):
            for group in member.optimizer.param_groups:
                for parameter in group["params"]:
                    state = member.optimizer.state.get(parameter, {})
                    tensors += [parameter, *(state[name] for name in sorted(state))]
        digest = hashlib.sha256()
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())
            else:
                digest.update(repr(tensor).encode())
        return digest.hexdigest()


def outcome(layout: dict[str, Any], num_warmup_steps: int, *, resumed: bool, **how: Any) -> Any:
    """Losses of ten steps and an evaluation, and the digest after them."""
    training = Training(layout, **how)
    if resumed:
        for _ in range(3):
            training.step(training.data)
    training.warm_up(num_warmup_steps)
    losses = [training.step(training.data) for _ in range(NUM_STEPS)]
    return losses, training.evaluate(training.data), training.digest()


def _config(layout: dict[str, Any], *, bf16: bool) -> TransformerConfig:
    experts: dict[str, Any] = {}
    if layout.get("num_experts"):
        experts = {
            "num_moe_experts": layout["num_experts"],
            "moe_token_dispatcher_type": "alltoall",
            "moe_router_load_balancing_type": "none",
            "moe_router_enable_expert_bias": True,
            "moe_router_score_function": "sigmoid",
            "add_bias_linear": False,
        }
    return TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        hidden_dropout=0.1,
        attention_dropout=0.1,
        tensor_model_parallel_size=layout.get("tensor", 1),
        pipeline_model_parallel_size=layout.get("pipeline", 1),
        expert_model_parallel_size=layout.get("expert", 1),
        bf16=bf16,
        params_dtype=torch.bfloat16 if bf16 else torch.float32,
        pipeline_dtype=torch.bfloat16 if bf16 else torch.float32,
        use_cpu_initialization=True,
        batch_p2p_sync=False,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        persist_layer_norm=False,
        **experts,
    )


def _forward_step(data: Any, model: Any) -> tuple[Any, Any]:
    batch = next(data)
    is_future = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
    losses = model(batch["tokens"], batch["position_ids"], is_future, labels=batch["labels"])

    def loss_function(losses: torch.Tensor) -> Any:
        mean = losses.float().mean()
        return mean, mean.detach().clone()

    return losses, loss_function


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group()
    num_compared, is_logging = 0, dist.get_rank() == 0
    for name in sys.argv[1:]:
        layout = LAYOUTS[name]
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.get("tensor", 1),
            pipeline_model_parallel_size=layout.get("pipeline", 1),
            expert_model_parallel_size=layout.get("expert", 1),
        )
        for bf16, optimizer, resumed in itertools.product((0, 1), ("adam", "sgd"), (0, 1)):
            if optimizer == "sgd" and "distributed" in name:
                continue  # Megatron's distributed optimizer takes only Adam
            how = {"bf16": bool(bf16), "optimizer": optimizer, "resumed": bool(resumed)}
            plain, *warmed = (outcome(layout, steps, **how) for steps in NUM_WARMUP_STEPS)
            equal = torch.tensor([all(one == plain for one in warmed)]).int()
            dist.all_reduce(equal, op=dist.ReduceOp.MIN)
            num_compared += len(warmed)
            if is_logging and not equal:
                print("DIFFERENT", name, how, plain[:2], [one[:2] for one in warmed])
        parallel_state.destroy_model_parallel()
    if is_logging:
        print("compared", num_compared)
    cpu_megatron.finish()


if __name__ == "__main__":
    main()
