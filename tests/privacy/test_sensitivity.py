"""The recursions of docs/design/privacy.md, 1.2: runs that reach them, and runs that show why others are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.laws.law import Norm
from confide.plans import words
from confide.plans.words import Amplified, Cap, ClippingAlone, ConvexGlm, Participation, Proof, Random, Regulariser
from confide.privacy.rounding import Rounding
from confide.privacy.sensitivity import Sensitivity
from confide.problems.models import Linear, Logistic
from confide.rounds.clipping import Clip, clip
from confide.rounds.local import LocalTask, sgd

Floats = NDArray[np.float64]


def facts(proof: str = "none", participation: str = "all", **given: Any) -> Sensitivity:
    plain: dict[str, Any] = {"step": 0.5, "bound": 2.0, "level": "client", "sampled": 5}
    if proof.startswith("convex-glm:"):
        plain["smoothness"] = 1.0  # without one only monotone gradients are credited, see test_monotone
    return Sensitivity(**(plain | given), proof=words.proof(proof), participation=words.participation(participation))


def deltas(s: Sensitivity, carry: float, T: int) -> Floats:
    return s.deltas(lambda j, before: carry * float(before[-1]), T, carry > 0)


# Closed forms


def test_what_one_round_adds() -> None:
    assert facts().single == 2 * 0.5 * 2.0 / 5
    assert facts(level="unit", sampled=None).single == 2.0
    assert facts(adjacency="zero-out").single == 0.2
    assert facts(level="example", batch=4).single == pytest.approx(0.1)


@pytest.mark.parametrize("T", [1, 5, 40])
def test_unit_level_needs_only_the_clip(T: int) -> None:
    """(a): c = 1 gives 2 mu B j."""
    s = facts(level="unit", sampled=None)
    np.testing.assert_allclose(deltas(s, 1.0, T), 2.0 * np.arange(1, T + 1), rtol=1e-12)
    np.testing.assert_allclose(deltas(s, 0.0, T), np.full(T, 2.0), rtol=1e-12)
    c = 0.6
    np.testing.assert_allclose(deltas(s, c, T), 2.0 * (1 - c ** np.arange(1, T + 1)) / (1 - c), rtol=1e-12)


@pytest.mark.parametrize("E", [1, 4])
def test_regulariser_saturates_at_B_over_rho(E: int) -> None:
    """(b): c g Delta + (B / rho)(1 - g), g = (1 - 2 rho mu/E)^E; 1/L is not credited."""
    rho, s = 0.3, facts("regulariser:0.3", local_steps=E)
    g = (1 - 2 * rho * 0.5 / E) ** E
    assert s.contraction == pytest.approx(g)
    found = deltas(s, 1.0, 400)
    np.testing.assert_allclose(found, (2.0 / rho) * (1 - g ** np.arange(1, 401)), rtol=1e-12)
    assert found[-1] == pytest.approx(2.0 / rho)
    assert deltas(s, 0.0, 3) == pytest.approx([0.4] * 3)  # carry 0: the other clients start from a public model
    half = facts("regulariser:0.3", local_steps=E, adjacency="zero-out")
    np.testing.assert_array_equal(deltas(half, 1.0, 9), found[:9])  # the other clients change by as much as before


def test_convex_glm_contracts_and_credits_the_share() -> None:
    """(c): Delta_j = (2 B / (nu L)) (1 - gamma^j), and the sum of section 1.2."""
    nu, mu, B, L, T = 0.4, 0.5, 2.0, 5, 30
    gamma = 1 - mu * nu
    found = deltas(facts("convex-glm:0.4"), 1.0, T)
    np.testing.assert_allclose(found, 2 * B / (nu * L) * (1 - gamma ** np.arange(1, T + 1)), rtol=1e-12)
    assert found.sum() == pytest.approx(2 * B / (nu * L) * (T - gamma * (1 - gamma**T) / (mu * nu)), rel=1e-12)
    np.testing.assert_allclose(deltas(facts("convex-glm:0"), 1.0, T), 2 * mu * B / L * np.arange(1, T + 1), rtol=1e-12)
    assert facts("convex-glm:0.4", local_steps=5).contraction == pytest.approx((1 - mu * nu / 5) ** 5)


def test_public_point_adds_up_without_convexity() -> None:
    """(d)"""
    np.testing.assert_allclose(deltas(facts("public-point"), 1.0, 6), 0.4 * np.arange(1, 7), rtol=1e-12)
    np.testing.assert_allclose(
        deltas(facts("public-point", clip="update", norm="l1"), 0.5, 3), [0.4, 0.6, 0.7], rtol=1e-12
    )


def test_cap_counts_participations() -> None:
    found = deltas(facts("public-point", "cap:3"), 1.0, 6)
    np.testing.assert_allclose(found, 0.4 * np.minimum(np.arange(1, 7), 3), rtol=1e-12)
    np.testing.assert_allclose(deltas(facts("none", "cap:3"), 0.0, 6), [0.4] * 6)  # in any three of them
    dear = np.array([1.0, 5.0, 1.0, 7.0])
    np.testing.assert_allclose(facts("none", "cap:2").charged(dear, False), [1.0, 5.0, 0.0, 6.0])  # 5 and 7 in the end
    np.testing.assert_allclose(facts("none", "cap:9").charged(dear, False), dear)


def test_examples_are_divided_by_the_batch_only_where_the_rest_stays() -> None:
    """After the first local step the other examples meet another model, unless the local map does not expand."""
    assert facts(level="example", batch=4, local_steps=3).single == pytest.approx(0.4)
    assert facts("convex-glm:0.1", level="example", batch=4, local_steps=3).single == pytest.approx(0.1)
    assert any(
        "1/batch is not credited" in a for a in facts(level="example", batch=4, local_steps=3).assumptions(False)
    )
    B, mu, L, batch, E = 1.0, 1.0, 1, 10, 5  # one replaced example, nine whose gradient flips with the model's sign
    finals = []
    for side in (1.0, -1.0):
        w = 0.0
        for _ in range(E):
            w += mu / E * (side * B + (batch - 1) * (B * np.sign(w))) / batch
        finals.append(w)
    moved = abs(finals[0] - finals[1])
    assert moved > 5 * 2 * mu * B / (L * batch)
    assert moved <= Sensitivity(mu, B, level="example", sampled=L, batch=batch, local_steps=E).single


@pytest.mark.parametrize("adjacency", ["replace", "zero-out"])
def test_unequal_local_steps_take_the_worse_end(adjacency: str) -> None:
    """1/batch and the half of zero-out need one step of everybody; each proof contracts as its worst client does."""
    given: dict[str, Any] = {"level": "example", "batch": 4, "adjacency": adjacency}
    half = 2 if adjacency == "zero-out" else 1
    for E, credited in ((1, True), ((1, 1), True), ((1, 3), False), ((3, 3), False), (3, False)):
        for proof in ("none", "regulariser:0.1", "public-point"):
            s = facts(proof, local_steps=E, **given)
            assert (s.credits_batch, s.swap) == (credited, 0.4)
            assert s.single == pytest.approx(0.4 / half / 4 if credited else 0.4)
        assert facts("convex-glm:0.1", local_steps=E, **given).single == pytest.approx(0.4 / half / 4)
        assert facts(local_steps=E, adjacency=adjacency).single == pytest.approx(0.4 / half)  # a whole client
    shrink = {E: (1 - 2 * 0.3 * 0.5 / E) ** E for E in (2, 5)}
    assert shrink[2] < shrink[5]
    assert facts("regulariser:0.3", local_steps=(2, 5)).contraction == pytest.approx(shrink[2])  # adds most
    assert facts("convex-glm:0.6", local_steps=(2, 5)).contraction == pytest.approx(shrink[5])  # keeps most


@pytest.mark.parametrize("proof", ["none", "regulariser"])
@pytest.mark.parametrize("carry", [1.0, 0.5])
@pytest.mark.parametrize("rho", [0.2, 0.7])
def test_clients_with_unequal_steps_stay_within_their_bound(proof: str, carry: float, rho: float) -> None:
    """A unit of clients with 1, 2 and 6 steps, every clipped gradient wherever an adversary wants it in both runs."""
    rng = np.random.default_rng(8)
    step, B, T, M, steps = 0.7, 1.3, 15, 2, (1, 2, 6)
    s = Sensitivity(
        step, B, level="unit", local_steps=(1, 6), regulariser=rho,
        proof=ClippingAlone() if proof == "none" else Regulariser(rho),
    )  # fmt: skip
    bound = deltas(s, carry, T)
    for trial in range(40):
        w = v = np.zeros(M)
        for j in range(T):
            gap = (w - v) if trial % 2 and j else rng.standard_normal(M)
            away = B * gap / np.linalg.norm(gap)
            ends = []
            for start, sign in ((w, 1.0), (v, -1.0)):
                total = np.zeros(M)
                for E in steps:
                    x = start
                    for _ in range(E):
                        pull = sign * away if trial % 4 else sign * clip(rng.standard_normal(M) * 3, B)
                        x = (1 - 2 * rho * step / E) * x + step / E * pull
                    total = total + x / len(steps)
                ends.append(total)
            assert np.linalg.norm(ends[0] - ends[1]) <= bound[j] * (1 + 1e-12)
            public = rng.standard_normal(M)
            w, v = (carry * end + public for end in ends)


def test_what_is_attained() -> None:
    """Only where some data move psi as far in every round: not behind a decay that no proof credits, nor on a grid."""
    for s, remembers, exact in (
        (facts(), False, True),
        (facts(regulariser=0.1), False, True),
        (facts(regulariser=0.1, local_steps=2), False, False),  # the decay shrinks what the first step added
        (facts(regulariser=0.1, local_steps=2, clip="update"), False, False),
        (facts(level="unit"), True, True),
        (facts(level="unit", regulariser=0.1), True, False),
        (facts("regulariser:0.1", level="unit", regulariser=0.1), True, True),
        (facts("regulariser:0.1", level="unit", regulariser=0.1, local_steps=4), True, False),
        (facts("regulariser:0.1", level="unit", regulariser=0.1, local_steps=(3, 4)), True, False),
        (facts("regulariser:0.1", regulariser=0.1), True, False),
        (facts("convex-glm:0.2", regulariser=0.1), True, True),
        (facts("convex-glm:0.1", regulariser=0.1), True, False),
        (facts("convex-glm:0.2", regulariser=0.1, local_steps=2), True, False),
        (facts(level="example", batch=4), False, False),  # it is not in every batch
        (facts(level="example", batch=4, local_steps=2), False, False),
        (facts(dim=3, rounding=Rounding(2.0**-20, 5, False)), False, False),
    ):
        assert s.attained(remembers) is exact, s


# Norms


def test_from_the_norm_of_the_clip_to_the_norm_of_the_noise() -> None:
    for norm in ("l1", "l2"):
        assert facts(norm=norm).to_norm(Norm.L2)[0] == 1.0
    assert facts(norm="l1").to_norm(Norm.L1)[0] == 1.0
    assert facts(norm="l2", dim=9).to_norm(Norm.L1)[0] == 3.0
    factor, why = facts("convex-glm:0.1", norm="l1", dim=16).to_norm(Norm.L1)
    assert factor == 4.0
    assert "sqrt(M)" in why[0]
    with pytest.raises(InputError, match=r"non-expansiveness is an l2 fact.*sqrt\(M\).*--dim M"):
        facts("convex-glm:0.1", norm="l1").to_norm(Norm.L1)
    with pytest.raises(InputError, match="the clip bounds the l2 norm"):
        facts().to_norm(Norm.L1)


@pytest.mark.parametrize(("M", "worst"), [(5, 1.6), (50, 1.96)])
def test_non_expansive_maps_expand_in_l1(M: int, worst: float) -> None:
    x = np.ones(M) / math.sqrt(M)
    assert np.abs(np.eye(M) - np.outer(x, x)).sum(axis=0).max() == pytest.approx(worst, abs=0.005)
    assert np.linalg.norm(np.eye(M) - np.outer(x, x), 2) <= 1 + 1e-12


# Runs


def task(rho: float, step: float, E: int, batch: int, bound: float, key: int) -> LocalTask:
    return LocalTask(Logistic(rho), step, E, batch, False, Clip("example", bound), key)


@pytest.mark.parametrize("E", [1, 3, (1, 3)])
@pytest.mark.parametrize("carry", [1.0, 0.5])
def test_neighbouring_runs_of_a_clipped_logistic_model_stay_within_convex_glm(
    E: int | tuple[int, int], carry: float
) -> None:
    """Same messages, same batches, one client replaced: |psi - psi'| never passes Delta_j."""
    fewest, most = (E, E) if isinstance(E, int) else E
    rng = np.random.default_rng(most)
    closest = 0.0
    for trial in range(25):
        L, N, M, T, B, rho = 3, 4, 3, 6, 0.5, 0.1
        clients = [(rng.standard_normal((N, M)) * 2, np.sign(rng.standard_normal(N))) for _ in range(L)]
        other = (rng.standard_normal((N, M)) * 2, np.sign(rng.standard_normal(N)))
        if trial % 2:
            other = (clients[0][0], -clients[0][1])
        everyone = np.vstack([x for x, _ in [*clients, other]])
        smooth = Logistic(rho).smoothness(everyone)
        step = (1 - 1e-12) * fewest * 2.0 / (smooth + 2 * rho)  # the largest that is allowed
        s = Sensitivity(step, B, sampled=L, local_steps=E, proof=ConvexGlm(2 * rho), smoothness=smooth)
        bound = deltas(s, carry, T)
        w, v = np.zeros(M), np.zeros(M)
        for j in range(T):
            taken = [most if (k + trial) % 2 else fewest for k in range(L)]
            jobs = [task(rho, step, taken[k], 2, B, 1000 * trial + 10 * j + k) for k in range(L)]
            mine = [sgd(w, *data, job) for data, job in zip(clients, jobs, strict=True)]
            theirs = [sgd(v, *data, job) for data, job in zip([other, *clients[1:]], jobs, strict=True)]
            psi, phi = w + sum(mine) / L, v + sum(theirs) / L
            assert np.linalg.norm(psi - phi) <= bound[j] * (1 + 1e-12)
            closest = max(closest, float(np.linalg.norm(psi - phi) / bound[j]))
            public = rng.standard_normal(M) * 3
            w, v = carry * psi + public, carry * phi + public
    assert closest > 0.2  # the runs are not all harmless


