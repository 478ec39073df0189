"""Reading RPD traces: what the devices spent their time on.

A trace is an SQLite database (schema:
https://github.com/ROCm/rocmProfileData/tree/master/rocpd_python/rocpd/schema_data). It is opened
read-only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from pathlib import Path

from primus_mllog.errors import LogFileError

__all__ = ["Kernel", "Trace", "read_trace"]

# A copy or a barrier has no description: it is named by its kind.
_KERNELS = """
SELECT CASE WHEN kernel.string <> '' THEN kernel.string ELSE kind.string END AS name,
       COUNT(*), SUM(op."end" - op."start")
FROM rocpd_op AS op
LEFT JOIN rocpd_string AS kernel ON kernel.id = op.description_id
LEFT JOIN rocpd_string AS kind ON kind.id = op.opType_id
GROUP BY name
ORDER BY 3 DESC, 1
"""
_EXTENT = """
SELECT COUNT(DISTINCT gpuId), COALESCE(MAX("end") - MIN("start"), 0) FROM rocpd_op
"""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """All calls of one kernel, or of one kind of copy."""

    name: str
    num_calls: int
    seconds: float
    """On all devices together."""
    share: float
    """Of the time of all kernels; 0 to 1."""


@dataclasses.dataclass(frozen=True)
class Trace:
    """What an RPD trace holds of the devices."""

    kernels: tuple[Kernel, ...]
    """Longest first."""
    num_devices: int
    seconds: float
    """From the first operation to the last, gaps between traced segments included."""


def read_trace(path: str | Path) -> Trace:
    """The device operations of an RPD trace, by kernel.

    Args:
        path: the trace.

    Raises:
        LogFileError: the file cannot be read or is no RPD trace.
    """
    if not Path(path).is_file():
        raise LogFileError(str(path), "there is no such file")
    uri = f"{Path(path).absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            rows = connection.execute(_KERNELS).fetchall()
            [(num_devices, extent)] = connection.execute(_EXTENT)
    except sqlite3.Error as error:
        reason = f"it is not an RPD trace, or not a whole one ({error})"
        raise LogFileError(str(path), reason) from error
    total = sum(nanoseconds for _, _, nanoseconds in rows) or 1
    kernels = tuple(
        Kernel(str(name), num_calls, nanoseconds / 1e9, nanoseconds / total)
        for name, num_calls, nanoseconds in rows
    )
    return Trace(kernels, num_devices, extent / 1e9)
