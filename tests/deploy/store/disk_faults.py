"""Run by `test_disk_faults`, on a disk that fails (`disk.py`): each fault at each step of a store's life.

    python disk_faults.py FOLDER store|record FAULT EVERY FIRST
    python disk_faults.py FOLDER twice
    python disk_faults.py FOLDER small DISK

prints one line for each life after which something was lost, or was told in the wrong words.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[2]))

import disk
import histories as h
from confide.deploy.store import sqlite_file
from confide.deploy.store.books import Books, Changes
from confide.deploy.store.record import FileRecord, Given, Owner
from confide.deploy.store.sqlite import SqliteStore, StoreError

Say = Callable[[str], None]
SEED, BEFORE, COMMITS = 3, 20, 6
OWNER = Owner(b"p" * 32, 0, 1)
SMALL_LOG: Final = 30  # pages, so that it is written back in the middle of a life, too


def commits(store: SqliteStore, seed: int, n: int, say: Say) -> None:
    books, r = store.load(), random.Random(seed)  # noqa: S311
    for _ in range(n):
        changes = h.make_changes(books, store.plan, r)
        store.commit(changes)
        books.apply(changes)
        say("+")


def states(books: Books, seed: int, n: int) -> list[Books]:
    r, plan, found = random.Random(seed), h.make_plan(200), [books.copy()]  # noqa: S311
    for _ in range(n):
        books.apply(h.make_changes(books, plan, r))
        found.append(books.copy())
    return found


def opened(path: Path) -> SqliteStore:
    """As a server does at its start."""
    if path.exists():
        return SqliteStore.open(path)
    plan, books = h.make_plan(200).text, h.make_books(200)
    return SqliteStore.create(path, plan=plan, server=1, dataset=h.DATASET, books=books)


class Store:
    """A server's store: one that was closed, one whose process was killed with a log beside it, and none yet."""

    file = "store.db"
    own = "! StoreError", "! DamagedError"  # its words: a server that hears others is not started again

    def __init__(self, folder: Path) -> None:
        self.places = closed, killed, _ = [folder / name for name in ("closed", "killed", "new")]
        for place in self.places:
            place.mkdir(parents=True)
        for place in (closed, killed):
            path = place / self.file
            disk.forked(lambda say, path=path: commits(opened(path), SEED, BEFORE, say))  # type: ignore[misc]
        sqlite_file.WAL_PAGES = SMALL_LOG
        opened(closed / self.file).close()
        assert not (closed / "store.db-wal").exists()
        assert (killed / "store.db-wal").exists()
        lived = states(h.make_books(200), SEED, BEFORE)[-1]
        self.plain = {
            place: [h.plain(books) for books in states(begin.copy(), SEED + 1, COMMITS)]
            for place, begin in zip(self.places, (lived, lived, h.make_books(200)), strict=True)
        }

    def life(self, path: Path, say: Say) -> None:
        with opened(path) as store:
            commits(store, SEED + 1, COMMITS, say)

    def after(self, place: Path, path: Path, acknowledged: int, say: Say) -> None:
        with opened(path) as store:
            assert h.plain(store.load()) in self.plain[place][acknowledged : acknowledged + 2], "other books"
            commits(store, SEED + 2, 2, lambda _: None)
        opened(path).close()


class Record:
    """A client's record, which it has, and which it makes."""

    file, own = "record.json", ("! RunError", "! PassingError")

    def __init__(self, folder: Path) -> None:
        self.places = closed, _ = [folder / name for name in ("closed", "new")]
        for place in self.places:
            place.mkdir(parents=True)
        FileRecord(closed / self.file, OWNER).close()

    def life(self, path: Path, say: Say) -> None:
        with FileRecord(path, OWNER) as record:
            for i in range(2, 5):
                record.count(i)
                say("+")
                record.write(i)
                say("+")

    def after(self, _: Path, path: Path, acknowledged: int, say: Say) -> None:
        kept = [(0, Given())]
        for i in range(2, 5):
            kept += [(kept[-1][0], Given(i - 1, i)), (i, Given(i - 1, i))]
        with FileRecord(path, OWNER) as record:
            assert (record.answered, record.given) in kept[acknowledged : acknowledged + 2], "another record"
            record.write(9)


