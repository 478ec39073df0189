"""The demo's text and how it is dealt out."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from primus_mllog.demo import data
from primus_mllog.demo.data import Corpus, micro_batches, share
from primus_mllog.errors import ConfigurationError

SEQUENCE = 128


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus(SEQUENCE)


def test_a_batch_depends_on_seed_and_iteration_only(corpus: Corpus) -> None:
    """Another corpus object gives the same batch, another seed or iteration another one."""
    batch = corpus.training_batch(7, 3, 16)
    assert batch.shape == (16, SEQUENCE + 1)
    assert torch.equal(batch, Corpus(SEQUENCE).training_batch(7, 3, 16))
    assert not torch.equal(batch, corpus.training_batch(8, 3, 16))
    assert not torch.equal(batch, corpus.training_batch(7, 4, 16))


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 16])
def test_ranks_share_the_global_batch(corpus: Corpus, num_ranks: int) -> None:
    """The parts of all data-parallel ranks are the batch of one, in order and equally large."""
    batch = corpus.training_batch(0, 1, 16)
    parts = [share(batch, rank, num_ranks) for rank in range(num_ranks)]
    assert {len(part) for part in parts} == {16 // num_ranks}
    assert torch.equal(torch.cat(parts), batch)


def test_the_evaluation_set_is_fixed_and_held_out(corpus: Corpus) -> None:
    """It is the same each time, and no file that it comes from is trained on."""
    samples = corpus.evaluation_set(128)
    assert samples.shape == (128, SEQUENCE + 1)
    assert torch.equal(samples, corpus.evaluation_set(128))
    training, evaluation = (bytes(t.tolist()) for t in (corpus._training, corpus._evaluation))
    assert all(bytes(sample.tolist()) in evaluation for sample in samples)
    held_out = [path.read_bytes() for path in data.source_files()[::10]]
    assert not [text for text in held_out if text in training]


def test_training_and_evaluation_are_all_the_sources(corpus: Corpus) -> None:
    """Nothing is lost and nothing is in both."""
    sizes = [path.stat().st_size for path in data.source_files()]
    assert len(corpus._training) + len(corpus._evaluation) == sum(sizes)
    assert len(corpus._evaluation) == sum(sizes[::10])


def test_labels_are_the_next_byte(corpus: Corpus) -> None:
    """Micro batches hold tokens and, one further, labels."""
    batch = corpus.training_batch(0, 1, 16)
    chunks = list(micro_batches(batch, 4))
    assert len(chunks) == 4
    assert torch.equal(torch.cat([c["tokens"] for c in chunks]), batch[:, :-1].long())
    assert torch.equal(torch.cat([c["labels"] for c in chunks]), batch[:, 1:].long())


def test_a_zipped_standard_library_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without source files there is no text, which one message says."""
    archive = tmp_path / "library.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("encodings/__init__.py", "")
    spec = type("Spec", (), {"submodule_search_locations": [f"{archive}/encodings"]})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    with pytest.raises(ConfigurationError, match="no source file"):
        Corpus(SEQUENCE)
