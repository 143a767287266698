"""Issue 23, items 9 and 17, and what was misleading about deployments: each was printed otherwise before."""

from __future__ import annotations

from typing import Any

import pytest

from builders import changed, deployed, priced
from confide.base.errors import InputError
from confide.cluster.try_out import RELEASE, TRY_OUT
from confide.graph.graph import Graph
from confide.laws import conversion
from confide.plans import words
from confide.plans.config import Experiment, parse
from confide.plans.words import ConvexGlm, Random
from confide.privacy.accountant import account
from confide.privacy.ledger import FREE
from confide.privacy.price import Price, agreed, price
from confide.privacy.reveal import Reveal
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.spent import allowance
from confide.privacy.statement import statement
from confide.rounds.schemes import scheme

BASE: dict[str, Any] = {
    "rounds": 8,
    "repeats": 1,
    "graph": {"topology": "ring"},
    "problem": {"units": 4, "clients": 6, "samples": 20},
    "algorithm": {"step": 0.1, "sampled": 6, "clip": "example", "bound": 1.0, "arithmetic": "fixed"},
    "scheme": {"name": "homomorphic", "noise": "gaussian", "sigma": 9.0},
    "privacy": {"proof": "regulariser:0.1"},
}


def experiment(**tables: dict[str, Any] | int) -> Experiment:
    content = {name: BASE.get(name, {}) | x if isinstance(x, dict) else x for name, x in ({**BASE, **tables}).items()}
    return parse(content).build()


def deploy(clocks: dict[str, float] | None = None, **tables: dict[str, Any] | int) -> Price:
    return agreed(deployed(experiment(**tables), **(clocks or {})))


# ---- 17: every release that the plan allows is priced


def released(release: str, threat: str, graph: Graph, count: int) -> Reveal:
    return Reveal.sized(words.release(release), words.threat(threat), [graph], count)


@pytest.mark.parametrize("threat", ["links", "neighbours", "colluders:1"])
def test_releases_of_one_state_compose(threat: str) -> None:
    """One release cost rho; a plan that allowed a thousand printed the epsilon of one."""
    s, g = Sensitivity(step=0.1, bound=1.0, level="unit"), Graph.ring(4)

    def spent(count: int) -> Any:
        planned = released("centroid:0.5", threat, g, count)
        return account(scheme("homomorphic", 30.0, noise="gaussian"), g, s, rounds=20, threat=threat, release=planned)

    none = account(scheme("homomorphic", 30.0, noise="gaussian"), g, s, rounds=20, threat=threat)
    one = spent(1)
    each = one.rho - none.rho
    for count in (2, 10, 1000):
        many = spent(count)
        assert many.rho == pytest.approx(none.rho + count * each)
        assert many.epsilon == pytest.approx(conversion.gaussian_epsilon((2 * many.rho) ** 0.5, 1e-5))
        assert f"{count} releases (centroid:0.5 each)" in many.adversary
    assert "and the release (centroid:0.5)" in one.adversary


def test_releases_compose_for_a_client_that_is_drawn_at_random() -> None:
    drawn, proof = Random(0.5), ConvexGlm(0.2)
    s = Sensitivity(step=0.1, bound=1.0, sampled=2, clients=4, participation=drawn, proof=proof, smoothness=4.0)
    g = Graph.ring(4)

    def epsilon(sigma: float, count: int) -> float:
        planned = released(f"centroid:{sigma}", "links", g, count)
        return account(scheme("homomorphic", 30.0, noise="gaussian"), g, s, rounds=4, release=planned).epsilon or 0.0

    assert epsilon(0.05, 1) < epsilon(0.05, 4) == pytest.approx(epsilon(0.025, 1))


def test_a_local_model_is_the_same_every_time() -> None:
    s, g = Sensitivity(step=0.1, bound=1.0, level="unit"), Graph.ring(4)
    found = [
        account(
            scheme("shared", 3.0, noise="gaussian"), g, s, rounds=5, release=released("local", "links", g, n)
        ).epsilon
        for n in (1, 9)
    ]
    assert found[0] == found[1] is not None


def test_a_plan_prices_all_the_releases_that_it_allows() -> None:
    one = deploy(privacy={"release": "centroid:0.5"})
    ten = deploy(privacy={"release": "centroid:0.5", "releases": 10})
    assert one.messages == ten.messages
    assert one.release is not None
    assert ten.release is not None
    assert ten.release.rho == pytest.approx(one.release.rho)  # an event pays for one
    receiver = [x.statement().accounts[-1] for x in (one, ten)]
    assert "10 releases (centroid:0.5 each)" in receiver[1].adversary
    assert receiver[1].rho - receiver[0].rho == pytest.approx(9 * one.release.rho)
    assert (receiver[1].epsilon or 0.0) > (receiver[0].epsilon or 0.0)