@pytest.mark.parametrize("carry", [1.0, 0.4, 0.0])
def test_convex_glm_is_reached(carry: float) -> None:
    """A client whose target is out of reach on one side against one on the other; the rest only decay."""
    L, B, rho, step, T = 4, 0.7, 0.2, 0.6, 10
    bound = deltas(Sensitivity(step, B, sampled=L, proof=ConvexGlm(2 * rho), smoothness=2.4), carry, T)
    job = LocalTask(Linear(rho), step, 1, 1, False, Clip("example", B), 0)
    X, idle = np.array([[1.0, 0.0]]), np.zeros((1, 2))
    w, v = np.zeros(2), np.zeros(2)
    for j in range(T):
        psi, phi = (
            start + (sgd(start, X, np.array([target]), job) + (L - 1) * sgd(start, idle, np.zeros(1), job)) / L
            for start, target in ((w, 1e12), (v, -1e12))
        )
        assert np.linalg.norm(psi - phi) == pytest.approx(bound[j], rel=1e-12)
        w, v = carry * psi + 0.3, carry * phi + 0.3


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("E", [1, 5])
def test_regulariser_holds_for_any_clipped_gradient_in_every_norm_and_is_reached(norm: str, E: int) -> None:
    rng = np.random.default_rng(4)
    order, B, rho, step, T, M = (1 if norm == "l1" else 2), 1.5, 0.25, 0.8, 12, 4
    s = Sensitivity(step, B, norm=norm, level="unit", local_steps=E, proof=Regulariser(rho))
    bound = deltas(s, 1.0, T)

    def move(w: Floats, pull: Callable[[Floats], Floats]) -> Floats:
        for _ in range(E):
            w = (1 - 2 * rho * step / E) * w - step / E * clip(pull(w), B, norm)
        return w

    e = np.eye(M)[0]
    for pulls in (
        (lambda w: 9 * np.sin(7 * w), lambda w: -9 * np.cos(5 * w)),  # neither convex nor monotone
        (lambda w: 50 * e, lambda w: -50 * e),
    ):
        w = v = np.zeros(M)
        for j in range(T):
            psi, phi = move(w, pulls[0]), move(v, pulls[1])
            gap = float(np.linalg.norm(psi - phi, ord=order))
            assert gap <= bound[j] * (1 + 1e-12)
            public = rng.standard_normal(M)
            w, v = psi + public, phi + public
    assert gap == pytest.approx(bound[-1], rel=1e-12)  # the constant pulls reach it


