"""Values of every kind become JSON."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from primus_mllog.encoding import json_value, non_finite_name
from primus_mllog.errors import EncodingError


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Shape:
    width: int
    name: str


CONVERTED = [
    (torch.tensor(1.5), 1.5),
    (torch.tensor([2]), 2),
    (torch.tensor([[1.0, 2.0]], requires_grad=True), [[1.0, 2.0]]),
    (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
    (torch.tensor([True]), True),
    (torch.bfloat16, "bfloat16"),
    (torch.device("cpu"), "cpu"),
    (torch.Size([2, 3]), [2, 3]),
    (np.float32(0.25), 0.25),
    (np.int64(7), 7),
    (np.bool_(True), True),
    (np.str_("x"), "x"),
    (np.array([1, 2]), [1, 2]),
    (np.dtype("float32"), "float32"),
    (PurePosixPath("/a/b"), "/a/b"),
    (b"bytes", "bytes"),
    (bytearray(b"\xff"), "\\xff"),
    (Decimal("1.5"), 1.5),
    (Decimal(3), 3),
    (Fraction(1, 4), 0.25),
    (Color.RED, "red"),
    (Level.LOW, 1),
    ({2, 1}, [1, 2]),
    (frozenset(), []),
    (Shape(3, "s"), {"width": 3, "name": "s"}),
    ((1, (2, 3)), [1, [2, 3]]),
    (MappingProxyType({"a": torch.tensor(1)}), {"a": 1}),
    ({1: "one", Color.RED: 2}, {"1": "one", "red": 2}),
]


@pytest.mark.fault("W4")
@pytest.mark.parametrize(("value", "expected"), CONVERTED, ids=lambda v: type(v).__name__)
def test_values_that_mllog_drops_are_converted(value: Any, expected: Any) -> None:
    """Tensors, numpy values, paths, bytes, enums and the like are written as what they hold."""
    encoded = json_value("key", value)
    assert encoded == expected
    assert type(encoded) is type(expected)


@pytest.mark.fault("W4")
@pytest.mark.parametrize("value", [object(), {"a": [object()]}, lambda: None, Shape])
def test_what_has_no_json_form_is_a_clear_error(value: Any) -> None:
    """The error names the key and the type, and is a TypeError."""
    with pytest.raises(EncodingError, match=r"event 'opt_name': a value of type ") as caught:
        json_value("opt_name", value)
    assert caught.value.key == "opt_name"
    assert isinstance(caught.value, TypeError)


@pytest.mark.fault("W5")
@pytest.mark.parametrize(
    "value", [math.nan, math.inf, np.float64("nan"), torch.tensor(-math.inf), [1.0, math.nan]]
)
def test_a_number_that_is_none_becomes_null(value: Any) -> None:
    """NaN and infinities never reach the JSON, alone or inside a list."""
    encoded = json_value("key", value)
    assert "null" in json.dumps(encoded, allow_nan=False)


@pytest.mark.fault("W5")
@pytest.mark.parametrize(
    ("value", "name"),
    [
        (math.nan, "NaN"),
        (torch.tensor([math.inf]), "Infinity"),
        (np.float32(-math.inf), "-Infinity"),
        (1.0, None),
        (np.array([math.nan, 1.0]), None),
        ("NaN", None),
    ],
)
def test_what_the_number_was_is_named(value: Any, name: str | None) -> None:
    """A single NaN or infinity is recognised in every numeric type."""
    assert non_finite_name(value) == name


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_like)
def test_plain_values_stay_as_they_are(value: Any) -> None:
    """What JSON can hold is written unchanged."""
    assert json_value("key", value) == value
