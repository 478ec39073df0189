"""What the package exports, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import primus_mllog

HEAVY = ("torch", "numpy", "pydantic", "pydantic_settings", "mlperf_logging", "rich", "typer")


def test_exported_names() -> None:
    """The public names are these, and each of them loads."""
    assert primus_mllog.__all__ == [
        "MLPerfLogger",
        "MLPerfMegatronPretrainTrainer",
        "MLPerfRun",
        "MLPerfSFTLogger",
        "ThroughputTimer",
        "__version__",
        "reset_fp4_state",
        "reset_fp8_state",
        "run_synthetic_warmup",
        "seed_fp8_amax",
    ]
    for name in primus_mllog.__all__:
        assert getattr(primus_mllog, name) is not None
        assert name in dir(primus_mllog)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A name that does not exist fails as in any module."""
    with pytest.raises(AttributeError, match="module 'primus_mllog' has no attribute 'Nope'"):
        _ = primus_mllog.Nope


@pytest.mark.fault("W12")
def test_importing_the_package_imports_nothing_heavy() -> None:
    """import primus_mllog works and stays light where no framework is installed."""
    code = f"import sys, primus_mllog; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.fault("W12")
def test_a_run_needs_no_torch() -> None:
    """The whole lifecycle works where torch cannot be imported."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from primus_mllog import MLPerfRun\n"
        "from primus_mllog.settings import PretrainSettings\n"
        "s = PretrainSettings(mllog_save_to_file=False, mllog_target_eval_loss=1.0,\n"
        "                     mllog_preflight='off')\n"
        "with MLPerfRun(s) as run:\n"
        "    run.init_start(); run.start(); run.eval_start(16)\n"
        "    assert run.eval_stop(0.9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert '"status": "success"' in done.stdout
