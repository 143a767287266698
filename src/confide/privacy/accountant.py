"""epsilon for a named adversary: scheme, sensitivity and threat in, a number with its assumptions out.

Named schemes have closed forms (privacy.md, sections 1, 2, 4, 5): given the messages, psi of the target is seen
through Gaussian or Laplace noise of its own in every round, with precision `factor`, and the state keeps a share `c`
of its deviation. Any other linear scheme goes through `view.expose`; tests hold the two equal to 1e-10. Noise inside
the secure sums (`sum_noise`) is a second proof about every adversary; the smaller epsilon is the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.base.validation import number, positive, positive_int
from confide.graph.graph import Graph
from confide.laws import conversion, discrete_gaussian
from confide.laws.law import Conversion, Law
from confide.laws.noise import LARGEST_SIZE
from confide.plans.threat import Release, Threat
from confide.privacy.participation import amplified_curve, random_curve
from confide.privacy.sensitivity import Participation, Sensitivity
from confide.privacy.sum_noise import SumNoise, by_sums, release_rho, smaller
from confide.privacy.view import Exposure, Round, expose_each
from confide.rounds.schemes import Scheme

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Account:
    """What an adversary can learn, at most.

    Attributes:
        epsilon: at `delta`, in which the sampler's distance is paid; None for a leak.
        epsilon_pure: at delta = 0, for Laplace; of discrete noise but for the sampler's distance.
        rho: zero-concentrated; mu_gdp: Gaussian; None where they do not apply.
        leak: the view determines a noiseless function of the target's data, or discrete noise is so thin that its
            sampler's distance alone is more than delta: what else is given is then that of ideal noise.
        valid: a theorem covers this number; exact: it is attained, not only a bound.
        by: which noise it rests on, that of the "messages" or that inside the secure "sum".
        law: that noise in words; conversion: how epsilon follows from it. Two numbers about one config may differ here.
        draws: of discrete noise that the proof counts on, each a little off its law.
        deltas: Delta_1..Delta_T of the worst target, in the noise's norm.
        costs: what each round adds to rho (Gaussian) or to pure epsilon (Laplace); a release is not among them.
    """

    threat: str
    adversary: str
    level: str
    adjacency: str
    epsilon: float | None
    delta: float
    epsilon_pure: float | None = None
    rho: float | None = None
    mu_gdp: float | None = None
    leak: bool = False
    valid: bool = True
    exact: bool = False
    target: int | None = None
    by: str = "messages"
    law: str = ""
    conversion: str = ""
    draws: int = 0
    assumptions: tuple[str, ...] = ()
    deltas: tuple[float, ...] = field(default=(), repr=False)
    costs: tuple[float, ...] = field(default=(), repr=False)

    def priced(self, convert: Mapping[str, Callable[[float], float]], draws: int) -> Account:
        """With the smallest epsilon of these conversions from delta, of so many discrete draws."""
        epsilon, how = conversion.smallest(convert, self.delta, draws)
        if math.isfinite(epsilon) or not draws:
            return replace(self, epsilon=epsilon, conversion=str(how), draws=draws)
        why = (
            f"leak: so little noise that no epsilon holds at delta {self.delta:g}: {draws:.3g} discrete draws, each "
            "within 2^-108 of its law, add more than that to delta"
        )
        return replace(self, leak=True, exact=False, draws=draws, assumptions=(why, *self.assumptions))

    @property
    def success(self) -> float:
        """The best true positive rate at 1% false positives of a test for one client's (unit's, example's) data."""
        if self.leak or self.epsilon is None:
            return 1.0
        off = self.draws * conversion.DISTANCE
        rates = [conversion.true_positive_rate(0.01, epsilon=self.epsilon, delta=self.delta)]
        if self.mu_gdp is not None:
            rates.append(conversion.true_positive_rate(0.01 + off, mu=self.mu_gdp) + off)
        if self.epsilon_pure is not None:
            slack = (1.0 + math.exp(min(self.epsilon_pure, 700.0))) * off
            rates.append(conversion.true_positive_rate(0.01, epsilon=self.epsilon_pure, delta=slack))
        return min(rates)

    def to_dict(self) -> dict[str, Any]:
        names = (
            "epsilon", "delta", "epsilon_pure", "rho", "mu_gdp", "leak", "valid", "exact", "target", "by", "law",
            "conversion",
        )  # fmt: skip
        return {
            "threat": self.threat,
            "adversary": self.adversary,
            "level": self.level,
            "adjacency": self.adjacency,
            **{name: getattr(self, name) for name in names},
            "success_at_1_percent": self.success,
            "assumptions": list(self.assumptions),
        }


