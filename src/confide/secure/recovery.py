"""The secrets of a session from its holders' shares, of which some are withheld and some are wrong.

A secret proves itself: a seed by its owner's commitment, a key by its public half. So no wrong one is ever taken, and
where the first t shares give none, others can be tried, all of them among the answers that have come:

    t shares of holders who were right so far
    all shares, decoded with errors (`shares.agreeing`): with s shares beyond t, up to s / 2 wrong ones are found
    all but g of them, for every choice of g: up to g + (s - g) / 2

The last are many, so a session decodes at most `TRIES` of them beside two for each owner, which takes about a
millisecond each where there are a hundred holders. The first owner has half of them, the next one half of what is left:
liars that were found for one owner are asked last for all others.

*Who lied* is said only where no honest owner could look like this while at most `Parameters.lies` of its holders lie.
An honest owner has dealt a right share to every holder who answered, and an honest holder withholds a share only if it
could not be opened. So an owner lied

    if more than that withhold its share;
    if c shares agree on another secret: at most t - 1 of them are right, and c - (t - 1) are more than that;
    if that many fewer than have answered would be enough, and as many wrong shares would have been found.

Where that is so of more owners than may be corrupted, more lie than the plan says, and nobody is named. Of single
holders nothing is said: that a share is wrong may be its owner's doing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations, islice
from typing import Final, TypeVar

from confide.secure import shares
from confide.secure.session import Session, Why

TRIES: Final = 512
Held = Mapping[int, Mapping[int, bytes]]  # by holder who has answered, then by owner
T = TypeVar("T")


class Recovery:
    """Attributes:
    lost: owners whose secret is not found.  why: it is not.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._threshold = session, session.task.parameters.threshold
        self._lies = session.task.parameters.lies
        self._doubted: set[int] = set()  # holders who had a wrong share: asked last
        self._tries = TRIES
        self.lost: list[int] = []
        self._named: list[int] = []
        self.why = Why.TOO_FEW_ANSWERS

    @property
    def liars(self) -> tuple[int, ...]:
        """Owners who have lied."""
        return tuple(self._named) if len(self._named) <= max(1, self._session.task.parameters.corrupted) else ()

    def secrets(self, owners: Iterable[int], held: Held, opened: Callable[[int, bytes], T | None]) -> dict[int, T]:
        """What each owner's secret opens; `opened` gives nothing for a wrong one.

        Owners with the same holders in the same places share their Lagrange coefficients and one matrix product.
        """
        t, found = self._threshold, dict[int, T]()
        dealt = {owner: self._places(owner, held) for owner in owners}
        together = dict[tuple[int, ...], list[int]]()
        for owner, places in dealt.items():
            if len(places) >= t:
                together.setdefault(tuple(places)[:t], []).append(owner)
        for points, group in together.items():
            rows = [[held[dealt[owner][x]][owner] for owner in group] for x in points]
            for owner, secret in zip(group, shares.combine(points, rows), strict=True):
                if secret is not None and (one := opened(owner, secret)) is not None:
                    found[owner] = one
        for owner in [owner for owner in dealt if owner not in found]:
            if (one := self._search(owner, held, opened)) is not None:
                found[owner] = one
        return found

    def _places(self, owner: int, held: Held) -> dict[int, int]:
        """Who has given a share of this owner's secret, by the point of the polynomial."""
        return {x: j for x, j in enumerate(self._session.holders(owner), 1) if j in held and owner in held[j]}

    def _search(self, owner: int, held: Held, opened: Callable[[int, bytes], T | None]) -> T | None:
        """From shares some of which are withheld or wrong."""
        t, given, found, agree = self._threshold, self._places(owner, held), -1, 0
        values = {x: held[j][owner] for x, j in given.items() if shares.readable(held[j][owner])}
        points = sorted(values, key=lambda x: given[x] in self._doubted)

        def opens(right: list[int]) -> T | None:
            if len(right) < t:
                return None
            (secret,) = shares.combine(tuple(right[:t]), [[values[x]] for x in right[:t]])
            return None if secret is None else opened(owner, secret)

        if (one := opens(points)) is not None:
            return one
        for found, right in islice(_sets(points, values, t), 2 + self._tries // 2):  # noqa: B007 - the last is needed
            self._tries = max(0, self._tries - 1)
            if (one := opens(right)) is not None:
                self._doubted |= {given[x] for x in points if x not in right}
                return one
            agree = max(agree, len(right))
        answered = sum(j in held for j in self._session.holders(owner))
        withheld = answered - len(values)
        self.lost.append(owner)
        if (
            withheld > self._lies
            or agree - (t - 1) > self._lies
            or (answered - self._lies >= t and found >= self._lies - withheld)
        ):
            self._named.append(owner)
        if len(given) >= t or owner in self._named:
            self.why = Why.WRONG_SHARE
        return None


def _sets(points: list[int], values: Mapping[int, bytes], threshold: int) -> Iterator[tuple[int, list[int]]]:
    """Points whose shares may all be right, and how many wrong ones the sets before would have found.

    The last set is empty; there is none where there are too few shares.
    """
    spare, found = len(points) - threshold, -1
    if spare < 0:
        return
    for out in (0, *range(2 - spare % 2, spare + 1, 2)):
        for left_out in combinations(reversed(points), out):
            kept = [x for x in points if x not in left_out]
            yield found, [kept[n] for n in shares.agreeing(tuple(kept), [values[x] for x in kept], threshold)]
        found = out + (spare - out) // 2
    yield found, []
