"""Canonical JSON: one text for one value, and every other text refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.base import canonical
from confide.base.errors import InputError

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])).filter(lambda k: k != "$float"), inner)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal in value, type and bits: 1 is not 1.0, 0.0 is not -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a.hex() == b.hex() if isinstance(a, float) else a == b


@given(PLAIN)
def test_canonical_round_trip(value: Any) -> None:
    text = canonical.dumps(value)
    assert same(canonical.loads(text), value)
    assert canonical.dumps(canonical.loads(text)) == text
    json.loads(text)  # it is JSON
    text.encode()


@given(PLAIN, PLAIN)
def test_other_values_have_other_texts(a: Any, b: Any) -> None:
    assert (canonical.dumps(a) == canonical.dumps(b)) == same(a, b)


def test_canonical_text_is_fixed() -> None:
    """Hashes in ledgers and bundles rest on these bytes: they never change."""
    assert canonical.dumps({"b": [1, -0.0, True, None], "a": "é\n\"'"}) == (
        '{"a":"é\\n\\"\'","b":[1,{"$float":"-0x0.0p+0"},true,null]}'
    )
    assert canonical.digest("é") == "4a99557e4033c3539de2eb65472017cad5f9557f7a0625a09f1c3f6e2ba69c4c"


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        {"a": [-math.inf]},
        {1: 2},
        {None: 2},
        {"$float": "0x1p+0"},
        2**63,
        -(2**63) - 1,
        10**5000,
        {1, 2},
        b"x",
        object(),
        np.int64(3),
        "\ud800",
        {"\udfff": 1},
        1j,
    ],
    ids=lambda value: type(value).__name__,
)
def test_canonical_refuses(value: Any) -> None:
    with pytest.raises(InputError):
        canonical.dumps(value)


def test_canonical_names_the_place() -> None:
    with pytest.raises(InputError, match=r"plan\.facts\[1\]\.x = nan: must be finite"):
        canonical.dumps({"facts": [0, {"x": math.nan}]}, "plan")


def test_deep_nesting_is_an_input_error() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InputError, match="deep"):
        canonical.dumps(deep)
    with pytest.raises(InputError, match="not canonical"):
        canonical.loads("[" * 100_000 + "]" * 100_000)
    while deep:  # taken apart here: the interpreter would do it by recursion
        deep = deep[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "1.5",
        "1e3",
        "NaN",
        "-Infinity",
        '{"a": 1}',
        '{"b":1,"a":1}',
        '{"a":1,"a":1}',
        "[1,]",
        " 1",
        "1\n",
        "-0",
        '"\\u0041"',
        '{"$float":"0x1p0"}',
        '{"$float":"0x1.8p+1"}',
        '{"$float":"nan"}',
        '{"$float":"inf"}',
        '{"$float":"0x1p+99999"}',
        '{"$float":1}',
        '{"$float":"0x0.0p+0","a":1}',
        '{"$float":"1.5"}',
        "9223372036854775808",
        "1" * 5000,
        '"\\ud800"',
        "\ufeff1",
    ],
)
def test_only_canonical_text_is_read(text: str) -> None:
    with pytest.raises(InputError, match="not canonical JSON"):
        canonical.loads(text)