def test_the_budget_pays_for_all_releases_or_the_plan_is_refused() -> None:
    one = deploy(privacy={"release": "centroid:0.5"})
    assert one.release is not None
    spent = sum(c.rho or 0.0 for c in one.messages) + (one.release.rho or 0.0)
    room = {"release": "centroid:0.5", "rho": spent * 1.01}
    assert allowance(deploy(privacy=room), "data", []).releases == 1
    with pytest.raises(InputError, match=r"pays for \d of the 8 rounds, 2 releases included"):
        deploy(privacy=room | {"releases": 2})
    more = {"release": "centroid:0.5", "rho": spent + (one.release.rho or 0.0) * 1.01, "releases": 2}
    left = allowance(deploy(privacy=more), "data", [])
    assert (left.publications, left.releases) == (8, 2)
    assert left.said.endswith("pays for 8 of 8 rounds, and for 2 releases")


def test_without_a_budget_a_plan_allows_what_it_says() -> None:
    left = allowance(deploy(privacy={"release": "centroid:0.5"}), "data", [])
    assert (left.releases, left.said) == (1, "the plan has no budget: all 8 rounds and 1 release")
    left = allowance(deploy(privacy={"release": "centroid:0.5", "releases": 3}), "data", [])
    assert (left.releases, left.said) == (3, "the plan has no budget: all 8 rounds and 3 releases")


def test_a_simulation_prices_its_releases_too() -> None:
    def accounting(releases: int) -> Price:
        e = experiment(privacy={"release": "centroid:0.5", "releases": releases, "proof": "regulariser:0.1"})
        assert e.privacy is not None
        return priced(e.privacy, e.problem, e.graph, e.algorithm, e.rounds, e.seed)

    one, five = accounting(1), accounting(5)
    cost, same = one.release, five.release
    assert cost is not None
    assert same is not None
    assert same.rho == pytest.approx(cost.rho)
    told = [a.statement().accounts[-1].rho or 0.0 for a in (one, five)]
    assert told[1] - told[0] == pytest.approx(4 * (cost.rho or 0.0))
    assert five.plan.privacy.releases == 5
    assert changed(five.plan, releases=1).hash == one.plan.hash


# ---- 9: a plan without a price is refused, or says so first


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"scheme": {"name": "pairwise", "sigma": 9.0, "sigma_pair": 1.0}}, "has a proof for Gaussian noise only"),
        ({"scheme": {"name": "none", "sigma": 0.0}}, "messages carry no noise"),
        ({"privacy": {"proof": "none"}}, "needs a proof"),
        ({"privacy": {"proof": "regulariser:0.1", "threat": "own-server"}}, "every client's update in clear"),
        ({"privacy": {"proof": "regulariser:0.1", "release": "local"}}, "a local model and the messages give"),
    ],
)
def test_a_plan_without_a_price_is_refused_unless_it_says_so(tables: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=rf"privacy\.unprotected = False: there is no epsilon against .*{why}"):
        deploy(**tables)
    privacy = tables.get("privacy", BASE["privacy"]) | {"unprotected": True}
    plan = deploy(**tables | {"privacy": privacy}).plan
    assert plan.privacy.unprotected
    said = agreed(plan).statement()  # at every node, from the plan alone
    assert any(why in reason for reason in said.unprotected)
    assert str(said).startswith("NOT PROTECTED: there is no epsilon against ")
    with pytest.raises(InputError, match=r"privacy\.unprotected"):
        agreed(changed(plan, unprotected=False))


def test_a_plan_that_has_its_prices_begins_with_none_of_this() -> None:
    assert deploy(privacy={"proof": "regulariser:0.1", "unprotected": True}).statement().unprotected == ()
    assert deploy().statement().unprotected == ()


def test_links_need_a_price_also_where_another_adversary_is_named() -> None:
    """Noise inside the sums holds the own server off, and with it everybody; without it only the own client is."""
    inside = {"algorithm": {"aggregation": "secure"}, "secure": {"sigma": 0.3}}
    own = {"proof": "none", "threat": "own-server"}
    assert deploy(**inside, scheme={"name": "none", "sigma": 0.0}, privacy=own).statement().unprotected == ()
    with pytest.raises(
        InputError, match=r"no epsilon against the unit's own server: .*; there is no epsilon against an"
    ):
        deploy(scheme={"name": "none", "sigma": 0.0}, privacy=own)


