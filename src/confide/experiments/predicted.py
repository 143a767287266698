"""Exact predictions beside what was measured: a difference in dB, and how far chance alone could explain it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from confide.base.arrays import Floats
from confide.engines.run import Run
from confide.experiments.claims import Claim, Condition, Outcome
from confide.theory.prediction import Prediction

TOLERANCE = 0.5  # dB
SAMPLES = 20  # means over repetitions and blocks of rounds from which an error is estimated, at least
SETTLED = 0.02  # relative distance from the limit below which a predicted curve has arrived
ERRORS = float(stdtrit(SAMPLES - 1, 1.0 - 0.005 / 2))  # standard errors of a 99.5% band
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


def chance(means: Floats) -> float:
    """How far chance alone could have moved the mean of independent means: a 99.5% band (Student)."""
    return standard_error(means) * float(stdtrit(len(means) - 1, 1.0 - 0.005 / 2)) if len(means) > 1 else math.inf


def width(comparisons: int) -> float:
    """Standard errors of a 95% band for all of so many comparisons at once (Student, Bonferroni)."""
    return float(stdtrit(SAMPLES - 1, 1.0 - 0.025 / max(comparisons, 1)))


def agreement(
    id: str, figure: str, what: str, judged: Sequence[Comparison], unstable: Sequence[str], largest_stable_step: float
) -> Claim:
    """Every point within 0.5 dB; one whose Monte-Carlo error is larger can only decide against it, and is named.

    Half of the points must be sure.

    Args:
        unstable: points whose step is not mean-square stable: they have no steady state and are not compared.
            Averages over a few runs read low there, and well below the limit they do not.
    """
    band = width(len(judged))
    sure, rough = ([c for c in judged if (band * c.error_db > TOLERANCE) is kind] for kind in (False, True))
    # NaN or infinity is no agreement: written so that they fail
    off = [c for c in judged if not abs(c.difference_db) <= max(TOLERANCE, band * c.error_db)]
    worst = _largest([c.difference_db for c in off or sure])
    enough = bool(off) or len(sure) >= len(rough)
    apart = Condition("predicted and measured apart", worst, TOLERANCE, error=0.0 if enough else math.inf, least=False)
    first = Outcome(what, [apart])
    numbers: dict[str, object] = {
        "largest_difference_db": worst,
        "monte_carlo_error_db": _largest([band * c.error_db for c in judged]),
        "points": len(judged),
        "largest_mean_square_stable_step": largest_stable_step,
    }
    if rough:
        numbers["too_few_runs_to_tell_at"] = [f"{c.point} {c.which}" for c in rough]
    if unstable:
        numbers["not_compared_as_not_mean_square_stable"] = list(unstable)
    for which in WHICH:
        numbers[f"{which}_predicted_measured_db"] = {
            c.point: [c.predicted_db, c.measured_db] for c in judged if c.which == which
        }
    statement = f"{what}: predicted and measured steady states agree within {TOLERANCE:g} dB"
    return Claim(id, statement, first.holds, numbers, "predictions are right", figure, readings=(first,))


def _largest(values: Sequence[float]) -> float:
    return max((abs(v) for v in values), default=math.nan)
