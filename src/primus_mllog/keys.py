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
"""Numbers by name, the names below; the rules say nothing of it."""
THROUGHPUT: Final[str] = "throughput"
"""Samples per second of in-step time, over the block that ends."""
OVERALL_THROUGHPUT: Final[str] = "overall_throughput"
"""Samples per second of in-step time, over the run."""
RUN_DURATION: Final[str] = "run_duration"
"""Seconds from run_start to run_stop."""

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
SUBMISSION_ORG: Final[str] = _mllog.SUBMISSION_ORG
SUBMISSION_PLATFORM: Final[str] = _mllog.SUBMISSION_PLATFORM
SUBMISSION_STATUS: Final[str] = _mllog.SUBMISSION_STATUS
SUBMISSION_POC_NAME: Final[str] = _mllog.SUBMISSION_POC_NAME
SUBMISSION_POC_EMAIL: Final[str] = _mllog.SUBMISSION_POC_EMAIL
CONFIG_FILENAME: Final[str] = _mllog.CONFIG_FILENAME
SEED: Final[str] = _mllog.SEED
GLOBAL_BATCH_SIZE: Final[str] = _mllog.GLOBAL_BATCH_SIZE
MICRO_BATCH_SIZE: Final[str] = _mllog.MICRO_BATCH_SIZE
GRADIENT_ACCUMULATION_STEPS: Final[str] = _mllog.GRADIENT_ACCUMULATION_STEPS
MAX_SEQUENCE_LENGTH: Final[str] = _mllog.MAX_SEQUENCE_LENGTH
TRAIN_SAMPLES: Final[str] = _mllog.TRAIN_SAMPLES
EVAL_SAMPLES: Final[str] = _mllog.EVAL_SAMPLES
INIT_CHECKPOINT_STEP: Final[str] = _mllog.INIT_CHECKPOINT_STEP
MAX_STEPS: Final[str] = _mllog.MAX_STEPS
OPT_NAME: Final[str] = _mllog.OPT_NAME
ADAMW: Final[str] = _mllog.ADAMW
OPT_BASE_LR: Final[str] = _mllog.OPT_BASE_LR
OPT_END_LR: Final[str] = _mllog.OPT_END_LR
OPT_LR_WARMUP_STEPS: Final[str] = _mllog.OPT_LR_WARMUP_STEPS
OPT_LR_DECAY_STEPS: Final[str] = _mllog.OPT_LR_DECAY_STEPS
OPT_LR_DECAY_SCHEDULE: Final[str] = _mllog.OPT_LR_DECAY_SCHEDULE
OPT_LR_TRAINING_STEPS: Final[str] = _mllog.OPT_LR_TRAINING_STEPS
OPT_GRADIENT_CLIP_NORM: Final[str] = _mllog.OPT_GRADIENT_CLIP_NORM
OPT_WEIGHT_DECAY: Final[str] = _mllog.OPT_WEIGHT_DECAY
OPT_ADAM_BETA_1: Final[str] = _mllog.OPT_ADAM_BETA_1
OPT_ADAM_BETA_2: Final[str] = _mllog.OPT_ADAM_BETA_2
OPT_ADAM_EPSILON: Final[str] = _mllog.OPT_ADAM_EPSILON
OPT_ADAMW_BETA_1: Final[str] = _mllog.OPT_ADAMW_BETA_1
OPT_ADAMW_BETA_2: Final[str] = _mllog.OPT_ADAMW_BETA_2
OPT_ADAMW_EPSILON: Final[str] = _mllog.OPT_ADAMW_EPSILON
OPT_ADAMW_WEIGHT_DECAY: Final[str] = _mllog.OPT_ADAMW_WEIGHT_DECAY
MOE_AUX_LOSS_COEFF: Final[str] = _mllog.MOE_AUX_LOSS_COEFF
LORA_ALPHA: Final[str] = _mllog.LORA_ALPHA
TENSOR_PARALLELISM: Final[str] = _mllog.TENSOR_PARALLELISM
PIPELINE_PARALLELISM: Final[str] = _mllog.PIPELINE_PARALLELISM
CONTEXT_PARALLELISM: Final[str] = _mllog.CONTEXT_PARALLELISM
EXPERT_PARALLELISM: Final[str] = _mllog.EXPERT_PARALLELISM
LOWEST_NUMERICAL_PRECISION_IN_LINEAR: Final[str] = _mllog.LOWEST_NUMERICAL_PRECISION_IN_LINEAR
LOWEST_NUMERICAL_PRECISION_IN_ATTN: Final[str] = _mllog.LOWEST_NUMERICAL_PRECISION_IN_ATTN
LOWEST_NUMERICAL_PRECISION_IN_COMM: Final[str] = _mllog.LOWEST_NUMERICAL_PRECISION_IN_COMM
LORA_RANK: Final[str] = "lora_rank"
EVALUATION_FREQUENCY: Final[str] = "evaluation_frequency"
TARGET_ACCURACY: Final[str] = "target_accuracy"


def event_type(key: str) -> str:
    """INTERVAL_START for the ``*_start`` markers, INTERVAL_END for ``*_stop``, else a point."""
    if key in {INIT_START, RUN_START, EPOCH_START, BLOCK_START, EVAL_START}:
        return str(_mllog.INTERVAL_START)
    if key in {INIT_STOP, RUN_STOP, EPOCH_STOP, BLOCK_STOP, EVAL_STOP}:
        return str(_mllog.INTERVAL_END)
    return str(_mllog.POINT_IN_TIME)
