"""Closed forms of named schemes: what an adversary sees of one server, or why it sees everything (design/privacy.md).

Given the messages, psi of the target is seen through Gaussian or Laplace noise of its own in every round, as if so many
independent `copies` of it were drawn, and the state keeps a share, the `carry`, of its deviation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.graph import Graph
from confide.plans.words import Centroid, Neighbours, Release, Threat, colluders
from confide.privacy.reveal import known_shares
from confide.rounds.schemes import Exchange, Place, Scheme


@dataclass(frozen=True)
class Target:
    """One server under one adversary: carries c_1..c_T, and the independent copies of noise on its messages."""

    p: int
    carry: Floats
    copies: Floats  # with standard deviation `seen_sigma`; of normal noise any precision is so many copies

    @property
    def remembers(self) -> bool:
        return bool(np.any(self.carry > 0))


def covers(s: Scheme) -> bool:
    """Whether the closed forms are about this scheme: by its rows, never by its name. Clients' noise precedes psi."""
    if not s.plain:
        return False
    s = s.of_servers
    if s.exchange is not Exchange.GRAPH:
        return s.places == ({Place.NETWORK} if s.exchange is Exchange.AVERAGE else set())
    if Place.LINK in s.places:
        alike = Place.OWN not in s.places or s.size(Place.OWN) == s.size(Place.LINK)
        return alike and s.carry == 0.0 and s.places <= {Place.LINK, Place.OWN}
    return s.places <= {Place.SERVER} or (s.carry == 0.0 and s.places == {Place.SERVER, Place.EDGE})


def own_server(scheme: Scheme, secure: bool, active: bool = False) -> str:
    """Why a unit's own server learns a noiseless function of the data."""
    if not secure:
        return f"the own server sees {seen(scheme, secure)}: aggregation is plain, and nothing masks a client"
    if active:
        return (
            f"the own server sees {seen(scheme, secure)} in clear, and as an active one it may hand out the same model "
            "in two rounds and say that a client dropped out of one: the two sums differ by that client's update. "
            "Secure aggregation hides single clients within one round only, unless noise is inside the secure sum"
        )
    return (
        f"the own server sees {seen(scheme, secure)} in clear: secure aggregation masks single clients, but nothing is "
        "differentially private against it unless noise is inside the secure sum"
    )


def seen(scheme: Scheme, secure: bool) -> str:
    """What a unit's own server sees of its clients."""
    if secure:
        return "the sum of its clients' updates"
    return f"every client's update {'behind noise of its own' if scheme.sigma_client else 'in clear'}"


def leak(
    scheme: Scheme, graphs: Sequence[Graph], threat: Threat, release: Release, secure: bool, active: bool = False
) -> str | None:
    """Why this adversary learns a noiseless function of the data, or None."""
    if threat.own_server:
        return own_server(scheme, secure, active)
    silent = scheme.exchange is Exchange.NOTHING or graphs[0].P == 1
    if not silent and scheme.sigma == 0.0:
        if scheme.sigma_pair:
            return "edge noises cancel over the network: without local noise their sum reveals the sum of the models"
        return "messages carry no noise"
    keeps = any(np.any(scheme.carries(g) > 0) for g in graphs) or scheme.by_link
    keeps = silent or (keeps and scheme.exchange is not Exchange.AVERAGE)
    if Place.OWN in scheme.places and (threat.own_client or release.shows_models):
        # w_p shows psi_p through g_pp: neither clean nor covered by a theorem here.
        what = f"{threat}, release {release}"
        known = "no bound is known for per-link against an own client or a local release"
        raise InputError("threat", what, f"{known}; use per-link-clean or another scheme")
    if (threat.own_client or release.shows_models) and (why := scheme.vanishes(graphs[0])) is not None:
        return f"{why}; the unit's model is the exact sum of its clean updates"
    if keeps and threat.own_client:
        return "the unit's model and the messages give the exact sum of the unit's clean updates (carry > 0)"
    if keeps and release.shows_models:
        return "a local model and the messages give the exact sum of that unit's clean updates (carry > 0)"
    if keeps and isinstance(release, Centroid) and release.sigma == 0.0:
        return "a centroid revealed without noise is a noiseless function of every unit's data"
    return None