def wrong(kept: Store | Record, place: Path, work: Path, fault: str, step: int) -> tuple[str, bool]:
    """What went wrong after this fault at this step ("" for nothing), and whether the life had such a step."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(place, work)
    if fault == "lose":  # a fault of the test: commits that were acknowledged
        (work / "store.db-wal").unlink(missing_ok=True)
        said, _ = disk.forked(lambda say: kept.after(place, work / kept.file, 0, say))
        return said and f"afterwards {said.strip()}", False

    def life(say: Say) -> None:
        disk.arm(work, fault, step)
        try:
            kept.life(work / kept.file, say)
        finally:
            say(f"steps {disk.steps()}")

    said, status = disk.forked(life)
    lines = said.splitlines()
    acknowledged = lines.count("+")
    reached = status < 0 or any(line.startswith("steps ") and int(line[6:]) > step for line in lines)
    told = [line for line in lines if line.startswith("!")]
    lying = "damaged" if fault in disk.FAULTS else "rejoin"  # what cannot be read may be damaged, or not
    problems = [line for line in told if not line.startswith(kept.own) or lying in line]
    said, status = disk.forked(lambda say: kept.after(place, work / kept.file, acknowledged, say))
    if status:
        problems.append(f"afterwards {said.strip()}")
    return "; ".join(problems), reached


def failing_twice(folder: Path) -> None:
    """Two commits whose fsync fails, one longer than the other, then a short one, in one process that is killed."""
    path = folder / "store.db"
    opened(path).close()

    def life(say: Say) -> None:
        store = opened(path)
        store.commit(Changes(seen={0: 1}))
        for size in (40_000, 12_000):
            disk.arm(folder, "unsynced", 0)
            try:
                store.commit(Changes(transcript=bytes(size)))
            except StoreError:
                say("refused")
            disk.arm(folder)
        store.commit(Changes(seen={0: 7}))
        say("+")
        os.kill(os.getpid(), signal.SIGKILL)

    said, _ = disk.forked(life)
    print(said, end="")
    with opened(path) as store:
        print(f"seen {store.load().seen[0]}")


def small(folder: Path, small_disk: Path) -> None:
    """The same lives on a disk that is full but for ever more bytes; then there is room again."""
    for kept in (Store(folder / "store"), Record(folder / "record")):
        for place in kept.places:
            for room in range(0, 400_000, 40_000):
                shutil.rmtree(work := small_disk / "work", ignore_errors=True)
                shutil.copytree(place, work)
                with disk.all_but(room, small_disk):
                    said, _ = disk.forked(lambda say: kept.life(work / kept.file, say))  # noqa: B023
                lines = said.splitlines()
                problems = [x for x in lines if x.startswith("!") and (not x.startswith(kept.own) or "damaged" in x)]
                acknowledged = lines.count("+")
                said, status = disk.forked(lambda say: kept.after(place, work / kept.file, acknowledged, say))  # noqa: B023
                if problems or status:
                    print(f"{place}, {room} bytes of room: {problems}; afterwards {said.strip()}")
                print(f"lives 1 {acknowledged}")


def main(folder: Path, which: str, fault: str, every: int, first: int) -> None:
    kept = {"store": Store, "record": Record}[which](folder)
    for place in kept.places:
        step, lives = first, 0
        while True:
            problem, reached = wrong(kept, place, folder / "work", fault, step)
            if problem:
                print(f"{which}, {place.name}, {fault} at step {step}: {problem}")
            if not reached:
                break
            step, lives = step + every, lives + 1
        print(f"lives {lives}")


if __name__ == "__main__":
    if sys.argv[2] == "twice":
        failing_twice(Path(sys.argv[1]))
    elif sys.argv[2] == "small":
        small(Path(sys.argv[1]), Path(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
