"""The reader of `independent.py` agrees with the machines where nothing is wrong, and notices whatever is changed."""

from __future__ import annotations

import ast
import json
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import independent
from builders import deployed
from confide.deploy.store.books import Books
from confide.deploy.store.sqlite import SqliteStore
from confide.plans.config import parse
from confide.privacy import price
from confide.privacy.ledger import dataset_id
from confide.testing.network import Network, Weather
from confide.testing.rehearsal import forged_units, training_units
from independent import Seen, Witness, WrongError, check_network, conserved, read, row_hash, rows, seal

CONFIG: dict[str, Any] = {
    "rounds": 6,
    "repeats": 1,
    "graph": {"topology": "ring"},
    "problem": {"units": 3, "clients": 1, "samples": 12, "features": 3},
    "algorithm": {"step": 0.1, "sampled": 1, "clip": "example", "bound": 1.0, "arithmetic": "fixed"},
    "scheme": {"name": "homomorphic", "sigma": 0.2, "noise": "gaussian"},
    "privacy": {"unprotected": True},
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stores of a network with losses and crashes, and of the same in the middle of its rounds."""
    folder = tmp_path_factory.mktemp("played")
    e = parse(CONFIG).build()
    prices = price.agreed(deployed(e, forged_units(3, 1), adapt=10.0, exchange=2.0, drain=20.0))

    def create(p: int, books: Books) -> SqliteStore:
        path, text = folder / "end" / f"{p}.db", prices.plan.text
        return SqliteStore.create(path, plan=text, server=p, dataset=dataset_id("box"), books=books)

    units = training_units(prices, e.problem, 3, store=create)
    network = Network(units, Weather(loss=0.3, crash=0.002, away=(1.0, 5.0), calm=40.0), seed=3)
    network.run(done=lambda: all(any(unit.store.load().open.values()) for unit in units))
    (folder / "middle").mkdir()
    for p in range(3):  # as they are while servers run
        independent.copied(folder / "end" / f"{p}.db", folder / "middle")
    network.run(done=network.finished)
    for unit in units:
        unit.store.close()
    return folder


def stores(folder: Path) -> list[Seen]:
    return [read(path, path.stem) for path in sorted(folder.glob("*.db"))]


def test_it_shares_nothing_with_what_it_checks() -> None:
    tree = ast.parse(Path(independent.__file__).read_text(encoding="utf-8"))
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    others = {name for name in names if name.partition(".")[0] not in sys.stdlib_module_names}
    assert others == {
        "numpy", "cryptography.exceptions", "cryptography.hazmat.primitives.asymmetric.ed25519",
        "confide.plans.plan", "confide.privacy.price",
    }  # fmt: skip


def test_what_the_machines_wrote_is_whole_in_the_middle_and_at_the_end(played: Path) -> None:
    check_network(stores(played / "middle"), settled=False)
    found = stores(played / "end")
    check_network(found)
    for seen in found:
        with SqliteStore.open(played / "end" / f"{seen.name}.db") as store:
            assert store.load().w.tolist() == seen.model
            assert [entry.event.sha256 for entry in store.entries()] == [e["sha256"] for e in seen.ledger]
    with pytest.raises(WrongError, match="open rounds"):
        check_network(stores(played / "middle"))


def forged(path: Path, table: str, change: Callable[[dict[str, Any]], None], *, sealed: bool = True) -> None:
    """A row of a store with other values, and with hashes that hold if it is `sealed`, which an operator can make."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript("DROP TRIGGER ledger_update; DROP TRIGGER ledger_insert; DROP TRIGGER ledger_delete;")
        tables = {name: rows(db, name) for name in {table, "state"}}
        change(tables[table][-1])
        for name in (table, "state"):
            tip = b""
            for row in tables[name]:
                if name == "state" and sealed:
                    row["seal"] = seal(db)
                if sealed:
                    row["sha256"] = row_hash(tip if name == "ledger" else name, *list(row.values())[:-1])
                tip = row["sha256"]
                db.execute(f"REPLACE INTO {name} VALUES ({', '.join('?' * len(row))})", list(row.values()))  # noqa: S608


def one_more(column: str) -> Callable[[dict[str, Any]], None]:
    def change(row: dict[str, Any]) -> None:
        value = row[column]
        row[column] = bytes([value[0] ^ 1]) + value[1:] if isinstance(value, bytes) else value + 1

    return change


def other_event(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(row: dict[str, Any]) -> None:
        table = json.loads(row["line"])
        table["event"] |= changes
        text = json.dumps(table["event"], sort_keys=True, separators=(",", ":"))
        table["hash"] = row["hash"] = sha256((table["previous"] + text).encode()).hexdigest()
        row["line"] = json.dumps(table, sort_keys=True, separators=(",", ":"))

    return change


FREE = {"epsilon": {"$float": "0x0.0p+0"}, "law": "none", "rho": {"$float": "0x0.0p+0"},
        "sensitivity": {"$float": "0x0.0p+0"}, "sigma": {"$float": "0x0.0p+0"}}  # fmt: skip


@pytest.mark.parametrize(
    ("table", "change", "said"),
    [
        ("balances", one_more("total"), "do not cancel"),
        ("balances", one_more("n"), "flows at one end"),
        ("state", one_more("published"), "payments are counted"),
        ("state", one_more("decided"), "rounds are decided"),
        ("ledger", other_event(cost=FREE), "is charged"),
        ("ledger", other_event(round=99), "in its ledger after round"),
        ("ledger", other_event(unit=2), "another's row"),
    ],
)
def test_one_wrong_value_is_noticed_also_with_hashes_that_hold(
    played: Path, tmp_path: Path, table: str, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    for sealed in (False, True):
        shutil.copytree(played / "end", folder := tmp_path / str(sealed))
        forged(folder / "0.db", table, change, sealed=sealed)
        with pytest.raises(WrongError, match=said if sealed else "is not what its hash says"):
            check_network(stores(folder))


def test_a_row_that_is_gone_is_noticed(played: Path, tmp_path: Path) -> None:
    shutil.copytree(played / "end", folder := tmp_path / "gone")
    with closing(sqlite3.connect(folder / "0.db", isolation_level=None)) as db:
        db.execute("DELETE FROM attempt")
    with pytest.raises(WrongError, match="a row is missing"):
        check_network(stores(folder))


def test_a_second_message_of_a_round_is_noticed_wherever_it_shows(played: Path) -> None:
    before, after = stores(played / "middle"), stores(played / "end")
    names = ["alpha", "beta", "gamma"]

    def all_of_it() -> Witness:
        witness = Witness(names)
        for seen in (*before, *after):
            witness.look(seen)
        return witness

    with pytest.raises(WrongError, match="changed or are gone"):
        all_of_it().look(before[0])
    i, sha = next(iter(after[1].messages.items()))
    other = [event | {"sha256": "0" * 64} if event["round"] == i else event for event in after[1].ledger]
    with pytest.raises(WrongError, match=f"beta has two messages of round {i}: {sha[:8]} in"):
        all_of_it().look(replace(after[1], ledger=other), life=1)  # a store that was put back
    with pytest.raises(WrongError, match="and 00000000 in what 0 took"):
        all_of_it().look(replace(after[0], open={(1, i): (True, bytes(32))}), life=2)
    Witness(names, frozenset({1})).note(1, i, "0" * 64, "what it said")  # of one that lies nothing is promised


def test_servers_that_lie_are_left_out_of_the_sum_with_what_came_from_them(played: Path) -> None:
    one, two, liar = stores(played / "end")
    conserved([one, two], liars=[liar.server])
    with pytest.raises(WrongError, match="whose store was not read"):
        conserved([one, two])
