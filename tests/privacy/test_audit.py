"""The audit: true accounts stand, wrong ones fall, and what is measured is the code that runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from confide.algorithm import GFL
from confide.clipping import Clip
from confide.config import Config, parse
from confide.errors import InputError
from confide.federation import Federation
from confide.graph import Graph
from confide.models import Linear
from confide.privacy import audit as auditing
from confide.privacy import membership
from confide.privacy.accountant import Account, account
from confide.privacy.audit import AuditReport, Case, Row, audit, cases
from confide.privacy.conversion import renyi_epsilon
from confide.privacy.membership import Canary, epsilon_bound, listen, measure, mu_bound, rate_limit, scores
from confide.privacy.of_run import Accounting
from confide.privacy.participation import amplified_curve
from confide.privacy.sensitivity import Participation, Proof, Sensitivity
from confide.privacy.settings import Privacy
from confide.privacy.threat import Release, Threat
from confide.problems.problem import Problem
from confide.randomness import Purpose
from confide.reference import float_noise, prepare
from confide.schemes import scheme

GRAPHS = (Graph.ring(5), Graph.random(5, 0.6, seed=1))
SENSITIVITY = Sensitivity(1.0, 1.0, sampled=4, dim=2, proof=Proof("public-point"), clip="update")
SMALL = {
    "rounds": 5,
    "graph": {"topology": "ring"},
    "problem": {"units": 4, "clients": 6, "samples": 10},
    "algorithm": {"sampled": 2, "step": 0.5, "clip": "update", "bound": 1.0, "local_steps": 1, "batch": 2},
    "scheme": {"noise": "gaussian", "sigma": 1.0},
}


def small(*changes: str) -> Config:
    return parse(SMALL, changes)


def bench(graphs: tuple[Graph, ...] = GRAPHS, accountant: Callable[..., Account] = account, **other: Any) -> Any:
    others = np.random.default_rng(0).standard_normal((graphs[0].P, 2))
    settings = {"rounds": 6, "delta": 1e-5, "runs": 10_000, "trials": 5_000, "seed": 1} | other
    return auditing._Bench(graphs, SENSITIVITY, others=others, account=accountant, **settings)


@pytest.fixture(scope="module")
def report() -> AuditReport:
    return audit(small())


def test_every_account_stands_and_every_attack_goes_as_predicted(report: AuditReport) -> None:
    assert [a.name for a in report.attacks if not a.ok] == []
    assert [r for r in report.membership if not r.ok] == []
    assert report.ok
    assert {r.scheme for r in report.membership} >= {
        "homomorphic", "shared", "own-clean", "partial:0.5", "per-link", "per-link-clean", "pairwise", "central",
        "local-only",
    }  # fmt: skip
    assert {r.adversary for r in report.membership if r.scheme == "pairwise"} == {"links", "colluders:1", "neighbours"}


def test_gaussian_rows_are_within_thirty_percent(report: AuditReport) -> None:
    rows = [r for r in report.membership if r.mu_upper is not None]
    tight = [r for r in rows if r.tight]
    assert {(r.scheme, r.adversary) for r in rows if not r.tight} <= {("per-link", "links"), ("homomorphic", "links")}
    assert len(tight) >= 14
    for r in tight:
        assert r.lower is not None
        assert r.upper is not None
        assert 0.85 * r.upper < r.lower <= r.upper


def test_the_report_is_plain_data_and_a_table(report: AuditReport) -> None:
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert plain["ok"] is True
    assert {"scheme", "adversary", "lower", "upper", "ratio", "ok"} <= plain["membership"][0].keys()
    assert {"name", "statement", "succeeds", "should_succeed", "ok", "numbers"} == plain["attacks"][0].keys()
    text = str(report)
    for word in ("lower", "upper", "telescoping, homomorphic", "final model", "own client", "features", "pairwise"):
        assert word in text
    assert "every account stands" in text
    broken = replace(report, membership=(replace(report.membership[0], lower=1e3),))
    assert not broken.ok
    assert "SOMETHING IS WRONG" in str(broken)
    assert "refuted" in str(broken)


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Laplace accounts without the composition theorems, which take most of a small audit's time."""
    monkeypatch.setattr("confide.privacy.conversion.laplace_epsilon", lambda ratios, delta: float(ratios.sum()))


