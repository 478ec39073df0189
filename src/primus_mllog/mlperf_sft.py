"""``MLPerfSFTLogger``: explicit hooks for fine-tuning loops such as llama2_70b_lora's.

::

    logger = MLPerfSFTLogger(global_batch_size=8, micro_batch_size=1)
    logger.log_cache_clear_and_init_start()
    logger.log_init_params(MLPerfSFTLogger.extract_sft_configs(...))
    logger.log_init_stop_run_start()
    for step in training_loop:
        logger.on_train_step(step, loss_dict, lr, consumed_samples)
        if is_eval_step:
            logger.on_eval_start(consumed_samples)
            if logger.on_eval_end(consumed_samples, run_eval()):
                break
    logger.log_run_stop(consumed_samples)

Every method is to be called on every rank. The lifecycle is :class:`primus_mllog.run.MLPerfRun`'s,
with its promises: one order, one decision, one end on every way out.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_mllog import keys, notices
from primus_mllog.adapters.megatron_lm import loss_of
from primus_mllog.array_file import num_samples
from primus_mllog.hyperparameters import extract_hyperparameters
from primus_mllog.run import MLPerfRun
from primus_mllog.settings import SFTSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_mllog.distributed import ProcessGroup

__all__ = ["MLPerfSFTLogger"]


class MLPerfSFTLogger:
    """Writes the MLPerf log of a fine-tuning run.

    Rank and world size come from the launcher's environment until ``torch.distributed`` is up, and
    from it afterwards, so the logger may be made while the configuration is.

    Args:
        global_batch_size: samples in a step, over all ranks.
        micro_batch_size: samples in a micro batch.
        target_eval_loss: the run succeeds at the first evaluation loss that is not above this;
            MLLOG_TARGET_EVAL_LOSS when None.
        train_loss_log_freq: log train_loss every this many steps, 0 logs none;
            MLLOG_TRAIN_LOSS_LOG_FREQ when None.
        group: the ranks of the run.

    Raises:
        SettingsError: environment variables that cannot be used.
        OutputError: the log cannot be written (rank 0).
    """

    def __init__(
        self,
        global_batch_size: int,
        micro_batch_size: int = 1,
        *,
        target_eval_loss: float | None = None,
        train_loss_log_freq: int | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        self.global_batch_size = global_batch_size
        self.micro_batch_size = micro_batch_size
        chosen = {
            "mllog_target_eval_loss": target_eval_loss,
            "mllog_train_loss_log_freq": train_loss_log_freq,
        }
        update = {name: value for name, value in chosen.items() if value is not None}
        settings = SFTSettings.from_environment().model_copy(update=update)
        self.run = MLPerfRun(settings, group=group)

    def log_cache_clear_and_init_start(self) -> None:
        """The initialisation begins: cache_clear, init_start."""
        self.run.init_start()

    @staticmethod
    def extract_sft_configs(  # noqa: PLR0913 - the names are the users' contract
        *,
        train_gbs: int,
        train_mbs: int,
        train_iters: int,
        eval_iters: int,
        seq_length: int,
        seed: int,
        lr: float,
        weight_decay: float,
        clip_grad: float,
        lr_warmup_iters: int,
        data_root: str | Path,
        adam_beta1: float = 0.9,
        adam_beta2: float = 0.999,
        adam_eps: float = 1e-8,
        lora_rank: int = 16,
        lora_alpha: int = 32,
        data_parallel_size: int | None = None,
        tensor_model_parallel_size: int = 1,
        pipeline_model_parallel_size: int = 1,
        context_parallel_size: int = 1,
        config_filename: str = "",
        lowest_numerical_precision_linear: str = "",
    ) -> dict[str, Any]:
        """The header of the log, in an order that the rules accept.

        Args:
            train_gbs: global batch size, in samples.
            train_mbs: micro batch size, in samples.
            train_iters: optimizer steps at most.
            eval_iters: steps of an evaluation. The samples of the evaluation are those of the
                validation set; a number of steps that cannot hold them is told.
            seq_length: tokens in a sample.
            seed: of the random generators.
            lr: base learning rate.
            weight_decay: AdamW's.
            clip_grad: the norm that gradients are clipped to.
            lr_warmup_iters: optimizer steps of warmup.
            data_root: folder with ``train.npy`` and ``validation.npy``; of each only the header
                is read.
            adam_beta1: AdamW's.
            adam_beta2: AdamW's.
            adam_eps: AdamW's.
            lora_rank: rank of the adapters.
            lora_alpha: their scaling.
            data_parallel_size: of the training; from the number of ranks when None. One that
                counts context-parallel ranks, as Primus' recipe computes it, is put right.
            tensor_model_parallel_size: of the training.
            pipeline_model_parallel_size: of the training.
            context_parallel_size: of the training.
            config_filename: used where MLLOG_CONFIG_FILENAME is not set.
            lowest_numerical_precision_linear: used where
                MLLOG_LOWEST_NUMERICAL_PRECISION_LINEAR is not set.

        Returns:
            MLPerf keys and values.

        Raises:
            SettingsError: environment variables that cannot be used.
            ArrayFileError: a data file is missing or damaged.
        """
        from primus_mllog.distributed import WorldGroup

        settings = SFTSettings.from_environment()
        world_size = WorldGroup().world_size
        given = {
            "mllog_config_filename": config_filename,
            "mllog_lowest_numerical_precision_linear": lowest_numerical_precision_linear,
        }
        update = {n: v for n, v in given.items() if v and not settings.is_set(n)}
        settings = settings.model_copy(update=update)
        num_eval_samples = num_samples(Path(data_root) / "validation.npy")
        if eval_iters * train_gbs < num_eval_samples:
            notices.tell_once(
                "eval_iters",
                f"an evaluation of {eval_iters} steps of {train_gbs} samples does not cover the "
                f"{num_eval_samples} of validation.npy",
            )
        args = {
            "seed": seed,
            "global_batch_size": train_gbs,
            "micro_batch_size": train_mbs,
            "train_iters": train_iters,
            "seq_length": seq_length,
            "optimizer": "adam",
            "lr": lr,
            "lr_warmup_iters": lr_warmup_iters,
            "weight_decay": weight_decay,
            "clip_grad": clip_grad,
            "adam_beta1": adam_beta1,
            "adam_beta2": adam_beta2,
            "adam_eps": adam_eps,
            "lora_rank": lora_rank,
            "lora_alpha": lora_alpha,
            "data_parallel_size": _without_context(
                data_parallel_size,
                tensor_model_parallel_size * pipeline_model_parallel_size,
                context_parallel_size,
                world_size,
            ),
            "tensor_model_parallel_size": tensor_model_parallel_size,
            "pipeline_model_parallel_size": pipeline_model_parallel_size,
            "context_parallel_size": context_parallel_size,
            "bf16": True,
        }
        header = extract_hyperparameters(args, settings, world_size=world_size)
        # of the data sets; Megatron's train_samples is the length of the training
        num_train_samples = num_samples(Path(data_root) / "train.npy")
        return {
            **header,
            keys.TRAIN_SAMPLES: num_train_samples,
            keys.EVAL_SAMPLES: num_eval_samples,
        }

    def log_init_params(self, config: Mapping[str, Any]) -> None:
        """Log the header, with the target of this logger.

        Args:
            config: of :meth:`extract_sft_configs`.
        """
        target = self.run.settings.mllog_target_eval_loss
        self.run.log_hyperparameters({**config, keys.TARGET_ACCURACY: target})

    def log_init_stop_run_start(self) -> None:
        """The clock starts: preflight, init_stop, run_start, epoch_start, block_start.

        Raises:
            PreflightError: the header would be refused and MLLOG_PREFLIGHT=error.
        """
        self.run.start()

    def on_train_step_start(self) -> None:
        """A step begins; needed only for MLLOG_BLOCK_TPUT_LOG and PROFILER."""
        self.run.step_start()

    def on_train_step(
        self,
        step: int,
        loss_dict: Mapping[str, Any] | None,
        lr: float | None,
        consumed_samples: int,
    ) -> None:
        """A step is done; every MLLOG_TRAIN_LOSS_LOG_FREQ-th is logged as train_loss.

        Args:
            step: number of the step, counted from 1.
            loss_dict: losses by name, ``"lm loss"`` among them; empty or None on ranks that do
                not have them.
            lr: the rate the step was taken with.
            consumed_samples: samples trained on so far, the step's included.
        """
        self.run.eval_cancel()  # an evaluation that a time limit ended has not been closed
        loss = loss_of(loss_dict or {})
        self.run.step_stop(consumed_samples, iteration=step, loss=loss, learning_rate=lr)

    def on_eval_start(self, consumed_samples: int) -> None:
        """An evaluation begins.

        Args:
            consumed_samples: samples trained on so far.
        """
        self.run.eval_start(consumed_samples)

    def on_eval_end(self, consumed_samples: int, val_loss: Any) -> bool:  # noqa: ARG002 - contract
        """An evaluation is done; at the target also the run.

        A collective: to be called on every rank.

        Args:
            consumed_samples: as for :meth:`on_eval_start`, whose number counts.
            val_loss: the loss; None on ranks that do not have it.

        Returns:
            Whether the target is reached and training must stop; the same on every rank.
        """
        return self.run.eval_stop(val_loss)

    def log_run_stop(self, consumed_samples: int) -> None:  # noqa: ARG002 - contract
        """The training is over: aborted, unless the target was reached before.

        Args:
            consumed_samples: samples trained on; those of the last step are logged.
        """
        self.run.stop()


def _without_context(
    data_parallel_size: int | None, model_size: int, context_size: int, world_size: int
) -> int | None:
    """The data-parallel size, of which context-parallel ranks are no part."""
    if data_parallel_size is None or context_size == 1:
        return data_parallel_size
    if data_parallel_size * model_size != world_size:
        return data_parallel_size
    size = world_size // (model_size * context_size)
    notices.tell_once(
        "data_parallel_size",
        f"data_parallel_size={data_parallel_size} counts {context_size} context-parallel ranks as "
        f"data-parallel; it is {size}, and gradient_accumulation_steps is logged for that",
    )
    return size
