"""What stores, released models and logs say, read by code that shares nothing with the machines that wrote them.

SQLite files are opened with `sqlite3`, everything in them is decoded, hashed and added up here, in Python's own whole
numbers; only what a publication costs is asked of `confide.privacy.price`. A mistake that the machines and the stores
have in common is therefore none of this reader's. `python independent.py FOLDER` reads a network of `confide cluster`.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import struct
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from confide.plans.plan import Plan
from confide.privacy.price import Price, agreed

Row = tuple[Any, ...]
TO_ALL: Final = -1
NOTHING: Final = {"epsilon": 0.0, "law": "none", "rho": 0.0, "sensitivity": 0.0, "sigma": 0.0}


class WrongError(AssertionError):
    """Something that must hold does not."""


def require(condition: object, what: str) -> None:
    if not condition:
        raise WrongError(what)


@dataclass
class Seen:
    """A store, as its file has it.

    Attributes:
        plan: as JSON.  text: the same, whose sha256 is the plan's hash.
        edges: neighbour -> (seen, status).  balances: neighbour -> (n, total).
        open: (neighbour, round) -> (applied, sha256 of what the neighbour sent).
        out: (round, receiver) -> message.
        ledger: its events.
        signed: (server, round, receiver) -> (sha256 of a message, signature), where the store has such.
        released: attempt -> (servers, total).
    """

    name: str
    text: str
    plan: dict[str, Any]
    server: int
    contribution: list[int]
    decided: int
    published: int
    edges: dict[int, tuple[int, str]]
    balances: dict[int, tuple[int, list[int]]]
    open: dict[tuple[int, int], tuple[bool, bytes]]
    out: dict[tuple[int, int], bytes]
    ledger: list[dict[str, Any]]
    hashes: list[str]
    signed: dict[tuple[int, int, int], tuple[bytes, bytes]]
    released: dict[int, tuple[int, list[int]]]

    @property
    def hash(self) -> str:
        return sha256(self.text.encode()).hexdigest()

    @property
    def model(self) -> list[int]:
        return added(self.contribution, *(total for _, total in self.balances.values()))

    @property
    def messages(self) -> dict[int, str]:
        """Round -> sha256 of what was published; rounds that were charged unseen have none."""
        return {e["round"]: e["sha256"] for e in self.ledger if e["kind"] == "message" and e["sha256"] is not None}


def numbers(raw: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(raw) // 8}q", raw))


def added(*vectors: Sequence[int]) -> list[int]:
    return [sum(column) for column in zip(*vectors, strict=True)]


def copied(store: Path, to: Path) -> Path:
    """The file and its log as they are at this moment, also of a server that runs: its log is written back only when
    it starts, ends or is very long, and what was committed meanwhile stands behind the rest."""
    to.mkdir(parents=True, exist_ok=True)
    for path in (store, store.with_name(store.name + "-wal")):
        (to / path.name).unlink(missing_ok=True)
        if path.exists():
            shutil.copy(path, to)
    return to / store.name


def read(store: Path, name: str = "") -> Seen:
    """A store of a server, which may run: a copy is read. Raises `WrongError` for one that is not whole."""
    name = name or store.parent.name
    with tempfile.TemporaryDirectory() as folder, closing(sqlite3.connect(copied(store, Path(folder)))) as db:
        try:
            return _read(db, name)
        except sqlite3.Error as e:
            raise WrongError(f"{name}: {e}") from e


def _read(db: sqlite3.Connection, name: str) -> Seen:
    require(db.execute("PRAGMA integrity_check").fetchall() == [("ok",)], f"{name}: SQLite finds the file damaged")
    tables = {table: rows(db, table) for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for table, found in tables.items():
        tip = b""
        for row in found:
            wanted = row_hash(tip if table == "ledger" else table, *list(row.values())[:-1])
            require(row["sha256"] == wanted, f"{name}: a row of {table} is not what its hash says, or not in its place")
            tip = row["sha256"]
    one = {table: found[0] for table, found in tables.items() if found}
    state, identity = one["state"], one["identity"]
    require(state["seal"] == seal(db), f"{name}: a row is missing, too many, or older than the others")
    ledger, hashes = _chain(name, tables["ledger"])
    return Seen(
        name=name,
        text=identity["plan"],
        plan=json.loads(identity["plan"]),
        server=identity["server"],
        contribution=numbers(one["contribution"]["total"]),
        decided=state["decided"],
        published=state["published"],
        edges={row["edge"]: (row["seen"], row["status"]) for row in tables["edges"]},
        balances={row["edge"]: (row["n"], numbers(row["total"])) for row in tables["balances"]},
        open={(row["edge"], row["round"]): (bool(row["applied"]), row["peer_sha256"]) for row in tables["open"]},
        out={(row["round"], row["receiver"]): row["message"] for row in tables["out"]},
        ledger=ledger,
        hashes=hashes,
        signed={
            (row["server"], row["round"], row["receiver"]): (row["message"], row["signature"])
            for row in tables.get("signed", [])
        },
        released={row["attempt"]: (row["servers"], numbers(row["total"])) for row in tables.get("released", [])},
    )


def keys(db: sqlite3.Connection, table: str) -> int:
    """How many columns name a row."""
    return sum(column[5] > 0 for column in db.execute(f"PRAGMA table_info({table})"))


def rows(db: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    """In the order of their keys."""
    order = ", ".join(map(str, range(1, keys(db, table) + 1)))
    found = db.execute(f"SELECT * FROM {table} ORDER BY {order}")  # noqa: S608 - names that the file has
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found]


def row_hash(*values: Any) -> bytes:
    """Of the table's name, or in the ledger the hash of the row before, and of all columns but the last."""
    raw = [value if isinstance(value, bytes) else str(value).encode() for value in values]
    named = zip([type(value).__name__ for value in values], raw, strict=True)
    return sha256(b"".join(f"{kind} {len(r)} ".encode() + r for kind, r in named)).digest()