@dataclass(frozen=True)
class _Target:
    """One server under one adversary: carries c_1..c_T, and the independent copies of noise on its messages."""

    p: int
    carry: Floats
    copies: Floats  # with standard deviation `_sigma`; of normal noise any precision is so many copies

    @property
    def remembers(self) -> bool:
        return bool(np.any(self.carry > 0))


def account(
    scheme: Scheme,
    graph: Graph | Sequence[Graph],
    sensitivity: Sensitivity,
    *,
    rounds: int,
    noise: Law | str | None = None,
    threat: Threat | str = "links",
    release: Release | str = "none",
    delta: float = 1e-5,
    sum_noise: SumNoise | None = None,
    secure: bool = True,
) -> Account:
    """The privacy of `rounds` rounds against one adversary, for the worst honest server.

    Args:
        graph: one graph, or several that take turns.
        noise: the law actually drawn, or its name; `scheme.law` by default. `scheme.sigma` is its standard deviation.
        release: in words, its shares of noise are sized for `threat`; a `Release` says for how many they are.
        sum_noise: noise that the clients put inside every secure sum.
        secure: whether updates are masked, so that the own server sees their sum only; else it sees each in clear.
    """
    threat = Threat.parse(threat) if isinstance(threat, str) else threat
    law = Law.parse(noise or scheme.law)
    rounds = positive_int("rounds", rounds)
    if not 0.0 < number("delta", delta) < 1.0:
        raise InputError("delta", delta, "must lie strictly between 0 and 1")
    graphs = [graph] if isinstance(graph, Graph) else list(graph)
    if not graphs or any(g.P != graphs[0].P for g in graphs):
        raise InputError("graph", graphs, "give one graph, or several with the same servers")
    threat.check(graphs[0].P)
    release = Release.parse(release).for_threat(threat, graphs) if isinstance(release, str) else release
    if graphs[0].P == 1 and threat.kind in ("links", "neighbours") and release.kind == "none":
        remedy = "there are no links: one server sends no messages, so that an epsilon of 0 would protect nobody"
        raise InputError("threat", str(threat), f"{remedy}; name own-client, own-server or a release")
    seen = _seen(scheme, secure)
    blank = _blank(sensitivity, threat, release, delta)

    def by_messages() -> Account:
        return _by_messages(scheme, graphs, sensitivity, rounds, law, threat, release, blank, seen)

    if sum_noise is None:
        return by_messages()
    if not secure:
        raise InputError("sum_noise", sum_noise.sigma, "shares add up only inside a secure sum; aggregate securely")
    sum_noise.check(sensitivity)
    real = replace(sensitivity, rounding=None)  # the noise inside the sum counts its own truncation
    return smaller(by_messages, lambda: by_sums(sum_noise, real, rounds, threat, blank))


