"""One plan, one price: a config is simulated, the same config is deployed, and every number about both is the same.

`CASES` are configs: rows in which all pairs of words that a price depends on meet, or with `make explore` the whole
table. `ONE_DOOR` says what one door refuses and the other does not, and why; any other difference fails.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from confide.base.errors import InputError
from confide.deploy import agree
from confide.engines.driver import simulate
from confide.plans.build import of_run
from confide.plans.config import Config, parse
from confide.plans.plan import Plan
from confide.privacy.bundle import generate_key, load_key, make_bundle, save_bundle, verify_bundle
from confide.privacy.course import Account
from confide.privacy.ledger import Book, Cost, Event, dataset_id, paid_by, read, write_events
from confide.privacy.price import PAIRS, Price, price
from confide.privacy.spent import so_far
from confide.rounds.schemes import FAMILIES, KEYS
from confide.testing import Weather, forged_units, rehearse
from exploring import more

UNITS, CLIENTS, ROUNDS = 4, 10, 4
Case = Mapping[str, str]
WORDS = {
    "scheme": (*FAMILIES, "partial:0.5"),
    "law": ("gaussian", "laplace"),
    "level": ("client", "unit", "example"),
    "adjacency": ("replace", "zero-out"),
    "proof": ("convex-glm:0.1", "none", "regulariser:0.1", "convex-glm:0"),
    "participation": ("all", "cap:2", "random:0.5", "amplified:0.5"),
    "arithmetic": ("fixed", "float"),
    "aggregation": ("plain", "secure", "noise inside"),
    "release": ("none", "centroid:0.3", "local"),
}


CONTRADICTIONS: Mapping[str, Callable[[Case], bool]] = {  # what both doors refuse
    "masks cancel in a ring of integers": lambda c: c["arithmetic"] == "float" and c["aggregation"] != "plain",
    "a unit takes part in every round": lambda c: c["level"] == "unit" and c["participation"] != "all",
    "its noise depends on the receiver": lambda c: c["scheme"] == "cancel-at-receiver" and c["arithmetic"] == "fixed",
    "a mean divides, integers do not": lambda c: c["scheme"] == "central" and c["arithmetic"] == "fixed",
}


def whole_table() -> Iterator[Case]:
    for row in itertools.product(*WORDS.values()):
        yield dict(zip(WORDS, row, strict=True))


def pairs_of(case: Case) -> set[tuple[tuple[str, str], ...]]:
    return set(itertools.combinations(case.items(), 2))


def sound(case: Case) -> bool:
    return not any(contradicts(case) for contradicts in CONTRADICTIONS.values())


def rows() -> Iterator[Case]:
    """Rows without a contradiction in which any two words meet that can, and some more that both doors may open.

    Of some drawn rows, the one that has most pairs that did not meet before.
    """
    table = list(filter(sound, whole_table()))
    left, draw = set().union(*map(pairs_of, table)), random.Random(1)  # noqa: S311 - no secret
    while left:
        pair = dict(min(left))
        known = [case for case in table if pair.items() <= case.items()]
        best = max(draw.sample(known, min(len(known), 100)), key=lambda case: len(pairs_of(case) & left))
        left -= pairs_of(best)
        yield best
    yield from draw.sample([case for case in table if case["arithmetic"] == "fixed"], 15)


CASES = list(more(rows, whole_table)())


class Difference(NamedTuple):
    """Configs that one door refuses and the other does not, the key that it names, and why that is right."""

    refused_by: str
    of: Callable[[Case], bool]
    key: str
    why: str


ONE_DOOR = (
    Difference(
        "deployed",
        lambda c: c["arithmetic"] == "float",
        "algorithm.arithmetic",
        "machines that agree to the last bit compute with integers; a simulation may try real numbers out",
    ),
    Difference(
        "deployed",
        lambda c: c["scheme"] in ("central", "local-only"),
        "scheme.name",
        "a trusted centre, or servers that are silent, are what a network is compared with, and no network",
    ),
)


def config(case: Case, *changes: str) -> Config:
    """It goes on without an epsilon where there is none, so that both doors print why."""
    sized = FAMILIES.get(case["scheme"], FAMILIES["shared"]).places.intersection(KEYS["sigma"])
    scheme = {"name": case["scheme"], "noise": case["law"], "sigma": 0.5 if sized else 0.0}
    names = ("level", "adjacency", "proof", "participation", "release")
    table: dict[str, Any] = {
        "rounds": ROUNDS,
        "repeats": 1,
        "problem": {"units": UNITS, "clients": CLIENTS, "samples": 6, "rho": 0.1},
        "graph": {"topology": "path"},
        "algorithm": {
            "step": 0.3, "sampled": 5, "local_steps": 2, "batch": 3, "replacement": False, "clip": "example",
            "bound": 1.0, "arithmetic": case["arithmetic"],
            "aggregation": "plain" if case["aggregation"] == "plain" else "secure",
        },
        "secure": {"sigma": 0.4 if case["aggregation"] == "noise inside" else 0.0},
        "scheme": scheme | ({"sigma_pair": 0.7} if case["scheme"] == "pairwise" else {}),
        "privacy": {name: case[name] for name in names} | {"unprotected": True},
    }  # fmt: skip
    return parse(table, changes)


def simulated(c: Config) -> Price:
    x = c.build()
    assert x.privacy is not None
    return price(of_run(x.problem, x.graph, x.algorithm, x.rounds, x.seed, x.privacy))


def deployed(c: Config) -> Price:
    return price(agree(c, forged_units(UNITS, CLIENTS)))


DOORS: Mapping[str, Callable[[Config], Price]] = {"simulated": simulated, "deployed": deployed}


def through(door: str, c: Config) -> Price | InputError:
    try:
        return DOORS[door](c)
    except InputError as e:
        return e


@pytest.mark.parametrize("why", CONTRADICTIONS)
def test_a_contradiction_is_refused_at_both_doors(why: str) -> None:
    case = next(case for case in whole_table() if [w for w in CONTRADICTIONS if CONTRADICTIONS[w](case)] == [why])
    assert all(isinstance(through(door, config(case)), InputError) for door in DOORS), case


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(c.values()))
def test_both_doors(case: Case) -> None:
    found = {door: through(door, config(case)) for door in DOORS}
    refused = {door: e for door, e in found.items() if isinstance(e, InputError)}
    if len(refused) == 1:
        ((door, e),) = refused.items()
        listed = [d for d in ONE_DOOR if d.refused_by == door and d.of(case) and d.key == e.field]
        assert listed, f"only {door} refuses {dict(case)}: {e}"
    elif refused:
        assert not sound(case), refused
    else:
        assert not [d for d in ONE_DOOR if d.of(case)], "the list is out of date"
        same(*(p for p in found.values() if isinstance(p, Price)))
    if opened := [p for p in found.values() if isinstance(p, Price)]:
        adds_up(opened[-1])


def same(one: Price, other: Price) -> None:
    """All that a price says, but for what only a deployment has: clocks, and keys for pair noise."""
    assert {line.partition(":")[0].partition("[")[0] for line in one.plan.diff(other.plan)} == {"deployment", "units"}
    said, told = one.statement(), other.statement()
    assert replace(said, unprotected=()) == replace(told, unprotected=())
    assert said.unprotected == tuple(why for why in told.unprotected if why != PAIRS)
    assert (one.messages, one.release) == (other.messages, other.release)
    assert one.after(2) == other.after(2)
    assert one.release_after(2) == other.release_after(2)


def adds_up(p: Price) -> None:
    """The events of whoever published j times, and released after it, are what the account of j rounds says."""
    for j in (2, ROUNDS):
        total = account_of(p, j)
        if total is None or total.leak:
            continue
        rho, epsilon = summed(p, j)
        law = p.plan.scheme.law
        if total.by == "messages" and law.pure and not p.releases and p.plan.P > 1 and epsilon is not None:
            assert epsilon >= (total.epsilon_pure or 0.0) * (1 - 1e-9)
        if rho is None or total.rho is None or total.by != ("sum" if p.by_sums else "messages"):
            continue
        if law.pure and total.by == "messages":  # a round's pure epsilon is charged, whose rho is a little more
            assert rho >= total.rho * (1 - 1e-9)
        else:
            assert rho == pytest.approx(total.rho, rel=1e-9)


def account_of(p: Price, rounds: int) -> Account | None:
    try:
        return p.account(rounds, p.releases)
    except InputError:
        return None


def summed(p: Price, published: int) -> tuple[float | None, float | None]:
    costs: list[Cost] = [*p.messages[:published], *[p.release_after(published)] * p.releases]
    rhos, epsilons = [c.rho for c in costs], [c.epsilon for c in costs]
    return _sum(rhos), _sum(epsilons)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [x for x in values if x is not None]
    return math.fsum(known) if len(known) == len(values) else None


# ---- events of runs and of rehearsals

PLAYED = {
    "messages": {"scheme": "shared", "level": "client", "release": "none", "aggregation": "plain"},
    "release": {"scheme": "partial:0.5", "level": "unit", "release": "centroid:0.3", "aggregation": "plain"},
    "worst of two targets": {"scheme": "per-link", "level": "client", "release": "centroid:0.3", "aggregation": "plain"}
    | {"proof": "convex-glm:0"},
    "sums": {"scheme": "homomorphic", "level": "client", "release": "none", "aggregation": "noise inside"},
}
USUAL = {"law": "gaussian", "adjacency": "replace", "proof": "none", "participation": "all", "arithmetic": "fixed"}


@pytest.mark.parametrize("name", PLAYED)
def test_a_saved_run_spends_what_its_statement_says(name: str, tmp_path: Path) -> None:
    c = config(USUAL | PLAYED[name])
    x, p = c.build(), simulated(c)
    run = simulate(x.problem, x.graph, x.algorithm, rounds=x.rounds, repeats=1, seed=0, privacy=x.privacy)
    run.save(tmp_path / "run")
    book, plan = read(tmp_path / "run" / "ledger.jsonl"), Plan.load(tmp_path / "run" / "plan.json")
    assert plan == p.plan
    assert paid_by([book]).rho == pytest.approx(p.account(ROUNDS, p.releases).rho, rel=1e-9)
    assert verified(tmp_path, plan, book, run.summary()["privacy"]["statement"])


@pytest.mark.parametrize("name", PLAYED)
@pytest.mark.parametrize("lost", [False, True], ids=["calm", "rounds are skipped"])
def test_a_rehearsal_spends_what_the_statement_says(name: str, lost: bool, tmp_path: Path) -> None:
    c = config(USUAL | PLAYED[name])
    p = deployed(c)
    weather = Weather(client_crash=0.5, away=(60.0, 200.0), calm=300.0) if lost else None
    played = rehearse(p.plan, c.build().problem, weather=weather)
    events = [e for of in played.ledgers for e in of]
    published = [sum(e.kind in ("message", "sum") and e.cost.law != "none" for e in of) for of in played.ledgers]
    assert max(published) == ROUNDS if not lost else min(published) < ROUNDS
    events += [
        Event(p.plan.hash, "release", ROUNDS, unit, p.release_after(n), time=2**40)
        for unit, n in enumerate(published)
        for _ in range(p.releases)
    ]
    write_events(tmp_path / "ledger.jsonl", dataset_id("data"), p.plan, events)
    book = read(tmp_path / "ledger.jsonl")
    for unit, n in enumerate(published):
        rho = pytest.approx(p.account(n, p.releases).rho if n else 0.0, rel=1e-9)
        own = replace(book, runs=(book.runs[0]._replace(events=tuple(e for e in events if e.unit == unit)),))
        assert paid_by([own]).rho == rho
        if p.releases:
            [shown] = [a for a in so_far(p, n, p.releases, 0.0).accounts if a.threat == "links"]
            assert shown.rho == rho
    assert verified(tmp_path, p.plan, book, p.statement().to_dict())


def verified(folder: Path, plan: Plan, book: Book, statement: Mapping[str, Any]) -> bool:
    generate_key(folder / "key.pem")
    text = make_bundle(plan, book.where, statement, {}, load_key(folder / "key.pem"))
    save_bundle(folder / "bundle.json", text)
    report = verify_bundle(folder / "bundle.json", None)
    assert report.ok, report.checks
    return report.ok
