"""Where a server's state survives: one interface, in memory here and in a file in `sqlite`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a client, which has no books, is here for its crash points
    from confide.deploy.store.books import Books, Changes, Entry

At = Callable[[str], None]  # told where in a transition the server is: tests stop it there


def nowhere(_: str) -> None:
    """Nobody watches."""


class Store(Protocol):
    def load(self) -> Books:
        """The state after the last commit."""

    def commit(self, changes: Changes, at: At = nowhere, name: str = "") -> None:
        """All changes in one transaction, durable on return. `at` hears "NAME.tx.PART" before each part is in."""

    def entries(self) -> Iterator[Entry]:
        """The ledger, from the first row."""

    def close(self) -> None: ...


def parts(c: Changes) -> dict[str, bool]:
    """The parts of a transaction in the order in which they are written, and whether it has them."""
    return {
        "ledger": bool(c.entries),
        "state": c.decided is not None,
        "applied": bool(c.balances),
        "flagged": bool(c.opened) and c.decided is None,
        "gc": bool(c.closed or c.dropped),
        "commit": True,
    }


class Around:
    """A store that is in another's hands: whoever derives from it does something beside."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def load(self) -> Books:
        return self.inner.load()

    def commit(self, changes: Changes, at: At = nowhere, name: str = "") -> None:
        self.inner.commit(changes, at, name)

    def entries(self) -> Iterator[Entry]:
        return self.inner.entries()

    def close(self) -> None:
        self.inner.close()


class MemoryStore:
    """Survives the crash of a machine in a test, as a file survives that of a process."""

    def __init__(self, books: Books) -> None:
        self._books = books.copy()
        self._entries: list[Entry] = []

    def load(self) -> Books:
        return self._books.copy()

    def commit(self, changes: Changes, at: At = nowhere, name: str = "") -> None:
        if at is not nowhere:
            for part, present in parts(changes).items():
                if present:
                    at(f"{name}.tx.{part}")
        self._books.apply(changes)
        self._entries += changes.entries

    def entries(self) -> Iterator[Entry]:
        return iter(list(self._entries))

    def close(self) -> None:
        pass