def account_general(
    rounds: Sequence[Round],
    sensitivity: Sensitivity,
    *,
    colluders: Sequence[int] = (),
    delta: float = 1e-5,
    targets: Sequence[int] | None = None,
) -> Account:
    """Any linear scheme with Gaussian noise, round by round: other graphs, failed links, schemes of your own."""
    if not rounds:
        raise InputError("rounds", 0, "must be at least 1")
    if not 0.0 < number("delta", delta) < 1.0:
        raise InputError("delta", delta, "must lie strictly between 0 and 1")
    P, T = rounds[0].matrices.W.shape[0], len(rounds)
    threat = Threat("colluders", frozenset(colluders)) if len(colluders) else Threat()
    threat.check(P)
    if sensitivity.participation.kind not in ("all", "cap"):
        raise InputError("participation", str(sensitivity.participation), "the general accountant knows all and cap:N")
    honest = [p for p in range(P) if p not in threat.colluders]
    chosen = honest if targets is None else list(targets)
    if not chosen or not set(chosen) <= set(honest):
        raise InputError("targets", chosen, f"must be honest servers: {honest}")
    exposed = expose_each(rounds, chosen, threat.colluders)
    found = [_spend_exposed(e, p, T, sensitivity, threat, delta) for e, p in zip(exposed, chosen, strict=True)]
    return max(found, key=lambda a: math.inf if a.epsilon is None else a.epsilon)


def paper_theorem(step: float, bound: float, sigma: float, rounds: int) -> tuple[float, list[str]]:
    """Theorem 2 as printed: epsilon(i) = sqrt 2 mu B i (i + 1) / sigma_g, and what it leaves open."""
    for name, value in (("step", step), ("bound", bound), ("sigma", sigma)):
        positive(name, value)
    positive_int("rounds", rounds)
    return math.sqrt(2.0) * step * bound * rounds * (rounds + 1) / sigma, [
        "the paper's Theorem 2 as printed, not a statement of confide",
        "B must be an l1 bound (or multiply by sqrt M); the paper's Lemma 4 does not give one: clip",
        "true at unit level; the text speaks of one client",
        "one adversary only: an eavesdropper; the own server, own clients and a final model are not covered",
        "comparisons at equal sigma_g are not comparisons at equal privacy",
    ]


def _seen(scheme: Scheme, secure: bool) -> str:
    """What a unit's own server sees of its clients."""
    if secure:
        return "the sum of its clients' updates"
    return f"every client's update {'through noise that has no price' if scheme.sigma_client else 'in clear'}"


def _blank(s: Sensitivity, threat: Threat, release: Release, delta: float) -> Account:
    adversary = threat.words + ("" if release.kind == "none" else f", and {release.words}")
    return Account(str(threat), adversary, s.level, s.adjacency, None, delta)


def _by_messages(
    scheme: Scheme, graphs: Sequence[Graph], s: Sensitivity, rounds: int, law: Law, threat: Threat, release: Release,
    blank: Account, seen: str,
) -> Account:  # fmt: skip
    """The account that rests on the noise of servers and links alone.

    A client that is drawn at random is covered by every bound for a client that may always be there, and of the bounds
    that hold the smallest is the answer.
    """
    part = s.participation
    if part.kind not in ("random", "amplified"):
        return _by_one_bound(scheme, graphs, s, rounds, law, threat, release, blank, seen)
    found: list[tuple[str, Account]] = []
    refused: list[tuple[str, InputError]] = []
    for kind in ("amplified", "random", "all") if part.kind == "amplified" else ("random", "all"):
        given = replace(s, participation=Participation(kind, part.value if kind != "all" else 0.0))
        try:
            found.append((kind, _by_one_bound(scheme, graphs, given, rounds, law, threat, release, blank, seen)))
        except InputError as e:
            refused.append((kind, e))
    if not found:
        raise refused[0][1]
    kind, best = min(found, key=lambda x: math.inf if x[1].epsilon is None else x[1].epsilon)
    others = [f"{k} would give {a.epsilon:.4g}" for k, a in found if k != kind and a.epsilon is not None]
    others += [f"{k} is refused ({e.remedy})" for k, e in refused]
    note = f"participation {part}: the smallest of the bounds that hold is that of '{kind}'"
    return replace(best, exact=False, assumptions=(*best.assumptions, note + "".join(f"; {other}" for other in others)))


