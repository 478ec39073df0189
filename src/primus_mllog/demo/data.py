"""Real text that every machine has: the sources of CPython's ``encodings`` package, as bytes.

Samples are uint8 tensors ``(samples, sequence length + 1)`` of consecutive bytes: all but the last
are the tokens of a sequence, all but the first its labels.

Imports numpy and torch at the top: this module is imported only once a training begins.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from primus_mllog.errors import ConfigurationError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Corpus", "micro_batches", "share"]

# Every tenth of about 120 files. Most are tables of one form with many lines in common, so the
# evaluation measures how well that form was learnt: right for a demo, too easy for a benchmark.
_HELD_OUT_EVERY = 10


class Corpus:
    """Training and evaluation text.

    Which samples make up a batch depends on the seed and the iteration only, so the training is
    the same for every data-parallel size.

    Args:
        sequence_length: tokens in a sample.

    Raises:
        ConfigurationError: this Python's ``encodings`` has no source files (a zipped or compiled
            standard library).
    """

    def __init__(self, sequence_length: int) -> None:
        self._window = torch.arange(sequence_length + 1)
        files = source_files()
        self._evaluation = _read(files[::_HELD_OUT_EVERY])
        self._training = _read(
            [path for number, path in enumerate(files) if number % _HELD_OUT_EVERY]
        )

    def training_batch(self, seed: int, iteration: int, batch_size: int) -> torch.Tensor:
        """The ``batch_size`` samples of one iteration, over all data-parallel ranks."""
        num_starts = len(self._training) - len(self._window) + 1
        generator = np.random.default_rng((seed, iteration))
        starts = torch.from_numpy(generator.integers(num_starts, size=batch_size))
        return self._training[starts[:, None] + self._window]

    def evaluation_set(self, num_samples: int) -> torch.Tensor:
        """The fixed evaluation set: ``num_samples`` spread evenly over the held-out files."""
        num_starts = len(self._evaluation) - len(self._window) + 1
        starts = torch.arange(num_samples) * num_starts // num_samples
        return self._evaluation[starts[:, None] + self._window]


def source_files() -> list[Path]:
    """The text's files, in a fixed order.

    Raises:
        ConfigurationError: there are none.
    """
    spec = importlib.util.find_spec("encodings")
    folders = spec.submodule_search_locations if spec is not None else None
    files = sorted(Path(folders[0]).glob("*.py")) if folders else []
    if not files:
        wanted = "source files: a Python whose standard library is neither zipped nor compiled only"
        raise ConfigurationError(Problem("encodings", "no source file", wanted))
    return files


def share(samples: torch.Tensor, rank: int, num_ranks: int) -> torch.Tensor:
    """One data-parallel rank's equal part of a batch, in order."""
    return samples.chunk(num_ranks)[rank]


def micro_batches(samples: torch.Tensor, size: int) -> Iterator[dict[str, torch.Tensor]]:
    """Batches of ``size`` samples as Megatron wants them: int64 ``tokens`` and ``labels``."""
    for chunk in samples.long().split(size):
        yield {"tokens": chunk[:, :-1].contiguous(), "labels": chunk[:, 1:].contiguous()}


def _read(files: list[Path]) -> torch.Tensor:
    text = b"".join(path.read_bytes() for path in files)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)
