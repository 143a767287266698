"""What `confide account X...` answers: the price of a config or a plan, or what ledgers add up to.

What X is, its content says and not its name. Nothing is run, and of private data only sizes are read.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, Literal

from confide.base import canonical
from confide.base.errors import InputError
from confide.plans import words
from confide.plans.plan import LARGEST, Plan
from confide.plans.words import Links
from confide.privacy import data_ledger
from confide.privacy.data_index import check_head
from confide.privacy.ledger import LONGEST, UNKNOWN, Book, Part, Promise, paid_by, promise_of, read, read_all, sharing
from confide.privacy.paid import ADVERSARIES, NOTHING, Paid, Terms, adversary
from confide.privacy.price import agreed, price, price_run
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
    plan = Plan.load(path)
    found = price(plan) if plan.deployment is None else agreed(plan)
    return _priced(found.statement(), plan, "plan")


def price_config(path: Path) -> dict[str, Any]:
    """The statement of the run of a config, or of the config in a run.json, without running it."""
    from confide.plans import config as settings

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
        found = price_run(x.problem, x.graph, x.algorithm, x.rounds, x.seed, x.privacy)
        return _priced(found.statement(found.affordable(x.rounds)), found.plan, "config")


def _priced(statement: Statement, plan: Plan, kind: Kind) -> dict[str, Any]:
    p = plan.privacy
    promise = {"level": str(p.level), "adjacency": str(p.adjacency), "threat": str(p.threat), "delta": p.delta}
    return statement.to_dict() | {"of": kind, "plan": plan.hash} | promise


def add_up(
    paths: Sequence[Path], delta: float, to: Terms | None = None, rows: tuple[int, int] | None = None
) -> dict[str, Any]:
    """What all plans in these ledgers, or folders of runs, cost together: of each its worst unit.

    Args:
        to: whose data may change, and how; by default as the first of the ledgers that the others can be added to.
        rows: of a client, and of the one that takes its place: what examples cost, clients then do.
    """
    for folder in (path for path in paths if path.is_dir()):
        check_whole(folder, read(folder / LEDGER))
    books = read_all(path / LEDGER if path.is_dir() else path for path in paths)
    for book in books:
        check_head(Path(book.where), book)
    promises = [promise_of(book) for book in books]
    threat = next((p.threat for p in promises if p is not None and p.threat is not None), None)
    of_data = any(book.header.of_data for book in books)
    if of_data and threat is None:
        threat = Links.name
    terms, sums = _sums(books, [p.terms for p in promises if p is not None], to, rows)
    paid = sums[_key(threat)]
    epsilon = paid.at(delta)
    runs = [told for book in books for told in _runs(book)]
    assumptions = ["what the plan of each run assumes (`confide account plan.json`)"]
    if len(runs) > 1:
        who = "client, unit or example" if terms is None else str(terms.level)
        assumptions += [f"a {who} is the same in all runs", "the runs drew their noise independently"]
    if rows is not None:
        assumptions += [f"a client has at most {rows[0]} rows, and one that takes its place {rows[1]}"]
    assumptions += [x for id in dict.fromkeys(book.dataset for book in books) for x in data_ledger.unaccounted(id)]
    said = {"level": None, "adjacency": None} if terms is None else {"level": terms.level, "adjacency": terms.adjacency}
    return {
        "of": "ledger",
        "dataset": books[0].dataset,
        "epsilon": epsilon,
        "delta": delta,
        "rho": paid.rho,
        "leak": epsilon is None,
        "unbounded": None if epsilon is not None else _why_unbounded(books, paid),
        **said,
        "threat": threat,
        "adversary": None if threat is None else words.threat(threat).adversary,
        "adversaries": {k: {"rho": p.rho, "epsilon": p.at(delta), "proof": p.proof} for k, p in sums.items()}
        if of_data
        else {},
        "assumptions": assumptions,
        "runs": runs,
    }


def _sums(
    books: Sequence[Book], known: Sequence[Terms], to: Terms | None, rows: tuple[int, int] | None
) -> tuple[Terms | None, dict[str, Paid]]:
    """What all of it cost against each adversary, under the first terms under which all has a cost."""
    refused: InputError | None = None
    for terms in [to] if to is not None else dict.fromkeys(known):
        try:
            return terms, _sums_under(books, terms, rows)
        except InputError as e:
            refused = refused or e
    if refused is not None:
        raise refused
    return None, {_key(None): paid_by(books)}  # one older ledger, whose promise nobody knows


def _sums_under(books: Sequence[Book], to: Terms, rows: tuple[int, int] | None) -> dict[str, Paid]:
    found = [data_ledger.added_up(book, to, rows) for book in books if book.header.of_data]
    alike: dict[Promise | None, list[Book]] = defaultdict(list)
    for book in books:
        if not book.header.of_data:
            alike[promise_of(book)].append(book)
    found += [_cost(promise, these, to, rows) for promise, these in alike.items()]
    if sharing(books) is not None:
        found.append(dict.fromkeys(found[0], Paid.unknown("")))
    common = [name for name in found[0] if all(name in one for one in found)]
    return {name: reduce(add, (one[name] for one in found)) for name in common}


def _cost(promise: Promise | None, books: Sequence[Book], to: Terms, rows: tuple[int, int] | None) -> dict[str, Paid]:
    """Of runs that keep one promise, against its adversary."""
    if promise is None:
        raise InputError("ledger", books[0].where, UNKNOWN)
    key = _key(promise.threat)
    if promise.terms == to:
        return {key: paid_by(books)}
    each = [_translated(key, promise.terms, book, run, to, rows) for book in books for run in book.runs]
    return {key: reduce(add, each, NOTHING)}


def _translated(key: str, terms: Terms, book: Book, run: Part, to: Terms, rows: tuple[int, int] | None) -> Paid:
    """Of one run under other terms."""
    published: dict[int, set[int]] = defaultdict(set)
    for event in run.events:
        if event.kind in ("message", "sum"):
            published[event.unit].add(event.round)
    rounds = max(map(len, published.values()), default=0)
    plan = None if run.plan is None or key not in ADVERSARIES else data_ledger.plan_of(book, run.plan)
    alone = paid_by([replace(book, runs=(run,))])
    if plan is not None and not _explains(price(plan).spent(rounds)[key], alone):
        plan = None
    found = data_ledger.translated({key: alone}, terms, to, plan, rounds, 1, rows)
    if found is None:
        raise InputError("ledger", book.where, f"is about {terms}, which says nothing about {to}; ask for it alone")
    return found[key]


def _explains(own: Paid, written: Paid) -> bool:
    """Whether a plan's price covers what was written down; else something was paid for that the plan does not know."""
    return own.rho is not None and written.rho is not None and written.rho <= own.rho * (1.0 + 1e-9)


