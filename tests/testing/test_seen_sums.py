"""Issue 23, item 9: a sum that the own server saw and then skipped was free; it is paid for before it is asked for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf as NEVER
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import deployed
from confide.base.errors import InputError
from confide.deploy.machines import exchange
from confide.deploy.machines.terms import of_plan
from confide.deploy.store.books import Books, Changes
from confide.deploy.store.sqlite import SqliteStore, StoreError
from confide.deploy.store.store import MemoryStore
from confide.plans.config import parse
from confide.plans.plan import Plan
from confide.privacy import price
from confide.privacy.bundle import generate_key, load_key, make_bundle, save_bundle, verify_bundle
from confide.privacy.ledger import FREE, Event, compose, dataset_id, read, write_events
from confide.privacy.price import Price
from confide.testing.network import Network, Weather
from confide.testing.rehearsal import forged_units, server_identity, training_units
from invariants import Watch, balanced

ROUNDS = 8
BASE: dict[str, Any] = {
    "rounds": ROUNDS,
    "repeats": 1,
    "graph": {"topology": "path"},
    "problem": {"units": 3, "clients": 4, "samples": 12, "features": 2},
    "algorithm": {"step": 0.1, "sampled": 4, "clip": "example", "bound": 1.0, "arithmetic": "fixed",
                  "aggregation": "secure", "fraction_bits": 20},
    "scheme": {"name": "homomorphic", "sigma": 0.2, "noise": "gaussian"},
    "secure": {"sigma": 0.2},
    "privacy": {"threat": "own-server"},
}  # fmt: skip


def agreed(**tables: Any) -> tuple[Price, Any]:
    e = parse(
        {
            name: table | tables.get(name, {}) if isinstance(table, dict) else tables.get(name, table)
            for name, table in BASE.items()
        }
    )
    built = e.build()
    units = forged_units(built.problem.federation.P, built.problem.federation.K.tolist())
    return price.agreed(deployed(built, units, adapt=10.0, exchange=2.0, drain=20.0)), built


def play(
    prices: Price, e: Any, folder: Path, weather: Weather, allowed: int | None = None, **settings: Any
) -> list[list[Event]]:
    """The ledgers of a run in files, each read back as an auditor reads it."""

    def create(p: int, books: Books) -> SqliteStore:
        text = prices.plan.text
        return SqliteStore.create(folder / f"{p}.db", plan=text, server=p, dataset=dataset_id("box"), books=books)

    units = training_units(prices, e.problem, e.seed, store=create, rounds=allowed, **settings)
    watch = Watch([u.terms for u in units], [u.store.load() for u in units])
    network = Network(units, weather, seed=1, committed=watch.committed, sent=watch.sent)
    network.run(until=10_000.0, done=network.finished)
    assert network.finished()
    assert network.crashes == Counter(point for _, point, _ in weather.crash_at)
    balanced(watch.terms, watch.books)
    found = []
    for p, unit in enumerate(units):
        unit.store.close()
        with SqliteStore.open(folder / f"{p}.db", prices.plan, p) as store:
            store.export_ledger(folder / f"{p}.jsonl")
            events = [entry.event for entry in store.entries()]
            paid = [e for e in events if e.kind == "sum"]
            assert store.load().published == len(paid)
            assert [event.cost for event in paid] == list(prices.messages[: len(paid)])
            assert all(event.cost == FREE for event in events if event.kind != "sum")
        found.append(events)
    return found


def after_sums(events: list[Event]) -> Counter[str]:
    """What became of the rounds whose sum was asked for."""
    asked = {event.round for event in events if event.kind == "sum"}
    return Counter(event.kind for event in events if event.kind != "sum" and event.round in asked)


AWAY = (60.0, 60.0)  # while a server is gone the others move on, and it has to catch up


@pytest.mark.parametrize("server", ["curious", "active"])
@pytest.mark.parametrize("point", ["adapt.aggregated", "publish.drawn"])
def test_a_sum_that_was_seen_and_skipped_costs_what_it_costs(server: str, point: str, tmp_path: Path) -> None:
    prices, e = agreed(secure={"server": server, "corrupted": 0.0})
    assert prices.by_sums
    weather = Weather(crash_at=((1, point, 1),), away=AWAY)
    ledgers = play(prices, e, tmp_path, weather)
    assert after_sums(ledgers[0]) == {"message": ROUNDS}
    seen = after_sums(ledgers[1])
    assert seen["skip"] == 1  # its sum was in memory when the machine died
    rho = prices.messages[0].rho
    assert rho is not None
    (total,) = compose([read(tmp_path / "1.jsonl")]).values()
    assert total.rho == pytest.approx((seen["message"] + 1) * rho)

    generate_key(tmp_path / "key.pem")
    text = make_bundle(prices.plan, tmp_path / "1.jsonl", {}, {}, load_key(tmp_path / "key.pem"))
    save_bundle(tmp_path / "bundle.json", text)
    report = verify_bundle(tmp_path / "bundle.json")
    assert report.ok, report.checks


def test_a_round_without_a_question_costs_nothing(tmp_path: Path) -> None:
    prices, e = agreed()
    events = play(prices, e, tmp_path, Weather(crash_at=((1, "adapt.handed_out", 1),), away=AWAY))[1]
    assert Counter(event.kind for event in events)["skip"] > 1
    assert after_sums(events)["skip"] == 0


def test_an_active_server_pays_when_it_asks_for_the_sum_not_for_consents(tmp_path: Path) -> None:
    """The first question's transcript is committed without a row, that of the second with one."""
    prices, e = agreed(secure={"server": "active", "corrupted": 0.0})
    weather = Weather(crash_at=((1, "adapt.tx.commit", 0),), away=AWAY)  # of the first: nothing is kept
    events = play(prices, e, tmp_path, weather)[1]
    assert after_sums(events)["skip"] == 0
    (tmp_path / "again").mkdir()
    weather = Weather(crash_at=((1, "adapt.tx.ledger", 0),), away=(0.01, 0.01))  # it asks again, and pays once
    events = play(prices, e, tmp_path / "again", weather)[1]
    assert after_sums(events) == {"message": ROUNDS}


