"""Privacy schemes as data: what noise is drawn, who sees it, and how much of it a server keeps in its state.

One form for all: server p sends o_pm = psi_p + n_pm to m, keeps s_p = psi_p + sum_m a_pm n_pm + (a_pp - c_p) n_pp, and
combines by flows on the edges, w_p = s_p + sum_m a_pm (o_mp - o_pm). The noises n are made of the draws that a scheme's
rows name; where they are the same for all receivers, s_p is c_p psi_p + (1 - c_p) o_p. `Scheme.wiring` gives the same
as linear algebra. The reference, the compiled engine and the accountant all read this object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, assert_never

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.validation import number, one_of
from confide.graph.graph import Graph
from confide.laws.law import LAPLACE, Law


class Place(StrEnum):
    """Where noise is drawn."""

    SERVER = "server"  # p: in every message of server p, and in its own term
    LINK = "link"  # (p, m): in p's message to m alone; as in `links(graph)`
    OWN = "own"  # (p, p): in the server's own term alone
    EDGE = "edge"  # (i, j): its two ends share it with opposite signs; as in `graph.edges`
    AROUND = "around"  # (p, m): over a_pm in p's message to m, taken back in that of m's next neighbour; as in `links`
    CLIENT = "client"  # on the way of an update to its server, before psi
    NETWORK = "network"  # one for all servers


class Exchange(StrEnum):
    GRAPH = "graph"  # flows on the edges
    AVERAGE = "average"  # the exact mean of all servers
    NOTHING = "nothing"


PLACES = {  # that an exchange has
    Exchange.GRAPH: (Place.SERVER, Place.LINK, Place.OWN, Place.EDGE, Place.AROUND, Place.CLIENT),
    Exchange.AVERAGE: (Place.NETWORK, Place.CLIENT),
    Exchange.NOTHING: (Place.CLIENT,),
}
KEYS = {  # of a config, and the places whose noise they size
    "sigma": (Place.SERVER, Place.LINK, Place.OWN, Place.AROUND, Place.NETWORK),
    "sigma_pair": (Place.EDGE,),
    "sigma_client": (Place.CLIENT,),
}


@dataclass(frozen=True)
class Noise:
    """One independent draw a round at each place of a kind.

    Attributes:
        sigma: standard deviation of a draw, per coordinate.
        taps: weights of this round's draw and of those of the rounds before at the same place: the memory.
    """

    at: Place
    sigma: float = 0.0
    taps: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        one_of("scheme.noises.at", self.at, tuple(Place))
        number("scheme.noises.sigma", self.sigma, least=0.0)
        if not isinstance(self.taps, tuple) or not self.taps:
            raise InputError("scheme.noises.taps", self.taps, "write a tuple of weights, this round's first: (1.0,)")
        for tap in self.taps:
            number("scheme.noises.taps", tap)
        if self.taps != (1.0,) and self.at == Place.CLIENT:
            remedy = "clients come and go, so their noise has no memory: (1.0,)"
            raise InputError("scheme.noises.taps", self.taps, remedy)


class Wiring(NamedTuple):
    """A scheme on a graph: y_j = C psi_j + sum_k N[k] z_{j-k} and w_j = W psi_j + sum_k R[k] z_{j-k}.

    The messages y are one a server, or one a directed link in the order of `links` where they differ by receiver. All
    draws z are independent with standard deviation 1. Client-link noise, which precedes psi, is not in it.
    """

    C: Floats
    N: tuple[Floats, ...]
    W: Floats
    R: tuple[Floats, ...]
    draws: tuple[tuple[Place, tuple[int, ...]], ...]  # the name of each z, the same in every round
    owners: tuple[tuple[int, ...], ...]  # for each z, the servers that know it: who drew it, or the two that share it


@dataclass(frozen=True)
class Scheme:
    """One privacy scheme with its noise.

    Attributes:
        name: as in configs, e.g. "homomorphic" or "partial:0.5".
        law: of every draw; a name will do. `Noise.sigma` is always the standard deviation per coordinate.
        noises: at most one at each place.
        carry: c_p, the share of the clean psi_p in the own state; None means c_p = a_pp.
        exchange: what servers do with each other's messages.
        receivers: weight of a draw by (draw, receiver), draws as in `Wiring.draws`; None: the same for all.

    >>> from confide.laws.law import GAUSSIAN
    >>> Scheme("correlated", GAUSSIAN, (Noise(Place.SERVER, 0.5, taps=(1.0, -0.9)),)).memory
    1
    """

    name: str
    law: Law = LAPLACE
    noises: tuple[Noise, ...] = ()
    carry: float | None = 0.0
    exchange: Exchange = Exchange.GRAPH
    receivers: Callable[[Graph], Floats] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "law", Law.parse(self.law, "scheme.noise"))
        one_of("scheme.exchange", self.exchange, tuple(Exchange))
        if self.carry is not None:
            number("scheme.carry", self.carry, 0.0, 1.0)
        if not isinstance(self.noises, tuple) or not all(isinstance(n, Noise) for n in self.noises):
            raise InputError("scheme.noises", self.noises, "write a tuple of Noise, e.g. (Noise(Place.SERVER, 0.5),)")
        places = [n.at for n in self.noises]
        for at in places:
            if places.count(at) > 1:
                raise InputError("scheme.noises", str(at), "stands twice; one noise at each place")
            if at not in PLACES[self.exchange]:
                known = ", ".join(PLACES[self.exchange])
                remedy = f"has no part in the exchange {str(self.exchange)!r}, which has noise at: {known}"
                raise InputError("scheme.noises", str(at), remedy)
        if Place.OWN in places and not self.by_link:
            raise InputError("scheme.noises", str(Place.OWN), "goes with noise of links: else carry says what is kept")
        if self.receivers is not None and self.exchange != Exchange.GRAPH:
            remedy = "only flows on edges have receivers; use exchange 'graph'"
            raise InputError("scheme.receivers", str(self.exchange), remedy)

    @property
    def memory(self) -> int:
        """How many rounds a draw is kept after its own."""
        return max((len(n.taps) for n in self.noises), default=1) - 1

    @property
    def places(self) -> frozenset[Place]:
        return frozenset(n.at for n in self.noises)

    @property
    def by_link(self) -> bool:
        """Whether a server tells its neighbours apart: a message a directed link, not one a server."""
        return not self.places.isdisjoint((Place.LINK, Place.AROUND)) or self.receivers is not None

    @property
    def plain(self) -> bool:
        """Whether every draw is used once, in its own round, and is the same for all who receive it."""
        return not self._by_receiver and all(n.taps == (1.0,) for n in self.noises)

    @property
    def _by_receiver(self) -> bool:
        return self.receivers is not None or Place.AROUND in self.places

    def only_plain(self, what: str) -> Scheme:
        """This scheme, refused in the name of `what` if it has memory or depends on the receiver."""
        if not self.plain:
            why = "depends on the receiver" if self._by_receiver else "has memory (taps)"
            raise InputError("scheme.name", self.name, f"its noise {why}, which {what} has not been taught")
        return self

    def size(self, *places: Place) -> float:
        """Standard deviation of the draws at these places, the largest; 0 where there are none."""
        return max((n.sigma for n in self.noises if n.at in places), default=0.0)

    @property
    def sigma(self) -> float:
        return self.size(*KEYS["sigma"])

    @property
    def sigma_pair(self) -> float:
        return self.size(*KEYS["sigma_pair"])

    @property
    def sigma_client(self) -> float:
        return self.size(*KEYS["sigma_client"])

    def resized(self, **sigmas: float) -> Scheme:
        """With other sizes of noise, by the keys of a config: sigma, sigma_pair, sigma_client.

        >>> scheme("per-link", 0.5).resized(sigma=0.1).noises[1]
        Noise(at=<Place.OWN: 'own'>, sigma=0.1, taps=(1.0,))
        """
        size = {place: sigmas[key] for key, places in KEYS.items() if key in sigmas for place in places}
        added: tuple[Noise, ...] = ()
        for key, sigma in sigmas.items():
            number(f"scheme.{key}", sigma, least=0.0)
            if sigma and not self.places.intersection(KEYS[key]):
                if key == "sigma_client":  # clients of every scheme may have noise
                    added = (Noise(Place.CLIENT, sigma),)
                    continue
                having = [repr(name) for name, s in FAMILIES.items() if s.places.intersection(KEYS[key])]
                only = f"only the scheme{'s' * (len(having) > 1)} {', '.join(having)} can have it"
                raise InputError(f"scheme.{key}", sigma, f"{only}; {self.name!r} has no noise there, leave it out")
        return replace(self, noises=tuple(replace(n, sigma=size.get(n.at, n.sigma)) for n in self.noises) + added)

    @property
    def of_servers(self) -> Scheme:
        """The same without noise of clients."""
        return replace(self, noises=tuple(n for n in self.noises if n.at != Place.CLIENT))

    def carries(self, graph: Graph) -> Floats:
        """c_p of every server."""
        return graph.own_weights.copy() if self.carry is None else np.full(graph.P, float(self.carry))

    def vanishes(self, graph: Graph) -> str | None:
        """Why the noise of servers is in no message and no model, though it is drawn; None where it is in one.

        With one unit a_pp = 1, so that (47) weighs its noise with 0.
        """
        if graph.P > 1 or not self.sigma or any(R.any() for R in self.wiring(graph).R):
            return None
        return (
            f"one unit alone has a_pp = 1 and no neighbours: the noise of {self.name!r} enters its model with weight 0 "
            "and no message carries it, so that the run has none of it"
        )

    def wiring(self, graph: Graph) -> Wiring:
        """The scheme on a graph as linear algebra."""
        drawn = [(n, ids) for n in self.noises for ids in _ids(n.at, graph)]
        P, Z = graph.P, len(drawn)
        taps = np.zeros((self.memory + 1, Z))
        for z, (noise, _) in enumerate(drawn):
            taps[: len(noise.taps), z] = noise.taps
        sigma = np.array([noise.sigma for noise, _ in drawn])
        if self.exchange == Exchange.NOTHING:
            C, N, W, R = np.zeros((0, P)), np.zeros((0, Z)), np.eye(P), np.zeros((P, Z))
        elif self.exchange == Exchange.AVERAGE:
            W = np.full((P, P), 1.0 / P)
            C, N, R = W[:1], np.tile(sigma, (1, 1)), np.tile(sigma, (P, 1))
        else:
            W = graph.A
            C, N, R = self._flows(graph, drawn)
        draws = tuple((noise.at, ids) for noise, ids in drawn)
        return Wiring(C, tuple(N * row for row in taps), W, tuple(R * row for row in taps), draws, owners(draws, graph))

    def _flows(self, graph: Graph, drawn: list[tuple[Noise, tuple[int, ...]]]) -> tuple[Floats, Floats, Floats]:
        """C, N and R of flows on the edges, with this round's draws."""
        A, shares = graph.A, graph.own_weights - self.carries(graph)
        sender, receiver = links(graph)
        row = {pair: n for n, pair in enumerate(zip(sender.tolist(), receiver.tolist(), strict=True))}
        by_server, by_link = np.zeros((graph.P, len(drawn))), np.zeros((len(row), len(drawn)))
        own, after = by_server.copy(), next_around(graph) if Place.AROUND in self.places else {}
        for z, (noise, ids) in enumerate(drawn):
            match noise.at:
                case Place.LINK:
                    by_link[row[ids[0], ids[1]], z] = noise.sigma
                case Place.OWN:
                    own[ids[0], z] = noise.sigma
                case Place.EDGE:
                    by_server[list(ids), z] = noise.sigma, -noise.sigma
                case Place.AROUND:
                    p, m = ids
                    q = after[p, m]
                    by_link[row[p, m], z] += noise.sigma / A[p, m]
                    by_link[row[q, m], z] -= noise.sigma / A[q, m]
                case Place.SERVER:
                    by_server[ids[0], z] = noise.sigma
                case Place.CLIENT | Place.NETWORK:
                    raise InputError("scheme.noises", str(noise.at), "has no flow on an edge")
                case _:
                    assert_never(noise.at)
        if not self.by_link:
            # w = s + (A - I) o with o = psi + N z and s = psi + (1 - c) N z
            return np.eye(graph.P), by_server, (A - np.diag(self.carries(graph))) @ by_server
        weights = self.weights(graph, len(drawn))
        N, own = (by_link + by_server[sender]) * weights[:, receiver].T, (own + by_server) * weights.T
        R = shares[:, None] * own
        np.add.at(R, receiver, A[receiver, sender][:, None] * N)
        return np.eye(graph.P)[sender], N, R

    def weights(self, graph: Graph, draws: int) -> Floats:
        """Those of `receivers` on this graph, checked; 1 where all receive the same."""
        if self.receivers is None:
            return np.ones((draws, graph.P))
        found = np.asarray(self.receivers(graph), dtype=np.float64)
        if found.shape != (draws, graph.P) or not np.isfinite(found).all():
            remedy = f"must give finite weights for {draws} draws and {graph.P} receivers, a row a draw"
            raise InputError("scheme.receivers", found.shape, remedy)
        return found


