"""Python values to JSON values, so that no event is lost to ``Failed to encode``.

mllog writes what :mod:`json` and numpy's scalars cover and drops the event otherwise; tensors,
paths, dtypes, enums and the like are converted here first. One number has no JSON form at all:
a NaN or an infinity becomes null, because bare ``NaN`` breaks every strict reader.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import os
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from primus_mllog.errors import EncodingError

__all__ = ["json_value", "non_finite_name"]

# What nearly every value is: no look at what else it could be is needed.
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


def json_value(key: str, value: Any) -> Any:
    """``value`` as None, bool, int, float, str, list or dict with string keys.

    Arrays and tensors of one element become a number, others nested lists; bytes are read as
    UTF-8; sets become sorted lists; dataclasses become dicts; torch and numpy dtypes and devices
    become their names. NaN and infinities become None.

    Args:
        key: the MLPerf key the value belongs to, for the message.
        value: what the caller passed.

    Raises:
        EncodingError: ``value``, or something in it, has no JSON form.
    """
    if type(value) in _PLAIN:
        return None if type(value) is float and not math.isfinite(value) else value
    if type(value) is dict:
        return {_name(key, k): json_value(key, v) for k, v in value.items()}
    if isinstance(value, str):
        # str subclasses (numpy.str_, string enums) may carry their own repr: keep the text only.
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return _converted(key, value)


def non_finite_name(value: Any) -> str | None:
    """``"NaN"``, ``"Infinity"`` or ``"-Infinity"`` if ``value`` is one number of that kind."""
    number = _single_number(value)
    if not isinstance(number, float) or math.isfinite(number):
        return None
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def _converted(key: str, value: Any) -> Any:  # noqa: C901, PLR0911 - one return for each kind
    if isinstance(value, enum.Enum):
        return json_value(key, value.value)
    number = _single_number(value)
    if number is not value:
        return json_value(key, number)
    if isinstance(value, (Decimal, Fraction)):
        is_whole = value == value.to_integral_value() if isinstance(value, Decimal) else False
        return json_value(key, int(value) if is_whole else float(value))
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", errors="backslashreplace")
    if isinstance(value, os.PathLike):
        return json_value(key, os.fspath(value))
    if isinstance(value, Mapping):
        return {_name(key, k): json_value(key, v) for k, v in value.items()}
    if isinstance(value, AbstractSet):
        return sorted((json_value(key, v) for v in value), key=repr)
    if isinstance(value, (list, tuple)):
        return [json_value(key, v) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {f.name: json_value(key, getattr(value, f.name)) for f in fields}
    if callable(getattr(value, "tolist", None)):
        return json_value(key, _on_host(value).tolist())
    if _is_framework_name(value):
        return str(value).removeprefix("torch.")
    kind = type(value)
    raise EncodingError(key, f"{kind.__module__}.{kind.__qualname__}")


def _single_number(value: Any) -> Any:
    """The Python number in a one-element array, tensor or numpy scalar; else ``value`` itself."""
    if type(value) in _PLAIN:
        return value
    if callable(getattr(value, "tolist", None)) and callable(getattr(value, "item", None)):
        size = getattr(value, "size", 1)
        if callable(size):  # a tensor's size() is its shape; numel() is the number of elements
            size = value.numel()
        if size == 1:
            return _on_host(value).item()
    return value


def _on_host(value: Any) -> Any:
    """``value`` without gradient history, where that is a notion it has."""
    return value.detach() if callable(getattr(value, "detach", None)) else value


def _name(key: str, value: Any) -> str:
    encoded = json_value(key, value)
    return encoded if isinstance(encoded, str) else str(encoded)


def _is_framework_name(value: Any) -> bool:
    """Whether ``value`` is a dtype or device, whose text is what a person would write."""
    kind = type(value)
    return kind.__module__.split(".")[0] in {"torch", "numpy"} and (
        "dtype" in kind.__name__.lower() or kind.__name__ == "device"
    )
