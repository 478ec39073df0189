"""The demo's configuration under the names Megatron gives it, as ``get_args()`` would."""

from __future__ import annotations

from argparse import Namespace

__all__ = ["megatron_arguments"]


def megatron_arguments(
    *,
    seed: int,
    train_iters: int,
    world_size: int = 1,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
) -> Namespace:
    """A two-layer model of the Llama kind with 0.46 million parameters, and how it is trained.

    Args:
        seed: of the weights and of the order of the data.
        train_iters: steps at most; the learning rate decays over them.
        world_size: number of processes.
        tensor_parallel: processes that share each layer.
        pipeline_parallel: pipeline stages.
    """
    global_batch_size = 16
    data_parallel_size = world_size // (tensor_parallel * pipeline_parallel)
    # A pipeline with one micro batch would leave every stage but one idle.
    num_micro_batches = 1 if pipeline_parallel == 1 else 2 * pipeline_parallel
    return Namespace(
        # model
        num_layers=2,
        hidden_size=128,
        ffn_hidden_size=352,
        num_attention_heads=4,
        seq_length=128,
        max_position_embeddings=128,
        padded_vocab_size=256,
        normalization="RMSNorm",
        norm_epsilon=1e-5,
        swiglu=True,
        add_bias_linear=False,
        position_embedding_type="rope",
        untie_embeddings_and_output_weights=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        transformer_impl="local",
        # training
        seed=seed,
        global_batch_size=global_batch_size,
        micro_batch_size=max(1, global_batch_size // (data_parallel_size * num_micro_batches)),
        train_iters=train_iters,
        eval_interval=20,
        eval_iters=8,
        iteration=0,
        # optimizer
        optimizer="adam",
        lr=2e-3,
        min_lr=2e-4,
        lr_decay_style="cosine",
        lr_warmup_iters=min(10, train_iters - 1),
        lr_decay_iters=train_iters,
        adam_beta1=0.9,
        adam_beta2=0.95,
        adam_eps=1e-5,
        weight_decay=0.1,
        decoupled_weight_decay=True,
        clip_grad=1.0,
        # parallelism
        world_size=world_size,
        data_parallel_size=data_parallel_size,
        tensor_model_parallel_size=tensor_parallel,
        pipeline_model_parallel_size=pipeline_parallel,
        context_parallel_size=1,
        expert_model_parallel_size=1,
        distributed_backend="gloo",
        # precision
        bf16=False,
        fp16=False,
        fp8=None,
        fp4=None,
    )
