"""Exact predictions beside what was measured: a difference in dB, and how far chance alone could explain it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from confide.base.arrays import Floats
from confide.engines.run import Run
from confide.experiments.claims import Claim
from confide.theory.prediction import Prediction

TOLERANCE = 0.5  # dB
SAMPLES = 20  # means over repetitions and blocks of rounds from which an error is estimated, at least
SETTLED = 0.02  # relative distance from the limit below which a predicted curve has arrived
DECIBEL = 10.0 / math.log(10.0)
WHICH = ("centroid", "individual")


@dataclass(frozen=True)
class Comparison:
    """One steady state, predicted and measured over the same rounds.

    Attributes:
        point: which run, e.g. "per-link 0.1".
        which: "centroid" or "individual".
        error_db: standard error of what was measured; infinite where nothing can be said.
    """

    point: str
    which: str
    predicted_db: float
    measured_db: float
    error_db: float

    @property
    def difference_db(self) -> float:
        return self.measured_db - self.predicted_db


def compare(run: Run, prediction: Prediction, point: str) -> list[Comparison]:
    """The centroid and the individual models, nothing without a limit; a run that diverged is infinitely high."""
    found: list[Comparison] = []
    if prediction.limit is None:
        return found
    for which in WHICH:
        curve, rows = getattr(prediction, f"{which}_msd"), run.metrics[f"{which}_msd"]
        first = settled(curve, getattr(prediction.limit, which).total)
        predicted = DECIBEL * math.log(float(curve[first:].mean()))
        if run.diverged:
            found.append(Comparison(point, which, predicted, math.inf, 0.0))
            continue
        means = blocks(rows[:, first:])
        error = standard_error(means) / means.mean() if means.mean() else math.inf
        level = DECIBEL * math.log(float(rows[:, first:].mean()))
        found.append(Comparison(point, which, predicted, level, DECIBEL * float(error)))
    return found


def settled(curve: Floats, limit: float) -> int:
    """The first round (from 0) after which a predicted curve stays near its limit; the last fifth at the latest."""
    away = np.flatnonzero(np.abs(curve / limit - 1.0) > SETTLED)
    latest = len(curve) - max(1, math.ceil(len(curve) / 5))
    return min(int(away[-1]) + 1 if len(away) else 0, latest)


def blocks(rows: Floats) -> Floats:
    """Means over blocks of rounds of every repetition: as many blocks as make `SAMPLES` of them, if there are rounds.

    Rounds of a run resemble each other, so an error estimated from single rounds would be too small.
    """
    repeats, rounds = rows.shape
    parts = np.array_split(rows, min(rounds, math.ceil(SAMPLES / repeats)), axis=1)
    return np.concatenate([part.mean(axis=1) for part in parts])


def standard_error(means: Floats) -> float:
    return float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else math.inf


def width(comparisons: int) -> float:
    """Standard errors of a 95% band for all of so many comparisons at once (Student, Bonferroni)."""
    return float(stdtrit(SAMPLES - 1, 1.0 - 0.025 / max(comparisons, 1)))


def agreement(
    id: str, what: str, judged: Sequence[Comparison], unstable: Sequence[str], largest_stable_step: float
) -> Claim:
    """Every point within 0.5 dB, or, where so few repetitions cannot tell that, within their Monte-Carlo error.

    Args:
        unstable: points whose step is not mean-square stable: they have no steady state and are not compared.
            Averages over a few runs read low there, and well below the limit they do not.
    """
    band = width(len(judged))
    allowed = [max(TOLERANCE, band * c.error_db) for c in judged]
    wider = [a for a in allowed if a > TOLERANCE]
    # NaN or infinity is no agreement: written so that they fail
    holds = bool(judged) and all(
        math.isfinite(c.difference_db) and abs(c.difference_db) <= a for c, a in zip(judged, allowed, strict=True)
    )
    statement = f"{what}: predicted and measured steady states agree within {TOLERANCE:g} dB"
    if wider:
        statement += f", or within the Monte-Carlo error where that is larger (at {len(wider)} of {len(judged)} points)"
    numbers: dict[str, object] = {
        "largest_difference_db": _largest([c.difference_db for c in judged]),
        "monte_carlo_error_db": _largest([band * c.error_db for c in judged]),
        "points": len(judged),
        "largest_mean_square_stable_step": largest_stable_step,
    }
    if wider:
        numbers["wider_band_at"] = [c.point + " " + c.which for c, a in zip(judged, allowed, strict=True) if a in wider]
    if unstable:
        numbers["not_compared_as_not_mean_square_stable"] = list(unstable)
    for which in WHICH:
        numbers[f"{which}_predicted_measured_db"] = {
            c.point: [c.predicted_db, c.measured_db] for c in judged if c.which == which
        }
    return Claim(id, statement, holds, numbers)


def _largest(values: Sequence[float]) -> float:
    return max((abs(v) for v in values), default=math.nan)
