"""How many samples a ``.npy`` file holds, from its header: nothing is loaded, nothing unpickled."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from primus_mllog.errors import ArrayFileError

__all__ = ["num_samples"]


def num_samples(path: str | Path) -> int:
    """The length of the first axis.

    The data sets of llama2_70b_lora are arrays of Python objects; only a header is read of them,
    because loading one would unpickle it, on every rank, to count.

    Args:
        path: a file in NumPy's format
            (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).

    Raises:
        ArrayFileError: the file is missing, damaged, cut off, or not of that format.
    """
    from numpy.lib import format as npy

    path = Path(path)
    try:
        with path.open("rb") as file:
            version = npy.read_magic(file)
            # newer versions differ in the header's encoding only, and are for structured arrays
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = read(file)
            num_bytes = path.stat().st_size - file.tell()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ArrayFileError(str(path), reason) from error
    except ValueError as error:
        raise ArrayFileError(str(path), f"it is not a NumPy array ({error})") from error
    if not shape:
        raise ArrayFileError(str(path), "it holds a single value, not samples")
    _check_size(path, shape, dtype, num_bytes)
    return int(shape[0])


def _check_size(path: Path, shape: tuple[int, ...], dtype: Any, num_bytes: int) -> None:
    """Refuse a file that is shorter than its header says; pickled objects have no known size."""
    wanted = 1 if dtype.hasobject else math.prod(shape) * dtype.itemsize
    if num_bytes < wanted:
        reason = f"it is cut off: its header says {shape[0]} samples of which not all are there"
        raise ArrayFileError(str(path), reason)