def _ids(at: Place, graph: Graph) -> list[tuple[int, ...]]:
    """The draws of a round at a place, by the servers that they belong to."""
    return {
        Place.SERVER: [(p,) for p in range(graph.P)],
        Place.LINK: list(zip(*(side.tolist() for side in links(graph)), strict=True)),
        Place.OWN: [(p, p) for p in range(graph.P)],
        Place.EDGE: [(i, j) for i, j in graph.edges.tolist()],
        Place.AROUND: list(zip(*(side.tolist() for side in links(graph)), strict=True)),
        Place.CLIENT: [],  # they precede psi
        Place.NETWORK: [()],
    }[at]


# Adding a scheme is adding a row (docs/adding-a-scheme.md). Rows have no sizes yet: see `scheme`.
FAMILIES = {
    "none": Scheme("none"),
    "homomorphic": Scheme("homomorphic", noises=(Noise(Place.SERVER),), carry=1.0),
    "shared": Scheme("shared", noises=(Noise(Place.SERVER),)),
    "own-clean": Scheme("own-clean", noises=(Noise(Place.SERVER),), carry=None),
    "per-link": Scheme("per-link", noises=(Noise(Place.LINK), Noise(Place.OWN), Noise(Place.CLIENT))),
    "per-link-clean": Scheme("per-link-clean", noises=(Noise(Place.LINK), Noise(Place.CLIENT))),
    "pairwise": Scheme("pairwise", noises=(Noise(Place.SERVER), Noise(Place.EDGE))),
    "cancel-at-receiver": Scheme("cancel-at-receiver", noises=(Noise(Place.AROUND),)),
    "local-only": Scheme("local-only", exchange=Exchange.NOTHING),
    "central": Scheme("central", noises=(Noise(Place.NETWORK),), exchange=Exchange.AVERAGE),
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

    Args:
        sigma: standard deviation of the noise of servers, links or the network, whichever the scheme has.
        noise: law of every draw.
        sigma_pair: of the noise that the two ends of an edge share with opposite signs ("pairwise").
        sigma_client: of the paper's noise g_{p,k} on the link from each client  (7).

    >>> scheme("partial:0.5", sigma=1.0).carry
    0.5
    """
    if isinstance(name, str) and name.startswith("partial:"):
        try:
            carry = float(name.removeprefix("partial:"))
        except ValueError:
            raise InputError("scheme.name", name, "write partial:C with C in [0, 1], e.g. partial:0.5") from None
        family = replace(FAMILIES["shared"], name=name, carry=number("scheme.name", carry, 0.0, 1.0))
    else:
        family = FAMILIES[one_of("scheme.name", name, NAMES)]
    law = Law.parse(noise, "scheme.noise", on_grid=False)
    return replace(family, law=law).resized(sigma=sigma, sigma_pair=sigma_pair, sigma_client=sigma_client)


def named(s: Scheme) -> bool:
    """Whether it is the scheme of its name, so that name, law and sizes tell all of it."""
    try:
        again = scheme(s.name, s.sigma, noise=s.law.continuous, sigma_pair=s.sigma_pair, sigma_client=s.sigma_client)
    except InputError:
        return False
    return replace(again.of_servers, law=s.law) == s.of_servers  # a row of silent clients may be there or not


def links(graph: Graph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Directed links as (sender, receiver): edge e gives link e (i to j) and link E + e (j to i)."""
    i, j = graph.edges[:, 0], graph.edges[:, 1]
    return np.concatenate([i, j]), np.concatenate([j, i])


def next_around(graph: Graph) -> dict[tuple[int, int], int]:
    """For each directed link (p, m) the neighbour of m after p, in a circle.

    >>> next_around(Graph.star(4))[3, 0], next_around(Graph.star(4))[0, 1]
    (1, 0)
    """
    around = ((m, graph.neighbours(m).tolist()) for m in range(graph.P))
    return {(p, m): q for m, near in around for p, q in zip(near, near[1:] + near[:1], strict=True)}


def owners(draws: tuple[tuple[Place, tuple[int, ...]], ...], graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Those of `Wiring`."""
    after = next_around(graph) if any(at == Place.AROUND for at, _ in draws) else {}
    found = []
    for at, ids in draws:
        if at == Place.EDGE:
            found.append(ids)
        elif at == Place.AROUND:
            found.append((ids[0], after[ids[0], ids[1]]))
        else:
            found.append(ids[:1])
    return tuple(found)
