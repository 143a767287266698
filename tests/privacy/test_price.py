"""A config becomes a plan that every node prices alike, or is refused with what would be right."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from builders import changed, deployed
from confide.base.errors import InputError
from confide.graph.graph import Graph
from confide.laws import conversion
from confide.laws.law import DISCRETE_GAUSSIAN, DISCRETE_LAPLACE
from confide.plans.config import Experiment, parse
from confide.plans.plan import Model, Plan, SecureSum
from confide.privacy.ledger import FREE
from confide.privacy.price import IN_RANGE, Price, agreed
from confide.privacy.sum_noise import release_rho
from confide.rounds.arithmetic import WEIGHT_BITS, FixedArithmetic, check_range
from confide.rounds.schemes import Noise, Place, scheme
from confide.secure.parameters import Parameters
from own_schemes import OWN

BASE: dict[str, Any] = {
    "rounds": 20,
    "repeats": 1,
    "graph": {"topology": "ring"},
    "problem": {"units": 4, "clients": 12, "samples": 20},
    "algorithm": {
        "step": 0.1, "sampled": 5, "clip": "example", "bound": 1.0, "arithmetic": "fixed", "local_steps": [1, 4],
        "batch": [3, 5],
    },
    "scheme": {"name": "shared", "noise": "gaussian", "sigma": 0.3},
}  # fmt: skip
GLM = {"proof": "convex-glm:0.2", "smoothness": 16.0}
ALONE = {"step": 0.1, "local_steps": 1}


def experiment(**tables: dict[str, Any] | int) -> Experiment:
    content = {name: BASE.get(name, {}) | x if isinstance(x, dict) else x for name, x in ({**BASE, **tables}).items()}
    return parse(content).build()


def deploy(**tables: dict[str, Any] | int) -> Price:
    return agreed(deployed(experiment(**tables)))


@lru_cache
def plain() -> Price:
    return deploy()


# ---- the plan


def test_the_plan_says_what_the_config_says() -> None:
    e = experiment()
    p = plain().plan
    d = p.deployed()
    E, batch = e.algorithm.settle(e.problem.federation, e.seed)
    assert (p.local_steps, p.batches) == ((E.min(), E.max()), (batch.min(), batch.max()))
    assert p.scheme.law is DISCRETE_GAUSSIAN
    assert (d.window, d.clocks.tick, p.algorithm.fraction_bits) == (4, d.clocks.adapt, 24)
    assert p.algorithm.model == Model("linear", e.problem.M, 0.1)
    assert [(c.local_steps, c.batch) for c in p.clients] == list(zip(E.tolist(), batch.tolist(), strict=True))
    assert all((x * 2**WEIGHT_BITS).is_integer() for x in p.graph.graphs[0].edge_weights)
    assert Plan.from_text(p.text) == p
    assert deploy(scheme={"noise": "laplace"}).plan.scheme.law is DISCRETE_LAPLACE


@pytest.mark.parametrize("name", ["mixed", "homomorphic"])
def test_a_scheme_of_ones_own_is_not_deployed_whatever_its_name(name: str) -> None:
    e = experiment()
    own = dataclasses.replace(next(s for s in OWN if s.name == "mixed"), name=name)
    with pytest.raises(InputError, match=rf"scheme\.name = '{name}': differs from the scheme of this name"):
        deployed(e._replace(algorithm=dataclasses.replace(e.algorithm, scheme=own)))


def test_a_train_function_of_ones_own_has_kind_own() -> None:
    e = experiment(algorithm={"clip": "update"})
    own = e._replace(algorithm=dataclasses.replace(e.algorithm, local=lambda w, X, d, task: -w))
    assert agreed(deployed(own)).plan.algorithm.model == Model("own", e.problem.M, built_in=False)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"algorithm": {"arithmetic": "float"}}, r"algorithm\.arithmetic = 'float': .*'fixed'"),
        ({"algorithm": {"dropout": 0.1}}, r"algorithm\.dropout = 0\.1: .*real network"),
        ({"graph": {"link_failure": 0.1}}, r"graph\.link_failure.*real network"),
        ({"graph": {"topology": ["ring", "path"]}}, r"graph\.topology = 2: .*one graph"),
        ({"algorithm": {"arithmetic": "float", "clip": "none", "bound": None}}, r"privacy = None"),
        ({"algorithm": {"replacement": True}, "privacy": {"level": "example"}}, r"privacy\.level.*replacement"),
        ({"scheme": {"name": "local-only", "sigma": 0.0}}, r"scheme\.name = 'local-only'"),
        ({"algorithm": {"fraction_bits": 48}, "scheme": {"sigma": 1.0}, "rounds": 1}, r"scheme\.sigma .*2\^50 quanta"),
        ({"algorithm": {"fraction_bits": 46}, "rounds": 10**6}, r"algorithm\.fraction_bits = 46: .*overflow"),
        ({"privacy": {"release": "centroid:0"}}, r"release\.sigma = 0\.0: must be positive"),
        ({"privacy": {"threat": "colluders:7"}}, r"threat .*server 7 does not exist"),
        ({"privacy": {"epsilon": 2.0}}, r"privacy\.epsilon = 2\.0: pays for 14 of the 20 rounds"),
        ({"privacy": {"rho": 0.05}}, r"privacy\.rho = 0\.05: pays for 5 of the 20 rounds"),
        ({"privacy": {"rho": 0.001}}, r"pays for 0 of the 20 rounds"),
        ({"privacy": {"epsilon": 9.0}, "scheme": {"name": "none", "sigma": 0.0}}, "cannot be kept: leak: messages"),
        (
            {"privacy": {"epsilon": 9.0}, "scheme": {"name": "pairwise", "sigma_pair": 1.0}},
            r"cannot be kept: .*proof for Gaussian noise only",
        ),
        ({"privacy": {"epsilon": 9.0}, "scheme": {"name": "homomorphic"}}, r"cannot be kept: proof = 'none'"),
        (
            {"privacy": {"epsilon": 90.0, "participation": "random:0.4166666666666667"}},
            "no price for a single round",
        ),
        (
            {"privacy": {"epsilon": 30.0, "release": "centroid:0.001"} | GLM, "algorithm": ALONE,
             "scheme": {"name": "homomorphic", "sigma": 9.0}},
            "pays for 0 of the 20 rounds, the release included",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_deployed_is_refused(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        deploy(**tables)


def test_where_rounding_refuses_random_participation_all_rounds_are_paid() -> None:
    """Roundings add up whoever takes part: then the bound for a client that is always there is the one that holds."""
    tables: dict[str, Any] = {"algorithm": ALONE, "scheme": {"name": "homomorphic"}}
    drawn = deploy(**tables, privacy={"epsilon": 900.0, "participation": "random:0.4166666666666667"} | GLM)
    always = deploy(**tables, privacy={"epsilon": 900.0} | GLM)
    assert drawn.messages == always.messages
    assert drawn.messages[-1].sensitivity > 10 * drawn.messages[0].sensitivity  # the whole memory of 20 rounds
    links, same = drawn.statement().accounts[0], always.statement().accounts[0]
    assert links.epsilon == same.epsilon is not None
    assert (
        "the smallest of the bounds that hold is that of 'all'; random is refused (roundings add up"
        in (links.assumptions[-1])
    )
    paid = max(T for T in range(21) if (always.after(T) or 0.0) <= 20.0)
    assert 0 < paid < 20
    with pytest.raises(InputError, match=rf"privacy\.epsilon = 20\.0: pays for {paid} of the 20 rounds"):
        deploy(**tables, privacy={"epsilon": 20.0, "participation": "random:0.4166666666666667"} | GLM)


def test_units_and_clocks_must_match() -> None:
    e = experiment()
    with pytest.raises(InputError, match=r"units = 3: the graph has 4 servers"):
        changed(plain().plan, units=plain().plan.units[:3])
    with pytest.raises(InputError, match=r"deployment\.window = 1"):
        deployed(e, window=1)
    with pytest.raises(InputError, match=r"must not exceed adapt, which is 5 s"):
        deployed(e, adapt=5.0, tick=6.0)


# ---- a plan that came from elsewhere


def test_a_simulation_is_not_a_deployment() -> None:
    with pytest.raises(InputError, match=r"plan\.deployment = None"):
        agreed(changed(plain().plan, deployment=None))


def test_a_scheme_is_what_its_name_says() -> None:
    for change in ({"carry": 0.5}, {"name": "secret"}, {"noises": (Noise(Place.SERVER, 0.3, taps=(1.0, -0.9)),)}):
        with pytest.raises(InputError, match=r"scheme\.name = .*: differs from the scheme of this name"):
            changed(plain().plan, scheme=replace(plain().plan.scheme, **change))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"proof": "public-point"}, r"privacy\.proof = 'public-point': .*not a function of the messages"),
        ({"proof": "regulariser:0.2"}, r"privacy\.proof = 'regulariser:0\.2': .*rho = 0\.1"),
        ({"proof": "convex-glm:0.2", "smoothness": True}, r"privacy\.smoothness = True"),
        ({"proof": "convex-glm:0.3", "smoothness": 9.0}, "only 2 rho = 0.2 strongly"),
        ({"proof": "convex-glm:0.2", "smoothness": 99.0}, r"step = 0\.1: .*at most 0\.0201613"),
        ({"step": 6.0}, r"algorithm\.step = 6\.0: .*at most 5"),
        ({"level": "example"}, r"privacy\.level = 'example': .*replacement"),
        ({"threat": "everybody"}, "threat = 'everybody'"),
        ({"secure": {"quorum": 6}}, r"quorum = 6: must be between 3 and 5"),
        ({"secure": {}, "fraction_bits": 33}, "could wrap in a 32-bit ring"),
        ({"secure": {"sigma": 1e-9}}, r"secure\.sigma = 1e-09: a share of it"),
        ({"epsilon": 0.0}, r"privacy\.epsilon = 0\.0: must be positive"),
    ],
)  # fmt: skip
def test_a_plan_that_is_not_true_is_refused(changes: dict[str, Any], words: str) -> None:
    def secure(quorum: int = 4, sigma: float = 0.0) -> SecureSum:
        return SecureSum(Parameters(5, degree=4, threshold=3, quorum=quorum, corrupted=1), sigma=sigma)

    with pytest.raises(InputError, match=words):
        agreed(
            changed(plain().plan, **changes | ({"secure": secure(**changes["secure"])} if "secure" in changes else {}))
        )


# ---- prices


def test_a_gaussian_message_costs_rho() -> None:
    p = plain()
    assert len(p.messages) == 20
    assert p.release is None
    one = p.messages[7]
    assert one.rho == pytest.approx((2 * 0.1 / 5) ** 2 / (2 * 0.3**2), rel=1e-12)
    assert (one.epsilon, one.law, one.sigma) == (None, "discrete-gaussian", 0.3)
    assert one.sensitivity >= 2 * 0.1 / 5
    assert p.after(0) == 0.0
    mu = (2 * 3 * (one.rho or 0.0)) ** 0.5  # 0.3 is 25 million quanta: Gaussian but for 9 quanta^2
    assert p.after(3) == pytest.approx(conversion.gaussian_epsilon(mu, 1e-5))
    assert p.after(20) == p.statement().accounts[0].epsilon
    assert "epsilon" in str(p.statement)


def test_a_laplace_message_costs_a_pure_epsilon_and_its_rho() -> None:
    one = deploy(scheme={"noise": "laplace"}, problem={"features": 3}).messages[0]
    assert one.epsilon == pytest.approx(3**0.5 * (2 * 0.1 / 5) * 2**0.5 / 0.3)
    assert one.rho == pytest.approx(one.epsilon**2 / 2)
    large = deploy(scheme={"noise": "laplace", "sigma": 1e-3}, privacy={"unprotected": True}).messages[0]
    assert large.rho == large.epsilon


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_a_release_costs_what_its_shares_give(noise: str) -> None:
    """The states are `kept` apart; any P - 1 of P shares of discrete Gaussian noise put sigma on the mean.

    Who listens on links knows no share and faces four, a server knows its own, its two neighbours know two.
    """
    p = deploy(
        scheme={"name": "homomorphic", "noise": noise, "sigma": 9.0}, algorithm=ALONE,
        privacy={"release": "centroid:0.5", "epsilon": 500.0} | GLM,
    )  # fmt: skip
    terms = p.reveal_terms
    assert terms is not None
    assert (terms.servers, terms.colluders, terms.quantum) == (4, 1, 2.0**-24 / 5)
    kept = p.messages[-1].sensitivity / (2**0.5 if noise == "laplace" else 1.0)
    messages = sum(c.rho or 0.0 for c in p.messages)

    def rho(known: int) -> float:
        variance = (4 - known) * 0.5**2 / 3  # of the mean: three shares have 0.5^2
        return (kept / 4) ** 2 / (2 * variance)

    assert p.release is not None
    assert p.release.rho == pytest.approx(rho(0), rel=1e-9)
    assert p.release.sensitivity == pytest.approx(0.5 * (2 * rho(0)) ** 0.5)
    assert (p.release.epsilon, p.release.law) == (None, "discrete-gaussian")
    assert release_rho(
        kept, 0.5, servers=4, colluders=1, known=2, quantum=p.arithmetic.quantum, dim=2
    ) == pytest.approx(rho(2), rel=1e-9)
    whole = {a.adversary: a for a in p.statement().accounts}
    said = ", and the release (centroid:0.5)"
    for who, known in (
        ("an eavesdropper on all links between servers", 0),
        ("any one colluding server", 1),
        ("all neighbours of the server, colluding", 2),
    ):
        assert whole[who + said].rho == pytest.approx(messages + rho(known), rel=1e-9)
        total = messages + rho(known)
        due = conversion.rho_epsilon(total, 1e-5, gaussian=noise == "gaussian")  # millions of quanta are as Gaussian
        assert whole[who + said].epsilon == pytest.approx(due)
        # Should a server be removed, the rest add wider shares, so that none of these knows more of the noise.
        hidden, left = (4 - known) * terms.share_quanta**2, (3 - known) * terms.left(3).share_quanta ** 2
        assert left >= hidden * (1 - 1e-12)
        assert (left == pytest.approx(hidden)) is (known == 2)
    without = [a for a in p.statement().accounts if "release" not in a.adversary and not a.leak]
    assert [a.threat for a in without] == ["links"]
    assert without[0].rho == pytest.approx(messages)


def test_a_release_counts_the_last_rounding() -> None:
    """0 < c < 1: the state is c Delta_T and one rounded quantum in each coordinate away."""
    tables: dict[str, Any] = {"scheme": {"name": "partial:0.5"}, "algorithm": {"fraction_bits": 6}}
    p = deploy(**tables, privacy={"release": "centroid:0.5", "level": "unit"})
    q = 2.0**-6 / 5
    assert p.release is not None
    kept = 0.5 * p.messages[-1].sensitivity + q * 2**0.5
    assert p.release.rho == pytest.approx((kept / 4) ** 2 / (2 * 0.5**2 * 4 / 3), rel=1e-9)


def test_a_sum_over_servers_that_could_wrap_is_refused_first() -> None:
    e = experiment(rounds=300, privacy={"release": "centroid:0.1"})
    for bits in range(40, 53):
        finer = e._replace(algorithm=dataclasses.replace(e.algorithm, fraction_bits=bits))
        try:
            agreed(deployed(finer))
        except InputError as refusal:
            assert "the sum over 4 servers could wrap" in refusal.remedy  # noqa: PT017 - the first refusal is meant
            break
    else:
        pytest.fail("no grid was too fine")


def test_narrow_shares_of_a_release_are_refused() -> None:
    tables: dict[str, Any] = {"scheme": {"name": "homomorphic"}, "algorithm": ALONE}
    with pytest.raises(InputError, match=r"cannot be kept: .*quanta wide"):
        deploy(**tables, privacy={"release": "centroid:1e-9", "epsilon": 500.0} | GLM)
    with pytest.raises(InputError, match=r"privacy\.unprotected = False: .*quanta wide"):
        deploy(**tables, privacy={"release": "centroid:1e-9"} | GLM)
    p = deploy(**tables, privacy={"release": "centroid:1e-9", "unprotected": True} | GLM)
    assert p.release is not None
    assert p.release.rho is p.release.epsilon is None
    assert p.messages[0].rho is not None  # the messages have a bound without it


def test_a_release_of_public_states_is_free() -> None:
    p = deploy(privacy={"release": "centroid:0.1"})
    assert p.release is not None
    assert (p.release.rho, p.release.epsilon) == (0.0, 0.0)


def test_colluders_are_counted_in_the_shares() -> None:
    terms = deploy(privacy={"release": "centroid:0.1", "threat": "neighbours"}).reveal_terms
    assert terms is not None
    assert terms.colluders == 2


@pytest.mark.parametrize("name", ["none", "pairwise"])
def test_what_has_no_bound_has_no_price(name: str) -> None:
    noise = {"sigma": 0.0} if name == "none" else {"sigma_pair": 1.0}
    p = deploy(scheme={"name": name} | noise, privacy={"release": "centroid:0.1", "unprotected": True})
    assert all(c.rho is c.epsilon is None for c in p.messages)
    assert p.release is not None
    assert p.release.rho is p.release.epsilon is None
    assert p.after(1) is None


def test_noise_inside_the_sums_prices_what_the_messages_do_not() -> None:
    secure = {"algorithm": {"aggregation": "secure", "sampled": 8}, "secure": {"sigma": 0.05}}
    p = deploy(**secure, scheme={"name": "none", "sigma": 0.0}, privacy={"release": "centroid:0.1", "rho": 20.0})
    assert p.messages[0].law == "discrete-gaussian"
    assert p.messages[0].sigma == 0.05
    assert p.messages[0].rho == pytest.approx((2 * 0.1 / 8) ** 2 / (2 * 0.05**2))
    assert p.release == FREE
    noisy = deploy(**secure)  # here the messages' own noise is the better proof
    assert noisy.messages[0].sigma == 0.3


def test_a_row_that_rests_on_messages_of_masked_sums_says_that_clients_send_in_range() -> None:
    """A liar among them is inside the noise of a sum, but before that of a message; in clear the server sees it."""
    secure: dict[str, Any] = {"algorithm": {"aggregation": "secure", "sampled": 8}}
    silent = {"scheme": {"name": "none", "sigma": 0.0}, "privacy": {"release": "centroid:0.1"}}
    masked, noisy = deploy(**secure), deploy(**secure, secure={"sigma": 0.05})
    by_sums = deploy(**secure, **silent, secure={"sigma": 0.05})
    for p, said in ((plain(), set()), (masked, {"messages"}), (noisy, {"messages"}), (by_sums, set())):
        rows = [a for a in p.statement().accounts if not a.leak]
        assert {a.by for a in rows if IN_RANGE in a.assumptions} == said
        assert all(IN_RANGE in a.assumptions for a in rows if a.by in said)
    assert {a.by for a in noisy.statement().accounts} == {"messages", "sum"}


def test_the_range_counts_updates_noise_and_rounding() -> None:
    d = plain()
    assert d.largest > 20 * 0.1
    assert agreed(changed(plain().plan, rounds=40)).largest > 1.9 * d.largest
    inside = deploy(algorithm={"aggregation": "secure", "sampled": 8}, secure={"sigma": 0.05})
    assert inside.largest > deploy(algorithm={"sampled": 8}).largest


def test_rounded_flows_may_pass_what_real_numbers_forbid() -> None:
    """Half a quantum for each flow and share of noise, in every round: an honest message must not be refused for it."""
    a, silent = FixedArithmetic(1, 4), scheme("none")
    hub, pair = (check_range(a, silent, g, 1.0, 10) for g in (Graph.star(9), Graph.path(2)))
    assert pair == 10 * (1.0 + 2 * a.quantum) + 1.0
    assert hub - pair == 10 * 7 * a.quantum


def test_a_link_scheme_remembers_by_its_roundings() -> None:
    """Without own weight nothing of psi is kept in real numbers; the rounded shares of noise do keep some."""
    A = np.full((3, 3), 0.5) - 0.5 * np.eye(3)
    tables: dict[str, Any] = {
        "problem": {"units": 3},
        "scheme": {"name": "per-link"},
        "graph": {"topology": "complete"},
    }
    tables["privacy"] = {"unprotected": True}
    shares = agreed(changed(deploy(**tables).plan, graph=Graph.from_matrix(A)))
    assert shares.messages[0].rho is None
    assert any("the other clients start from another model" in why for _, why in shares.statement().refused)
    whole = agreed(changed(deploy(**tables).plan, graph=Graph.from_matrix(A), level="unit"))
    s = [cost.sensitivity for cost in whole.messages]
    assert s[1] - s[0] == pytest.approx(2 * plain().arithmetic.quantum * 2**0.5, rel=1e-3)


def test_a_cap_pays_for_as_many_publications() -> None:
    """Clients count for themselves; where nothing is kept, publications beyond the cap cost nothing."""
    capped, always = (deploy(privacy={"participation": x}) for x in ("cap:3", "all"))
    one = always.messages[0].rho
    assert one
    assert [cost.rho for cost in capped.messages] == [one] * 3 + [0.0] * (len(capped.messages) - 3)
    assert capped.after(2) == always.after(2)
    assert capped.after(9) == capped.after(3) == always.after(3)
    assert any("at most 3 rounds, enforced by" in x for x in capped.statement().accounts[0].assumptions)


def test_the_carry_is_that_of_the_integers() -> None:
    d = deploy(scheme={"name": "partial:0.3"}, privacy={"level": "unit"})
    assert d.scheme.carry == 1 - 45875 / 2**16
    assert d.arithmetic.weigh(0.7, d.arithmetic.state(d.plan.graph.graphs[0].own_weights * 2.0**20)).max() > 0


def test_the_worse_end_of_the_local_steps_counts() -> None:
    """Fewest steps shrink most at once (regulariser); most steps contract least (convex-glm)."""
    tables: dict[str, Any] = {"scheme": {"name": "homomorphic"}}
    shrunk = deploy(**tables, privacy={"proof": "regulariser:0.1", "unprotected": True}).sensitivity
    assert shrunk.local_steps == (1, 4)
    assert shrunk.contraction == pytest.approx(1 - 2 * 0.1 * 0.1)
    convex = deploy(**tables, privacy=GLM).sensitivity
    assert convex.local_steps == (1, 4)
    assert convex.contraction == pytest.approx((1 - 0.2 * 0.1 / 4) ** 4)


def test_convex_glm_without_a_smoothness_is_agreed_on() -> None:
    """Whatever the step: what monotone gradients give, on the grid, is a little more than in real numbers."""
    tables: dict[str, Any] = {"scheme": {"name": "homomorphic"}, "algorithm": {"step": 4.0}}
    found = deploy(**tables, privacy={"proof": "convex-glm:0.2", "unprotected": True})
    s = found.sensitivity
    assert (s.monotone, s.steps, s.rounding is not None) == (True, (1, 4), True)
    real = replace(s, rounding=None).deltas(lambda j, before: before[-1], 20, True)
    got = np.array([cost.sensitivity for cost in found.messages])
    assert (real <= got).all()
    assert got[1] == pytest.approx(real[1], rel=1e-5)
    with pytest.raises(InputError, match=r"step = 4\.0: .*at most"):
        deploy(**tables, privacy=GLM)


@pytest.mark.parametrize("proof", ["none", "regulariser:0.1", "convex-glm:0.2"])
@pytest.mark.parametrize("adjacency", ["replace", "zero-out"])
def test_a_batch_is_credited_only_where_every_client_takes_one_step(proof: str, adjacency: str) -> None:
    """One client with two steps meets another model at its second: all of its gradients may change by then."""
    example = {"level": "example", "adjacency": adjacency, "proof": proof}
    privacy = example | ({"smoothness": 16.0} if proof.startswith("convex") else {})
    half, whole = 2 if adjacency == "zero-out" else 1, {"replacement": False, "batch": 5}
    one = deploy(privacy=privacy, algorithm=whole | {"local_steps": 1}).messages[0]
    assert one.sensitivity == pytest.approx(2 * 0.1 / 5 / 5 / half, rel=1e-5)
    several = deploy(privacy=privacy, algorithm=whole | {"local_steps": [1, 2]}).messages[0]
    if proof.startswith("convex"):
        assert several.sensitivity == pytest.approx(one.sensitivity, rel=1e-5)
    else:
        assert several.sensitivity == pytest.approx(2 * 0.1 / 5, rel=1e-9)
        assert several.rho == pytest.approx((2 * 0.1 / 5) ** 2 / (2 * 0.3**2), rel=1e-9)


def test_fewer_survivors_contract_less() -> None:
    """Without secure sums a single client may be left; with them the quorum is known."""
    tables: dict[str, Any] = {"scheme": {"name": "homomorphic"}, "privacy": GLM}
    one = deploy(**tables, algorithm=ALONE | {"sampled": 8})
    many = deploy(**tables, algorithm=ALONE | {"sampled": 8, "aggregation": "secure"})
    assert one.messages[-1].sensitivity > many.messages[-1].sensitivity
    assert one.messages[0].sensitivity == many.messages[0].sensitivity