@pytest.mark.usefixtures("brisk")
def test_the_same_seed_gives_the_same_report() -> None:
    settings = {"runs": 300, "trials": 200, "attack_rounds": 4}
    one, same = (audit(small(), **settings) for _ in range(2))
    assert one == same
    case = Case(scheme("shared", 1.0, noise="gaussian"))
    assert bench(seed=1).row(case, 0) != bench(seed=2).row(case, 0)


# ---- what is measured is the code that runs


def canary(name: str = "homomorphic", sigma: float = 0.7, law: str = "gaussian", **other: Any) -> Canary:
    pair = 0.8 if name == "pairwise" else 0.0
    s = scheme(name, 0.0 if name == "local-only" else sigma, noise=law, sigma_pair=pair)
    others = np.random.default_rng(0).standard_normal((5, 2))
    return Canary(s, GRAPHS, 6, 3, (-0.25, 0.25), others, **other)


@pytest.mark.parametrize("name", ["homomorphic", "shared", "own-clean", "per-link", "pairwise", "central"])
def test_a_view_is_the_messages_of_the_reference(name: str) -> None:
    c = canary(name)
    clients = [[(np.ones((1, 2)), np.array([p]))] for p in range(5)]

    def fixed(w: Any, X: Any, d: Any, task: Any) -> Any:
        p = int(d[0])
        return c.others[p] + (0.25 if p == c.target else 0.0)

    algorithm = GFL(c.scheme, step=1.0, sampled=1, local_steps=1, batch=1, clip=Clip("update", 99.0), local=fixed)
    noise = float_noise(8)
    reference = prepare(Problem(Federation.from_clients(clients), Linear()), GRAPHS, algorithm, 6, 0, noise)(0)
    w, sent = np.zeros((5, 2)), []
    for i in range(1, 7):
        done = reference.round(i, w)
        w = done.w
        sent.append(done.sent)
    np.testing.assert_allclose(c.view(np.full((6, 2), 0.25), noise), np.concatenate(sent), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ["homomorphic", "pairwise", "per-link"])
def test_noise_that_colluders_know_is_subtracted_rightly(name: str) -> None:
    """Not drawing it is the same as drawing it and taking its effect away: the round is linear."""
    secret, source, added = canary(name, colluders=frozenset({0, 4})), float_noise(5), np.full((6, 2), 0.25)
    public = replace(secret, colluders=frozenset())

    def known(purpose: Purpose, ids: tuple[int, ...], law: str, sigma: float, size: int) -> Any:
        return source(purpose, ids, law, sigma, size) * secret._known(purpose, ids[1:])

    everything = public.view(added, source)
    effect = replace(public, others=np.zeros((5, 2))).view(np.zeros((6, 2)), known)
    sizes = [len(public._heard(GRAPHS[j % 2])) for j in range(6)]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    honest = np.concatenate([a + secret._heard(GRAPHS[j % 2]) for j, a in enumerate(starts)])
    np.testing.assert_allclose((everything - effect)[honest], secret.view(added, source), atol=1e-12)


def tight_cases() -> list[Case]:
    return [c for c in cases(scheme("partial:0.3", 1.0), GRAPHS[:1]) if c.scheme.law == "gaussian"]


def label(case: Case) -> str:
    return f"{case.scheme.name}-{case.threat}-{case.release}{'-own' if case.own_noise_known else ''}"