def _by_one_bound(
    scheme: Scheme, graphs: Sequence[Graph], s: Sensitivity, rounds: int, law: Law, threat: Threat, release: Release,
    blank: Account, seen: str,
) -> Account:  # fmt: skip
    if scheme.name == "pairwise" and scheme.sigma_pair and (not law.normal or s.rounding is not None):
        # Rounded one by one, noises are no function of their sum: 0.2 quanta wide, 25.0 was attained where 20.7 is due.
        remedy = "edge noise that cancels between two ends has a proof for Gaussian noise only, not for what is rounded"
        raise InputError("noise", law.name, remedy)
    blank = replace(blank, law=_law(law, s, release), assumptions=_about_noise(scheme, law, release, seen))
    why = _leak(scheme, graphs, threat, release, seen)
    if why is not None:
        return replace(blank, leak=True, assumptions=(f"leak: {why}", *blank.assumptions))
    honest = [p for p in range(graphs[0].P) if p not in threat.colluders]
    try:
        targets = _targets(scheme, graphs, threat, honest, rounds, release)
        found = [_spend(t, scheme, graphs, s, blank, law, release, threat) for t in targets]
        worst = _of_all(found, law)
    except OverflowError:
        worst = replace(blank, epsilon=math.inf)
    if not all(map(math.isfinite, (worst.epsilon or 0.0, worst.rho or 0.0))):
        raise InputError("sigma", scheme.sigma, "so little noise that epsilon is beyond every number; give more")
    return worst


def _of_all(found: list[Account], law: Law) -> Account:
    """The worst of several targets; its pure epsilon, rho and costs are made to hold for every one of them.

    One target may be the worst of few rounds and another of many, or one in pure epsilon and another at delta. A ledger
    charges the same cost to everybody, and may end early: costs add up, after every round, to no less than any
    target's.
    """
    worst = max(found, key=lambda a: math.inf if a.leak else a.epsilon or 0.0)
    if len(found) == 1:
        return worst
    pure = [a.epsilon_pure for a in found if a.epsilon_pure is not None]
    rho = [a.rho for a in found if a.rho is not None]
    mu = [a.mu_gdp for a in found if a.mu_gdp is not None]
    costs = np.array([a.costs for a in found])
    if law.pure:  # a pure epsilon has a rho too, and neither may add up to less
        costs = costs.max(axis=0)
    elif costs.size:
        costs = np.diff(np.cumsum(costs, axis=1).max(axis=0), prepend=0.0)
    return replace(
        worst,
        epsilon_pure=max(pure) if worst.epsilon_pure is not None else None,
        rho=max(rho) if worst.rho is not None else None,
        mu_gdp=max(mu) if len(mu) == len(found) else None,
        draws=max(a.draws for a in found),
        costs=tuple(costs.tolist()) if costs.size else (),
    )


def _law(law: Law, s: Sensitivity, release: Release) -> str:
    shown = f"{law.words} noise in the messages"
    if not law.on_grid and s.rounding is not None:
        shown += ", rounded to the grid"
    if release.kind == "centroid":
        shown += f"; {'discrete ' if s.rounding is not None else ''}Gaussian shares in the release"
    return shown


def _about_noise(scheme: Scheme, law: Law, release: Release, seen: str) -> tuple[str, ...]:
    masked = "secure" if seen.startswith("the sum") else "plain"
    found = [f"{masked} aggregation: the own server sees {seen}; noise is drawn once per round"]
    if scheme.exchange == "average":
        found.append(
            "a trusted centre, or a secure sum over all servers, shows the noisy mean and nothing else; nobody knows "
            "its noise"
        )
    if law.on_grid:
        found.append(
            "discrete noise on an integer grid; the sampler is within 2^-108 of it in total variation "
            "(confide.privacy.noise): N draws add (1 + e^epsilon) N 2^-108 to delta, which is paid from this delta"
        )
    else:
        found.append("real-valued noise: true of the mathematics, simulated in floating point")
    if law.on_grid and not law.pure and release.kind == "centroid":
        found.append(
            "release: of shares at least 2 quanta wide, whose sum is as good as discrete Gaussian (rho grows by less "
            "than 1e-15 P M); for narrower ones see confide.privacy.sum_noise.release_rho"
        )
    return tuple(found)