def test_a_simulation_without_a_price_says_so_first_and_runs() -> None:
    e = experiment(algorithm={"arithmetic": "float"}, scheme={"name": "none", "sigma": 0.0})
    assert e.privacy is not None
    said = priced(e.privacy, e.problem, e.graph, e.algorithm, e.rounds, e.seed).statement(8)
    (reason,) = said.unprotected
    assert reason == "there is no epsilon against an eavesdropper on all links between servers: messages carry no noise"
    assert str(said).startswith("NOT PROTECTED: there is no epsilon")
    assert said.to_dict()["unprotected"] == [reason]


# ---- misleading: links that do not exist


def test_one_server_has_no_links_and_no_comforting_zero() -> None:
    s = Sensitivity(step=0.1, bound=1.0, level="unit")
    one, made = Graph.path(1), scheme("homomorphic", 10.0, noise="gaussian")
    for threat in ("links", "neighbours"):
        with pytest.raises(InputError, match="there are no links: one server sends no messages"):
            account(made, one, s, rounds=10, threat=threat)
    assert (account(made, one, s, rounds=10, release="centroid:0.5").epsilon or 0.0) > 0.0  # whoever gets the release
    said = statement(made, one, s, rounds=10)
    assert all(a.leak for a in said.accounts)
    assert [who for who, _ in said.refused] == ["links"]
    alone: dict[str, Any] = {"problem": {"units": 1}, "graph": {"topology": "path"}}
    with pytest.raises(InputError, match="there are no links"):
        deploy(**alone)
    first = deploy(**alone, privacy={"proof": "regulariser:0.1", "unprotected": True}).statement().unprotected
    assert "there are no links" in first[0]
    inside = {"algorithm": {"aggregation": "secure"}, "secure": {"sigma": 0.3}}
    assert deploy(**alone, **inside, privacy={"proof": "none", "threat": "own-server"}).statement().unprotected == ()


def test_a_release_of_one_server_is_all_that_its_simulation_pays_for() -> None:
    e = experiment(
        problem={"units": 1}, graph={"topology": "path"}, algorithm={"arithmetic": "float"},
        privacy={"level": "unit", "release": "centroid:0.5"},
    )  # fmt: skip
    assert e.privacy is not None
    pricing = priced(e.privacy, e.problem, e.graph, e.algorithm, e.rounds, e.seed)
    release = pricing.release
    assert all(cost == FREE for cost in pricing.messages)
    assert release is not None
    assert release.rho == pytest.approx(pricing.account(8, 1).rho)
    for threat, what in (("own-server", "centroid:0.5"), ("own-server", "none"), ("links", "none")):
        other = price(changed(pricing.plan, threat=words.threat(threat), release=words.release(what)))
        assert all(cost.rho is cost.epsilon is None for cost in other.messages)


# ---- misleading: time, pair noise, skips


def test_a_tick_below_adapt_is_among_the_assumptions() -> None:
    def notes(price: Price) -> set[bool]:
        accounts = price.statement().accounts
        return {any("how long training took" in note for note in a.assumptions) for a in accounts}

    assert notes(deploy()) == {False}
    assert notes(deploy({"adapt": 10.0, "tick": 1.0})) == {True}


def test_pair_noise_that_would_repeat_is_said_first() -> None:
    found = deploy(scheme={"name": "pairwise", "sigma": 9.0, "sigma_pair": 1.0}, privacy={"unprotected": True})
    assert any("the same plan run again from empty stores repeats it" in x for x in found.statement().unprotected)


# ---- misleading: the first numbers that `confide cluster` shows


@pytest.mark.parametrize(("release", "worst"), [("none", 1.1), (RELEASE, 3.6)])
def test_the_try_out_shows_privacy(release: str, worst: float) -> None:
    """It printed 28.9 for links."""
    e = parse(TRY_OUT | {"privacy": TRY_OUT["privacy"] | {"release": release}}).build()
    accounts = agreed(deployed(e)).statement().accounts
    found = [a.epsilon for a in accounts if a.threat not in ("own-client", "own-server")]
    assert max(x for x in found if x is not None) < worst
    assert min(x for x in found if x is not None) < 1.1