def targets(scheme: Scheme, graphs: Sequence[Graph], threat: Threat, rounds: int, release: Release) -> list[Target]:
    """Servers that can be the worst: epsilon grows with carry, copies and, where there is a release, with
    the shares of its noise that are known, so the largest are enough."""
    honest = [p for p in range(graphs[0].P) if p not in colluders(threat)]
    facts = np.array([_facts(scheme, g, threat, honest) for g in graphs]).transpose(1, 0, 2)
    known = [known_shares(threat, graphs, p) if isinstance(release, Centroid) else 0 for p in honest]
    column = np.broadcast_to(np.array(known, dtype=np.float64)[:, None, None], (len(honest), len(graphs), 1))
    facts = np.concatenate([facts, column], axis=2)  # (honest, graphs, 3)
    _, first = np.unique(facts.reshape(len(honest), -1), axis=0, return_index=True)
    keys, remembers = facts[first], np.any(facts[first, :, 0] > 0, axis=1)
    turn, found = np.arange(rounds) % len(graphs), []
    for n, key in zip(first, keys, strict=True):
        above = np.all(keys >= key, axis=(1, 2)) & np.any(keys > key, axis=(1, 2))
        if not np.any(above & (remembers == np.any(key[:, 0] > 0))):
            found.append(Target(honest[n], *facts[n][turn, :2].T))
    return found


def _facts(scheme: Scheme, graph: Graph, threat: Threat, honest: list[int]) -> Floats:
    """One round's carry and copies of noise, a row for each honest server."""
    carry, ones = scheme.carries(graph)[honest], np.ones(len(honest))
    if scheme.exchange is Exchange.NOTHING or graph.P == 1:
        return np.stack([ones, 0 * ones], axis=1)
    if scheme.exchange is Exchange.AVERAGE:
        return np.stack([0 * ones, ones], axis=1)
    if scheme.by_link:
        return np.stack([graph.own_weights[honest], graph.degrees[honest].astype(np.float64)], axis=1)
    if scheme.sigma_pair and not isinstance(threat, Neighbours):  # who know every edge noise of the target
        ones = _pairwise_precisions(scheme, graph, colluders(threat))[honest] * scheme.sigma**2
    return np.stack([carry, ones], axis=1)


def seen_sigma(scheme: Scheme, P: int) -> float:
    """Standard deviation of the noise through which psi is seen; a mean over all servers shows 1/P of it."""
    return (scheme.sigma or math.inf) * (P if scheme.exchange is Exchange.AVERAGE else 1)


def _pairwise_precisions(scheme: Scheme, graph: Graph, caught: frozenset[int]) -> Floats:
    """[(sigma_l^2 I + sigma_c^2 L_honest)^-1]_pp of every p: edge noise counts only between honest ends."""
    honest = np.array([q not in caught for q in range(graph.P)])
    i, j = graph.edges[honest[graph.edges].all(axis=1)].T
    laplacian = np.zeros((graph.P, graph.P))
    laplacian[i, j] = laplacian[j, i] = -1.0
    np.fill_diagonal(laplacian, -laplacian.sum(axis=1))
    values, vectors = np.linalg.eigh(laplacian)
    values[values < 1e-12 * values[-1]] = 0.0  # one for each honest component, known exactly
    return np.asarray(vectors**2 @ (1.0 / (scheme.sigma**2 + scheme.sigma_pair**2 * values)))


def roundings(scheme: Scheme, graph: Graph, p: int) -> int:
    """Products that server p rounds when it publishes, in each coordinate (`rounding`)."""
    if scheme.exchange is not Exchange.GRAPH or scheme.sigma == 0.0:
        return 0
    if scheme.by_link:
        return int(graph.degrees[p])
    return int(0.0 < scheme.carries(graph)[p] < 1.0)
