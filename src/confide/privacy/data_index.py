"""Which ledger is of which data: names, files and bytes of data, and the id of each.

    STATE/ledgers/index.json    its owner's alone; nothing outside it follows from the data

The same bytes are the same data wherever they lie and whatever they are called: a file that was moved, linked or copied
goes on with its ledger. Other bytes under a known path need a name, since nobody can know whose data they hold.
Nothing is new as long as a ledger lies in the folder of which the index does not know whose it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confide.base.canonical import is_digest
from confide.base.durable_files import replace_file
from confide.base.errors import InputError, refused
from confide.base.files import Source, locked
from confide.privacy.ledger import Book, dataset_id, random_id

INDEX: Final = "index.json"
ENDING: Final = ".jsonl"


def folder() -> Path:
    """Where ledgers of data sets are: $CONFIDE_STATE, or the user's state folder; behind links, where they lead."""
    given = os.environ.get("CONFIDE_STATE")
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return Path(os.path.realpath((Path(given) if given else state / "confide") / "ledgers"))


def ledger_of(id: str) -> Path:
    return folder() / f"{id}{ENDING}"


def id_of(path: Path) -> str | None:
    """Of which data set this is the ledger in the state folder; None of one that lies elsewhere."""
    there = path.parent == folder() and path.suffix == ENDING and is_digest(path.stem)
    return path.stem if there else None


@dataclass
class Index:
    """Attributes:
    names: the id of data that got a name.
    sources: of a place: the id of what is there, and the digest that it had last.
    bytes: the id of data with this digest, for ever.
    heads: the last line of each ledger in this folder: one that lost it is an older one.
    unaccounted: how many runs without an account were made on data.
    """

    names: dict[str, str] = field(default_factory=dict)
    sources: dict[str, dict[str, str | None]] = field(default_factory=dict)
    bytes: dict[str, str] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    unaccounted: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls) -> Index:
        path = folder() / INDEX
        if not path.exists():
            return cls()
        try:
            content: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
            found = cls(**{name: dict(table) for name, table in content.items()})
            for known in found.sources.values():  # an index of before had no `bytes`
                if known["digest"] is not None:
                    found.bytes.setdefault(known["digest"], str(known["id"]))
        except (ValueError, KeyError, TypeError, AttributeError, OSError):
            remedy = (
                "cannot be read: it says which ledger is of which data; take it from a backup; or move it away, and "
                "say of each set of data which ledger is theirs (output.ledger)"
            )
            raise InputError("index", str(path), remedy) from None
        return found

    def ids(self, name: str | None, source: Source | None) -> set[str]:
        """Of all that is known under this name, at this place or with these bytes."""
        place, digest = ("", None) if source is None else source
        found = (self.names.get(name or ""), self.sources.get(place, {}).get("id"), self.bytes.get(digest or ""))
        return {id for id in found if id}

    def find(self, name: str | None, source: Source | None, given: str | None = None) -> str | None:
        """The id of these data; None of data that are new.

        Args:
            given: the id that somebody says they have.

        Raises:
            InputError: the file has changed, and no name says whose data it holds now; or the name is of other data.
        """
        for other in self.names:
            if name is not None and name != other and _bare(name) == _bare(other):
                raise InputError("privacy.dataset", name, f"is known as {other!r}; write it like that")
        place, digest = ("", None) if source is None else source
        there = self.sources.get(place, {}).get("id")
        known, named = there if digest is None else self.bytes.get(digest), self.names.get(name or "")
        found = {id for id in (known, named, given) if id}
        if len(found) > 1:
            field, value = ("privacy.dataset", name) if named not in (None, known) else ("output.ledger", given)
            remedy = "is another data set than these bytes are known as; leave it out, or give the earlier one"
            raise InputError(field, value, remedy)
        if not found and name is None and there is not None:
            remedy = (
                "has changed since earlier runs: name the data that it holds now (privacy.dataset = 'NAME'), or go "
                f"on with the ledger of before (output.ledger = '{ledger_of(there)}')"
            )
            raise InputError("problem.path", place, remedy)
        return next(iter(found), None)

    def identify(self, name: str | None, source: Source | None, given: str | None = None) -> str:
        """The id of these data, which are known from now on.

        Raises:
            InputError: as `find`; or they may be those of a ledger that the index has forgotten.
        """
        id = self.find(name, source, given) or self._new(name)
        if name is not None:
            self.names[name] = id
        if source is not None:
            self.sources[source.place] = {"id": id, "digest": source.digest}
            if source.digest is not None:
                self.bytes[source.digest] = id
        return id

    def _new(self, name: str | None) -> str:
        id = random_id() if name is None else dataset_id(name)
        known = {*self.names.values(), *self.bytes.values(), *self.heads, *(s["id"] for s in self.sources.values()), id}
        for path in sorted(folder().glob(f"*{ENDING}")):
            if id_of(path) is not None and path.stem not in known:
                remedy = (
                    f"does not say whose ledger {path.name} is: it is an older index, or a new one, and these data may "
                    f"be those. Take it from a backup; or say so (output.ledger = '{path}'); or move that ledger away"
                )
                raise InputError("index", str(folder() / INDEX), remedy)
        return id


@contextmanager
def changing() -> Iterator[Index]:
    """The index, to be changed: nobody else does meanwhile."""
    path = folder() / INDEX
    with held(path):
        index = Index.load()
        before = json.dumps(vars(index))
        yield index
        if json.dumps(vars(index)) != before:
            replace_file(path, f"{json.dumps(vars(index), indent=1)}\n".encode(), 0o600)


def known(name: str | Path) -> Path | None:
    """The ledger of the data with this name or in this file; None where there is none.

    Raises:
        InputError: the file has changed since, is of other data than those of this name, or the ledger is gone.
    """
    index = Index.load()
    id = index.find(str(name) if str(name) in index.names else None, Source.of(name))
    if id is None or ledger_of(id).exists():
        return None if id is None else ledger_of(id)
    check_head(ledger_of(id), None)
    return None


def check_head(path: Path, book: Book | None) -> None:
    """Refuse a ledger of the state folder that is gone, or older than it was."""
    id = id_of(Path(os.path.realpath(path)))
    head = None if id is None else Index.load().heads.get(id)
    if head is None or (book is not None and head in book.hashes):
        return
    gone = "is gone" if book is None else "is an older one, without its last lines"
    remedy = f"{gone}: what was spent on these data is not known; take it from a backup, or, to forget all that, "
    raise InputError("ledger", str(path), f"{remedy}take {path.stem} out of 'heads' in {folder() / INDEX}")


def _bare(name: str) -> str:
    """Without blanks and capitals, in which two names of the same data may differ."""
    return "".join(name.split()).casefold()


@contextmanager
def held(path: Path) -> Iterator[None]:
    """A file of the ledgers, changed by one at a time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(path.with_name(f".{path.name}.lock")):
            yield
    except OSError as e:
        remedy = "name another file, or set CONFIDE_STATE to a folder of yours"
        raise refused("ledger", str(path), f"cannot be kept ({e.strerror or e})", remedy, e) from None