def _leak(scheme: Scheme, graphs: Sequence[Graph], threat: Threat, release: Release, seen: str) -> str | None:
    """Why this adversary learns a noiseless function of the data, or None."""
    if threat.kind == "own-server" and not seen.startswith("the sum"):
        return f"the own server sees {seen}: aggregation is plain, and nothing masks a client"
    if threat.kind == "own-server":
        return (
            f"the own server sees {seen} in clear: secure aggregation masks single clients, but nothing is "
            "differentially private against it unless noise is inside the secure sum"
        )
    silent = scheme.exchange == "nothing" or graphs[0].P == 1
    if not silent and scheme.sigma == 0.0:
        if scheme.sigma_pair:
            return "edge noises cancel over the network: without local noise their sum reveals the sum of the models"
        return "messages carry no noise"
    keeps = any(np.any(scheme.carries(g) > 0) for g in graphs) or scheme.noise_on == "link"
    keeps = silent or (keeps and scheme.exchange != "average")
    if scheme.noise_on == "link" and scheme.own_noise and (threat.kind == "own-client" or release.kind == "local"):
        # w_p shows psi_p through g_pp: neither clean nor covered by a theorem here.
        what = f"{threat}, release {release}"
        raise InputError("threat", what, "per-link's own noise hides part of w_p; no bound is proven for this view")
    if keeps and threat.kind == "own-client":
        return "the unit's model and the messages give the exact sum of the unit's clean updates (carry > 0)"
    if keeps and release.kind == "local":
        return "a local model and the messages give the exact sum of that unit's clean updates (carry > 0)"
    if keeps and release.kind == "centroid" and release.sigma == 0.0:
        return "a centroid revealed without noise is a noiseless function of every unit's data"
    return None


def _targets(
    scheme: Scheme, graphs: Sequence[Graph], threat: Threat, honest: list[int], rounds: int, release: Release
) -> list[_Target]:
    """Servers that can be the worst: epsilon grows with carry, copies and, where there is a release, with
    the shares of its noise that are known, so the largest are enough."""
    facts = np.array([_facts(scheme, g, threat, honest) for g in graphs]).transpose(1, 0, 2)
    known = [threat.shares(graphs, p) if release.kind == "centroid" else 0 for p in honest]
    column = np.broadcast_to(np.array(known, dtype=np.float64)[:, None, None], (len(honest), len(graphs), 1))
    facts = np.concatenate([facts, column], axis=2)  # (honest, graphs, 3)
    _, first = np.unique(facts.reshape(len(honest), -1), axis=0, return_index=True)
    keys, remembers = facts[first], np.any(facts[first, :, 0] > 0, axis=1)
    turn, found = np.arange(rounds) % len(graphs), []
    for n, key in zip(first, keys, strict=True):
        above = np.all(keys >= key, axis=(1, 2)) & np.any(keys > key, axis=(1, 2))
        if not np.any(above & (remembers == np.any(key[:, 0] > 0))):
            found.append(_Target(honest[n], *facts[n][turn, :2].T))
    return found


def _facts(scheme: Scheme, graph: Graph, threat: Threat, honest: list[int]) -> Floats:
    """One round's carry and copies of noise, a row for each honest server."""
    carry, ones = scheme.carries(graph)[honest], np.ones(len(honest))
    if scheme.exchange == "nothing" or graph.P == 1:
        return np.stack([ones, 0 * ones], axis=1)
    if scheme.exchange == "average":
        return np.stack([0 * ones, ones], axis=1)
    if scheme.noise_on == "link":
        return np.stack([graph.own_weights[honest], graph.degrees[honest].astype(np.float64)], axis=1)
    if scheme.sigma_pair and threat.kind != "neighbours":  # who know every edge noise of the target
        ones = _pairwise_precisions(scheme, graph, threat.colluders)[honest] * scheme.sigma**2
    return np.stack([carry, ones], axis=1)


