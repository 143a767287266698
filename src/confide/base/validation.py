"""Checks at the edge, so that the inside can trust its arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real

from confide.base.errors import InputError


def whole(field: str, value: object, least: int, most: int | None = None) -> int:
    """An integer in [least, most]; a bool is not an integer."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(field, value, "must be a whole number")
    n = int(value)
    if n < least or (most is not None and n > most):
        limit = f"at least {least}" if most is None else f"between {least} and {most}"
        raise InputError(field, value, f"must be {limit}")
    return n


def positive_int(field: str, value: object) -> int:
    return whole(field, value, 1)


def number(field: str, value: object, least: float = -math.inf, most: float = math.inf) -> float:
    """A finite number in [least, most]."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(field, value, "must be a number")
    try:
        x = float(value)
    except OverflowError:  # a whole number beyond the doubles
        x = math.inf
    if not math.isfinite(x):
        raise InputError(field, value, "must be finite")
    if not least <= x <= most:
        limit = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
        raise InputError(field, value, f"must be {limit}")
    return x


def positive(field: str, value: object) -> float:
    x = number(field, value)
    if x <= 0:
        raise InputError(field, value, "must be positive")
    return x


def probability(field: str, value: object) -> float:
    return number(field, value, 0.0, 1.0)


def positive_range(field: str, value: Sequence[object]) -> tuple[float, float]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise InputError(field, value, "must be two numbers [low, high]")
    low, high = positive(f"{field}[0]", value[0]), positive(f"{field}[1]", value[1])
    if low > high:
        raise InputError(field, value, "the low end must not exceed the high end")
    return low, high


def either(words: Sequence[str]) -> str:
    """
    >>> either(["a", "b", "c"]), either(["a"])
    ('a, b or c', 'a')
    """
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def one_of(field: str, value: object, known: Sequence[str] | Mapping[str, str]) -> str:
    """A known word, or an error with the nearest one; where the words have meanings, with those of all of them."""
    if isinstance(value, str) and value in known:
        return value
    if isinstance(known, Mapping):  # the nearest word may mean another thing than the one that was meant
        raise InputError(field, value, "known: " + ", ".join(f"{word} ({what})" for word, what in known.items()))
    import difflib

    near = difflib.get_close_matches(str(value), known, n=1)
    hint = f"did you mean {str(near[0])!r}? " if near else ""
    raise InputError(field, value, f"{hint}known: {', '.join(known)}")
