"""How many shares, neighbours and survivors a session needs, from the fractions one is prepared to see go wrong.

Complete graph (up to 100 clients): the smallest threshold t with t > n/2 (a curious server) or t > 2n/3 (an active
one), t >= corrupted + 3, so that every sum hides an honest client among two others, and 2t > n + corrupted against an
active server, so that no client's seed and key can both be put together from answers to two different questions.

Sparse graph: a random k-regular graph of neighbours. The number of corrupted (dropped) neighbours of a client is
hypergeometric, and (k, t) is the smallest even degree, then the smallest threshold, with

    n P[corrupted neighbours >= t] <= 2^-40     nobody's secrets can be put together by the corrupted
    n P[surviving neighbours < t]  <= 2^-20     everybody's secrets can be put together by the survivors
    2t > k + corrupted neighbours               against an active server, but for the same 2^-40

The neighbour graph is drawn from all clients' keys (`topology`). An active server chooses whose keys to admit after it
has seen them all, so it can draw again: the first and third probabilities are then held below 2^-80, which leaves
2^-40 to a server that tries 2^40 rosters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from confide.base.arrays import Floats
from confide.base.errors import InputError
from confide.base.validation import number, one_of, whole

SERVERS = ("curious", "active")
COMPLETE_UP_TO = 100
LARGEST_COHORT = 1 << 16  # shares are points of a field with 2^16 + 1 elements
FEWEST_HONEST = 3
LEAK, FAILURE = 2.0**-40, 2.0**-20
FRAMED = 2.0**-10
REDRAWS = 2.0**40  # rosters that an active server can try


@dataclass(frozen=True)
class Parameters:
    """Of every session of a unit; fixed before the first round.

    Attributes:
        clients: n, invited to a session; it goes on with fewer, never with more.
        degree: neighbours of a client; n - 1 is the complete graph.
        threshold: t, shares that put a secret together.
        quorum: fewest clients whose updates a sum may contain; with fewer nobody answers.
        corrupted: clients that may collude with the server, at most.
        server: "curious" (follows the protocol, remembers everything) or "active" (may lie).
    """

    clients: int
    degree: int
    threshold: int
    quorum: int
    corrupted: int
    server: str = "curious"

    def __post_init__(self) -> None:
        n = whole("clients", self.clients, 2, LARGEST_COHORT)
        one_of("server", self.server, SERVERS)
        whole("corrupted", self.corrupted, 0, n - 1)
        if whole("degree", self.degree, 1, n - 1) % 2 and not self.complete:
            raise InputError("degree", self.degree, f"must be even, or {n - 1} for the complete graph")
        least = max(self.holders // 2 + 1, 2)
        if self.complete:
            least = max(least, _least_threshold(n, self.corrupted, self.server))
        whole("threshold", self.threshold, least, self.holders)
        # Also the smallest roster leaves everybody its neighbours.
        whole(
            "quorum", self.quorum, max(self.threshold, self.corrupted + 1, 0 if self.complete else self.degree + 1), n
        )

    @property
    def complete(self) -> bool:
        return self.degree == self.clients - 1

    @property
    def holders(self) -> int:
        """Clients with a share of one client's secrets: its neighbours, on the complete graph also itself."""
        return self.degree + 1 if self.complete else self.degree

    @property
    def lies(self) -> int:
        """Of one client's holders as many may lie, and one at least: the corrupted, on the sparse graph all but the
        2^-10 unlikeliest of those that a draw makes neighbours."""
        if self.complete:
            return max(1, self.corrupted)
        each = hypergeometric(self.clients - 1, self.corrupted, self.degree)
        return max(1, int(np.sum(each[::-1].cumsum() > FRAMED)) - 1)

    @property
    def honest_survivors(self) -> int:
        """Honest clients in any sum, at least: as many shares of noise can be counted on."""
        return self.quorum - self.corrupted