def seal(db: sqlite3.Connection) -> bytes:
    """Of the ledger's last row and of all rows of all tables, but that in which it stands."""
    tip, found = b"", {}
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        for row in rows(db, table):
            found[(table, *list(row.values())[: keys(db, table)])] = row["sha256"]
    ledger = sorted(key for key in found if key[0] == "ledger")
    tip = found[ledger[-1]] if ledger else b""
    return sha256(tip + b"".join(found[key] for key in sorted(found) if key[0] not in ("ledger", "state"))).digest()


def _chain(name: str, found: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The events of a ledger; every line has the hash of the one before, and is written in the one way there is."""
    events, previous = [], None
    for n, row in enumerate(found, 1):
        table, where = json.loads(row["line"]), f"{name}: line {n} of the ledger"
        require(set(table) == {"event", "hash", "n", "previous"} and table["n"] == row["n"] == n, f"{where} is no line")
        text = json.dumps(table["event"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        require(f'"event":{text},' in row["line"], f"{where} is spelled in another way")
        own = sha256((table["previous"] + text).encode()).hexdigest()
        require(own == table["hash"] == row["hash"], f"{where} is not what its hash says")
        require(previous in (None, table["previous"]), f"{where} does not follow the one before")
        previous = own
        events.append(json.loads(text, object_hook=_floats))
    return events, [row["hash"] for row in found]


def _floats(table: dict[str, Any]) -> Any:
    return float.fromhex(table["$float"]) if set(table) == {"$float"} else table


def paid(seen: Seen, price: Price) -> None:
    """One row for each round, and every payment at its own price: the j-th at the j-th."""
    name, rows, j, summed = seen.name, [e for e in seen.ledger if e["kind"] != "release"], 0, False
    require(all((e["plan"], e["unit"]) == (seen.hash, seen.server) for e in seen.ledger), f"{name}: another's row")
    decided = 0
    for e in rows:
        require(e["round"] == decided + 1, f"{name}: round {e['round']} in its ledger after round {decided}")
        pays = e["kind"] == "sum" or (e["kind"] == "message" and not summed)
        require(not (e["kind"] == "sum" and summed), f"{name}: the sum of round {e['round']} is paid for twice")
        costs = price.messages[j] if pays else None
        wanted = NOTHING if costs is None else {name: getattr(costs, name) for name in NOTHING}
        require(e["cost"] == wanted, f"{name}: round {e['round']} is charged {e['cost']} and costs {wanted}")
        j, summed = j + pays, e["kind"] == "sum"
        decided += e["kind"] != "sum"
    require(decided == seen.decided, f"{name}: {seen.decided} rounds are decided and {decided} are in its ledger")
    require(j == seen.published, f"{name}: {seen.published} payments are counted and {j} are in its ledger")


def waiting(seen: Seen) -> None:
    """What still has to reach a neighbour is kept, and is what the ledger has."""
    for (i, to), message in seen.out.items():
        require(to == TO_ALL, f"{seen.name}: messages of single links are not read here")
        require(seen.messages.get(i) == sha256(message).hexdigest(), f"{seen.name}: kept another message of round {i}")
    for m, i in seen.open:
        require(
            0 < i <= seen.decided and (i, TO_ALL) in seen.out, f"{seen.name}: round {i} open with {m}, and not kept"
        )


@dataclass
class Witness:
    """Everything that was ever seen of what a server published in a round: its own ledger, what neighbours took from it
    and what it signed, in every copy of every store, and what came over the wire to whoever told.

    Attributes:
        said: (server, round) -> sha256 -> where it was seen first.
        liars: servers for whom nothing is promised.
    """

    names: Sequence[str]
    liars: frozenset[int] = frozenset()
    said: dict[tuple[int, int], dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    ledgers: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    _good: set[bytes] = field(default_factory=set)

    def note(self, server: int, round: int, sha: str, where: str) -> None:
        found = self.said[server, round]
        found.setdefault(sha, where)
        both = " and ".join(f"{sha[:8]} in {where}" for sha, where in found.items())
        require(
            len(found) == 1 or server in self.liars, f"{self.names[server]} has two messages of round {round}: {both}"
        )

    def look(self, seen: Seen, life: int = 0) -> None:
        """A copy of a store. `life` counts how often the server's store was lost or put back: a ledger only grows."""
        me = seen.server
        before = self.ledgers.get((me, life), [])
        require(seen.hashes[: len(before)] == before, f"{seen.name}: rows of its ledger have changed or are gone")
        self.ledgers[me, life] = seen.hashes
        for i, sha in seen.messages.items():
            self.note(me, i, sha, f"the ledger of {seen.name}")
        for (m, i), (applied, peer) in seen.open.items():
            if applied:
                self.note(m, i, peer.hex(), f"what {seen.name} took")
        for place, (digest, signature) in seen.signed.items():
            self._signed(seen, place, digest, signature)
            if place[2] == TO_ALL:
                self.note(*place[:2], digest.hex(), f"what {seen.name} has signed of it")

    def _signed(self, seen: Seen, place: tuple[int, int, int], sha: bytes, signature: bytes) -> None:
        if signature in self._good:
            return
        server, i, receiver = place
        public = bytes.fromhex(seen.plan["units"][server]["identity"])
        said = b"confide publication" + bytes.fromhex(seen.hash) + struct.pack("<IiI", server, receiver, i) + sha
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(signature, said)
        except InvalidSignature:
            raise WrongError(f"{seen.name} has a signature of {self.names[server]}, round {i}, that is none") from None
        self._good.add(signature)


def conserved(stores: Sequence[Seen], *, liars: Iterable[int] = (), settled: bool = True) -> None:
    """The sum of the models is that of the contributions, and of what came over the edges of those that lie.

    Args:
        stores: of all servers that do not.
        settled: nothing is open between them; else what is open at either end is a flow that entered one end only.
    """
    liars, by = set(liars), {seen.server: seen for seen in stores}
    own = added(*(seen.contribution for seen in stores))
    outside = [[0] * len(own)]
    for p, seen in by.items():
        require(set(seen.balances) <= set(by) | liars, f"{seen.name}: a neighbour whose store was not read")
        outside += [total for m, (_, total) in seen.balances.items() if m in liars]
        for m in (m for m in seen.balances if m in by and p < m):
            _edge(seen, by[m], settled=settled)
    if settled:
        models = added(*(seen.model for seen in stores))
        require(models == added(own, *outside), "the sum of the models is not that of the contributions")


def _edge(one: Seen, other: Seen, *, settled: bool) -> None:
    p, m = one.server, other.server
    which = f"{one.name}-{other.name}"
    opened = [(p, i) for at, i in one.open if at == m] + [(m, i) for at, i in other.open if at == p]
    (n, total), (k, back) = one.balances[m], other.balances[p]
    if settled:
        require(not opened, f"{which}: open rounds {sorted({i for _, i in opened})}")
        require(one.edges[m][1] == other.edges[p][1] == "open", f"{which}: {one.edges[m][1]}, {other.edges[p][1]}")
    if not opened and one.edges[m][1] == other.edges[p][1] == "open":
        require(n == k, f"{which}: {n} flows at one end and {k} at the other")
        require(not any(added(total, back)), f"{which}: the balances of its ends do not cancel")


def same_release(stores: Sequence[Seen], files: Mapping[str, Path], quantum: float, sigma: float) -> None:
    """One result everywhere, in every store and every file, and as near to the mean of the models as its noise."""
    results = {seen.name: seen.released for seen in stores}
    first = next(iter(results.values()))
    require(first, "nobody has a released model")
    require(all(found == first for found in results.values()), f"released sums differ: {sorted(results)}")
    servers, total = first[max(first)]
    require(servers == len(stores), f"released by {servers} servers, and {len(stores)} are left")
    mean = np.array(total, np.float64) * quantum / servers
    true = np.array(added(*(seen.model for seen in stores)), np.float64) * quantum / servers
    require(np.abs(mean - true).max() < 8.0 * sigma, "what was released is not the mean of the models with its noise")
    for name, path in files.items():
        with np.load(path, allow_pickle=False) as arrays:
            weights = arrays["weights"]
        require(np.allclose(weights, mean, rtol=1e-12, atol=1e-12), f"{name}: its model is another than was released")


def check_network(stores: Sequence[Seen], **how: Any) -> None:
    """Everything that can be asked of stores alone, at one moment, when no server runs."""
    price = agreed(Plan.from_text(stores[0].text))
    require(len({seen.text for seen in stores}) == 1, "the stores are of different plans")
    witness = Witness([unit["name"] for unit in stores[0].plan["units"]], frozenset(how.get("liars", ())))
    for seen in stores:
        paid(seen, price)
        waiting(seen)
        witness.look(seen)
    conserved(stores, **how)


if __name__ == "__main__":
    found = [read(path) for path in sorted(Path(sys.argv[1]).glob("nodes/*/store.db"))]
    check_network(found, settled=not any(seen.open for seen in found))
    print(f"{len(found)} stores are whole, and together: rounds {[seen.decided for seen in found]}")
