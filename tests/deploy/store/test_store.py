"""The contract of a store, over every store: the same history gives the same books."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.deploy.store.books import Books, Changes
from confide.deploy.store.sqlite import SqliteStore
from confide.deploy.store.store import MemoryStore, Store, parts

PARTS = ("ledger", "state", "applied", "flagged", "gc", "commit")
Maker = Callable[[Books], "Iterator[tuple[Store, Callable[[Store], Store]]]"]


@contextmanager
def memory(h: SimpleNamespace) -> Iterator[tuple[Store, Callable[[Store], Store]]]:
    yield MemoryStore(h.make_books()), lambda store: store


@contextmanager
def file(h: SimpleNamespace) -> Iterator[tuple[Store, Callable[[Store], Store]]]:
    def reopened(store: Store) -> Store:
        store.close()
        return SqliteStore.open(path, h.make_plan(), h.SERVER)

    with tempfile.TemporaryDirectory(dir=h.MEMORY) as folder:
        path = Path(folder) / "store.db"
        plan = h.make_plan().text
        yield (
            SqliteStore.create(path, plan=plan, server=h.SERVER, dataset=h.DATASET, books=h.make_books()),
            reopened,
        )


STORES = pytest.mark.parametrize("maker", [memory, file])


class Stop(BaseException):
    pass


@STORES
@settings(max_examples=25)
@given(r=st.randoms(use_true_random=False), steps=st.integers(1, 25))
def test_what_rides_on_a_commit_is_there_with_it(
    maker: Maker, histories: SimpleNamespace, r: Random, steps: int
) -> None:
    h, plan = histories, histories.make_plan()
    with maker(h) as (store, reopened):
        books = h.make_books()
        for _ in range(steps):
            waits = h.sync(books, plan, r)
            after = books.after(waits)
            changes = h.make_changes(after, plan, r)
            store.commit(waits.then(changes))
            books = after.after(changes)
        assert h.plain(reopened(store).load()) == h.plain(books)


@STORES
@settings(max_examples=25)
@given(r=st.randoms(use_true_random=False), steps=st.integers(0, 25))
def test_any_history_gives_the_books_of_its_changes(
    maker: Maker, histories: SimpleNamespace, r: Random, steps: int
) -> None:
    h, plan = histories, histories.make_plan()
    with maker(h) as (store, reopened):
        books, entries = h.make_books(), []
        for _ in range(steps):
            c = h.make_changes(books, plan, r)
            told: list[str] = []
            stop = r.choice([*[p for p in PARTS if parts(c)[p]], None, None, None])

            def at(where: str, told: list[str] = told, stop: str | None = stop) -> None:
                told.append(where)
                if where == f"some.tx.{stop}":
                    raise Stop

            if stop is not None:
                with pytest.raises(Stop):
                    store.commit(c, at, "some")
                assert told[-1] == f"some.tx.{stop}"
                assert h.plain(store.load()) == h.plain(books)
            else:
                store.commit(c, at, "some")
                assert told == [f"some.tx.{p}" for p in PARTS if parts(c)[p]]
                books.apply(c)
                entries += c.entries
            if r.random() < 0.2:
                store = reopened(store)
            assert list(store.entries()) == entries
        store = reopened(store)
        assert h.plain(store.load()) == h.plain(books)
        assert list(store.entries()) == entries
        store.close()


@STORES
def test_loaded_books_are_a_copy(maker: Maker, histories: SimpleNamespace) -> None:
    with maker(histories) as (store, _):
        mine = store.load()
        mine.apply(Changes(seen={0: 9}, attempt=None, epoch=b"x"))
        assert histories.plain(store.load()) == histories.plain(histories.make_books())
        store.close()


@STORES
@pytest.mark.parametrize("c", [Changes(open={0: {1: None}}), Changes(out={(1, -1): None})])
def test_what_is_not_there_cannot_be_closed(maker: Maker, histories: SimpleNamespace, c: Changes) -> None:
    with maker(histories) as (store, _):
        with pytest.raises(KeyError):
            store.commit(c)
        assert histories.plain(store.load()) == histories.plain(histories.make_books())
        store.close()
