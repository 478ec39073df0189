"""What every test starts from: an environment without our variables, nothing said yet."""

from __future__ import annotations

import os

import pytest

from primus_mllog import notices

_OURS = ("MLLOG_", "SYNTH_WARMUP_", "WARMUP_", "PROF", "ENABLE_PYTHON_TRACE")
_LAUNCHERS = ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_", "SLURM_")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing the developer's shell or a launcher has set reaches a test."""
    for name in os.environ:
        if name.startswith(_OURS) or name.startswith(_LAUNCHERS):
            monkeypatch.delenv(name)
    notices.forget()
