"""Facts per benchmark, compared with mlperf-logging's own files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mlperf_logging import benchmark_meta, compliance_checker

from primus_mllog.benchmarks import BENCHMARKS, find, nearest_name

RULES = Path(compliance_checker.__path__[0])


def newest_rules(name: str) -> str:
    files = sorted(RULES.glob(f"training_*/closed_{name}.yaml"))
    return files[-1].read_text()


@pytest.mark.parametrize("name", BENCHMARKS)
def test_targets_are_the_rules_own(name: str) -> None:
    """The target is the number that the rule file compares the evaluation loss with."""
    found = re.search(r"ATLEAST_ONE_CHECK: .*v\['value'\] <= ([\d.]+)", newest_rules(name))
    assert found is not None
    assert BENCHMARKS[name].target == float(found[1])


@pytest.mark.parametrize("name", ["llama31_8b", "gpt_oss_20b", "llama31_405b", "deepseekv3_671b"])
def test_evaluation_samples_are_the_rules_own(name: str) -> None:
    """The samples of an evaluation are those that the rule file wants."""
    found = re.search(
        r"NAME:\s+eval_samples.*?v\['value'\] == (\d+)", newest_rules(name), re.DOTALL
    )
    assert found is not None
    assert BENCHMARKS[name].eval_samples == int(found[1])


@pytest.mark.parametrize("name", BENCHMARKS)
def test_run_counts_are_the_rules_own(name: str) -> None:
    """A submission has as many runs as mlperf-logging counts."""
    assert BENCHMARKS[name].num_runs == benchmark_meta.get_result_file_counts("training")[name]


CADENCES = [
    ("llama31_8b", 32, 12288, 12288),
    ("llama31_8b", 40, 12320, 12320),
    ("gpt_oss_20b", 16, 12288, 12288),
    ("llama2_70b_lora", 8, 384, 1536),
    ("llama31_405b", 1152, 18432, 276480),
]


@pytest.mark.fault("L12")
@pytest.mark.parametrize(("name", "gbs", "interval", "first"), CADENCES)
def test_evaluations_are_rounded_up_to_whole_batches(
    name: str, gbs: int, interval: int, first: int
) -> None:
    """Interval and first evaluation are those of published logs and of the rules' formulas."""
    benchmark = BENCHMARKS[name]
    assert benchmark.eval_interval_samples is not None
    assert benchmark.first_eval_samples is not None
    assert benchmark.eval_interval_samples(gbs) == interval
    assert benchmark.first_eval_samples(gbs) == first


@pytest.mark.fault("C11")
@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("gpt-oss-20b", "gpt_oss_20b"),
        ("GPT_OSS_20B", "gpt_oss_20b"),
        ("llama3.1_8b", "llama31_8b"),
        ("llama2_70b", "llama2_70b_lora"),
        ("resnet", None),
        ("", None),
    ],
)
def test_a_near_miss_is_recognised(wrong: str, right: str | None) -> None:
    """A benchmark that is spelt differently is known for what it is."""
    assert nearest_name(wrong) == right
    assert find(wrong) is None
