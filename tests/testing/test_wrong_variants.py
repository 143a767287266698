"""Servers and stores that do one thing wrong: the invariants find each of them within a few stories.

The right server plays the same stories without a word in `test_faults`, so that what is found is the wrong thing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from confide.deploy.machines import exchange
from confide.deploy.machines.cohort import Cohort, Sum
from confide.deploy.machines.neighbour import Neighbour
from confide.deploy.machines.ports import Phase
from confide.deploy.machines.rounds import Rounds
from confide.deploy.machines.server import Server
from confide.deploy.machines.terms import Terms
from confide.deploy.store.books import Balance, Books, Changes, as_bytes, as_vector
from confide.deploy.store.store import MemoryStore
from confide.privacy.ledger import FREE
from confide.testing.network import Cut, Weather
from invariants import BrokenError
from stage import Kill, Make, Story, in_memory, play
from stories import explore, shrink, story

STORIES = range(40)


class RoundsOf(Server):
    """A server with other rounds."""

    Kind: type[Rounds]

    def __init__(self, terms: Terms, *rest: Any) -> None:
        super().__init__(terms, *rest)
        self.rounds = self.Kind(self, self.neighbours, self.rejoining)


class Guesses(RoundsOf):
    """On a deadline it applies the flow with what it believes the neighbour has sent."""

    class Kind(Rounds):
        def _step(self) -> bool:
            desk, books = self.desk, self.desk.books
            if desk.phase is Phase.WAIT and desk.now >= self.deadline:
                for n in self.present:
                    record = books.open[n.m].get(i := books.decided)
                    if n.up and record is not None and not record.applied:
                        mine = as_vector(books.message(i, n.m) or b"")
                        applied, total = books.balances[n.m]
                        guess = exchange.flow(desk.rules.weights[n.m], np.zeros_like(mine), mine)
                        entered = {n.m: {i: record._replace(applied=True)}}
                        balances = {n.m: Balance(applied + 1, total + guess)}
                        desk.commit(Changes(balances=balances, open=entered), "sync")
            return super()._step()


class DrawsAgain(Server):
    """After a restart it repeats what is open with noise of its own."""

    def boot(self, now: float, *, rejoin: bool = False) -> None:
        self.books.out = {key: as_bytes(as_vector(blob) + 1) for key, blob in self.books.out.items()}
        super().boot(now, rejoin=rejoin)


class SendsFirst(Server):
    """What leaves is not yet in the store."""

    def commit(self, changes: Changes, name: str) -> None:
        if name == "publish":
            committed, self.books = self.books, self.books.copy()
            self.books.apply(changes)
            for n in self.rounds.present:
                n.say(offer=changes.decided if (n.m, changes.decided) in changes.opened else None, ask=True)
            self.books = committed
        super().commit(changes, name)


class Overwrites(RoundsOf):
    """w := the aggregate; flows that came in since the model was handed out are lost."""

    class Kind(Rounds):
        def _publish(self, cohort: Cohort, found: Sum) -> None:
            lost = self.desk.books.w - cohort.model
            super()._publish(cohort, found._replace(total=found.total - lost))


class Forgets(Server):
    """A publication is a skip in its ledger."""

    def commit(self, changes: Changes, name: str) -> None:
        if name == "publish":
            rows = [replace(e.event, kind="skip", cost=FREE, sha256=None) for e in changes.entries]
            changes.entries = [e._replace(event=row) for e, row in zip(changes.entries, rows, strict=True)]
        super().commit(changes, name)


class Cheapens(Server):
    """It pays the first price for every publication but counts none after the first: the budget never ends."""

    def commit(self, changes: Changes, name: str) -> None:
        if name == "publish":
            changes.published = 1
        super().commit(changes, name)


class Closes(Server):
    """What is applied here is forgotten here, whether the neighbour has it or not."""

    def later(self, changes: Changes) -> None:
        done = [key for key, record in changes.opened.items() if record.applied]
        if done:
            for m, i in done:
                changes.open[m][i] = None
            changes.out = exchange.unneeded(self.books, changes.closed)
        super().later(changes)


class Whispers(Server):
    """What waits for the next commit is said before it."""

    def _settled(self, send: Callable[[int, bytes], None]) -> Callable[[int, bytes], None]:
        return send


class MixesUp(Server):
    """Where every neighbour has a message of its own, each gets that of the next."""

    def commit(self, changes: Changes, name: str) -> None:
        keys = list(changes.out)
        changes.out = dict(zip(keys, [changes.out[key] for key in keys[1:] + keys[:1]], strict=True))
        super().commit(changes, name)


class Twice(Server):
    """The balance is committed apart from the flag: a crash in between, and the flow enters again."""

    def later(self, changes: Changes) -> None:
        if changes.balances and changes.opened:
            self.commit(Changes(balances=changes.balances), "sync")
            changes.balances = {}
        super().later(changes)


class Unbounded(Server):
    """The window is never full."""

    def __init__(self, terms: Terms, *rest: Any) -> None:
        super().__init__(terms, *rest)
        self.rules = self.rules._replace(window=64)


class Spends(Server):
    """It does not look at its budget."""

    def __init__(self, terms: Terms, *rest: Any) -> None:
        super().__init__(replace(terms, allowed=terms.rules.rounds), *rest)


class Waits(RoundsOf):
    """For a neighbour that does not answer, for ever."""

    class Kind(Rounds):
        def _wait(self) -> bool:
            self.desk.terms = replace(self.desk.terms, clocks=replace(self.desk.terms.clocks, neighbours=1e6))
            return super()._wait()


class SaysOnce(Server):
    """What is lost on the way is not said again."""

    def __init__(self, terms: Terms, *rest: Any) -> None:
        super().__init__(terms, *rest)
        self.neighbours.update({m: Once(self, m) for m in self.neighbours})


class Once(Neighbour):
    def repeat(self) -> None:
        self.resend_at = inf


class VoidsInDoubt(Server):
    """What a neighbour does not mention is void, even if it may still come."""

    def _on_sync(self, message: Any) -> None:
        m = message.sender
        mentioned = {i for i, _ in message.open}
        gone = [i for i, r in self.books.open[m].items() if i not in mentioned and not r.applied]
        if gone:
            dropped = exchange.unneeded(self.books, [(m, i) for i in gone])
            self.commit(Changes(open={m: dict.fromkeys(gone)}, out=dropped), "sync")
        super()._on_sync(message)


class PublishesLate(RoundsOf):
    """A round that was skipped is published after all, under its old number."""

    class Kind(Rounds):
        def _publish(self, cohort: Cohort, found: Sum) -> None:
            if any(e.event.kind == "skip" for e in self.desk.store.entries()):
                self.desk.books.decided -= 1
            super()._publish(cohort, found)


class LosesPublications(MemoryStore):
    """Says that a publication is durable; a machine that dies before the next commit has lost it."""

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._last: Changes | None = None

    def load(self) -> Books:
        self._last = None
        return super().load()

    def commit(self, changes: Changes, *rest: Any) -> None:
        if self._last is not None:
            super().commit(self._last)
            self._last = None
        if changes.contribution is not None:
            self._last = changes
        else:
            super().commit(changes, *rest)


WRONG: Mapping[type[Server], str] = {
    Guesses: "I1|I2",
    DrawsAgain: "I3",
    SendsFirst: "I3",
    Overwrites: "I4",
    Forgets: "I4",
    Cheapens: "I4",
    Closes: "I2",
    Whispers: "I1|I2|L1|L2",
    MixesUp: "I2|I3|L1",
    Twice: "I1",
    Unbounded: "I5",
    Spends: "budget",
    Waits: "L3",
    SaysOnce: "L1",
    VoidsInDoubt: "I2|I1|L2",
    PublishesLate: "I4",
}


def complaint(s: Story, make: Make = Server, store: Any = in_memory) -> str:
    try:
        play(s, make, store)
    except BrokenError as e:
        return str(e)
    return ""


def first(make: Make = Server, store: Any = in_memory) -> str:
    """The first complaint about a server or a store in any of the stories."""
    return next(filter(None, (complaint(story(seed), make, store) for seed in STORIES)), "nothing was found")


@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: w.__name__)
def test_a_wrong_server_is_found(wrong: type[Server]) -> None:
    said = first(wrong)
    assert re.match(rf"({WRONG[wrong]}): ", said), said


def test_a_store_that_loses_a_publication_is_found() -> None:
    said = first(store=lambda _, books: LosesPublications(books))
    assert re.match("(I4|L1): ", said), said


def test_a_story_that_fails_becomes_small_and_is_told_as_code() -> None:
    seed = next(s for s in STORIES if complaint(story(s), Waits) and story(s).rounds > 3)
    least = shrink(story(seed), lambda s: complaint(s, Waits).startswith("L3"))
    assert complaint(least, Waits).startswith("L3")
    assert not complaint(least)
    assert least.rounds <= 3, least
    assert least.graph in ("path:2", "path:3"), least
    names = {"Story": Story, "Weather": Weather, "Cut": Cut, "Kill": Kill}
    assert eval(repr(least), names) == least  # noqa: S307


def test_the_failure_names_the_seed_and_the_story() -> None:
    with pytest.raises(AssertionError, match=r"(?s)seed 0: BrokenError.*I3.*play\(Story\(seed=0, graph='path:2'"):
        explore(STORIES, SendsFirst)
