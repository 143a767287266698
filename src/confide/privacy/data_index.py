"""Which ledger is of which data: names, files and bytes of data, and the id of each.

    STATE/ledgers/index.json    its owner's alone; nothing outside it follows from the data

The same bytes are the same data wherever they lie and whatever they are called: a file that was moved, linked or copied
goes on with its ledger. Other bytes under a known path need a name, since nobody can know whose data they hold.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confide.base.durable_files import replace_file
from confide.base.errors import InputError
from confide.base.files import locked
from confide.privacy.ledger import Book, dataset_id, random_id

INDEX: Final = "index.json"
ENDING: Final = ".jsonl"


def folder() -> Path:
    """Where ledgers of data sets are: $CONFIDE_STATE, or the user's state folder."""
    given = os.environ.get("CONFIDE_STATE")
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return (Path(given) if given else state / "confide") / "ledgers"


def ledger_of(id: str) -> Path:
    return folder() / f"{id}{ENDING}"


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
                "cannot be read: it says which ledger is of which data; take it from a backup, or name output.ledger"
            )
            raise InputError("index", str(path), remedy) from None
        return found

    def named(self, name: str) -> str:
        """The id of data with this name, which may be new."""
        return self.names.get(name) or dataset_id(name)

    def ids(self, name: str | None, source: Path | None) -> set[str]:
        """Of what is known under this name, at this place or with these bytes."""
        place, digest = _seen(source)
        found = (self.names.get(name or ""), self.sources.get(place, {}).get("id"), self.bytes.get(digest or ""))
        return {id for id in found if id}

    def identify(self, name: str | None, source: Path | None) -> str:
        """The id of these data, which are known from now on.

        Raises:
            InputError: the file has changed, and no name says whose data it holds now; or the name is of other data.
        """
        place, digest = _seen(source)
        there = self.sources.get(place, {})
        known = there.get("id") if digest is None else self.bytes.get(digest)
        if name is None:
            if known is None and there:
                remedy = (
                    "has changed since earlier runs: name the data that it holds now (privacy.dataset = 'NAME'), or go "
                    f"on with the ledger of before (output.ledger = '{ledger_of(str(there['id']))}')"
                )
                raise InputError("problem.path", place, remedy)
            id = known or random_id()
        else:
            if known is not None and self.names.get(name, known) != known:
                remedy = "is another data set than these bytes were known as; leave the name out, or use that of before"
                raise InputError("privacy.dataset", name, remedy)
            id = known or self.named(name)
            self.names[name] = id
        if digest is not None:
            self.bytes[digest] = id
        if place:
            self.sources[place] = {"id": id, "digest": digest}
        return id

    def check_head(self, path: Path, book: Book | None) -> None:
        """Refuse a ledger of this folder that is gone, or older than it was."""
        head = self.heads.get(path.stem)
        if path.parent != folder() or head is None or (book is not None and head in book.hashes):
            return
        gone = "is gone" if book is None else "is an older one, without its last lines"
        remedy = f"{gone}: what was spent on these data is not known; take it from a backup, or, to forget all that, "
        raise InputError("ledger", str(path), f"{remedy}take {path.stem} out of 'heads' in {folder() / INDEX}")


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
    """The ledger of the data with this name or in this file; None where there is none."""
    index = Index.load()
    id = index.names.get(str(name)) or next(iter(index.ids(None, Path(name))), None)
    return ledger_of(id) if id and ledger_of(id).exists() else None


@contextmanager
def held(path: Path) -> Iterator[None]:
    """A file of the ledgers, changed by one at a time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(path.with_name(f".{path.name}.lock")):
            yield
    except OSError as e:
        remedy = f"cannot be kept ({e.strerror or e}); name another file, or set CONFIDE_STATE to a folder of yours"
        raise InputError("ledger", str(path), remedy) from None


def _seen(source: Path | None) -> tuple[str, str | None]:
    """Where these data are, and the digest of what is there; nowhere, and none, where they are not in a file."""
    if source is None:
        return "", None
    place = os.path.realpath(source)
    if not os.path.isfile(place):
        return place, None
    with open(place, "rb") as file:
        return place, hashlib.file_digest(file, "sha256").hexdigest()
