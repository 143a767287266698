"""What `confide account X...` answers: the price of a config or a plan, or what ledgers add up to.

What X is, its content says and not its name. Nothing is run, and of private data only sizes are read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from confide.base import canonical
from confide.base.errors import InputError
from confide.plans.plan import LARGEST, Plan
from confide.privacy.ledger import LONGEST, Book, compose, epsilon_of, promise_of, read, read_all, sharing, spent
from confide.privacy.run_ledger import LEDGER, check_whole
from confide.privacy.statement import Statement, rounded_up

Kind = Literal["ledger", "plan", "config"]


def kind_of(path: Path) -> Kind:
    """A folder of a run stands for its ledger, which holds all runs into it."""
    if path.is_dir():
        if not (path / LEDGER).is_file():
            raise InputError("X", str(path), f"holds no {LEDGER}; name the folder of an accounted run, or a file")
        return "ledger"
    with open(canonical.open_regular(path, "X", os.O_RDONLY, 2**40), "rb") as file:
        first = file.readline(LONGEST)
    line = _json(first)
    if {"hash", "dataset"} <= line.keys() or {"hash", "event"} <= line.keys():
        return "ledger"
    content = _json(canonical.read_bytes(path, "X", LARGEST)) if first.lstrip()[:1] == b"{" else {}
    if {"graph", "scheme", "privacy"} <= content.keys() or {"graph", "scheme", "adjacency"} <= content.keys():
        return "plan"
    if {"plan", "ledger", "signature"} <= content.keys():
        raise InputError("X", str(path), "is a signed bundle; `confide verify` checks it and prints its statement")
    return "config"


def kind_of_all(paths: Sequence[Path]) -> Kind:
    kinds = {path: kind_of(path) for path in paths}
    first = kinds[paths[0]]
    for path, kind in kinds.items():
        if kind != first:
            remedy = f"is a {kind}, and {paths[0]} a {first}: price one config or one plan, or add up ledgers"
            raise InputError("X", str(path), remedy)
    if first != "ledger" and len(paths) > 1:
        raise InputError("X", str(paths[1]), f"is a second {first}; only what ledgers say was spent is added up")
    return first


def price_plan(path: Path) -> dict[str, Any]:
    """The whole statement that follows from a plan of a simulation or of a deployment."""
    from confide.privacy.price import agreed, price

    plan = Plan.load(path)
    found = price(plan) if plan.deployment is None else agreed(plan)
    return _priced(found.statement(), plan, "plan")


def price_config(path: Path) -> dict[str, Any]:
    """The statement of the run of a config, or of the config in a run.json, without running it."""
    from confide.plans import build
    from confide.plans import config as settings
    from confide.privacy.deviation import check_data
    from confide.privacy.price import price

    record = _json(canonical.read_bytes(path, "X", LARGEST))
    if not record:
        parsed = settings.load(path)
    elif isinstance(record.get("config"), dict):
        parsed = settings.parse(record["config"])
    else:
        remedy = "holds no config: it was made in Python. Its plan.json is priced, its ledger.jsonl added up"
        raise InputError("X", str(path), remedy)
    x = parsed.build()
    if x.privacy is None:
        remedy = "a run of this config is not accounted; set algorithm.clip and algorithm.bound"
        raise InputError("algorithm.clip", "none", remedy)
    with settings.named_as_in_config():
        plan = build.of_run(x.problem, x.graph, x.algorithm, x.rounds, x.seed, x.privacy)
        found = price(plan)
        check_data(plan, x.problem)
        return _priced(found.statement(found.affordable(plan.rounds)), plan, "config")


def _priced(statement: Statement, plan: Plan, kind: Kind) -> dict[str, Any]:
    p = plan.privacy
    promise = {"level": str(p.level), "adjacency": str(p.adjacency), "threat": str(p.threat), "delta": p.delta}
    return statement.to_dict() | {"of": kind, "plan": plan.hash} | promise


def add_up(paths: Sequence[Path], delta: float) -> dict[str, Any]:
    """What all runs in these ledgers, or folders of runs, cost together: of each run its worst unit."""
    for folder in (path for path in paths if path.is_dir()):
        check_whole(folder, read(folder / LEDGER))
    books = read_all(path / LEDGER if path.is_dir() else path for path in paths)
    promise = promise_of(books[0])
    runs = [(book.where, run) for book in books for run in book.runs]
    units: dict[int, int] = {}
    for run, _ in compose(books):
        units[run] = units.get(run, 0) + 1
    total = spent(books)
    epsilon = epsilon_of(books, delta)
    assumptions = ["what the plan of each run assumes (`confide account plan.json`)"]
    if len(runs) > 1:
        who = "client, unit or example" if promise is None else promise.level
        assumptions += [f"a {who} is the same in all runs", "the runs drew their noise independently"]
    said = {"level": None, "adjacency": None, "threat": None} if promise is None else promise.to_dict()
    return {
        "of": "ledger",
        "dataset": books[0].dataset,
        "epsilon": epsilon,
        "delta": delta,
        "rho": total.rho,
        "leak": epsilon is None,
        "unbounded": _why_unbounded(books, epsilon),
        **said,
        "adversary": None if promise is None else promise.adversary,
        "assumptions": assumptions,
        "runs": [
            {"ledger": where, "run": run.header.run, "plan": run.plan, "units": units.get(n, 0)}
            | {"events": len(run.events)}
            for n, (where, run) in enumerate(runs)
        ],
    }


def _why_unbounded(books: Sequence[Book], epsilon: float | None) -> str | None:
    if epsilon is not None:
        return None
    if (seed := sharing(books)) is not None:
        return f"runs with {seed} share their noise: give each run another seed"
    return "some event has none, or there is so little noise that no epsilon is left beside the sampler's distance"


def sum_lines(answer: Mapping[str, Any]) -> list[str]:
    """A sum in words; what one run assumes is in its statement, what a sum assumes is said here."""
    many = len(answer["runs"]) > 1
    return [sum_line(answer), *(f"  assumes {x}" for x in answer["assumptions"] if many)]


def sum_line(answer: Mapping[str, Any]) -> str:
    about = (
        "its promise is not known: an older ledger"
        if answer["level"] is None
        else f"{answer['level']} level, {answer['adjacency']}; against {answer['adversary']}"
    )
    number = (
        f"NO BOUND, since {answer['unbounded']}"
        if answer["epsilon"] is None
        else f"at most epsilon {rounded_up(answer['epsilon'])} at delta {answer['delta']:g}"
    )
    n = len(answer["runs"])
    worst = "its worst unit" if n == 1 else "the worst unit of each added up"
    return f"data set {answer['dataset'][:12]}, {n} run{'s' if n > 1 else ''}: {number} ({about}; {worst})"


def _json(raw: bytes) -> dict[str, Any]:
    """The JSON object in these bytes, {} where there is none."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
