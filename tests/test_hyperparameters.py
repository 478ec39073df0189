"""From Megatron's arguments to a header that the official checker passes."""

from __future__ import annotations

import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mlperf_logging import compliance_checker

from official import official_verdict_of, whole_log
from primus_mllog.benchmarks import BENCHMARKS
from primus_mllog.compliance import check_header
from primus_mllog.hyperparameters import extract_hyperparameters
from primus_mllog.settings import PretrainSettings

COMMON = {
    "seed": 1234,
    "micro_batch_size": 2,
    "world_size": 16,
    "optimizer": "adam",
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "adam_eps": 1e-5,
    "weight_decay": 0.1,
    "clip_grad": 1.0,
    "lr_decay_style": "cosine",
    "bf16": True,
}


def pretraining(gbs: int, seq_length: int = 8192, **extra: Any) -> dict[str, Any]:
    return {
        **COMMON,
        "global_batch_size": gbs,
        "seq_length": seq_length,
        "train_iters": 1_200_000,
        "lr": 8e-4,
        "min_lr": 8e-5,
        "lr_warmup_iters": 128,
        "eval_iters": 1024 // gbs if gbs <= 1024 else 1,
        "eval_interval": math.ceil(12288 / gbs),
        **extra,
    }


def llama31_405b(gbs: int) -> dict[str, Any]:
    return pretraining(
        gbs,
        train_iters=500,
        lr=gbs * 8e-5 / 1152,
        min_lr=8e-7,
        lr_warmup_iters=math.ceil(8000 * 1152 / gbs),
        lr_decay_iters=math.ceil(1_200_000 * 1152 / gbs),
        eval_iters=5,
        eval_global_batch_size=1152,
        eval_interval=math.ceil(18432 / gbs),
    )


# Arguments that each closed benchmark is trained with, in every form that Megatron takes.
KNOWN_GOOD: dict[str, tuple[str, dict[str, Any]]] = {
    "llama31_8b gbs 32": ("llama31_8b", pretraining(32)),
    "llama31_8b gbs 16, warmup taken off the decay": (
        "llama31_8b",
        pretraining(16, lr_warmup_iters=128, lr_decay_iters=1_199_872),
    ),
    "llama31_8b in samples": (
        "llama31_8b",
        pretraining(
            32,
            train_iters=None,
            train_samples=1_200_000 * 32,
            lr_warmup_iters=0,
            lr_warmup_samples=128 * 32,
            lr_decay_samples=1_200_000 * 32,
        ),
    ),
    "llama31_8b with a warmup fraction": (
        "llama31_8b",
        pretraining(32, lr_warmup_iters=0, lr_warmup_fraction=0.001),
    ),
    "gpt_oss_20b": ("gpt_oss_20b", pretraining(64, num_experts=32, moe_aux_loss_coeff=0.0)),
    "llama2_70b_lora": (
        "llama2_70b_lora",
        pretraining(
            8,
            world_size=8,
            micro_batch_size=1,
            train_iters=1024,
            lr=4e-4,
            min_lr=0.0,
            lr_warmup_iters=0,
            weight_decay=1e-4,
            clip_grad=0.3,
            lora_rank=16,
            lora_alpha=32,
            eval_iters=24,
            eval_interval=48,
        ),
    ),
    "llama31_405b gbs 1152": ("llama31_405b", llama31_405b(1152)),
    "llama31_405b gbs 2304": ("llama31_405b", llama31_405b(2304)),
    "llama31_405b with a rounded rate": ("llama31_405b", {**llama31_405b(1440), "lr": 1e-4}),
    "deepseekv3_671b": (
        "deepseekv3_671b",
        pretraining(
            16384,
            seq_length=4096,
            world_size=1024,
            micro_batch_size=1,
            tensor_model_parallel_size=1,
            pipeline_model_parallel_size=16,
            expert_model_parallel_size=64,
            num_experts=256,
            moe_aux_loss_coeff=0.01,
            train_iters=12_000,
            lr=2.4e-5,
            min_lr=2.4e-6,
            lr_warmup_iters=4,
            adam_eps=1e-8,
            eval_iters=1,
            eval_global_batch_size=1024,
        ),
    ),
    "flux1": (
        "flux1",
        pretraining(2048, seq_length=256, adam_eps=1e-8, eval_interval=128, lr_warmup_iters=1600),
    ),
}


def settings_for(benchmark: str, **extra: Any) -> PretrainSettings:
    return PretrainSettings(
        mllog_submission_benchmark=benchmark,
        mllog_submission_division="closed",
        mllog_submission_org="org",
        mllog_submission_platform="platform",
        mllog_config_filename="config.sh",
        **extra,
    )


