"""A run of T rounds is worked out once, and asked after any of them: as if each had been worked out alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.laws.law import Law
from confide.plans import words
from confide.privacy.accountant import Question, account, bound
from confide.privacy.course import Account, Bound
from confide.privacy.reveal import Reveal
from confide.privacy.rounding import Rounding
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.sum_noise import SumNoise
from confide.rounds.schemes import Scheme, scheme
from exploring import more
from own_schemes import CORRELATED

SCHEMES = (
    "homomorphic", "shared", "own-clean", "partial:0.3", "per-link", "per-link-clean", "pairwise", "central",
    "local-only",
)  # fmt: skip
LAWS = ("gaussian", "laplace", "discrete-gaussian", "discrete-laplace")
PROOFS = ("none", "regulariser:0.1", "convex-glm:0.2", "convex-glm:0.2", "public-point")
NUMBERS = ("epsilon", "epsilon_pure", "rho", "mu_gdp", "costs", "deltas", "draws", "leak")
L, K, M, QUANTUM = 5, 10, 2, 2.0**-20


class Case(NamedTuple):
    scheme: Scheme
    graphs: list[Graph]
    sensitivity: Sensitivity
    rounds: int
    threat: str
    release: Reveal
    sum_noise: SumNoise | None

    def whole(self) -> Bound:
        made, graphs, sensitivity, rounds, threat, release, inside = self
        asked = Question(made, graphs, sensitivity, rounds, words.threat(threat), release, 1e-5, inside, secure=True)
        return bound(asked)

    def alone(self, rounds: int, releases: int) -> Account:
        given = self._asdict() | {"rounds": rounds, "release": replace(self.release, count=releases)}
        made, graphs, sensitivity = (given.pop(x) for x in ("scheme", "graphs", "sensitivity"))
        return account(made, graphs, sensitivity, **given)


def drawn(seed: int, participation: str | None = None) -> Case:
    rng = np.random.default_rng([seed, 24])
    P, T = int(rng.integers(2, 6)), int(rng.integers(2, 8))
    graphs = [
        Graph.random(P, 0.5, seed=int(rng.integers(1000)), weights=str(rng.choice(["lazy", "metropolis"])))
        for _ in range(rng.integers(1, 4))
    ]
    law, name = str(rng.choice(LAWS)), str(rng.choice(SCHEMES))
    sigma = 0.0 if name == "local-only" else float(10.0 ** rng.uniform(-0.5, 1.5))
    made = scheme(name, sigma, sigma_pair=2.0 * sigma if name == "pairwise" else 0.0)
    made = replace(made, law=Law.parse(law))
    word = participation or str(rng.choice(["all", "all", f"cap:{rng.integers(1, T + 1)}", "random:0.5"]))
    threat = str(rng.choice(["links", "neighbours", "own-client", "own-server", "colluders:1"]))
    release = str(rng.choice(["none", "local", "centroid:0", "centroid:0.3"], p=[0.4, 0.1, 0.1, 0.4]))
    inside = SumNoise.sized(float(10.0 ** rng.uniform(-2, 0)), 4, sampled=L, fraction_bits=24, dim=M)
    return Case(
        made,
        graphs,
        _of_whom(rng, word, law),
        T,
        threat,
        Reveal.sized(words.release(release), words.threat(threat), graphs, int(rng.integers(1, 4))),
        inside if rng.random() < 0.4 else None,
    )


def _of_whom(rng: np.random.Generator, participation: str, law: str) -> Sensitivity:
    level, proof = str(rng.choice(["unit", "client", "example"])), str(rng.choice(PROOFS))
    if participation != "all" and level == "unit":
        level = "client"
    on_grid = law.startswith("discrete") and rng.random() < 0.7
    fewest = int(rng.integers(1, L + 1))
    given: dict[str, Any] = {
        "level": level, "adjacency": str(rng.choice(["replace", "zero-out"])), "sampled": L, "clients": K, "dim": M,
        "batch": 4, "local_steps": int(rng.integers(1, 4)), "norm": str(rng.choice(["l1", "l2"])),
        "proof": words.proof(proof), "participation": words.participation(participation), "regulariser": 0.1,
        "smoothness": 1.0 if proof.startswith("convex") and rng.random() < 0.5 else None,
        "rounding": Rounding(QUANTUM, fewest, True, 1e-12) if on_grid else None,
    }  # fmt: skip
    return Sensitivity(0.3, 1.0, **given)


def answer(ask: Callable[[], Account]) -> Account | InputError:
    try:
        return ask()
    except InputError as e:
        return e


def compared(q: Case, rounds: int, releases: int) -> tuple[Account, Account] | None:
    """The whole run after these rounds, and a run of just them; None where both are refused for the same field."""
    found, alone = answer(lambda: q.whole().at(rounds, releases)), answer(lambda: q.alone(rounds, releases))
    if isinstance(found, InputError) or isinstance(alone, InputError):
        assert isinstance(found, InputError), alone
        assert isinstance(alone, InputError), found
        assert found.field == alone.field
        return None
    return found, alone


def check(q: Case, rng: np.random.Generator) -> bool:
    """Whether the last question had a number."""
    both = None
    for rounds in {int(rng.integers(1, q.rounds + 1)), q.rounds}:
        both = compared(q, rounds, int(rng.integers(1, q.release.count + 1)))
        if both is not None:
            for name in NUMBERS:
                one, other = (getattr(a, name) for a in both)
                assert one == (None if other is None else pytest.approx(other, rel=1e-9, abs=1e-15)), name
            assert (both[0].by, both[0].valid, both[0].exact) == (both[1].by, both[1].valid, both[1].exact)
    return both is not None and not both[0].leak


@pytest.mark.parametrize("seed", range(more(20, 300)))
def test_a_bound_for_many_rounds_says_of_few_what_a_bound_for_few_says(seed: int) -> None:
    """Ten questions about random runs; of most, the accountant has a number for some."""
    rng = np.random.default_rng(seed)
    answered = [check(drawn(10 * seed + n), rng) for n in range(10)]
    assert any(answered)


@pytest.mark.parametrize("seed", range(more(3, 30)))
def test_who_took_part_stays_a_secret(seed: int) -> None:
    """Fewer, and few rounds: dp-accounting takes its time."""
    q = drawn(seed, "amplified:0.5")
    made = scheme(str(np.random.default_rng(seed).choice(["shared", "central"])), 2.0, noise="gaussian")
    sensitivity = replace(q.sensitivity, rounding=None, proof=words.proof("none"), smoothness=None, level="client")
    q = q._replace(scheme=made, sensitivity=sensitivity, threat="links", sum_noise=None)
    assert check(q, np.random.default_rng(seed))


@pytest.mark.parametrize("part", ["all", "cap:2"])
@pytest.mark.parametrize("release", ["none", "centroid:0.3"])
def test_the_general_accountant_is_never_below(part: str, release: str) -> None:
    """It charges every look at its worst, which a run that ends there need not: the whole of a run may be cheaper."""
    s = Sensitivity(0.3, 1.0, sampled=L, proof=words.proof("public-point"), participation=words.participation(part))
    graphs = [Graph.ring(4), Graph.complete(4)]
    reveal = Reveal.sized(words.release(release), words.threat("links"), graphs, 2)
    for carry in (0.0, 0.4, 1.0):
        q = Case(replace(CORRELATED, carry=carry), graphs, s, 6, "links", reveal, None)
        for rounds in range(1, 7):
            both = compared(q, rounds, 2)
            assert both is not None
            for name in ("epsilon", "rho", "mu_gdp"):
                one, other = (getattr(a, name) for a in both)
                assert one >= other * (1 - 1e-12)
                if rounds == q.rounds:
                    assert one == other


def test_releases_add_up_and_rounds_cost_what_they_did() -> None:
    s = Sensitivity(0.3, 1.0, level="unit")
    graphs = [Graph.ring(4)]
    reveal = Reveal.sized(words.release("centroid:0.3"), words.threat("links"), graphs, 3)
    whole = Case(scheme("homomorphic", 2.0, noise="gaussian"), graphs, s, 9, "links", reveal, None).whole()
    sent, *released = (whole.at(5, n).rho or 0.0 for n in range(4))
    assert np.diff([sent, *released]) == pytest.approx([released[0] - sent] * 3, rel=1e-9)
    assert whole.at(5, 3).costs == whole.at(9, 0).costs[:5]
    assert sum(whole.at(5, 3).costs) == pytest.approx(sent, rel=1e-12)