def choose(
    clients: int,
    corrupted: float,
    dropped: float,
    server: str = "curious",
    threshold: int | None = None,
) -> Parameters:
    """The cheapest parameters for a cohort and the fractions of it that may be corrupted and may drop out.

    Args:
        threshold: a larger one than the smallest, for the complete graph: more survivors are then needed.

    >>> p = choose(1000, corrupted=0.05, dropped=0.05)
    >>> p.degree, p.threshold
    (30, 17)
    >>> choose(11, corrupted=0.1, dropped=0.25).threshold
    6
    """
    n = whole("clients", clients, 1, LARGEST_COHORT)
    for name, value in (("corrupted", corrupted), ("dropped", dropped)):
        if number(name, value, 0.0, 1.0) == 1.0:
            raise InputError(name, value, "must be below 1: somebody has to be left")
    one_of("server", server, SERVERS)
    bad, lost = (math.floor(fraction * n + 1e-9) for fraction in (corrupted, dropped))
    if n - bad < FEWEST_HONEST:
        remedy = f"with {bad} corrupted a sum needs {FEWEST_HONEST + bad} clients or more"
        raise InputError("clients", n, remedy)
    sparse = None if n <= COMPLETE_UP_TO or threshold is not None else _sparse(n, bad, lost, server)
    if sparse is not None:
        return Parameters(n, *sparse, quorum=n - lost, corrupted=bad, server=server)
    least = max(_least_threshold(n, bad, server), bad + FEWEST_HONEST, 2 * n // 3 + 1 if server == "active" else 0)
    if n - lost < least:
        remedy = (
            f"of {n} clients {least} must answer ({server} server, {bad} corrupted), so at most {n - least} may drop "
            f"out: {math.floor(1000 * (n - least) / n) / 1000:g}"
        )
        raise InputError("dropped", dropped, remedy)
    t = least if threshold is None else whole("threshold", threshold, least, n - lost)
    return Parameters(n, n - 1, t, quorum=t, corrupted=bad, server=server)


def _least_threshold(n: int, bad: int, server: str) -> int:
    """Of the complete graph, for the secrets of single clients to be safe."""
    return (n + bad) // 2 + 1 if server == "active" else max(n // 2, bad) + 1


@lru_cache(maxsize=64)
def _sparse(n: int, bad: int, lost: int, server: str) -> tuple[int, int] | None:
    """The smallest even degree, then the smallest threshold; None where only the complete graph will do.

    Tails fall as the degree grows, but for the ups and downs of whole numbers: bisect, then look a little further down.
    """
    most = (min(n - lost, n - 1) - 1) // 2 * 2  # every roster leaves everybody its neighbours
    if most < 2 or n - lost < bad + FEWEST_HONEST:
        return None
    high = 2
    while high < most and _threshold(n, bad, lost, server, high) is None:
        high = min(2 * high, most)
    low = high // 4 * 2
    while low + 2 < high:
        middle = (low + high) // 4 * 2
        low, high = (low, middle) if _threshold(n, bad, lost, server, middle) is not None else (middle, high)
    for k in range(max(2, high - 10), high + 1, 2):
        t = _threshold(n, bad, lost, server, k)
        if t is not None:
            return k, t
    return None


def _threshold(n: int, bad: int, lost: int, server: str, k: int) -> int | None:
    """The smallest threshold that meets the criteria for a degree."""
    leak = LEAK / REDRAWS if server == "active" else LEAK
    corrupted = hypergeometric(n - 1, bad, k)[::-1].cumsum()[::-1]  # P[x or more corrupted neighbours]
    if n * corrupted[-1] > leak:
        return None
    safe = int(np.argmax(n * corrupted <= leak))
    t = max(safe, k // 2 + 1)
    if server == "active":
        t = max(t, (k + safe - 1) // 2 + 1)  # at most safe - 1 neighbours are corrupted
    lives = t <= k and n * hypergeometric(n - 1, n - 1 - lost, k)[:t].sum() <= FAILURE
    return t if lives else None


def hypergeometric(total: int, marked: int, drawn: int) -> Floats:
    """P[x of the drawn are marked] for x = 0..drawn, rounded up by a millionth: more than the logarithms lose."""
    x = np.arange(drawn + 1)
    possible = (x <= marked) & (drawn - x <= total - marked)
    log = _log_factorials(total)

    def choices(n: int, k: NDArray[np.int64]) -> Floats:
        return np.asarray(log[n] - log[k] - log[n - k])

    found, x = np.zeros(drawn + 1), x[possible]
    ways = choices(marked, x) + choices(total - marked, drawn - x) - choices(total, np.array(drawn))
    found[possible] = np.exp(ways) * (1.0 + 1e-6)
    return found


@lru_cache(maxsize=4)
def _log_factorials(n: int) -> Floats:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, n + 1)))])
