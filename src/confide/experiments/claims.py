"""What the paper says, as numbers: a claim has a sentence, the conditions that decide it, and a verdict.

A verdict has three values: a number that is nearer to its threshold than its Monte-Carlo error decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from confide.base.arrays import plain

DIGITS = 5  # of a number: more was not measured
WORDS = {True: "holds", False: "does not hold", None: "not decided"}


@dataclass(frozen=True)
class Condition:
    """One number beside its threshold.

    Attributes:
        what: the number in words.
        error: how far chance alone could have moved it; 0 for a number that is computed exactly.
        least: the threshold is the least that is allowed, else the most.
    """

    what: str
    value: float
    bound: float
    unit: str = "dB"
    error: float = 0.0
    least: bool = True

    @property
    def holds(self) -> bool | None:
        margin = self.value - self.bound if self.least else self.bound - self.value
        if math.isinf(self.error):
            return None
        return None if -self.error < margin <= self.error else margin > self.error

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"{short(self.value)}{unit} ({'>=' if self.least else '<='} {short(self.bound)})"

    def to_dict(self) -> dict[str, Any]:
        found = {"what": self.what, "value": self.value, "at_least" if self.least else "at_most": self.bound}
        return found | {"unit": self.unit} | ({"error": self.error} if self.error else {})


def short(value: float) -> str:
    """Three digits, as a table has room for.

    >>> short(1218.3), short(0.2041), short(3.1e6)
    ('1218', '0.204', '3.1e+06')
    """
    return f"{value:.0f}" if 100.0 <= abs(value) < 1e5 else f"{value:.3g}"


def all_hold(verdicts: Iterable[bool | None]) -> bool | None:
    """No as soon as one is no; not decided as long as one is open."""
    found = list(verdicts)
    return False if False in found else None if None in found else True


class Outcome(NamedTuple):
    """A claim under one reading of the paper."""

    name: str
    conditions: Sequence[Condition]

    @property
    def holds(self) -> bool | None:
        return all_hold(c.holds for c in self.conditions)

    @property
    def deciding(self) -> Condition | None:
        """The first condition that fails, or else the first that is open, or else the first."""
        order = (False, None, True)
        return min(self.conditions, key=lambda c: order.index(c.holds), default=None)

    def to_dict(self) -> dict[str, Any]:
        numbers = {c.what: {k: v for k, v in c.to_dict().items() if k != "what"} for c in self.conditions}
        return {"name": self.name, "holds": self.holds, "numbers": plain(numbers, DIGITS)}


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, checked.

    Attributes:
        id: e.g. "a1": figure and number.
        statement: the sentence, with the threshold that makes it checkable and where that comes from.
        holds: under the default reading; None where the runs are too few to tell.
        numbers: what was measured.
        line: the sentence in the few words of a table.
        figure: the paper's, e.g. "3a"; None for what is ours.
        expected: what is known to come out under the default reading.
        verdict: in words, with the choice on which it hangs; by default from `holds` alone.
        readings: all of them, the default first; empty where the sentence is about our own experiments.
        privacy: about privacy, not about learning.
    """

    id: str
    statement: str
    holds: bool | None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    line: str = ""
    figure: str | None = None
    expected: bool = True
    verdict: str = ""
    readings: tuple[Outcome, ...] = ()
    privacy: bool = False

    @property
    def said(self) -> str:
        return self.verdict or WORDS[self.holds]

    @property
    def as_expected(self) -> bool:
        """What is not decided is no surprise."""
        return self.holds is None or self.holds is self.expected

    @property
    def deciding(self) -> str:
        """The number that decides, and its threshold."""
        first = self.readings[0].deciding if self.readings else None
        return "" if first is None else str(first)

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "figure": self.figure,
            "statement": self.statement,
            "line": self.line,
            "verdict": self.said,
            "holds": self.holds,
            "expected": self.expected,
            "numbers": plain(self.numbers, DIGITS),
            "readings": [outcome.to_dict() for outcome in self.readings],
        }
