"""What the paper says of its regression: levels that make every claim hold, and then one change that does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from confide.experiments import regression_claims as said
from confide.experiments.claims import Outcome
from confide.experiments.readings import Level
from confide.experiments.regression import STEPS, VARIANCES

# in dB: of every variance, and of every step
GOOD = {
    ("centroid", "homomorphic"): [-37, -37, -36, -34, -33, -30],
    ("centroid", "random"): [-35, -28, -18, -8, -5, 2],
    ("individual", "homomorphic"): [-30, -24, -14, -4, -1, 6],
    ("individual", "random"): [-29, -19, -9, 1, 4, 11],
    ("disagreement", "homomorphic"): [-31, -24, -14, -4, -1, 6],
    ("disagreement", "random"): [-30, -20, -10, 0, 3, 10],
}
STEPPED = {
    ("centroid", "homomorphic"): [-47, -39, -34, -21],
    ("centroid", "random"): [-11, -17, -19, -17],
    ("individual", "homomorphic"): [-15.5, -15.3, -15, -12],
}


class Told:
    """`Levels` as they are told, in dB, each with the same error."""

    def __init__(self, error_db: float = 0.0) -> None:
        self.levels = {key: list(map(float, row)) for key, row in GOOD.items()}
        self.stepped = {key: list(map(float, row)) for key, row in STEPPED.items()}
        self.none = {"centroid": -37.5, "individual": -32.0, "disagreement": -33.0}
        self.rounds: dict[tuple[str, float], float | None] = {
            (name, mu): n for name in said.BOTH for mu, n in zip(STEPS, (9.5, 6.0, 3.0, 2.0), strict=True)
        }
        self.unstable: set[float] = set()
        self.error_db = error_db

    def level(self, which: str, name: str, variance: float, mu: float) -> Level:
        if name == "none":
            db = self.none[which]
        elif mu in STEPS:
            db = self.stepped[which, name][STEPS.index(mu)]
        else:
            db = self.levels[which, name][VARIANCES.index(variance)]
        value = 10.0 ** (db / 10.0)
        return Level(value, value * self.error_db * math.log(10.0) / 10.0)

    def settling(self, name: str, mu: float) -> float | None:
        return self.rounds[name, mu]

    def stable(self, mu: float) -> bool:
        return mu not in self.unstable


def outcome(claim: str, x: Told) -> Outcome:
    return Outcome("told", list(said.SAID[claim].judge(x)))


@pytest.mark.parametrize("claim", said.SAID)
def test_good_levels_make_every_claim_hold(claim: str) -> None:
    assert outcome(claim, Told()).holds is True


def at(key: tuple[str, str], place: int, value: float) -> Callable[[Told], None]:
    return lambda x: x.levels[key].__setitem__(place, value)


def step(key: tuple[str, str], place: int, value: float) -> Callable[[Told], None]:
    return lambda x: x.stepped[key].__setitem__(place, value)


H, R = ("centroid", "homomorphic"), ("centroid", "random")
HI, RI = ("individual", "homomorphic"), ("individual", "random")
HD, RD = ("disagreement", "homomorphic"), ("disagreement", "random")


@pytest.mark.parametrize(
    ("claim", "spoil"),
    [
        ("a1", at(H, 2, -34.4)),
        ("a1", lambda x: x.none.update(centroid=math.inf)),
        ("a2", at(R, 2, -26.1)),
        ("a2", at(H, 2, math.inf)),
        ("b1", at(R, 3, -16.0)),
        ("b1", at(H, 3, -20.0)),
        ("b1", lambda x: [x.levels[key].__setitem__(3, math.inf) for key in (H, R)]),
        ("b2", at(H, 5, -15.0)),
        ("b2", at(R, 5, -37.4)),
        ("b2", at(H, 5, -38.0)),  # below the floor: no slope
        ("b3", at(HI, 0, -28.0)),
        ("b3", at(HI, 5, 12.0)),
        ("b3", at(RI, 5, -29.5)),
        ("b4", at(HD, 3, -14.0)),
        ("b4", at(RD, 5, 2.0)),
        ("b6", at(HD, 2, -24.0)),
        ("b6", lambda x: x.none.update(disagreement=-19.0)),
        ("c1", step(H, 0, -38.0)),
        ("c1", step(H, 3, -35.0)),
        ("c1", step(H, 2, math.inf)),
        ("c2", step(R, 0, -20.0)),
        ("c2", step(R, 3, -19.5)),
        ("c3", lambda x: x.rounds.update({("random", 0.5): 9.5})),
        ("c3", lambda x: x.rounds.update({("homomorphic", 1.0): 7.0})),
        ("c5", step(HI, 0, -15.2)),
        ("c5", step(HI, 2, -15.4)),
        ("e1", at(H, 2, -34.4)),
        ("e1", at(R, 2, -28.0)),
    ],
)
def test_every_claim_can_fail(claim: str, spoil: Callable[[Told], Any]) -> None:
    told = Told()
    spoil(told)
    assert outcome(claim, told).holds is False


@pytest.mark.parametrize("claim", [c for c in said.SAID if c != "c3"])  # whose rounds are counted, not averaged
def test_too_few_runs_decide_nothing(claim: str) -> None:
    assert outcome(claim, Told(error_db=40.0)).holds is None


def test_a_difference_beyond_its_error_decides_against() -> None:
    told = Told(error_db=0.5)
    told.levels[H][2] = -33.0  # 4.5 dB above, with an error of 0.7
    assert outcome("a1", told).holds is False
    told.levels[H][2] = -34.0  # 3.5 dB
    assert outcome("a1", told).holds is None


def test_an_unstable_step_is_not_judged() -> None:
    """Infinity is not counted as worse: where the end of the U is unstable, nothing shows that it rises."""
    told = Told()
    told.unstable = {5.0}
    told.stepped[H][3] = told.stepped[R][3] = math.inf
    assert outcome("c1", told).holds is True
    assert outcome("c2", told).holds is None
    told.stepped[R][2] = -16.0
    assert outcome("c2", told).holds is True
    told.stepped[R][0] = -20.0
    assert outcome("c2", told).holds is False


def test_who_begins_at_the_end_shows_no_rate() -> None:
    told = Told()
    told.rounds["random", 0.1] = None
    assert outcome("c3", told).holds is None
    told.rounds["random", 1.0] = 7.0
    assert outcome("c3", told).holds is False


def test_the_variance_of_breakdown_is_that_of_the_straight_line() -> None:
    """The error at the variance 9 floor / slope is 10 dB above noiseless; the ratio of two such is that of slopes."""
    told, floor = Told(), 10.0**-3.75
    for key, slope in ((H, 2e-4), (R, 0.05)):
        told.levels[key] = [10.0 * math.log10(floor + slope * v) for v in VARIANCES]
    (condition,) = outcome("b2", told).conditions
    assert condition.value == pytest.approx(250.0)
    assert said._slope(told, "random")[0] == pytest.approx(0.05)
