"""What a plan costs against one adversary, as a number that adds up; and what it says under another promise.

The factors between promises are proven in docs/design/privacy.md, 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, NamedTuple, Self, assert_never

from confide.base import canonical
from confide.base.errors import InputError
from confide.base.validation import number, whole
from confide.plans.privacy import Budget, Privacy
from confide.plans.words import (
    Adjacency,
    Colluders,
    Consensus,
    Level,
    Links,
    Neighbours,
    Nothing,
    OwnClient,
    OwnServer,
    Release,
    Threat,
    chosen,
)

if TYPE_CHECKING:
    from confide.privacy.course import Account

ADVERSARIES: Final = {  # those of every statement, who are the same in all plans; and how a sentence calls them
    "links": Links.adversary,
    "receiver": "the same, who also receives what is released",
    "colluder": "any one colluding server",
    "neighbours": Neighbours.adversary,
    "own-client": OwnClient.adversary,
    "own-server": OwnServer.adversary,
}
LONGEST: Final = 500  # characters of a proof


def adversary(threat: Threat) -> str | None:
    """Which of them a plan's own adversary is; None of several servers, whose numbers mean nothing in another plan."""
    match threat:
        case Links():
            return "receiver"  # a plan's budget pays for what it releases
        case Colluders():
            return "colluder" if len(threat.servers) == 1 else None
        case Neighbours() | OwnClient() | OwnServer():
            return threat.name
        case _:
            assert_never(threat)


def onlookers(P: int, pairs: bool, release: Release) -> Iterator[tuple[str, Threat, bool]]:
    """All that could look, each under its name in `ADVERSARIES`, and whether it sees what is released.

    Servers and clients receive a release too; only who listens on links may do without it, unless it goes over them.

    Args:
        pairs: whether two servers share noise, or no closed form says that they do not. Only that is weakened by a
            colluder; elsewhere two colluders stand for all, as the worst target is not one of them.
    """
    revealed, on_links = not isinstance(release, Nothing), P > 1 and isinstance(release, Consensus)
    yield "links", Links(), on_links
    if P > 1:
        for m in range(P if pairs else 2):
            yield "colluder", Colluders(frozenset({m})), revealed
        yield "neighbours", Neighbours(), revealed
    yield "own-client", OwnClient(), revealed
    yield "own-server", OwnServer(), revealed
    if revealed and not on_links:
        yield "receiver", Links(), True


class Terms(NamedTuple):
    """Whose data may change, and how."""

    level: Level
    adjacency: Adjacency

    @classmethod
    def of(cls, privacy: Privacy) -> Self:
        return cls(privacy.level, privacy.adjacency)

    @classmethod
    def parse(cls, level: str, adjacency: str, field: str = "") -> Self:
        return cls(chosen(Level, level, f"{field}level"), chosen(Adjacency, adjacency, f"{field}adjacency"))

    def __str__(self) -> str:
        return f"{self.level} level, {self.adjacency}"

    def steps(self, to: Terms, rows: tuple[int, int] | None = None) -> int | None:
        """How many changes of these terms make one of the other terms; None where nothing proves it.

        Args:
            rows: of a client, at most, and of the one that takes its place: from examples to clients.
        """
        levels = list(Level)
        if levels.index(self.level) <= levels.index(to.level):
            return 1 if self == to or self.adjacency is Adjacency.REPLACE else 2
        if (self.level, to.level) != (Level.EXAMPLE, Level.CLIENT) or rows is None:
            return None
        alike = self.adjacency is Adjacency.REPLACE and rows[0] == rows[1]
        return rows[0] if to.adjacency is Adjacency.ZERO_OUT or alike else sum(rows)