def _key(threat: str | None) -> str:
    """Under which name a sum is about this adversary; servers by number stand alone."""
    return str(threat) if threat is None else adversary(words.threat(threat)) or threat


def _runs(book: Book) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"ledger": book.where, "run": s.run, "plan": s.plan, "rounds": s.rounds, "repeats": s.repeats}
        | {"ended": s.of is not None}
        for s in book.standing
    ]
    for run in book.runs:
        if not run.header.of_data:
            units = len({event.unit for event in run.events})
            told = {"ledger": book.where, "run": run.header.run, "plan": run.plan, "units": units}
            found.append(told | {"events": len(run.events)})
    return found


def _why_unbounded(books: Sequence[Book], paid: Paid) -> str:
    if (shared := sharing(books)) is not None:
        return shared
    why = "some event has none, or there is so little noise that no epsilon is left beside the sampler's distance"
    return why if not paid.proof or paid.rho is not None else paid.proof


def sum_lines(answer: Mapping[str, Any]) -> list[str]:
    """A sum in words; what one run assumes is in its statement, what a sum assumes is said here."""
    many = len(answer["runs"]) > 1
    others = [
        f"  against {ADVERSARIES[name]}: {_number(sum['epsilon'], answer['delta'], 'some plan has none')}"
        for name, sum in answer["adversaries"].items()
    ]
    assumed = answer["assumptions"] if many else answer["assumptions"][1:]
    return [sum_line(answer), *others, *(f"  assumes {x}" for x in assumed)]


def sum_line(answer: Mapping[str, Any]) -> str:
    about = (
        "its promise is not known: an older ledger"
        if answer["level"] is None
        else f"{answer['level']} level, {answer['adjacency']}; against {answer['adversary']}"
    )
    number = _number(answer["epsilon"], answer["delta"], answer["unbounded"])
    n = len(answer["runs"])
    worst = "its worst unit" if n == 1 else "the worst unit of each added up"
    return f"data set {answer['dataset'][:12]}, {n} run{'s' * (n != 1)}: {number} ({about}; {worst})"


def _number(epsilon: float | None, delta: float, why: str | None) -> str:
    return f"NO BOUND, since {why}" if epsilon is None else f"at most epsilon {rounded_up(epsilon)} at delta {delta:g}"


def _json(raw: bytes) -> dict[str, Any]:
    """The JSON object in these bytes, {} where there is none."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