@pytest.mark.parametrize("case", tight_cases(), ids=label)
def test_the_canary_realises_the_account(case: Case) -> None:
    """The distance of the two worlds, worked out from the running code, is the accountant's mu."""
    b = bench(GRAPHS[:1])
    upper = b.upper(case)
    found = listen(b.canary(case, upper.target))
    low, high = b.canary(case, upper.target).amounts
    mu = float(np.linalg.norm(found.response.sum(axis=1) * (high - low)))
    if case.scheme.name == "per-link" and not case.own_noise_known:
        assert mu < 0.8 * upper.mu_gdp  # hidden own noise helps against one who only listens
    else:
        assert mu == pytest.approx(upper.mu_gdp, rel=1e-9)


SERVERS = [Threat(), Threat("colluders", frozenset({1})), Threat("colluders", frozenset({1, 3})), Threat("neighbours")]


@pytest.mark.parametrize("sized", [1, 2])
@pytest.mark.parametrize("threat", SERVERS, ids=str)
def test_servers_receive_the_release_and_know_their_shares_of_its_noise(threat: Threat, sized: int) -> None:
    """P shares, of which any P - C put sigma on the mean: an adversary with k of them faces the other P - k."""
    b = bench(GRAPHS[:1])
    released = Case(scheme("homomorphic", 2.0, noise="gaussian"), threat, Release("centroid", 0.3, sized))
    upper = b.upper(released)
    assert upper.target is not None
    canary = b.canary(released, upper.target)
    known = {"links": 0, "neighbours": 2}.get(threat.kind, len(threat.colluders))
    share = 5 * 0.3 / math.sqrt(5 - sized)  # on the sum over the five servers
    assert canary.release == pytest.approx(share * math.sqrt(5 - known) / 5)
    messages = sum((2.0 * j / 4 / 2.0) ** 2 for j in range(1, 7))  # s = 2 mu B / L = 1/2, carry 1
    mu = math.sqrt(messages + (6 * 0.5 / 5 / canary.release) ** 2)
    low, high = canary.amounts
    assert float(np.linalg.norm(listen(canary).response.sum(axis=1) * (high - low))) == pytest.approx(mu, rel=1e-9)
    assert upper.mu_gdp == pytest.approx(mu, rel=1e-9)


def test_a_release_is_gaussian_whatever_the_messages() -> None:
    b = bench(GRAPHS[:1])
    b = replace(b, sensitivity=replace(SENSITIVITY, norm="l1"))
    case, setting = b.scaled(Case(scheme("homomorphic", 1.0, noise="laplace"), release=Release("centroid", 0.2)))
    upper, ratios = b.upper(case), np.arange(1, 7) * 0.5 * math.sqrt(2.0) / case.scheme.sigma
    assert ratios.max() < 2.0
    released = 3.0 / 5 / (case.release.sigma * math.sqrt(5 / 4))
    assert upper.rho == pytest.approx(np.sum(ratios**2) / 2 + released**2 / 2)
    assert (upper.rho, upper.epsilon_pure) == (pytest.approx(auditing.RHO), None)
    assert setting == "rho = 0.5"
    c = replace(b.canary(case, upper.target), others=np.zeros((5, 1)))
    found = listen(c)
    assert found.gaussian.tolist() == [False] * 6 + [True]
    z = found.whiten @ c.view(np.zeros((6, 4_000)), float_noise(3))
    assert stats.kstest(z[-1], "norm").pvalue > 1e-3
    for row in z[:-1]:
        assert stats.kstest(row * math.sqrt(2.0), "laplace").pvalue > 1e-3
    x = scores(c, found, False, 40_000, seed=4)  # the expected likelihood ratio in the world without the canary is 1
    assert float(np.exp(x).mean()) == pytest.approx(1.0, abs=6 * float(np.exp(x).std()) / 200)
    assert np.exp(x).std() < 2.0


def test_scores_are_the_log_likelihood_ratio_of_a_gaussian_test() -> None:
    c = replace(canary(sigma=2.0), others=np.zeros((5, 1)))
    listener = listen(c)
    mu = float(np.linalg.norm(listener.response.sum(axis=1) * 0.5))
    for present, sign in ((True, 1.0), (False, -1.0)):
        x = scores(c, listener, present, 20_000, seed=4)
        assert stats.kstest((x - sign * mu**2 / 2) / mu, "norm").pvalue > 1e-3


