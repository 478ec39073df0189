"""A training step, beside the same step without us."""

from __future__ import annotations

import time
import types
from typing import TYPE_CHECKING, Any

from benchmarks import Row, side_by_side
from primus_mllog import ThroughputTimer
from primus_mllog.adapters.megatron_lm import MegatronHooks
from primus_mllog.run import MLPerfRun
from primus_mllog.settings import PretrainSettings
from primus_mllog.testing import capture_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MOST_ADDED_US = 2.0
NUM_STEPS = 5_000
RESULT = ({"lm loss": 2.0}, 0, False, False, 0, 1.0, None, None)


class Rank:
    """One rank of eight, alone: what it asks of the others is not measured here."""

    world_size = 8

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def barrier(self) -> None: ...

    def agree(self, values: Sequence[float | None]) -> list[float | None]:
        return list(values)


class Training(types.ModuleType):
    """Stands for ``megatron.training.training`` with a step that does nothing."""

    def __init__(self) -> None:
        super().__init__("training")
        self.args = types.SimpleNamespace(
            data_parallel_size=8, micro_batch_size=1, consumed_train_samples=0, iteration=0
        )

    def get_args(self) -> Any:
        return self.args

    def get_num_microbatches(self) -> int:
        return 1

    def train_step(self, _forward: Any, _data: Any, _model: Any, optimizer: Any) -> Any:  # noqa: ARG002
        """No work: only the call itself."""
        return RESULT

    def train(self) -> float:
        """Microseconds a step."""
        optimizer = types.SimpleNamespace(param_groups=[{"params": [1], "lr": 0.1}])
        started = time.perf_counter()
        for _ in range(NUM_STEPS):
            self.train_step(None, None, None, optimizer)
        return (time.perf_counter() - started) / NUM_STEPS * 1e6


def hooked(rank: int, **settings: Any) -> float:
    """The same with the hooks of a run."""
    training = Training()
    settings = {"mllog_preflight": "off", **settings}
    with capture_events(strict=False):
        run = MLPerfRun(PretrainSettings(**settings), group=Rank(rank))
        run.init_start()
        run.log_hyperparameters({"global_batch_size": 8})
        run.start()
        with MegatronHooks(run, training).installed():
            return training.train()


def rows() -> Iterator[Row]:
    cases: dict[str, tuple[int, dict[str, Any]]] = {
        "Megatron hooks, rank 0": (0, {"mllog_train_loss_log_freq": 0}),
        "Megatron hooks, rank 0, with throughput": (
            0,
            {"mllog_train_loss_log_freq": 0, "mllog_block_tput_log": True},
        ),
        "Megatron hooks, another rank": (1, {"mllog_train_loss_log_freq": 0}),
        "Megatron hooks, another rank that keeps its losses": (1, {"mllog_train_loss_log_freq": 1}),
    }
    for what, (rank, settings) in cases.items():
        yield row(what, lambda r=rank, s=settings: hooked(r, **s), lambda: Training().train())
    yield row("ThroughputTimer alone", timed, untimed)


def row(what: str, ours: Callable[[], float], peers: Callable[[], float]) -> Row:
    mine, theirs, ratio = side_by_side(ours, peers)
    goal, is_met = f"≤ {MOST_ADDED_US:.0f} µs more", mine - theirs <= MOST_ADDED_US
    return Row(what, "µs", mine, "empty step", theirs, ratio, goal=goal, is_met=is_met)


def timed() -> float:
    timer = ThroughputTimer(8)
    started = time.perf_counter()
    for _ in range(NUM_STEPS):
        timer.step_start()
        timer.step_stop()
    return (time.perf_counter() - started) / NUM_STEPS * 1e6


def untimed() -> float:
    started = time.perf_counter()
    for _ in range(NUM_STEPS):
        pass
    return (time.perf_counter() - started) / NUM_STEPS * 1e6