def _sigma(scheme: Scheme, P: int) -> float:
    """Standard deviation of the noise through which psi is seen; a mean over all servers shows 1/P of it."""
    return (scheme.sigma or math.inf) * (P if scheme.exchange == "average" else 1)


def _pairwise_precisions(scheme: Scheme, graph: Graph, colluders: frozenset[int]) -> Floats:
    """[(sigma_l^2 I + sigma_c^2 L_honest)^-1]_pp of every p: edge noise counts only between honest ends."""
    honest = np.array([q not in colluders for q in range(graph.P)])
    i, j = graph.edges[honest[graph.edges].all(axis=1)].T
    laplacian = np.zeros((graph.P, graph.P))
    laplacian[i, j] = laplacian[j, i] = -1.0
    np.fill_diagonal(laplacian, -laplacian.sum(axis=1))
    values, vectors = np.linalg.eigh(laplacian)
    values[values < 1e-12 * values[-1]] = 0.0  # one for each honest component, known exactly
    return np.asarray(vectors**2 @ (1.0 / (scheme.sigma**2 + scheme.sigma_pair**2 * values)))


def _roundings(scheme: Scheme, graph: Graph, p: int) -> int:
    """Products that server p rounds when it publishes, in each coordinate (`rounding`)."""
    if scheme.exchange != "graph" or scheme.sigma == 0.0:
        return 0
    if scheme.noise_on == "link":
        return int(graph.degrees[p])
    return int(0.0 < scheme.carries(graph)[p] < 1.0)


