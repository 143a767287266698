"""What the paper says, as numbers: a claim has a sentence, a threshold written beside it, and a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confide.base.arrays import plain

DIGITS = 4  # of a number: more was not measured


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, checked.

    Attributes:
        id: e.g. "a1": figure and number.
        statement: the sentence, with the threshold that makes it checkable.
        holds: the verdict under the default reading.
        numbers: what was measured; other readings of the paper appear here and decide nothing.
    """

    id: str
    statement: str
    holds: bool
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "statement": self.statement, "holds": self.holds, "numbers": plain(self.numbers, DIGITS)}
