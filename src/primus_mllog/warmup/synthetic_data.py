"""Random tokens in the shape of real batches.

Imports torch at the top: this module is imported only once a training begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["gpt_batches", "packed_batches"]

_SEED = 20240229  # any will do: the generator is our own, and the model is restored


def gpt_batches(
    *,
    micro_batch_size: int,
    seq_length: int,
    vocab_size: int,
    attention_mask: bool = False,
) -> Iterator[dict[str, torch.Tensor]]:
    """Micro batches of GPT pretraining, without end, on the CPU as a data loader gives them.

    Args:
        micro_batch_size: samples in each.
        seq_length: tokens in each sample.
        vocab_size: tokens are drawn from 0 to this, exclusive.
        attention_mask: whether the loader makes the mask
            (Megatron's ``create_attention_mask_in_dataloader``).

    Yields:
        ``tokens`` and ``labels`` (int64), ``loss_mask`` (float32), ``position_ids`` (int64), each
        [micro_batch_size, seq_length], and ``attention_mask`` (bool, True where attention must not
        look), [micro_batch_size, 1, seq_length, seq_length].
    """
    generator = torch.Generator().manual_seed(_SEED)
    shape = (micro_batch_size, seq_length)
    while True:
        text = torch.randint(vocab_size, (micro_batch_size, seq_length + 1), generator=generator)
        batch = {
            "tokens": text[:, :-1].contiguous(),
            "labels": text[:, 1:].contiguous(),
            "loss_mask": torch.ones(shape, dtype=torch.float32),
            "position_ids": torch.arange(seq_length).expand(shape).contiguous(),
        }
        if attention_mask:
            is_future = torch.ones((seq_length, seq_length), dtype=torch.bool).triu(1)
            batch["attention_mask"] = is_future.expand(micro_batch_size, 1, -1, -1).contiguous()
        yield batch


def packed_batches(
    *,
    micro_batch_size: int,
    seq_length: int,
    vocab_size: int,
    num_sequences: int = 4,
) -> Iterator[dict[str, Any]]:
    """Micro batches of packed fine-tuning: several sequences of equal length in each row.

    As Megatron-Bridge's packed SFT data set collates them.

    Args:
        micro_batch_size: rows in each.
        seq_length: tokens in each row.
        vocab_size: tokens are drawn from 0 to this, exclusive.
        num_sequences: sequences packed into a row.

    Yields:
        What :func:`gpt_batches` yields, with positions that start again in each sequence, and
        ``cu_seqlens`` (int32, [micro_batch_size, num_sequences + 2]): where sequences begin, the
        row's end, then -1 as padding; ``cu_seqlens_argmin`` (int32, [micro_batch_size, 1]): the
        index of the padding; ``max_seqlen`` (int32, [micro_batch_size, 1]).
    """
    length = -(-seq_length // num_sequences)
    starts = list(range(0, seq_length, length))
    boundaries = torch.tensor([*starts, seq_length, -1], dtype=torch.int32)
    positions = (torch.arange(seq_length) % length).expand(micro_batch_size, -1).contiguous()
    for batch in gpt_batches(
        micro_batch_size=micro_batch_size, seq_length=seq_length, vocab_size=vocab_size
    ):
        yield {
            **batch,
            "position_ids": positions.clone(),
            "cu_seqlens": boundaries.expand(micro_batch_size, -1).contiguous(),
            "cu_seqlens_argmin": torch.full(
                (micro_batch_size, 1), len(starts) + 1, dtype=torch.int32
            ),
            "max_seqlen": torch.full((micro_batch_size, 1), length, dtype=torch.int32),
        }
