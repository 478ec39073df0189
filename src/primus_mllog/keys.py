"""Names of MLPerf keys: mllog's constants where it has them, literals where it has not."""

from __future__ import annotations

from typing import Final

from mlperf_logging.mllog import constants as _mllog

# Markers of the lifecycle
CACHE_CLEAR: Final[str] = _mllog.CACHE_CLEAR
INIT_START: Final[str] = _mllog.INIT_START
INIT_STOP: Final[str] = _mllog.INIT_STOP
RUN_START: Final[str] = _mllog.RUN_START
RUN_STOP: Final[str] = _mllog.RUN_STOP
EPOCH_START: Final[str] = _mllog.EPOCH_START
EPOCH_STOP: Final[str] = _mllog.EPOCH_STOP
BLOCK_START: Final[str] = _mllog.BLOCK_START
BLOCK_STOP: Final[str] = _mllog.BLOCK_STOP
EVAL_START: Final[str] = _mllog.EVAL_START
EVAL_STOP: Final[str] = _mllog.EVAL_STOP
EVAL_ACCURACY: Final[str] = _mllog.EVAL_ACCURACY
TRAIN_LOSS: Final[str] = "train_loss"
TRACKED_STATS: Final[str] = "tracked_stats"
THROUGHPUT: Final[str] = "throughput"

# Metadata
SAMPLES_COUNT: Final[str] = _mllog.SAMPLES_COUNT
STATUS: Final[str] = _mllog.STATUS
SUCCESS: Final[str] = _mllog.SUCCESS
ABORTED: Final[str] = _mllog.ABORTED
STEP: Final[str] = "step"
LR: Final[str] = "lr"

# Header
SUBMISSION_BENCHMARK: Final[str] = _mllog.SUBMISSION_BENCHMARK
SUBMISSION_DIVISION: Final[str] = _mllog.SUBMISSION_DIVISION
GLOBAL_BATCH_SIZE: Final[str] = _mllog.GLOBAL_BATCH_SIZE
GRADIENT_ACCUMULATION_STEPS: Final[str] = _mllog.GRADIENT_ACCUMULATION_STEPS
EVAL_SAMPLES: Final[str] = _mllog.EVAL_SAMPLES
EVALUATION_FREQUENCY: Final[str] = "evaluation_frequency"
TARGET_ACCURACY: Final[str] = "target_accuracy"


def event_type(key: str) -> str:
    """INTERVAL_START for the ``*_start`` markers, INTERVAL_END for ``*_stop``, else a point."""
    if key in {INIT_START, RUN_START, EPOCH_START, BLOCK_START, EVAL_START}:
        return str(_mllog.INTERVAL_START)
    if key in {INIT_STOP, RUN_STOP, EPOCH_STOP, BLOCK_STOP, EVAL_STOP}:
        return str(_mllog.INTERVAL_END)
    return str(_mllog.POINT_IN_TIME)