def header_of(benchmark: str, arguments: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return extract_hyperparameters(Namespace(**arguments), settings_for(benchmark, **settings))


RULES = Path(compliance_checker.__path__[0])
# every benchmark with every ruleset that has it
ROUNDS = {
    f"{name} under {ruleset}": (benchmark, arguments, ruleset)
    for ruleset in ("5.1.0", "6.0.0", "6.1.0")
    for name, (benchmark, arguments) in KNOWN_GOOD.items()
    if (RULES / f"training_{ruleset}" / f"closed_{benchmark}.yaml").exists()
}


def test_no_round_is_left_out() -> None:
    """The three rounds have benchmarks, and each benchmark has a round."""
    assert {ruleset for *_, ruleset in ROUNDS.values()} == {"5.1.0", "6.0.0", "6.1.0"}
    assert {benchmark for benchmark, *_ in ROUNDS.values()} == set(BENCHMARKS)


@pytest.mark.fault("C3")
@pytest.mark.fault("C12")
@pytest.mark.parametrize(("benchmark", "arguments", "ruleset"), ROUNDS.values(), ids=ROUNDS)
def test_known_good_arguments_pass_the_official_checker(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    benchmark: str,
    arguments: dict[str, Any],
    ruleset: str,
) -> None:
    """What a closed benchmark is trained with gives a header that the official checker accepts."""
    monkeypatch.chdir(tmp_path)
    facts = BENCHMARKS[benchmark]
    gbs = arguments["global_batch_size"]
    first = facts.first_eval_samples(gbs) if facts.first_eval_samples else gbs
    log = whole_log(header_of(benchmark, arguments), facts.target, first)
    assert official_verdict_of(log, tmp_path / "run.log", ruleset)


def test_a_benchmark_of_another_round_is_refused() -> None:
    """llama31_405b is not in 6.1: the finding is the benchmark, not a missing rule file."""
    header = header_of("llama31_405b", llama31_405b(1152))
    assert {finding.key for finding in check_header(header, "6.1.0")} == {"submission_benchmark"}


WRONG = {
    "opt_adamw_epsilon": {"adam_eps": 1e-8},
    "opt_name": {"optimizer": "sgd"},
    "max_sequence_length": {"seq_length": 4096},
    "opt_learning_rate_decay_steps": {"lr_decay_iters": 1_000_000},
    "eval_samples": {"eval_iters": 64},
    "gradient_accumulation_steps": {"global_batch_size": 0, "eval_iters": None},
    "opt_gradient_clip_norm": {"clip_grad": None},
    "max_steps": {"train_iters": 10},
}


@pytest.mark.parametrize(("key", "change"), WRONG.items(), ids=WRONG)
def test_wrong_arguments_are_refused_under_their_key(key: str, change: dict[str, Any]) -> None:
    """A wrong argument reaches the log as it is, and the official checker names its key."""
    header = header_of("llama31_8b", pretraining(32, **change))
    assert key in {finding.key for finding in check_header(header, "6.1.0")}


@pytest.mark.fault("C2")
@pytest.mark.parametrize(("iterations", "samples"), [(32, 1024), (0, 0), ([32, 16], 1024)])
def test_eval_samples_are_computed(iterations: Any, samples: int) -> None:
    """Evaluation samples are iterations times batch, zero included; the first set counts."""
    assert (
        header_of("llama31_8b", pretraining(32, eval_iters=iterations))["eval_samples"] == samples
    )


@pytest.mark.fault("C4")
def test_the_precision_key_is_the_rules_own() -> None:
    """The variable keeps its name; the key is lowest_numerical_precision_in_linear."""
    header = header_of(
        "llama31_8b", pretraining(32), mllog_lowest_numerical_precision_linear="mxfp4"
    )
    assert header["lowest_numerical_precision_in_linear"] == "mxfp4"
    assert "lowest_numerical_precision_linear" not in header


@pytest.mark.fault("C5")
def test_the_framework_knows_its_parallelism_best() -> None:
    """Without a variable set, parallelism and micro batch are those of the arguments."""
    header = header_of("llama31_8b", pretraining(32, tensor_model_parallel_size=4))
    assert (header["tensor_parallelism"], header["micro_batch_size"]) == (4, 2)
    assert header["pipeline_parallelism"] == 1


@pytest.mark.fault("C5")
def test_a_variable_that_disagrees_wins_and_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """An explicitly set parallelism is logged, with a warning that names both values."""
    header = header_of(
        "llama31_8b", pretraining(32, tensor_model_parallel_size=4), mllog_tensor_parallelism=2
    )
    assert header["tensor_parallelism"] == 2
    told = capsys.readouterr().err
    assert "MLLOG_TENSOR_PARALLELISM=2" in told
    assert "tensor_model_parallel_size=4" in told


@pytest.mark.fault("C6")
def test_accumulation_counts_context_parallelism() -> None:
    """Data-parallel size is world size over tensor, pipeline and context parallelism."""
    arguments = pretraining(
        32,
        world_size=64,
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        context_parallel_size=4,
    )
    assert header_of("llama31_8b", arguments)["gradient_accumulation_steps"] == 4


@pytest.mark.fault("C6")
def test_accumulation_is_not_floored_to_nothing() -> None:
    """A global batch that does not divide is logged as it is, for the preflight to see."""
    accumulation = header_of("llama31_8b", pretraining(16, world_size=64))[
        "gradient_accumulation_steps"
    ]
    assert accumulation == 0.125


@given(st.integers(1, 8), st.integers(1, 64), st.integers(1, 32))
def test_accumulation_times_micro_batch_times_ranks_is_the_global_batch(
    micro: int, data_parallel: int, accumulation: int
) -> None:
    """Whatever the sizes, the three multiply to the global batch size."""
    arguments = {
        "global_batch_size": micro * data_parallel * accumulation,
        "micro_batch_size": micro,
        "data_parallel_size": data_parallel,
    }
    found = extract_hyperparameters(arguments, PretrainSettings())["gradient_accumulation_steps"]
    assert found == accumulation
    assert isinstance(found, int)


@pytest.mark.fault("C7")
def test_nobody_is_named_by_default() -> None:
    """Organisation and platform are empty until set; an empty status is not logged at all."""
    header = extract_hyperparameters({}, PretrainSettings())
    assert (header["submission_org"], header["submission_platform"]) == ("", "")
    assert "submission_status" not in header
    cloud = extract_hyperparameters({}, PretrainSettings(mllog_submission_status="cloud"))
    assert cloud["submission_status"] == "cloud"


STEPS = {
    "iterations": ({"train_iters": 1000, "lr_warmup_iters": 10}, (1000, 10, 990)),
    "decay given": (
        {"train_iters": 500, "lr_decay_iters": 1000, "lr_warmup_iters": 10},
        (500, 10, 990),
    ),
    "warmup taken off already": (
        {"train_iters": 1000, "lr_decay_iters": 990, "lr_warmup_iters": 10},
        (1000, 10, 990),
    ),
    "no warmup": ({"train_iters": 1000, "lr_warmup_iters": 0}, (1000, 0, 1000)),
    "samples": ({"train_samples": 16_000, "lr_warmup_samples": 160}, (1000, 10, 990)),
    "samples that are no whole batches": (
        {"train_samples": 16_015, "lr_warmup_samples": 161},
        (1000, 11, 989),
    ),
    "samples, as Megatron fills them in": (
        {"train_samples": 16_015, "lr_decay_samples": 16_015, "lr_warmup_samples": 161},
        (1000, 11, 989),
    ),
    "decay that is no whole batches": (
        {"train_samples": 16_000, "lr_decay_samples": 8_001, "lr_warmup_samples": 160},
        (1000, 10, 491),
    ),
    "fraction of a decay that is no whole batches": (
        {
            "global_batch_size": 3,
            "train_samples": 484,
            "lr_decay_samples": 400,
            "lr_warmup_fraction": 0.33,
        },
        (161, 44, 90),
    ),
    "fraction that a last bit is above": (
        {"train_iters": 700, "lr_warmup_fraction": 0.07},
        (700, 49, 651),
    ),
    "fraction": ({"train_iters": 1000, "lr_warmup_fraction": 0.01}, (1000, 10, 990)),
    "fraction of samples": (
        {"train_samples": 16_000, "lr_warmup_fraction": 0.01},
        (1000, 10, 990),
    ),
}


@pytest.mark.fault("C3")
@pytest.mark.fault("C8")
@pytest.mark.parametrize(("arguments", "steps"), STEPS.values(), ids=STEPS)
def test_every_form_of_a_schedule_gives_its_steps(
    arguments: dict[str, Any], steps: tuple[int, int, int]
) -> None:
    """Iterations, samples and fractions give the same steps; the decay is without the warmup."""
    header = extract_hyperparameters({"global_batch_size": 16, **arguments}, PretrainSettings())
    keys = ("max_steps", "opt_learning_rate_warmup_steps", "opt_learning_rate_decay_steps")
    assert tuple(header[key] for key in keys) == steps


@given(st.integers(1, 20_000), st.sampled_from([1, 1 + 1e-7, 1 - 1e-7]))
def test_a_rounded_405b_learning_rate_passes_wherever_a_float_can(gbs: int, off: float) -> None:
    """The rule compares floats exactly; the logged rate satisfies it if any float near it does."""
    header = header_of("llama31_405b", {"lr": gbs * 8e-5 / 1152 * off, "global_batch_size": gbs})
    rate, wanted = header["opt_base_learning_rate"], gbs * 8e-5
    near = [math.nextafter(rate, 0.0), math.nextafter(rate, 1.0)]
    assert rate * 1152 == wanted or not any(x * 1152 == wanted for x in near)


@pytest.mark.parametrize(
    ("rate", "gbs"), [(1e-4, 1152), (3.444444e-05, 496)], ids=["not the rule's", "none passes"]
)
def test_another_405b_learning_rate_is_left_for_the_checker(rate: float, gbs: int) -> None:
    """A rate that is not the rule's, or that no float can replace, is logged as it is."""
    header = header_of("llama31_405b", {"lr": rate, "global_batch_size": gbs})
    assert header["opt_base_learning_rate"] == rate


PRECISIONS = {
    "fp32": ({}, ("fp32", "fp32", "fp32")),
    "bf16": ({"bf16": True}, ("bfloat16", "bfloat16", "bfloat16")),
    "fp16": ({"fp16": True}, ("fp16", "fp16", "fp16")),
    "fp8": ({"bf16": True, "fp8": "hybrid"}, ("fp8", "bfloat16", "bfloat16")),
    "fp8 attention": (
        {"bf16": True, "fp8": "hybrid", "fp8_dot_product_attention": True},
        ("fp8", "fp8", "bfloat16"),
    ),
    "fp8 parameters gathered": (
        {"bf16": True, "fp8": "e4m3", "fp8_param_gather": True},
        ("fp8", "bfloat16", "fp8"),
    ),
    "nvfp4": ({"bf16": True, "fp4": "e2m1"}, ("nvfp4", "bfloat16", "bfloat16")),
    "mxfp4": (
        {"bf16": True, "fp4": True, "fp4_recipe": "mxfp4"},
        ("mxfp4", "bfloat16", "bfloat16"),
    ),
    "gradients in bf16": ({"grad_reduce_in_bf16": True}, ("fp32", "fp32", "bfloat16")),
}


@pytest.mark.parametrize(("arguments", "expected"), PRECISIONS.values(), ids=PRECISIONS)
def test_precision_is_read_from_the_arguments(
    arguments: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    """Lowest precision in linear layers, attention and communication, as the rules spell it."""
    header = extract_hyperparameters(arguments, PretrainSettings())
    names = ("linear", "attn", "comm")
    assert tuple(header[f"lowest_numerical_precision_in_{name}"] for name in names) == expected


@pytest.mark.fault("L9")
def test_unknown_is_left_out_and_zero_is_kept() -> None:
    """None means not known; 0 is a value."""
    header = extract_hyperparameters({"lr": None, "min_lr": 0.0}, PretrainSettings())
    assert "opt_base_learning_rate" not in header
    assert header["opt_end_learning_rate"] == 0.0


def test_optimizers_have_their_own_keys() -> None:
    """Adam without decoupled weight decay is adam, not adamw; SGD has a weight decay only."""
    adam = extract_hyperparameters(
        {"optimizer": "adam", "decoupled_weight_decay": False, "adam_eps": 1e-8},
        PretrainSettings(),
    )
    assert (adam["opt_name"], adam["opt_adam_epsilon"]) == ("adam", 1e-8)
    sgd = extract_hyperparameters({"optimizer": "sgd", "weight_decay": 0.1}, PretrainSettings())
    assert (sgd["opt_name"], sgd["opt_weight_decay"]) == ("sgd", 0.1)
    assert not any(key.startswith("opt_adam") for key in sgd)


def test_tensor_arguments_become_numbers() -> None:
    """Arguments that come as tensors or numpy scalars are plain numbers in the header."""
    header = extract_hyperparameters(
        {"seed": torch.tensor(5), "lr": np.float64(0.5)}, PretrainSettings()
    )
    assert (header["seed"], header["opt_base_learning_rate"]) == (5, 0.5)


def test_the_configuration_file_is_known_from_megatron() -> None:
    """Megatron's own YAML file is the config_filename where none is set."""
    header = extract_hyperparameters({"yaml_cfg": "/a/b/llama.yaml"}, PretrainSettings())
    assert header["config_filename"] == "llama.yaml"