def test_seen_sums_count_against_the_budget(tmp_path: Path) -> None:
    prices, e = agreed()
    weather = Weather(crash_at=((1, "adapt.aggregated", 1),), away=AWAY)
    ledgers = play(prices, e, tmp_path, weather, allowed=3)
    assert [Counter(event.kind for event in events)["sum"] for events in ledgers] == [3, 3, 3]
    assert after_sums(ledgers[1]) == {"message": 2, "skip": 1}


def test_a_rejoin_does_not_pay_twice_for_a_sum() -> None:
    prices, _ = agreed()
    terms = of_plan(prices, 1)
    assert terms.sums_cost
    books = Books.fresh(np.zeros(terms.rules.length, np.int64), tuple(terms.weights))
    books.apply(exchange.reveal(books, terms.rules, terms.costs[0], 0))
    assert books.published == 1
    books.apply(exchange.rejoin(books, terms.rules, 3, [None, *terms.costs[1:3]], 0, server_identity(1).sign))
    assert (books.decided, books.published) == (3, 3)


@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("moment", [45.0, 225.0, 228.0])
def test_the_epsilon_does_not_fall_when_nobody_knows_what_was_lost(units: int, moment: float) -> None:
    """A server that is alone, or all of them, with a new store: every sum that was seen is still paid for."""
    prices, e = agreed(rounds=30, problem={"units": units})
    network = Network(training_units(prices, e.problem, e.seed), Weather(), seed=1)
    network.run(until=moment)
    before = [unit.store.load().published for unit in network.units]
    for p, unit in enumerate(network.units):
        network.kill(p, NEVER)
        lost = unit.store.load()
        unit.store = MemoryStore(Books.fresh(np.zeros_like(lost.contribution), lost.neighbours))
        network.at(moment + 0.5, network._boot, p, True)
    network.run(until=moment + 1.0)
    for paid, unit in zip(before, network.units, strict=True):
        books = unit.store.load()
        assert books.published == books.decided >= paid > 0
        assert prices.after(books.published) >= prices.after(paid)


def test_a_plan_that_counts_messages_writes_no_sums(tmp_path: Path) -> None:
    prices, e = agreed(privacy={"threat": "links", "proof": "regulariser:0.1"}, scheme={"sigma": 50.0})
    assert not prices.by_sums
    assert not of_plan(prices, 0).sums_cost
    kinds: Counter[str] = Counter()
    units = training_units(prices, e.problem, e.seed)
    network = Network(units, Weather(crash_at=((1, "adapt.aggregated", 1),), away=AWAY), seed=1)
    network.run(until=10_000.0, done=network.finished)
    for unit in units:
        kinds.update(entry.event.kind for entry in unit.store.entries())
    assert set(kinds) == {"message", "skip"}


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda events: events[:1] + events, "rounds"),  # a sum twice
        (lambda events: [events[1], events[0], *events[2:]], "rounds"),  # a sum after its message
        (lambda events: [*events[:2], _cheaper(events[2]), *events[3:]], "prices"),
        (lambda events: [events[0], _charged(events[1], events[0]), *events[2:]], "prices"),
    ],
)
def test_an_auditor_sees_a_sum_that_is_not_what_the_plan_says(tmp_path: Path, change: Any, check: str) -> None:
    prices, _ = agreed()
    plan, events = prices.plan, []
    for i in range(1, ROUNDS + 1):
        events += [Event(plan.hash, "sum", i, 0, prices.messages[i - 1]), Event(plan.hash, "message", i, 0)]
    generate_key(tmp_path / "key.pem")
    key = load_key(tmp_path / "key.pem")
    write_events(tmp_path / "good.jsonl", dataset_id("x"), plan, events)
    make_bundle(plan, tmp_path / "good.jsonl", {}, {}, key)
    write_events(tmp_path / "bad.jsonl", dataset_id("x"), plan, change(events))
    with pytest.raises(InputError, match=f"bundle.{check}"):
        make_bundle(plan, tmp_path / "bad.jsonl", {}, {}, key)


def _cheaper(event: Event) -> Event:
    return replace(event, cost=replace(event.cost, rho=1e-9))


def _charged(event: Event, paid: Event) -> Event:
    return replace(event, cost=paid.cost)


def test_a_store_refuses_sums_out_of_place(histories: Any, tmp_path: Path) -> None:
    plan: Plan = histories.make_plan(rounds=4)
    store = SqliteStore.create(
        tmp_path / "s.db", plan=plan.text, server=histories.SERVER, dataset=histories.DATASET,
        books=histories.make_books(),
    )  # fmt: skip

    def entry(kind: str, i: int) -> Any:
        return histories._entry(plan, kind, i)

    store.commit(Changes(published=1, entries=[entry("sum", 1)]))
    for wrong in (
        Changes(published=2, entries=[entry("sum", 1)]),
        Changes(published=2, entries=[entry("sum", 2)]),
        Changes(entries=[entry("sum", 1)]),
        Changes(decided=1, published=2, entries=[entry("message", 1)]),  # it was paid for
    ):
        with pytest.raises(StoreError):
            store.commit(wrong)
    store.close()
    with SqliteStore.open(tmp_path / "s.db", plan) as again:
        assert again.load().published == 1
        again.commit(Changes(decided=2, entries=[entry("skip", 1), entry("skip", 2)]))
        assert (again.load().decided, again.load().published) == (2, 1)
