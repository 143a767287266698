"""A new durable field is one line: in a copy of `books.py` with that line more, the field lives as all others do."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from confide.deploy.store import books
from confide.deploy.store.sqlite import SqliteStore
from confide.deploy.store.sqlite_file import VERSION

SCRIPT = """
    import random, sqlite3, sys, types
    name, source, line, older, newer, value, other = sys.argv[1:]
    text = open(source).read()
    after = "    epoch: bytes | Gone = kept("
    assert text.count(after) == 1
    module = types.ModuleType(name)
    module.__file__, module.__package__ = source, name.rpartition(".")[0]
    sys.modules[name] = module
    exec(compile(text.replace(after, line + chr(10) + after), source, "exec"), module.__dict__)

    import numpy as np
    import histories as h
    from confide.deploy.store.sqlite import SqliteStore, StoreError
    from confide.deploy.store.store import MemoryStore

    value, other, plan = eval(value), eval(other), h.make_plan()
    shown = lambda x: {k: v.tolist() for k, v in x.items()} if isinstance(x, dict) else x
    same = lambda b, x: shown(b.taps) == shown(x)

    def lives(store, reopened):
        books, r = store.load(), random.Random(3)
        first = books.copy().taps
        for n in range(30):
            c = h.make_changes(books, plan, r)
            if n % 10 == 5:
                c.taps = value
            store.commit(c)
            books.apply(c)
        assert same(books, first | value if isinstance(value, dict) else value), books
        copy = books.copy()
        store = reopened(store)
        assert same(store.load(), books.taps) and store.load().decided == books.decided
        change = module.Changes(taps=other)
        assert change
        store.commit(change)
        books.apply(change)
        assert not same(copy, books.taps)  # a copy does not follow
        store = reopened(store)
        assert same(store.load(), books.taps)
        store.close()

    def opened(store):
        store.close()
        return SqliteStore.open(store.path, plan, h.SERVER)

    lives(MemoryStore(h.make_books()), lambda store: store)
    lives(SqliteStore.open(older), opened)
    text = plan.text
    lives(SqliteStore.create(newer, plan=text, server=h.SERVER, dataset=h.DATASET, books=h.make_books()), opened)
    for path in (older, newer):
        db = sqlite3.connect(path)
        db.execute("DELETE FROM taps WHERE rowid = (SELECT max(rowid) FROM taps)")  # the seal is over it
        db.commit()
        db.close()
        try:
            SqliteStore.open(path)
        except StoreError:
            print("found")
"""
LINES = {
    "one number": ("    taps: int | Gone = kept(0, since=NEXT, taps=COUNT)", "7", "8"),
    "a vector for each edge": (
        "    taps: dict[int, Vector] = kept(lambda start: start, by=('edge',), since=NEXT, secret=True, taps=VECTOR)",
        "{2: np.arange(3)}",
        "{0: np.full(3, 9)}",
    ),
    "words that may go": (
        "    taps: bytes | Gone = kept(b'', since=NEXT, part='state', taps=BYTES)",
        "b'x' * 99",
        "b'y'",
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_in_the_books_is_all_that_a_field_takes(histories: SimpleNamespace, tmp_path: Path, name: str) -> None:
    """It is copied, applied, stored in memory and in a file, sealed, and files that lack it are upgraded."""
    h, older, newer = histories, tmp_path / "older.db", tmp_path / "newer.db"
    text = h.make_plan().text
    SqliteStore.create(older, plan=text, server=h.SERVER, dataset=h.DATASET, books=h.make_books()).close()
    line = LINES[name][0].replace("NEXT", str(VERSION + 1))
    arguments = (books.__name__, books.__file__, line, older, newer, *LINES[name][1:])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(h.__file__).parent,
    )
    assert (done.stdout, done.stderr) == ("found\nfound\n", "")