def _spend(
    t: _Target, scheme: Scheme, graphs: Sequence[Graph], s: Sensitivity, blank: Account, law: Law, release: Release,
    threat: Threat,
) -> Account:  # fmt: skip
    """The account of one target."""
    T, P = len(t.carry), graphs[0].P
    roundings = 0 if s.rounding is None else max(_roundings(scheme, g, t.p) for g in graphs)
    remembers = t.remembers or roundings > 0
    factor_to_norm, norm_notes = s.to_norm(law.norm)
    notes = [*blank.assumptions, *s.assumptions(remembers), *norm_notes]
    known = threat.shares(graphs, t.p)
    released = 0.0 if release.kind != "centroid" else float(t.carry[-1]) / P  # Delta w_c = c Delta_T / P
    if release.kind == "centroid":
        notes.append(
            "release: a secure sum over servers reveals only the mean plus noise, to everybody; every server adds a "
            f"Gaussian share, and {P - known} of {P} shares are not known to this adversary"
        )
    sigma = _sigma(scheme, P)
    if s.participation.kind in ("random", "amplified"):
        if s.rounding is not None and (remembers or s.level == "example"):
            remedy = "roundings add up whoever takes part, which this proof does not know; use all or cap:N"
            raise InputError("participation", str(s.participation), remedy)
        hidden = release.hidden(P, known)
        final = math.sqrt(release.count) * released / hidden if released else 0.0
        curve, why = _curve(t, s, law, final, threat, sigma)
        draws = _draws(t, s, law, release.count * (P - known) * (s.rounding is not None and released > 0.0))
        by_curve = {str(Conversion.RENYI): lambda delta: conversion.renyi_epsilon(curve, delta)}
        return replace(blank, target=t.p, assumptions=(*notes, *why)).priced(by_curve, draws)
    t, ones = replace(t, copies=s.charged(t.copies, remembers)), s.ones(law.norm)
    deltas = factor_to_norm * s.deltas(
        lambda j, before: np.asarray(t.carry[j - 1] * before[-1]), T, remembers, ones=ones, roundings=roundings
    )
    shared = 0.0  # rho of the releases
    if s.rounding is not None:
        notes.append(s.rounding.words)
    if release.kind == "centroid" and (released or roundings):
        one = _release_rho(t, float(deltas[-1]), factor_to_norm, roundings * ones, s, P, release, known)
        shared = release.count * one
    on_grid = s.rounding is not None
    draws = _draws(t, s, law, release.count * (P - known) if on_grid and shared else 0)
    common: dict[str, Any] = {"target": t.p, "deltas": tuple(deltas.tolist()), "assumptions": tuple(notes)}
    convert: dict[str, Callable[[float], float]] = {}
    # per-link's own noise is assumed known, which no data attains.
    hidden = scheme.noise_on == "link" and scheme.own_noise
    exact = s.participation.kind == "all" and not hidden and s.attained(remembers)
    spent = law.cost(deltas, sigma, t.copies)
    sent = float(np.sum(spent.rho))
    if spent.pure is None:
        rho, mu = sent + shared, _mu(sent, shared, law, scheme, s, P, release, known)
        common["costs"] = tuple(spent.rho.tolist())
        rounded = not law.normal or (shared > 0.0 and on_grid)  # shares on a grid are discrete
        if mu is not None:
            how = Conversion.ROUNDED if rounded else Conversion.GAUSSIAN
            convert[how] = lambda delta: conversion.gaussian_epsilon(mu, delta)
        if rounded:
            convert[Conversion.ZCDP] = lambda delta: conversion.zcdp_epsilon(rho, delta)
        return replace(blank, rho=rho, mu_gdp=mu, exact=exact and not rounded, **common).priced(convert, draws)
    common["costs"], common["rho"] = tuple(spent.pure.tolist()), sent + shared
    every = np.repeat(spent.pure / np.maximum(t.copies, 1.0), t.copies.astype(int))
    pure = float(every.sum())
    if shared:  # either all in rho, or the messages at delta 0 and the release at delta
        convert[f"{Conversion.PURE}, and {Conversion.ZCDP} for the release"] = lambda delta: (
            pure + conversion.zcdp_epsilon(shared, delta)
        )
        convert[Conversion.ZCDP] = lambda delta: conversion.zcdp_epsilon(common["rho"], delta)
        return replace(blank, **common).priced(convert, draws)
    convert[Conversion.PURE] = lambda delta: pure
    closed = Conversion.LAPLACE in law.conversions
    if closed:
        convert[Conversion.LAPLACE] = lambda delta: conversion.laplace_epsilon(every, delta)
    else:
        convert[Conversion.PURES] = lambda delta: conversion.pure_epsilon(every, delta)
    found = replace(blank, epsilon_pure=pure, exact=exact and closed, **common).priced(convert, draws)
    return replace(found, exact=found.exact and found.epsilon == pure)  # its conversion to a delta is a bound


def _draws(t: _Target, s: Sensitivity, law: Law, shares: int) -> int:
    """Discrete draws that the target's proof counts on: its own messages' in every round, and the release's."""
    each = float(np.maximum(t.copies, 1.0).sum()) if law.on_grid else 0.0
    return math.ceil(each + shares) * (s.dim or LARGEST_SIZE)  # nobody draws more coordinates at a time


def _mu(
    sent: float, shared: float, law: Law, scheme: Scheme, s: Sensitivity, P: int, release: Release, known: int
) -> float | None:
    """mu of Gaussian differential privacy, where both the messages' noise and a release's shares have one."""
    parts: list[float | None] = [2.0 * sent if law.normal or not sent else None]
    if sent and Conversion.ROUNDED in law.conversions and s.rounding is not None and scheme.exchange == "graph":
        parts = [discrete_gaussian.mu_squared(sent, scheme.sigma / s.rounding.quantum)]
    if shared and s.rounding is None:
        parts.append(2.0 * shared)
    elif shared and s.rounding is not None:
        share = release.share(P) / s.rounding.quantum
        parts.append(discrete_gaussian.mu_squared(shared, math.sqrt(P - known) * share, share))
    found = [x for x in parts if x is not None]
    return math.sqrt(math.fsum(found)) if len(found) == len(parts) else None