@dataclass(frozen=True, slots=True)
class Paid:
    """What an adversary can have learnt of the worst unit, at most. None: no bound is known.

    Attributes:
        rho: of zero-concentrated differential privacy.
        epsilon: pure.
        gaussian: all noise was continuous Gaussian, for which rho says all: mu_GDP = sqrt(2 rho).
        draws: of discrete noise, each a little off its law.
        proof: what the numbers rest on, or why there are none.
    """

    rho: float | None
    epsilon: float | None
    gaussian: bool = False
    draws: int = 0
    proof: str = ""

    def __post_init__(self) -> None:
        for name in ("rho", "epsilon"):
            x = getattr(self, name)
            object.__setattr__(self, name, None if x is None else number(f"event.costs.{name}", x, 0.0) + 0.0)
        if not isinstance(self.gaussian, bool):
            raise InputError("event.costs.gaussian", self.gaussian, "must be true or false")
        whole("event.costs.draws", self.draws, 0)
        if not isinstance(self.proof, str) or len(self.proof) > LONGEST:
            raise InputError("event.costs.proof", self.proof, f"must be at most {LONGEST} characters")

    @classmethod
    def of(cls, a: Account) -> Self:
        """Of an account; one that leaks has no bound but where only the sampler is too coarse for its delta."""
        gaussian = a.rho == 0.0 or (
            a.rho is not None and a.mu_gdp is not None and math.isclose(a.mu_gdp**2, 2.0 * a.rho, rel_tol=1e-9)
        )
        proof = a.assumptions[0] if a.leak and a.assumptions else f"by the {a.by}: {a.law}"
        return cls(a.rho, a.epsilon_pure, gaussian and not a.draws, min(a.draws, 2**62), proof[:LONGEST])

    @classmethod
    def unknown(cls, why: str) -> Self:
        return cls(None, None, proof=why[:LONGEST])

    @classmethod
    def from_dict(cls, data: object) -> Self:
        return cls(**canonical.check_keys("event.costs", data, _FIELDS))

    def __add__(self, other: Paid) -> Paid:
        return together((self, other))

    def times(self, repeats: int) -> Paid:
        """Of so many runs, each with noise of its own."""
        rho, epsilon = (None if x is None else repeats * x for x in (self.rho, self.epsilon))
        return Paid(rho, epsilon, self.gaussian, repeats * self.draws, self.proof)

    def over(self, steps: int) -> Paid:
        """About data sets that are so many changes apart: group privacy, by the square in rho (and of mu)."""
        if steps == 1:
            return self
        rho = None if self.rho is None else steps * steps * self.rho
        epsilon = None if self.epsilon is None else steps * self.epsilon
        proof = f"{steps} changes, one after the other; {self.proof}"[:LONGEST]
        return Paid(rho, epsilon, self.gaussian, self.draws, proof)

    def at(self, delta: float) -> float | None:
        """epsilon at delta: by the pure epsilon or by rho; None where there is no bound."""
        from confide.laws.conversion import rho_epsilon, smallest  # a client is to be small, and converts nothing

        rho, epsilon = self.rho, self.epsilon
        if delta == 0.0:
            return epsilon
        ways: dict[str, Callable[[float], float]] = {}
        if epsilon is not None:
            ways["pure"] = lambda delta: epsilon
        if rho is not None:
            ways["rho"] = lambda delta: rho_epsilon(rho, delta, self.gaussian)
        found = smallest(ways, delta, self.draws)[0] if ways else math.inf
        return found if math.isfinite(found) else None

    def used(self, budget: Budget) -> float:
        """In the budget's own unit; infinite where there is no bound."""
        found = self.at(budget.delta) if budget.rho is None else self.rho
        return math.inf if found is None else found


NOTHING: Final = Paid(0.0, 0.0, True)
_FIELDS: Final = tuple(f.name for f in fields(Paid))


def summed(parts: Sequence[float | None]) -> float | None:
    """None where a part has no bound; rounded once, so that their order does not count."""
    known = [x for x in parts if x is not None]
    return math.fsum(known) if len(known) == len(parts) else None


def together(paid: Sequence[Paid]) -> Paid:
    """All of them, one after the other."""
    rho, epsilon = summed([p.rho for p in paid]), summed([p.epsilon for p in paid])
    return Paid(rho, epsilon, all(p.gaussian for p in paid), sum(p.draws for p in paid))


def least(paid: Sequence[Paid]) -> Paid:
    """The smallest of several bounds that all hold."""
    return min(paid, key=lambda p: (math.inf if p.rho is None else p.rho, math.inf if p.epsilon is None else p.epsilon))


def worst(paid: Sequence[Paid]) -> Paid:
    """What holds for all of them."""
    rho, epsilon = ([getattr(p, name) for p in paid] for name in ("rho", "epsilon"))
    last = max(paid, key=lambda p: math.inf if p.rho is None else p.rho)
    return Paid(
        None if None in rho else max(rho),
        None if None in epsilon else max(epsilon),
        all(p.gaussian for p in paid),
        max(p.draws for p in paid),
        last.proof,
    )