def test_laplace_scores_never_exceed_the_pure_epsilon() -> None:
    b = bench(GRAPHS)
    case, _ = b.scaled(Case(scheme("own-clean", 1.0, noise="laplace")))
    c = b.canary(case, b.upper(case).target)
    x = scores(c, listen(c), True, 5_000, seed=4)
    assert 0.9 * auditing.PURE < x.max() <= auditing.PURE * (1 + 1e-9)


def test_edge_noise_that_is_rounded_by_itself_has_no_price() -> None:
    """Two servers, noise of 0.2 quanta: the sum of their messages is that of psi and of two rounded noises.

    Priced as if the sum of both noises had been rounded, 20.68 was printed; an exact calculation attains 25.
    """
    q, law = 2.0**-8, np.arange(-9, 10)
    mass = stats.norm.cdf((-np.abs(law) + 0.5) / 0.2) - stats.norm.cdf((-np.abs(law) - 0.5) / 0.2)
    total = np.convolve(mass, mass)
    here, there = np.append(total, 0.0), np.insert(total, 0, 0.0)  # psi one quantum apart: mu B, zero-out
    attained = brentq(lambda e: np.maximum(here - math.exp(e) * there, 0.0).sum() - 1e-5, 0.0, 100.0)
    federation = Federation.from_clients([[(np.ones((1, 1)), np.ones(1))] for _ in range(2)])
    noise, clip = scheme("pairwise", 0.2 * q, noise="gaussian", sigma_pair=100 * q), Clip("update", 1.0)
    algorithm = GFL(noise, step=q, sampled=1, local_steps=1, batch=1, clip=clip, arithmetic="fixed", fraction_bits=8)
    privacy, problem = Privacy(level="unit", adjacency="zero-out"), Problem(federation, Linear())
    floating = Accounting.of(privacy, problem, [Graph.path(2)], replace(algorithm, arithmetic="float"), 1, 0)
    assert (floating.pricing.spend(1).epsilon or 0.0) < attained == pytest.approx(25.0, abs=0.01)
    fixed = Accounting.of(privacy, problem, [Graph.path(2)], algorithm, 1, 0)
    with pytest.raises(InputError, match="not for what is rounded"):
        fixed.pricing.spend(1)
    assert fixed.pricing.costs(1)[0][0].rho is None


# ---- statistics


def test_rate_limits_are_clopper_pearsons() -> None:
    for errors, runs in ((0, 50), (7, 50), (49, 50), (50, 50)):
        exact = stats.binomtest(errors, runs).proportion_ci(0.95, method="exact").high
        assert float(rate_limit(np.array(errors), runs)) == pytest.approx(exact)


def test_bounds_of_a_known_test_and_of_a_guess() -> None:
    half = np.array(0.5)
    assert float(mu_bound(half, half)) == 0.0
    assert float(epsilon_bound(half, half, 0.0)) == 0.0
    assert float(mu_bound(np.array(0.7), np.array(0.7))) == 0.0
    assert float(epsilon_bound(np.array(1.0), np.array(1.0), 1e-5)) == 0.0
    assert float(epsilon_bound(np.array(0.1), np.array(0.2), 0.0)) == pytest.approx(math.log(8.0))
    assert float(epsilon_bound(np.array(0.2), np.array(0.1), 0.05)) == pytest.approx(math.log(7.5))
    c = replace(canary(sigma=3.0), amounts=(0.25, 0.25))  # two equal worlds
    found = measure(replace(c, others=np.zeros((5, 1))), mu_bound, runs=2_000, trials=500, seed=0)
    assert float(mu_bound(*found.limits)) < 0.05


