"""What the Megatron-LM hooks cost a training step, beside the same step without them.

``python benchmarks/hooks.py`` prints one row for each kind of rank: the bare loop and the hooked
one run in turns, and the fastest turn of each counts, so that what else the machine does falls out.
"""

from __future__ import annotations

import contextlib
import time
import types
from typing import TYPE_CHECKING, Any

from primus_mllog.adapters.megatron_lm import MegatronHooks
from primus_mllog.run import MLPerfRun
from primus_mllog.settings import PretrainSettings
from primus_mllog.testing import capture_events

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NUM_STEPS, NUM_TURNS = 20_000, 7
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
        """Seconds a step."""
        optimizer = types.SimpleNamespace(param_groups=[{"params": [1], "lr": 0.1}])
        started = time.perf_counter()
        for _ in range(NUM_STEPS):
            self.train_step(None, None, None, optimizer)
        return (time.perf_counter() - started) / NUM_STEPS


@contextlib.contextmanager
def hooked(rank: int, **settings: Any) -> Iterator[Training]:
    training = Training()
    settings = {"mllog_preflight": "off", **settings}
    with capture_events(strict=False):
        run = MLPerfRun(PretrainSettings(**settings), group=Rank(rank))
        run.init_start()
        run.log_hyperparameters({"global_batch_size": 8})
        run.start()
        with MegatronHooks(run, training).installed():
            yield training


def main() -> None:
    rows = {
        "rank 0, no line": (0, {"mllog_train_loss_log_freq": 0}),
        "rank 0, no line, throughput": (
            0,
            {"mllog_train_loss_log_freq": 0, "mllog_block_tput_log": True},
        ),
        "another rank, no line": (1, {"mllog_train_loss_log_freq": 0}),
        "another rank, a loss kept each step": (1, {"mllog_train_loss_log_freq": 1}),
    }
    print(f"{'step hooks':<38}{'bare µs':>9}{'hooked µs':>11}{'added µs':>10}{'ratio':>8}")
    for name, (rank, settings) in rows.items():
        bare, with_hooks = [], []
        for _ in range(NUM_TURNS):
            bare.append(Training().train() * 1e6)
            with hooked(rank, **settings) as training:
                with_hooks.append(training.train() * 1e6)
        low, high = min(bare), min(with_hooks)
        print(f"{name:<38}{low:>9.2f}{high:>11.2f}{high - low:>10.2f}{high / low:>8.1f}")


if __name__ == "__main__":
    main()
