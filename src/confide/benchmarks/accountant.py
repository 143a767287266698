"""`confide bench accountant`: what numbers about privacy cost, each beside a floor that is timed in the same run.

The floor of an account, and of a whole statement, is what must be known of every server: one eigendecomposition of
the graph, and the deviation of each server carried through each round, in plain NumPy. The floor of the general
accountant is the closed form of the same scheme, that of a ledger its lines as bare JSON in a file, and that of `import
confide` an interpreter that imports nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from confide.base.validation import whole
from confide.benchmarks.timing import all_told, turns
from confide.graph.graph import Graph
from confide.plans.build import of_run
from confide.plans.privacy import Privacy
from confide.plans.words import Level, Links
from confide.privacy.accountant import Question, account, by_general
from confide.privacy.course import Account
from confide.privacy.ledger import Cost, Event, dataset_id, read, write_events
from confide.privacy.reveal import Reveal
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.statement import statement
from confide.problems import regression
from confide.rounds.algorithm import GFL
from confide.rounds.clipping import Clip
from confide.rounds.schemes import Scheme, scheme

SCHEMES: Final = ("homomorphic", "shared", "own-clean", "per-link", "pairwise", "central", "partial:0.5")
GRAPHS: Final = ("ring", "complete", "random")
GENERAL: Final = ("homomorphic", "pairwise")  # the cheapest view and the dearest
UNIT: Final = Sensitivity(0.5, 1.0, level=Level.UNIT, norm="l1")


def bench(
    servers: int = 100,
    rounds: int = 1000,
    few_servers: int = 10,
    few_rounds: int = 50,
    events: int = 10_000,
    tries: int = 11,
    watch: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Seconds and ratios of accounts, statements, ledgers and the import.

    Accounts and the statement are of `servers` and `rounds`; the general accountant, which keeps every noise of every
    round, is asked about `few_servers` and `few_rounds`.
    """
    for name, value in (("servers", servers), ("few_servers", few_servers)):
        whole(name, value, 3, 1000)
    for name, value in (("rounds", rounds), ("few_rounds", few_rounds), ("events", events), ("tries", tries)):
        whole(name, value, 1, 10**6)
    graphs = {name: Graph.parse(f"{name}:{servers}") for name in GRAPHS}
    accounts = {
        (name, graph): partial(_account, name, graphs[graph], rounds)
        for name, graph in itertools.product(SCHEMES, GRAPHS)
    }
    ring, few = graphs["ring"], Graph.ring(few_servers)
    works: dict[Any, Callable[[], object]] = {**accounts, "floor": partial(_floor, ring, rounds)}
    works["statement"] = partial(statement, _gaussian("pairwise"), ring, UNIT, rounds=rounds)
    for name in GENERAL:
        works["general", name] = partial(_general, name, few, few_rounds)
        works["closed", name] = partial(_account, name, few, few_rounds)
    for name, code in (("interpreter", "pass"), ("import", "import confide")):
        works[name] = partial(subprocess.run, [sys.executable, "-c", code], check=True)
    with tempfile.TemporaryDirectory(prefix="confide-bench-") as folder:
        took = turns(works | _ledger(Path(folder), events), tries, watch)
    worst = max(accounts, key=took.median)
    ratios: dict[str, tuple[Any, Any]] = {"account": (worst, "floor"), "statement": ("statement", "floor")}
    ratios |= {"ledger": ("ledger", "ledger floor"), "import": ("import", "interpreter")}
    ratios |= {f"general_{name}": (("general", name), ("closed", name)) for name in GENERAL}
    return {
        "servers": servers,
        "rounds": rounds,
        "floor_s": took.median("floor"),
        **{f"account_{name}_s": max(took.median((name, graph)) for graph in GRAPHS) for name in SCHEMES},
        "account_worst": " on ".join(worst),
        **{f"{name}_s": took.median(name) for name in ("statement", "ledger", "import", "interpreter")},
        **{f"general_{name}_s": took.median(("general", name)) for name in GENERAL},
        **{f"general_{name}_difference": _off_the_closed_form(name, few, few_rounds) for name in GENERAL},
        "ledger_floor_s": took.median("ledger floor"),
        **all_told({f"{name}_ratio": took.ratios(*pair) for name, pair in ratios.items()}),
    }


def _gaussian(name: str) -> Scheme:
    return scheme(name, 1.0, noise="gaussian", sigma_pair=2.0 if name == "pairwise" else 0.0)


def _account(name: str, graph: Graph, rounds: int) -> Account:
    return account(_gaussian(name), graph, UNIT, rounds=rounds)


def _general(name: str, graph: Graph, rounds: int) -> Account:
    asked = Question(_gaussian(name), [graph], UNIT, rounds, Links(), Reveal(), 1e-5, None, secure=True)
    return by_general(asked).at(rounds, 0)


def _floor(graph: Graph, rounds: int) -> None:
    np.linalg.eigh(graph.A)
    deviation = np.zeros(graph.P)
    for _ in range(rounds):
        deviation = graph.own_weights * deviation + 1.0


def _off_the_closed_form(name: str, graph: Graph, rounds: int) -> float:
    closed, general = (work(name, graph, rounds).mu_gdp or 0.0 for work in (_account, _general))
    return abs(general - closed) / closed


def _ledger(folder: Path, count: int) -> dict[str, Callable[[], object]]:
    """A ledger written and read with every check, and its lines as JSON in a file that is on the disk."""
    algorithm = GFL(scheme("shared", 1.0, noise="gaussian"), sampled=2, clip=Clip("update", 1.0))
    problem = regression(units=3, clients=2, samples=2)
    plan = of_run(problem, [Graph.ring(3)], algorithm, count, 0, Privacy())
    cost, ledger, bare = Cost(0.01, None, 0.1, 1.0, "gaussian"), folder / "ledger", folder / "bare"

    def write_and_read() -> None:
        ledger.unlink(missing_ok=True)
        events = [Event(plan.hash, "message", n, 0, cost) for n in range(1, count + 1)]
        write_events(ledger, dataset_id("bench"), plan, events)
        read(ledger)

    write_and_read()
    tables = [json.loads(line) for line in ledger.read_text().splitlines()]

    def write_and_read_bare() -> None:
        with open(bare, "w") as file:
            file.writelines(json.dumps(table) + "\n" for table in tables)
            file.flush()
            os.fsync(file.fileno())
        with open(bare) as file:
            for line in file:
                json.loads(line)

    return {"ledger": write_and_read, "ledger floor": write_and_read_bare}