def test_the_bound_holds_as_often_as_it_says() -> None:
    """40 audits of a canary whose mu is known: a bound above it is a one in hundreds event."""
    b = bench(GRAPHS[:1], rounds=1, runs=1_000, trials=500)
    case, _ = b.scaled(Case(scheme("shared", 1.0, noise="gaussian")))
    c = b.canary(case, 0)
    found = [measure(c, mu_bound, runs=1_000, trials=500, seed=s) for s in range(40)]
    bounds = np.array([float(mu_bound(*m.limits)) for m in found])
    assert np.sum(bounds > auditing.MU) <= 2
    assert np.median(bounds) > 0.85 * auditing.MU


# ---- the audit can fail


def louder(factor: float) -> Callable[..., Account]:
    """An accountant that believes in more noise than there is."""

    def wrong(s: Any, *args: Any, release: Release, **settings: Any) -> Account:
        s = replace(s, sigma=factor * s.sigma, sigma_pair=factor * s.sigma_pair)
        return account(s, *args, release=replace(release, sigma=factor * release.sigma), **settings)

    return wrong


def attained() -> list[Case]:
    """Without the config's own (more than 10^4 runs can show) and per-link on the links alone (loose)."""
    return [c for c in tight_cases() if c.setting is None and (c.scheme.name != "per-link" or c.own_noise_known)]


@pytest.mark.parametrize("case", attained(), ids=label)
def test_an_account_of_other_noise_than_there_is_fails(case: Case) -> None:
    believes_more = bench(GRAPHS[:1], louder(3 / 2)).row(case, 0)
    assert believes_more.repeated
    assert not believes_more.below
    assert not believes_more.ok
    believes_less = bench(GRAPHS[:1], louder(2 / 3)).row(case, 0)
    assert believes_less.below  # true
    assert not believes_less.ok  # but loose


def test_an_account_that_forgets_the_memory_is_refuted() -> None:
    """The cost of homomorphic noise computed as if the state did not remember (carry 0)."""

    def forgetful(s: Any, *args: Any, **settings: Any) -> Account:
        return account(replace(s, carry=0.0), *args, **settings)

    assert not bench(accountant=forgetful).row(Case(scheme("homomorphic", 1.0, noise="gaussian")), 0).below
    assert bench(accountant=forgetful).row(Case(scheme("shared", 1.0, noise="gaussian")), 0).ok


def test_naive_amplification_is_refuted_and_random_participation_stands(report: AuditReport) -> None:
    naive = next(a for a in report.attacks if a.name.startswith("naive"))
    assert naive.numbers["naive"] < 0.7 * naive.numbers["measured"]
    row = report.membership[-1]
    assert row.setting.startswith("random:")
    assert row.ok
    q = float(row.setting.removeprefix("random:"))
    assert q == pytest.approx(2 / 6, abs=1e-6)  # L of K
    believed_with: list[float] = []

    def amplified(s: Any, graphs: Any, sensitivity: Any, *, rounds: int, **settings: Any) -> Account:
        a = account(s, graphs, sensitivity, rounds=rounds, **settings)
        if sensitivity.participation.kind != "random":
            return a
        # The canary is exchanged for somebody who adds nothing: half of what an exchange may move psi by.
        part = Participation("amplified", sensitivity.participation.value)
        believed = replace(sensitivity, bound=sensitivity.bound / 2, participation=part)
        assert believed.swap == sensitivity.single == 0.5 / 2
        believed_with.append(part.value)
        curve, _ = amplified_curve(believed, "gaussian", np.full(rounds, s.sigma**-2.0))
        return replace(a, epsilon=renyi_epsilon(curve, a.delta))

    config = small()
    e = config.build()
    b, _ = auditing._bench(config, e, 10_000, 5_000, 10, amplified)
    refuted, _ = auditing._hidden(b, e)
    assert not refuted.ok
    assert believed_with == [2 / 6]


