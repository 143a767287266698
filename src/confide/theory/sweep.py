"""Where a run ends as one of its settings changes: the exact steady state against the step, E, L, P or another key."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from confide.base.errors import InputError
from confide.plans.config import load, named_as_in_config
from confide.theory.prediction import Levels, decibels, predict


class Point(NamedTuple):
    """The steady state at one value.

    Attributes:
        levels: None where there is none.
        why: then the reason.
    """

    value: Any
    levels: Levels | None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data: the levels in dB, and of each the part that is privacy noise."""
        found: dict[str, Any] = {"value": self.value, "why": self.why or None}
        for which in ("centroid", "individual"):
            level = None if self.levels is None else getattr(self.levels, which)
            found[f"{which}_db"] = None if level is None else decibels(level.total)
            noise = None if level is None or not level.total else level.privacy_noise / level.total
            found[f"{which}_privacy_noise"] = noise
        return found


def asked(text: str) -> tuple[str, list[Any]]:
    """The key and the values of "algorithm.step=0.1,0.5,1"; a value that is a list stands in brackets.

    >>> asked("problem.covariance=[0.05,0.5],[0.2,0.3]")
    ('problem.covariance', [[0.05, 0.5], [0.2, 0.3]])
    >>> asked("graph.weights=lazy,metropolis")
    ('graph.weights', ['lazy', 'metropolis'])
    """
    key, equals, listed = text.partition("=")
    try:
        values = tomllib.loads(f"values = [{listed}]")["values"]
    except tomllib.TOMLDecodeError:
        values = [word.strip() for word in listed.split(",")]
    if not key or not equals or not values or "" in values:
        raise InputError("sweep", text, "must be KEY=VALUE,VALUE,..., such as algorithm.step=0.1,0.5,1")
    return key, values


def sweep(config: str | Path, changes: Sequence[str], key: str, values: Sequence[Any]) -> Iterator[Point]:
    """The limit of `confide theory` at every value of one key of a config.

    A value whose step is not mean-square stable, or whose run has no prediction, is a point with the reason; a value
    that the config refuses is an `InputError`.
    """
    for value in values:
        x = load(config, [*changes, f"{key}={json.dumps(value)}"]).build()
        if len(x.graph) > 1:
            raise InputError("graph.topology", [g.name for g in x.graph], "the theory is for one graph; give one")
        with named_as_in_config():
            found = predict(x.problem, x.graph[0], x.algorithm, seed=x.seed).limit
        yield Point(value, found, "" if found is not None else "the step is not mean-square stable")