def test_without_a_proof_deviations_grow_by_themselves() -> None:
    """One participation of one client; afterwards the others alone drive the two runs apart, clipped as they are.

    So neither 1/L (proof none) nor a client's own participations (proof regulariser) bound anything with carry > 0.
    """
    L, B, step, rho, T = 10, 1.0, 0.1, 0.01, 30
    w = v = 0.0
    gaps = []
    for j in range(T):
        first = (step * B, -step * B) if j == 0 else (0.0, 0.0)  # the client takes part once
        new = []
        for start, own in zip((w, v), first, strict=True):
            others = (L - 1) * step * B * float(np.sign(start))  # clipped gradients of a loss that is not convex
            new.append((1 - 2 * rho * step) * start + (own + others) / L)
        w, v = new
        gaps.append(abs(w - v))
    single = facts(step=step, bound=B, sampled=L).single
    assert gaps[-1] > 20 * single
    assert gaps[-1] > 2.5 * 2 * step * B * 1  # more than one participation of the whole unit
    allowed = deltas(facts(f"regulariser:{rho}", step=step, bound=B, sampled=L), 1.0, T)
    assert np.all(np.array(gaps) <= allowed)


def test_clipping_a_whole_update_expands() -> None:
    """docs/design/privacy.md, 1.2: H = diag(1,10), w = (10,1), mu = .1 expands by 1.0058; clip = update is refused."""
    H, w, mu = np.diag([1.0, 10.0]), np.array([10.0, 1.0]), 0.1

    def step(w: Floats) -> Floats:
        return w - mu * clip(H @ w, 1.0)

    J = np.stack([(step(w + 1e-6 * e) - step(w - 1e-6 * e)) / 2e-6 for e in np.eye(2)], axis=1)
    assert np.linalg.norm(J, 2) == pytest.approx(1.0058, abs=1e-4)
    unclipped = np.eye(2) - mu * H
    assert np.linalg.norm(unclipped, 2) <= 1.0


