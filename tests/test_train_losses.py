"""Losses reach the log without holding up a step."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from primus_mllog import train_losses
from primus_mllog.testing import FakeProcessGroup, run_ranks
from primus_mllog.train_losses import TrainLosses


class OnDevice:
    """Stands for a loss tensor on an accelerator; reading it is counted."""

    device = types.SimpleNamespace(type="cuda")

    def __init__(self, value: float) -> None:
        self.value = value
        self.num_reads = 0

    def __float__(self) -> float:
        self.num_reads += 1
        return self.value


class OneRank:
    rank, world_size = 0, 1

    def barrier(self) -> None: ...

    def agree(self, values: Any) -> Any:
        return list(values)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What the device has computed, step by step; events of ``torch.cuda`` answer from it."""
    done: list[bool] = []

    class Event:
        def record(self) -> None:
            self.index = len(done)
            done.append(False)

        def query(self) -> bool:
            return done[self.index]

        def synchronize(self) -> None:
            pytest.fail("a step waited for the device")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("a step waited"))
    return done


def losses_of(group: Any = None) -> tuple[TrainLosses, list[Any]]:
    logged: list[Any] = []
    return TrainLosses(lambda *what: logged.append(what), group or OneRank()), logged


@pytest.mark.fault("T3")
def test_a_loss_is_logged_when_the_device_has_computed_it(computed: list[bool]) -> None:
    """Readiness is looked up, never waited for; each line has its own step's samples and time."""
    losses, logged = losses_of()
    first, second, third = OnDevice(3.0), OnDevice(2.0), OnDevice(1.0)
    losses.add(first, {"step": 1}, 100)
    losses.add(second, {"step": 2}, 200)
    assert logged == []
    computed[0] = True
    losses.add(third, {"step": 3}, 300)
    assert logged == [(first, {"step": 1}, 100)]
    assert (second.num_reads, third.num_reads) == (0, 0)
    losses.log_kept(collective=True)
    assert [what[1:] for what in logged[1:]] == [({"step": 2}, 200), ({"step": 3}, 300)]


def test_losses_are_logged_in_the_order_of_their_steps(computed: list[bool]) -> None:
    """A later step that is computed waits for an earlier one that is not."""
    losses, logged = losses_of()
    losses.add(OnDevice(3.0), {"step": 1}, 100)
    losses.add(OnDevice(2.0), {"step": 2}, 200)
    computed[1] = True
    losses.add(4.0, {"step": 3}, 300)
    assert logged == []
    losses.log_kept(collective=False)
    assert [metadata["step"] for _, metadata, _ in logged] == [1, 2, 3]


def test_a_loss_on_the_host_is_logged_at_once() -> None:
    """There is nothing to wait for."""
    losses, logged = losses_of()
    losses.add(torch.tensor(2.0), {"step": 1}, 100)
    assert [metadata for _, metadata, _ in logged] == [{"step": 1}]
    losses.log_kept(collective=True)
    assert len(logged) == 1


def test_many_losses_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an evaluation, all ranks hand theirs in at the same step."""
    monkeypatch.setattr(train_losses, "MOST_KEPT", 4)

    def rank(group: FakeProcessGroup) -> list[Any]:
        losses, logged = losses_of(group)
        for step in range(1, 10):
            if group.rank == 0:
                losses.add(None, {"step": step}, step)
            else:
                losses.keep(float(step))
        return [(value, metadata["step"]) for value, metadata, _ in logged]

    logged, others = run_ranks(2, rank)
    assert logged == [(float(step), step) for step in range(1, 9)]
    assert others == []
