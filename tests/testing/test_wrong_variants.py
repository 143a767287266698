"""Servers and stores that do one thing wrong: the invariants find each of them within a few stories.

The right server plays the same stories without a word in `test_faults`, so that what is found is the wrong thing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from confide.deploy.machines import exchange
from confide.deploy.machines.cohort import Cohort
from confide.deploy.machines.ports import Phase
from confide.deploy.machines.server import Server
from confide.deploy.machines.terms import Terms
from confide.deploy.store.books import Balance, Books, Changes, as_bytes, as_vector
from confide.deploy.store.store import MemoryStore
from confide.privacy.ledger import FREE
from confide.testing.explore import explore, shrink, story
from confide.testing.invariants import BrokenError
from confide.testing.network import Cut, Weather
from confide.testing.stage import Kill, Make, Story, in_memory, play

STORIES = range(40)


class Guesses(Server):
    """On a deadline it applies the flow with what it believes the neighbour has sent."""

    def _step(self) -> bool:
        if self.phase is Phase.WAIT and self._now >= self._deadline:
            for m in self._present:
                record = self.books.open[m].get(i := self.books.decided)
                if self.up[m] and record is not None and not record.applied:
                    mine = as_vector(self.books.message(i, m) or b"")
                    n, total = self.books.balances[m]
                    guess = exchange.flow(self.rules.weights[m], np.zeros_like(mine), mine)
                    applied = {m: {i: record._replace(applied=True)}}
                    self._commit(Changes(balances={m: Balance(n + 1, total + guess)}, open=applied), "sync")
        return super()._step()


class DrawsAgain(Server):
    """After a restart it repeats what is open with noise of its own."""

    def boot(self, now: float, *, rejoin: bool = False) -> None:
        self.books.out = {key: as_bytes(as_vector(blob) + 1) for key, blob in self.books.out.items()}
        super().boot(now, rejoin=rejoin)


class SendsFirst(Server):
    """What leaves is not yet in the store."""

    def _commit(self, changes: Changes, name: str) -> None:
        if name == "publish":
            committed, self.books = self.books, self.books.copy()
            self.books.apply(changes)
            for m in self._present:
                self._sync(m, offer=changes.decided if (m, changes.decided) in changes.opened else None, ask=True)
            self.books = committed
        super()._commit(changes, name)


class Overwrites(Server):
    """w := the aggregate; flows that came in since the model was handed out are lost."""

    def _publish(self, cohort: Cohort) -> None:
        assert cohort.sum is not None
        lost = self.books.w - cohort.model
        cohort.sum = cohort.sum._replace(total=cohort.sum.total - lost)
        super()._publish(cohort)


class Forgets(Server):
    """A publication is a skip in its ledger."""

    def _commit(self, changes: Changes, name: str) -> None:
        if name == "publish":
            rows = [replace(e.event, kind="skip", cost=FREE, sha256=None) for e in changes.entries]
            changes.entries = [e._replace(event=row) for e, row in zip(changes.entries, rows, strict=True)]
        super()._commit(changes, name)


class Cheapens(Server):
    """It pays the first price for every publication but counts none after the first: the budget never ends."""

    def _commit(self, changes: Changes, name: str) -> None:
        if name == "publish":
            changes.published = 1
        super()._commit(changes, name)


class Closes(Server):
    """What is applied here is forgotten here, whether the neighbour has it or not."""

    def _commit(self, changes: Changes, name: str) -> None:
        done = [key for key, record in changes.opened.items() if record.applied]
        if done:
            for m, i in done:
                changes.open[m][i] = None
            changes.out = exchange.unneeded(self.books, changes.closed)
        super()._commit(changes, name)


class MixesUp(Server):
    """Where every neighbour has a message of its own, each gets that of the next."""

    def _commit(self, changes: Changes, name: str) -> None:
        keys = list(changes.out)
        changes.out = dict(zip(keys, [changes.out[key] for key in keys[1:] + keys[:1]], strict=True))
        super()._commit(changes, name)


class Twice(Server):
    """The balance is committed apart from the flag: a crash in between, and the flow enters again."""

    def _commit(self, changes: Changes, name: str) -> None:
        if changes.balances and changes.opened:
            super()._commit(Changes(balances=changes.balances), name)
            changes.balances = {}
        super()._commit(changes, name)


class Unbounded(Server):
    """The window is never full."""

    def __init__(self, terms: Terms, *rest: Any) -> None:
        super().__init__(terms, *rest)
        self.rules = self.rules._replace(window=64)


class Spends(Server):
    """It does not look at its budget."""

    def __init__(self, terms: Terms, *rest: Any) -> None:
        super().__init__(replace(terms, allowed=terms.rules.rounds), *rest)


class Waits(Server):
    """For a neighbour that does not answer, for ever."""

    def _wait(self) -> bool:
        self.terms = replace(self.terms, exchange=1e6)
        return super()._wait()


class SaysOnce(Server):
    """What is lost on the way is not said again."""

    def _repeat(self, m: int) -> None:
        self._resends.never(m)


class VoidsInDoubt(Server):
    """What a neighbour does not mention is void, even if it may still come."""

    def _on_sync(self, message: Any) -> None:
        m = message.sender
        mentioned = {i for i, _ in message.open}
        gone = [i for i, r in self.books.open[m].items() if i not in mentioned and not r.applied]
        if gone:
            dropped = exchange.unneeded(self.books, [(m, i) for i in gone])
            self._commit(Changes(open={m: dict.fromkeys(gone)}, out=dropped), "sync")
        super()._on_sync(message)


class PublishesLate(Server):
    """A round that was skipped is published after all, under its old number."""

    def _publish(self, cohort: Cohort) -> None:
        if any(e.event.kind == "skip" for e in self.store.entries()):
            self.books.decided -= 1
        super()._publish(cohort)


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
    MixesUp: "I3",
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