@settings(max_examples=60)
@given(st.floats(0, 1), st.integers(1, 30), st.sampled_from(["public-point", "convex-glm:0.3", "regulariser:0.2"]))
def test_deltas_grow_with_rounds_and_with_carry(carry: float, T: int, proof: str) -> None:
    found = deltas(facts(proof), carry, T)
    assert np.all(np.diff(found) >= -1e-12)
    if carry > 0:
        assert np.all(deltas(facts(proof), min(1.0, carry * 1.1), T) >= found - 1e-12)
    assert np.all(np.isfinite(found))


# Refusals


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("magic", "known: none"),
        ("none:1", "none takes nothing after it"),
        ("public-point:2", "takes nothing after it"),
        ("regulariser", "write regulariser:RHO"),
        ("regulariser:0", "positive"),
        ("regulariser:-1", "write regulariser:RHO with a number"),
        ("regulariser:nan", "write regulariser:RHO with a number"),
        ("convex-glm", "write convex-glm:NU"),
        ("convex-glm:x", "write convex-glm:NU"),
        ("convex-glm:-0.1", "write convex-glm:NU with a number"),
        ("convex-glm:inf", "write convex-glm:NU with a number"),
    ],
)
def test_nonsense_proofs(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as e:
        words.proof(text)
    assert e.value.field == "proof"


@pytest.mark.parametrize("text", ["none", "public-point", "regulariser:0.25", "convex-glm:0", "convex-glm:0.5"])
def test_proofs_read_and_write(text: str) -> None:
    assert str(words.proof(text)) == text


@pytest.mark.parametrize("text", ["all", "cap:3", "random:0.25", "amplified:1"])
def test_participations_read_and_write(text: str) -> None:
    assert str(words.participation(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "some",
        "all:1",
        "cap",
        "cap:0",
        "cap:-2",
        "cap:1.5",
        "cap:nan",
        "cap:inf",
        "random",
        "random:0",
        "random:1.1",
        "random:nan",
        "random:-0.1",
        "amplified:x",
        "amplified:inf",
    ],
)
def test_nonsense_participations(text: str) -> None:
    with pytest.raises(InputError) as e:
        words.participation(text)
    assert e.value.field == "participation"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Regulariser(-1.0), "positive"),
        (lambda: Regulariser(math.nan), "finite"),
        (lambda: ConvexGlm(-0.1), "at least 0"),
        (lambda: ConvexGlm(math.inf), "finite"),
        (lambda: ConvexGlm(math.nan), "finite"),
    ],
)
def test_nonsense_proofs_by_hand(make: Callable[[], Proof], reason: str) -> None:
    with pytest.raises(InputError, match=reason) as e:
        make()
    assert e.value.field == "proof"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Random(math.nan),
        lambda: Amplified(1.1),
        lambda: Cap(math.inf),  # type: ignore[arg-type]
        lambda: Cap(2.0),  # type: ignore[arg-type]
        lambda: Cap(True),
    ],
)
def test_nonsense_participations_by_hand(make: Callable[[], Participation]) -> None:
    with pytest.raises(InputError) as e:
        make()
    assert e.value.field == "participation"


