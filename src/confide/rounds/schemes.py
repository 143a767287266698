"""Privacy schemes as data: what noise is drawn, who sees it, and how much of it a server keeps in its state.

One form for all: server p publishes o_p = psi_p + noise, keeps s_p = c_p psi_p + (1 - c_p) o_p, and combines by
flows on the edges, w_p = s_p + sum_m a_pm (o_m - o_p). A row of `FAMILIES` says the rest; `matrices` gives the same
scheme as linear algebra. The reference, the compiled engine and the accountant all read this object.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.base.errors import InputError
from confide.base.validation import number, one_of
from confide.graph.graph import Graph
from confide.laws.law import LAPLACE, Law

Floats = NDArray[np.float64]
NOISE_ON = ("server", "link", "network")
EXCHANGES = ("graph", "average", "nothing")


@dataclass(frozen=True)
class Scheme:
    """One privacy scheme with its noise.

    Attributes:
        name: as in configs, e.g. "homomorphic" or "partial:0.5".
        carry: c_p, the share of the clean psi_p in the own state; None means c_p = a_pp.
        noise_on: "server" (one draw a server, the same to all), "link" (one a directed link),
            "network" (one for all servers).
        exchange: "graph" (flows on the edges), "average" (the exact network mean), "nothing".
        own_noise: for "link", whether the server's own term carries noise g_pp too.
        law: of every draw, on the reals; a name will do. `sigma` is always the standard deviation per coordinate.
        sigma: noise of a server, link or network, after `noise_on`.
        sigma_pair: noise that the two ends of an edge share with opposite signs (pairwise).
        sigma_client: the paper's noise g_{p,k} on the links from clients.
    """

    name: str
    carry: float | None = 0.0
    noise_on: str = "server"
    exchange: str = "graph"
    own_noise: bool = True
    law: Law = LAPLACE
    sigma: float = 0.0
    sigma_pair: float = 0.0
    sigma_client: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "law", Law.parse(self.law, "scheme.noise", on_grid=False))
        one_of("scheme.noise_on", self.noise_on, NOISE_ON)
        one_of("scheme.exchange", self.exchange, EXCHANGES)
        if (self.noise_on == "network") != (self.exchange == "average"):
            remedy = "one noise for all servers goes with exchange 'average', and only there"
            raise InputError("scheme.noise_on", self.noise_on, remedy)
        for field in ("sigma", "sigma_pair", "sigma_client"):
            number(f"scheme.{field}", getattr(self, field), least=0.0)
        if self.carry is not None:
            number("scheme.carry", self.carry, 0.0, 1.0)
        if self.sigma_pair and self.name != "pairwise":
            raise InputError("scheme.sigma_pair", self.sigma_pair, "only the scheme 'pairwise' has noise on edges")
        if self.sigma_client and self.noise_on != "link":
            remedy = "noise on client links belongs to 'per-link'; elsewhere the secure sum hides the clients"
            raise InputError("scheme.sigma_client", self.sigma_client, remedy)
        if self.sigma and self.name in ("none", "local-only"):
            raise InputError("scheme.sigma", self.sigma, f"the scheme {self.name!r} has no noise; leave it out")

    def carries(self, graph: Graph) -> Floats:
        """c_p of every server."""
        return graph.own_weights.copy() if self.carry is None else np.full(graph.P, float(self.carry))


# Adding a scheme is adding a row (docs/adding-a-scheme.md).
FAMILIES = {
    "none": Scheme("none"),
    "homomorphic": Scheme("homomorphic", carry=1.0),
    "shared": Scheme("shared", carry=0.0),
    "own-clean": Scheme("own-clean", carry=None),
    "per-link": Scheme("per-link", noise_on="link"),
    "per-link-clean": Scheme("per-link-clean", noise_on="link", own_noise=False),
    "pairwise": Scheme("pairwise", carry=0.0),
    "local-only": Scheme("local-only", exchange="nothing"),
    "central": Scheme("central", noise_on="network", exchange="average"),
}
NAMES = (*FAMILIES, "partial:C")


def scheme(
    name: str,
    sigma: float = 0.0,
    *,
    noise: Law | str = LAPLACE,
    sigma_pair: float = 0.0,
    sigma_client: float = 0.0,
) -> Scheme:
    """A scheme by its name.

    >>> scheme("partial:0.5", sigma=1.0).carry
    0.5
    """
    if isinstance(name, str) and name.startswith("partial:"):
        try:
            carry = float(name.removeprefix("partial:"))
        except ValueError:
            raise InputError("scheme.name", name, "write partial:C with C in [0, 1], e.g. partial:0.5") from None
        family = Scheme(name, carry=number("scheme.name", carry, 0.0, 1.0))
    else:
        family = FAMILIES[one_of("scheme.name", name, NAMES)] if name != "partial:C" else _partial_needs_c()
    law = Law.parse(noise, "scheme.noise", on_grid=False)
    return replace(family, sigma=sigma, law=law, sigma_pair=sigma_pair, sigma_client=sigma_client)


def _partial_needs_c() -> Scheme:
    raise InputError("scheme.name", "partial:C", "write a number in [0, 1] for C, e.g. partial:0.5")


class Matrices(NamedTuple):
    """messages y = C psi + N z and states w = W psi + R z, for independent noises z of standard deviation 1."""

    C: Floats
    N: Floats
    W: Floats
    R: Floats


def matrices(s: Scheme, graph: Graph) -> Matrices:
    """The scheme on a graph as linear algebra (client-link noise, which precedes psi, is not in it).

    Order of z: "server": g_0..g_{P-1}, then one a pair noise for each edge. "link": the links of `links(graph)`,
    then g_00.. when `own_noise`. "network": one.
    """
    P, A, eye = graph.P, graph.A, np.eye(graph.P)
    if s.exchange == "nothing":
        return Matrices(np.zeros((0, P)), np.zeros((0, 0)), eye, np.zeros((P, 0)))
    if s.exchange == "average":
        mean = np.full((P, P), 1.0 / P)
        return Matrices(mean[:1], np.full((1, 1), s.sigma), mean, np.full((P, 1), s.sigma))
    if s.noise_on == "link":
        sender, receiver = links(graph)
        n = len(sender)
        N = np.hstack([s.sigma * np.eye(n), np.zeros((n, P if s.own_noise else 0))])
        R = np.zeros((P, N.shape[1]))
        R[receiver, np.arange(n)] = s.sigma * A[receiver, sender]
        if s.own_noise:
            R[:, n:] = s.sigma * np.diag(graph.own_weights)
        return Matrices(eye[sender], N, A, R)
    edges = np.zeros((P, len(graph.edges)))
    edges[graph.edges[:, 0], np.arange(len(graph.edges))] = 1.0
    edges[graph.edges[:, 1], np.arange(len(graph.edges))] = -1.0
    N = np.hstack([s.sigma * eye, s.sigma_pair * edges]) if s.sigma_pair else s.sigma * eye
    # w = s + (A - I) o with o = psi + N z and s = psi + (1 - c) N z
    return Matrices(eye, N, A, (A - np.diag(s.carries(graph))) @ N)


def links(graph: Graph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Directed links as (sender, receiver): edge e gives link e (i to j) and link E + e (j to i)."""
    i, j = graph.edges[:, 0], graph.edges[:, 1]
    return np.concatenate([i, j]), np.concatenate([j, i])


def noise_owners(s: Scheme, graph: Graph) -> tuple[tuple[int, ...], ...]:
    """For each noise z of `matrices`, the servers that know it: who drew it, or both ends of an edge."""
    if s.exchange == "nothing":
        return ()
    if s.noise_on == "network":
        return ((),)
    if s.noise_on == "link":
        own = [(p,) for p in range(graph.P)] if s.own_noise else []
        return (*((int(p),) for p in links(graph)[0]), *own)
    pairs = [(int(i), int(j)) for i, j in graph.edges] if s.sigma_pair else []
    return (*((p,) for p in range(graph.P)), *pairs)
