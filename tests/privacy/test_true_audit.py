"""The audit sees mistakes that were once made: each is put back here by replacing what mended it, and contradicted.

The worst cases are the audit's own; what a test chooses is a config, of the kind that the mistake was about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from confide.attacks.audit import Row, rows_of
from confide.base.errors import InputError
from confide.engines.release import Releasing
from confide.laws.law import Law
from confide.plans.config import parse
from confide.plans.words import ConvexGlm, Links, Regulariser
from confide.privacy import accountant, closed_forms, deviation, participation, reveal, sensitivity
from confide.privacy.accountant import Question
from confide.privacy.course import Bound
from confide.privacy.reveal import Reveal
from confide.privacy.sensitivity import Sensitivity
from confide.rounds.reference import Reference

BASE = {
    "rounds": 20,
    "graph": {"topology": "ring"},
    "problem": {"units": 3, "clients": 10, "samples": 20, "features": 2, "rho": 0.0},
    "algorithm": {
        "sampled": 2, "step": 0.1, "clip": "example", "bound": 1.0, "local_steps": 1, "batch": 10, "replacement": False,
    },
    "scheme": {"name": "shared", "noise": "gaussian", "sigma": 0.2},
}  # fmt: skip


def clip_as_it_was(v: Any, bound: float, norm: str = "l2") -> Any:
    size = np.linalg.norm(v, ord=1 if norm == "l1" else 2, axis=-1, keepdims=True)
    if (size <= bound).all():
        return v
    return np.where(size > bound, v * (bound / np.maximum(size, bound)), v)


def without_exchange(s: Sensitivity, q: float, noise: Law, factor: Any) -> Any:
    """Amplification priced with what the data add, not with the exchange of a client for another."""
    return participation.amplified_curve(replace(s, bound=s.bound * s.single / s.swap), q, noise, factor)


bound = accountant.bound


def without_release(asked: Question) -> Bound:
    return bound(asked if isinstance(asked.threat, Links) else replace(asked, release=Reveal()))


def knows_no_share(m: pytest.MonkeyPatch) -> None:
    for module in (reveal, closed_forms, accountant):
        m.setattr(module, "known_shares", lambda *given: 0)


def halved(s: Sensitivity) -> float:
    whole = s.swap / (2.0 if s.adjacency == "zero-out" else 1.0)
    return whole / s.batch if s.credits_batch and s.batch else whole


def credited(s: Sensitivity) -> bool:
    return s.level == "example" and (s.steps[0] == 1 or isinstance(s.proof, ConvexGlm | Regulariser))


Patch = Callable[[pytest.MonkeyPatch], None]
EXAMPLE = "privacy.level='example'"
ONE_OF_TEN = ["privacy.participation='amplified:0.1'", "algorithm.sampled=1"]
RELEASED = ["privacy.level='unit'", "privacy.release='centroid:0.5'", "scheme.name='homomorphic'", "scheme.sigma=30.0"]
# What is put back, in which kind of run, and a row in which it shows.
MISTAKES: dict[str, tuple[list[str], Patch, str]] = {
    "1: 1/batch is credited although some clients take more steps": (
        [EXAMPLE, "privacy.proof='regulariser:0.1'", "problem.rho=0.1", "algorithm.local_steps=[1, 2]"],
        lambda m: m.setattr(Sensitivity, "credits_batch", property(credited)),
        "links",
    ),
    "2: nobody keeps count of a cap": (
        ["privacy.participation='cap:1'"],
        lambda m: m.setattr(Reference, "gives", lambda *given: True),
        "links",
    ),
    "3a: fixed-size sampling under zero-out is priced with half the distance": (
        [*ONE_OF_TEN, "privacy.adjacency='zero-out'", "scheme.sigma=0.1", "rounds=100"],
        lambda m: m.setattr(accountant, "amplified_curve", without_exchange),
        "links",
    ),
    "3b: amplification exchanges an example, not its client": (
        [*ONE_OF_TEN, EXAMPLE, "scheme.sigma=0.05"],
        lambda m: m.setattr(accountant, "amplified_curve", without_exchange),
        "links",
    ),
    "8: the release is priced and not made": (
        RELEASED,
        lambda m: m.setattr(Releasing, "make", lambda self, state, models, stream: models.mean(axis=0)),
        "links",
    ),
    "10: a decay beyond 2": (
        ["problem.rho=9", "algorithm.step=1.0", "algorithm.local_steps=6", "scheme.sigma=4.0", "rounds=1"],
        lambda m: m.setattr(sensitivity, "_check_decay", lambda s: None),
        "links",
    ),
    "10: fixed point priced as real numbers": (
        [EXAMPLE, "algorithm.arithmetic='fixed'", "algorithm.fraction_bits=8", "problem.features=64"],
        lambda m: m.setattr(deviation, "rounding", lambda plan: None),
        "links",
    ),
    "12: servers do not receive the release": (
        RELEASED,
        lambda m: m.setattr(accountant, "bound", without_release),
        "colluders",
    ),
    "12: nobody knows its share of the release's noise": (
        RELEASED,
        knows_no_share,
        "neighbours",
    ),
    "15: overflow goes around the clip": (
        [EXAMPLE],
        lambda m: m.setattr("confide.rounds.local.clip", clip_as_it_was),
        "links",
    ),
    "16: zero-out is halved without a proof": (
        [EXAMPLE, "privacy.adjacency='zero-out'", "algorithm.local_steps=6", "problem.rho=6.0", "algorithm.step=1.0"],
        lambda m: m.setattr(Sensitivity, "single", property(halved)),
        "links",
    ),
}


def rows(changes: list[str]) -> dict[str, Row]:
    return {r.adversary.partition(":")[0].partition(" ")[0]: r for r in rows_of(parse(BASE, changes).build())[0]}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_that_is_put_back_is_contradicted(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, put_back, adversary = MISTAKES[mistake]
    put_back(monkeypatch)
    found = rows(changes)
    assert found[adversary].verdict == "CONTRADICTED"
    assert found[adversary].excess > 1.2


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_same_run_stands_or_is_refused_without_it(mistake: str) -> None:
    try:
        found = rows(MISTAKES[mistake][0])
    except InputError as refused:
        assert "beyond 2" in str(refused)  # noqa: PT017 - one of them is
        return
    assert {r.verdict for r in found.values()} <= {"holds", "no promise"}
    assert found["links"].verdict == "holds"