@pytest.mark.parametrize("field", ["step", "bound", "smoothness"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 0.0, True, "1"])
def test_numbers_must_be_positive_and_finite(field: str, value: object) -> None:
    with pytest.raises(InputError) as e:
        facts(**{field: value})
    assert e.value.field == field


@pytest.mark.parametrize("field", ["sampled", "clients", "dim", "batch", "local_steps"])
@pytest.mark.parametrize("value", [math.nan, 0, -3, 2.5, True])
def test_counts_must_be_whole_and_positive(field: str, value: object) -> None:
    with pytest.raises(InputError) as e:
        facts(**{field: value})
    assert e.value.field == field


@pytest.mark.parametrize(
    ("given", "field", "reason"),
    [
        ({"level": "world"}, "level", "known: unit"),
        ({"adjacency": "add"}, "adjacency", "known: replace"),
        ({"norm": "linf"}, "norm", "known: l1"),
        ({"clip": "model"}, "clip", "known: example"),
        ({"sampled": None}, "sampled", "divides by L"),
        ({"sampled": 9, "clients": 3}, "sampled", "only 3 clients"),
        ({"level": "example"}, "batch", "divides by the batch"),
        ({"level": "example", "batch": 2, "clip": "update"}, "clip", "needs per-example clipping"),
        ({"level": "unit", "participation": "cap:3"}, "participation", "a unit takes part in every round"),
        ({"clip": "update", "proof": "convex-glm:0.1"}, "proof", "clipping the whole update breaks this proof"),
        ({"clip": "update", "proof": "regulariser:0.1"}, "proof", "clipping the whole update breaks this proof"),
        ({"step": 3.0, "proof": "regulariser:0.5"}, "step", "at most 1"),
        ({"step": 3.0, "proof": "convex-glm:0.5"}, "step", "at most 2"),
        ({"step": 1.0, "proof": "convex-glm:0.5", "smoothness": 2.0}, "step", r"mu/E <= 2/\(delta \+ nu\).*0.8"),
        ({"proof": "convex-glm:0.5", "smoothness": 0.4}, "proof", "cannot exceed the smoothness"),
        ({"clients": 10, "participation": "random:0.4"}, "participation", "L = 5 of K = 10 gives 0.5"),
        ({"clients": 10, "participation": "amplified:0.6"}, "participation", "L = 5 of K = 10 gives 0.5"),
        ({"participation": "random:0.5"}, "clients", "the rate is L / K: give"),
        ({"participation": "amplified:0.5"}, "clients", "the rate is L / K: give"),
        ({"local_steps": (3, 2)}, "local_steps", "the least comes first"),
        ({"local_steps": (0, 2)}, "local_steps", "at least 1"),
        ({"regulariser": -0.1}, "regulariser", "at least 0"),
        ({"step": 3.0, "regulariser": 0.5}, "step", "beyond 2, where clipping bounds nothing: at most 2"),
        ({"step": 3.0, "regulariser": 0.5, "local_steps": (1, 9)}, "step", "rho = 0.5 and E = 1 .* at most 2"),
    ],
)
def test_refused_combinations(given: dict[str, Any], field: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as e:
        facts(**given)
    assert e.value.field == field


def test_the_share_of_a_client_needs_a_proof_when_the_state_remembers() -> None:
    with pytest.raises(InputError, match=r"their updates change too.*needs a proof") as e:
        facts().added(True)
    assert e.value.field == "proof"
    assert facts().added(False) == 0.4
    for participation, clients in (("cap:3", None), ("random:0.5", 10), ("amplified:0.5", 10)):
        with pytest.raises(InputError, match="updates of all clients of the unit may change"):
            facts("regulariser:0.1", participation, clients=clients).added(True)
        assert facts("regulariser:0.1", participation, clients=clients).added(False) == 0.4


def test_assumptions_say_what_was_used() -> None:
    said = " | ".join(facts("convex-glm:0.2").assumptions(True))
    for part in ("one client", "replaced", "L = 5", "convex-glm", "0.2-strongly", "declared: every", "disjoint"):
        assert part in said
    assert "monotone" in " | ".join(facts("convex-glm:0.2", smoothness=None).assumptions(True))
    assert "1/L is not credited" in " | ".join(facts("regulariser:0.2").assumptions(True))
    assert "convex-glm" not in " | ".join(facts("convex-glm:0.2").assumptions(False))
    assert "without replacement" in " | ".join(facts(level="example", batch=2).assumptions(False))
    for one in (facts("regulariser:0.1", adjacency="zero-out"), facts(regulariser=0.1, adjacency="zero-out")):
        assert "decay of its share stays" in " | ".join(one.assumptions(False))
    for one in (facts(adjacency="zero-out"), facts(regulariser=0.1, adjacency="zero-out", clip="update")):
        assert "decay" not in " | ".join(one.assumptions(False))