def test_a_rate_that_runs_cannot_tell_is_replaced_by_a_quarter() -> None:
    config = small("algorithm.sampled=6")  # all take part
    e = config.build()
    b, _ = auditing._bench(config, e, 200, 100, 10, account)
    row, naive = auditing._hidden(b, e)
    assert row.setting == "random:0.25"
    assert naive.numbers["participation"] == 0.25
    assert not row.tight


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_too_little_noise_in_the_code_is_caught(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The accountant is right and the implementation draws 2/3 of its noise."""

    def weak(seed: int) -> Any:
        draw = float_noise(seed)
        return lambda purpose, ids, law, sigma, size: draw(purpose, ids, law, 2 / 3 * sigma, size)

    b = bench(rounds=2)
    case = Case(scheme("shared", 1.0, noise=law))
    assert b.row(case, 0).ok
    monkeypatch.setattr(membership, "float_noise", weak)
    assert not b.row(case, 0).below


@pytest.mark.usefixtures("brisk")
def test_a_report_with_a_wrong_accountant_is_not_ok() -> None:
    found = audit(small(), runs=2_000, trials=1_000, attack_rounds=8, accountant=louder(1.5))
    assert not found.ok
    assert sum(not r.below for r in found.membership) >= 10


# ---- configs at the edge


def row(**values: Any) -> Row:
    return replace(Row("shared", "gaussian", "config", "links", 1.0, 5, 1e-5), **values)


def test_rows_judge_themselves() -> None:
    assert row(lower=1.0, upper=2.0).ok
    assert not row(lower=1.0, upper=2.0, tight=True).ok
    assert row(lower=1.4, upper=2.0, tight=True).ok
    assert not row(lower=2.1, upper=2.0).ok
    assert not row(lower=1.0, upper=2.0, pure_lower=3.0, pure_upper=2.5).ok
    assert row(leak=True).ok
    assert row(leak=True).ratio is None
    assert row(lower=0.0, upper=0.0).ok


@pytest.mark.usefixtures("brisk")
def test_what_a_config_cannot_give_is_said() -> None:
    settings = {"runs": 200, "trials": 100, "attack_rounds": 4}
    unclipped = small("scheme.name='none'", "scheme.sigma=0.0", "rounds=2")
    unclipped = unclipped.model_copy(
        update={"algorithm": unclipped.algorithm.model_copy(update={"clip": "none", "bound": None})}
    )
    found = audit(unclipped, **settings)
    assert any("no clip" in n and "B = 1" in n for n in found.notes)
    assert found.membership[0].leak
    assert "leak" in str(found)
    assert {r.rounds for r in found.membership} == {2, auditing.HIDDEN}
    refused = audit(small("scheme.name='pairwise'", "scheme.noise='laplace'", "scheme.sigma_pair=1.0"), **settings)
    assert any("accountant refuses" in n for n in refused.notes)
    assert all(r.setting != "config" for r in refused.membership)
    with pytest.raises(InputError, match="one server"):
        audit(small("problem.units=1", "graph.topology='path'"))
    with pytest.raises(InputError, match="attack_rounds"):
        audit(small(), attack_rounds=2)


def test_the_rows_follow_the_config() -> None:
    mine = scheme("pairwise", 2.0, noise="gaussian", sigma_pair=6.0)
    found = cases(mine, GRAPHS[:1], "neighbours", "centroid:0.5")
    own = [c for c in found if c.setting == "config"]
    assert [str(c.threat) for c in own] == ["links", "neighbours", "links"]
    # Servers receive the release too; its shares are sized for the two neighbours that the config fears.
    assert [c.release for c in own] == [Release(), Release("centroid", 0.5, 2), Release("centroid", 0.5, 2)]
    alone = [c for c in cases(mine, GRAPHS[:1], "links", "centroid:0.5") if c.setting == "config"]
    assert [c.release for c in alone] == [Release(), Release("centroid", 0.5, 1)]
    assert {c.scheme.sigma_pair for c in found if c.setting is None and c.scheme.name == "pairwise"} == {3.0}
    turns = cases(mine, GRAPHS, "neighbours")
    assert all(c.threat.kind != "neighbours" for c in turns)
    assert Threat("colluders", frozenset({1, 4})) in {c.threat for c in turns}
    kinds = {c.threat.kind for c in cases(mine, GRAPHS, "own-client")}
    assert "own-client" not in kinds