def _release_rho(
    t: _Target, last: float, to_norm: float, rounded: float, s: Sensitivity, P: int, release: Release, known: int
) -> float:
    """rho of the noisy mean: given the messages the target's state is c Delta_T away (l2), the mean 1/P of it."""
    kept = float(t.carry[-1]) * last / to_norm
    if s.rounding is None:
        return (kept / P / release.hidden(P, known)) ** 2 / 2.0
    assert s.dim is not None  # noqa: S101 - integers have a dimension
    quantum = s.rounding.quantum
    return release_rho(
        kept + rounded * quantum, release.sigma, servers=P, colluders=min(release.colluders, P - 1), known=known,
        quantum=quantum, dim=s.dim,
    )  # fmt: skip


def _curve(t: _Target, s: Sensitivity, law: Law, final: float, threat: Threat, sigma: float) -> tuple[Any, list[str]]:
    if s.participation.kind == "amplified":
        if threat.kind in ("own-client", "own-server"):
            remedy = f"{threat.kind} learns who takes part; amplification counts only for those who cannot"
            raise InputError("participation", str(s.participation), remedy)
        if t.remembers:
            remedy = "the state remembers earlier participations (carry > 0): amplification has no proof; use random:Q"
            raise InputError("participation", str(s.participation), remedy)
        return amplified_curve(s, law, t.copies * sigma**-2.0)
    if t.remembers and s.monotone:
        remedy = "without a declared smoothness a deviation grows whoever takes part, which random:Q does not know"
        raise InputError("participation", str(s.participation), f"{remedy}; use all or cap:N")
    factor_to_norm, _ = s.to_norm(law.norm)
    return random_curve(
        q=s.participation.value,
        added=factor_to_norm * s.added(t.remembers),
        keep=(s.contraction if t.remembers else 1.0) * t.carry,
        copies=t.copies,
        sigma=sigma,
        noise=law,
        final=final / factor_to_norm,  # an l2 distance, x is in the norm of the messages' noise
    )


def _spend_exposed(e: Exposure, p: int, T: int, s: Sensitivity, threat: Threat, delta: float) -> Account:
    blank = Account(str(threat), threat.words, s.level, s.adjacency, None, delta, target=p)
    if e.leak:
        return replace(blank, leak=True, assumptions=("leak: the view determines a noiseless function of the data",))
    remembers = bool(np.any(np.abs(e.kept) > 1e-12))
    deltas = s.deltas(lambda j, before: np.asarray(np.abs(e.kept[j - 1, :j]) @ before), T, remembers)
    # Rounds outside a cap count as present in the cross terms: which rounds are seen together is not known.
    mu_squared = float(np.sum(s.charged(deltas * (np.abs(e.S) @ deltas), remembers)))
    notes = s.assumptions(remembers)
    if e.revealed:
        notes.append(f"{e.revealed} hidden noises were given to the adversary, so that updates may be adaptive")
    valid = e.others < 1e-9
    if not valid:
        notes.append("other servers' states change with the target's data given this view: the number is not a bound")
    mu = math.sqrt(mu_squared)
    return replace(
        blank,
        epsilon=conversion.gaussian_epsilon(mu, delta),
        law="continuous Gaussian noise in the messages",
        conversion=str(Conversion.GAUSSIAN),
        rho=mu_squared / 2.0,
        mu_gdp=mu,
        valid=valid,
        exact=bool(np.all(e.S >= -1e-12)) and s.participation.kind == "all" and s.attained(remembers),
        deltas=tuple(deltas.tolist()),
        assumptions=tuple(notes),
    )
