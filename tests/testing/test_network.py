"""Without faults the network in a box is the reference, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import deployed, reference_bits
from confide.deploy.machines import training
from confide.deploy.machines.draws import secret_noise
from confide.deploy.machines.ports import Phase
from confide.deploy.machines.terms import of_plan
from confide.deploy.machines.training import Trainer
from confide.deploy.store.books import Books
from confide.deploy.store.sqlite import SqliteStore
from confide.deploy.store.store import MemoryStore, Store
from confide.plans.config import Experiment, parse
from confide.privacy import deviation, price
from confide.privacy.ledger import dataset_id, read
from confide.privacy.price import Price
from confide.rounds.schemes import Scheme
from confide.secure.keys import KeyPair
from confide.testing.network import Cut, Network, Weather
from confide.testing.rehearsal import forged_units, training_units
from exploring import more
from invariants import Watch, balanced

ROUNDS = 6
SECURE: dict[str, Any] = {"aggregation": "secure", "sampled": 4}


def experiment(scheme: dict[str, Any], topology: str = "ring", **tables: dict[str, Any]) -> Experiment:
    base: dict[str, Any] = {
        "rounds": ROUNDS,
        "repeats": 1,
        "seed": 5,
        "graph": {"topology": topology},
        "problem": {"units": 4, "clients": 5, "samples": 12, "features": 3},
        "algorithm": {"step": 0.1, "sampled": 3, "clip": "example", "bound": 1.0, "arithmetic": "fixed",
                      "local_steps": [1, 4], "batch": [3, 5], "fraction_bits": 20},
        "scheme": scheme,
        "privacy": {"unprotected": True},  # bits are compared here, of schemes and clips with and without a proof
    }  # fmt: skip
    content = base | {name: base.get(name, {}) | table for name, table in tables.items()}
    return parse(content).build()


def agreed(e: Experiment) -> Price:
    units = forged_units(e.problem.federation.P, e.problem.federation.K.tolist())
    return price.agreed(deployed(e, units, adapt=10.0, exchange=2.0, drain=20.0))


def play(
    prices: Price,
    e: Experiment,
    weather: Weather | None = None,
    store: Callable[[int, Books], Store] = lambda _, books: MemoryStore(books),
    **settings: Any,
) -> tuple[Network, Watch]:
    units = training_units(prices, e.problem, e.seed, store=store, **settings)
    watch = Watch([u.terms for u in units], [u.store.load() for u in units])
    network = Network(units, weather, seed=1, committed=watch.committed, sent=watch.sent)
    network.run(until=10_000.0, done=network.finished)
    balanced(watch.terms, watch.books)
    return network, watch


def models(network: Network) -> np.ndarray:
    assert all(u.server is not None for u in network.units)
    return np.array([u.server.books.w for u in network.units if u.server is not None])


def settings_of(s: Scheme) -> dict[str, Any]:
    return {"name": s.name, "sigma": s.sigma, "sigma_pair": s.sigma_pair, "noise": "gaussian"}


@pytest.mark.parametrize("topology", more(["ring", "star"], ["ring", "star", "complete", "path"]))
def test_the_network_is_the_reference(each_fixed_scheme: Scheme, topology: str) -> None:
    if each_fixed_scheme.exchange != "graph":
        pytest.skip("a baseline of simulations: there is nothing to exchange")
    e = experiment(settings_of(each_fixed_scheme), topology)
    network, _ = play(agreed(e), e, Weather(delay=(0.001, 0.4)))
    assert np.array_equal(models(network), reference_bits(e, ROUNDS))
    assert all(u.server is not None and not u.server.alarms for u in network.units)


@pytest.mark.parametrize(
    "tables",
    [
        {"algorithm": SECURE},
        {"algorithm": SECURE, "secure": {"sigma": 0.05}},
        {"algorithm": SECURE | {"clip": "update"}, "problem": {"rho": 0.0}},
        {"algorithm": {"clip": "update"}},
        {"algorithm": {"norm": "l1"}, "scheme": {"noise": "laplace"}},
        {"algorithm": {"step": 1.0}, "problem": {"rho": 0.3}},  # a large decay
    ],
    ids=["secure", "secure-noise", "secure-update", "update", "l1-laplace", "decay"],
)
@pytest.mark.parametrize("name", more(["homomorphic", "per-link"], ["homomorphic", "shared", "per-link"]))
def test_every_sum_and_clip(tables: dict[str, Any], name: str) -> None:
    scheme = {"name": name, "sigma": 0.2, "noise": "gaussian"} | tables.get("scheme", {})
    e = experiment(scheme, **{key: table for key, table in tables.items() if key != "scheme"})
    network, _ = play(agreed(e), e)
    assert np.array_equal(models(network), reference_bits(e, ROUNDS))


CAPPED: dict[str, Any] = {"participation": "cap:2", "unprotected": True}


def test_a_cap_is_kept_as_in_the_reference(each_fixed_scheme: Scheme) -> None:
    if each_fixed_scheme.exchange != "graph":
        pytest.skip("a baseline of simulations: there is nothing to exchange")
    e = experiment(settings_of(each_fixed_scheme), privacy=CAPPED)
    network, _ = play(agreed(e), e, Weather(delay=(0.001, 0.4)))
    assert np.array_equal(models(network), reference_bits(e, ROUNDS))
    free = experiment(settings_of(each_fixed_scheme))
    assert not np.array_equal(reference_bits(e, ROUNDS), reference_bits(free, ROUNDS))


@pytest.mark.parametrize(
    "tables",
    [
        {"algorithm": SECURE, "secure": {"sigma": 0.05}},
        {"algorithm": SECURE | {"clip": "update"}, "problem": {"rho": 0.0}},
        {"algorithm": {"step": 1.0}, "problem": {"rho": 0.3}},
    ],
    ids=["secure-noise", "secure-update", "decay"],
)
def test_a_cap_with_every_sum_and_clip(tables: dict[str, Any]) -> None:
    e = experiment({"name": "homomorphic", "sigma": 0.2, "noise": "gaussian"}, privacy=CAPPED, **tables)
    network, _ = play(agreed(e), e)
    assert np.array_equal(models(network), reference_bits(e, ROUNDS))
    sampled = e.algorithm.sampled
    counts = [client.record.given.rounds for unit in network.units for client in unit.machines]
    assert max(counts) == 2
    assert sum(counts) < ROUNDS * sampled * len(network.units)


def test_a_client_without_usable_data_moves_psi_no_further_than_priced_and_an_absent_one_does() -> None:
    """The decay is outside of every clip, so that whether a client is there must not depend on its data."""
    shared = {"name": "shared", "sigma": 0.2, "noise": "gaussian"}
    e = experiment(shared, problem={"rho": 0.5}, algorithm={"sampled": 5, "step": 0.3})
    prices = agreed(e)
    terms, plan, arithmetic = of_plan(prices, 0), prices.plan, prices.arithmetic
    w = arithmetic.state(np.full(e.problem.M, 50.0))

    def psi(trainers: dict[int, Trainer]) -> np.ndarray:
        total = np.zeros(e.problem.M, np.int64)
        for trains in trainers.values():
            total += arithmetic.encode(trains(arithmetic.value(w), 1, {}))
        return arithmetic.value(arithmetic.add(w, total, terms.shrink(range(5), trainers.keys())))

    all_of_them = {
        k: training.of_plan(plan, 0, k, *e.problem.federation.client(0, k), key=lambda i: 7) for k in range(5)
    }
    nothing = training.without_data(plan, 0, 0)
    assert not nothing(arithmetic.value(w), 1, {}).any()
    most = deviation.sensitivity(plan).single
    assert np.linalg.norm(psi(all_of_them) - psi(all_of_them | {0: nothing})) <= most * (1 + 1e-9)
    away = {k: trains for k, trains in all_of_them.items() if k}
    assert np.linalg.norm(psi(all_of_them) - psi(away)) > 10 * most
    said = prices.statement().accounts[0].assumptions
    assert any("takes part with zeros" in x and "is assumed" in x for x in said)


def test_an_active_server(tmp_path: Path) -> None:
    e = experiment(
        {"name": "homomorphic", "sigma": 0.2}, algorithm=SECURE, secure={"server": "active", "corrupted": 0.0}
    )
    network, _ = play(agreed(e), e)
    assert np.array_equal(models(network), reference_bits(e, ROUNDS))
    network.run(until=network.now + 60.0)  # what is on its way arrives
    assert all(client.finished for unit in network.units for client in unit.machines)  # they were told


def sqlite(prices: Price, folder: Path) -> Callable[[int, Books], SqliteStore]:
    def create(p: int, books: Books) -> SqliteStore:
        path = folder / f"{p}.sqlite"
        text = prices.plan.text
        return SqliteStore.create(path, plan=text, server=p, dataset=dataset_id("box"), books=books)

    return create


def test_in_files_with_secure_sums(tmp_path: Path) -> None:
    """The same bits, and ledgers that an auditor can read."""
    e = experiment({"name": "homomorphic", "sigma": 0.2, "noise": "gaussian"}, algorithm=SECURE)
    prices = agreed(e)
    network, _ = play(prices, e, store=sqlite(prices, tmp_path))
    assert np.array_equal(models(network), reference_bits(e, ROUNDS))
    for p, unit in enumerate(network.units):
        unit.store.close()
        with SqliteStore.open(tmp_path / f"{p}.sqlite", prices.plan, p) as store:
            assert np.array_equal(store.load().w, models(network)[p])
            store.export_ledger(tmp_path / f"{p}.jsonl")
        book = read(tmp_path / f"{p}.jsonl")
        assert [event.cost for event in book.events] == list(prices.messages)
        assert [(event.kind, event.round, event.unit) for event in book.events] == [
            ("message", i, p) for i in range(1, ROUNDS + 1)
        ]


@pytest.mark.parametrize(
    "point",
    ["adapt.handed_out", "adapt.tx.commit", "adapt.aggregated", "publish.drawn", "publish.committed", "sync.committed"],
)
def test_a_crash_in_a_secure_round_changes_nothing(point: str, tmp_path: Path) -> None:
    """Before the question a new session is opened, after it the very same question is asked again."""
    e = experiment({"name": "homomorphic", "sigma": 0.2, "noise": "gaussian"}, algorithm=SECURE)
    prices = agreed(e)
    weather = Weather(crash_at=((1, point, 1), (2, point, 3)), away=(0.01, 0.02))
    network, _ = play(prices, e, weather, store=sqlite(prices, tmp_path))
    assert network.crashes[point] == 2
    assert np.array_equal(models(network), reference_bits(e, ROUNDS))
    network.units[0].store.close()


@pytest.mark.parametrize("seed", range(int(os.environ.get("CONFIDE_STORIES", more(2, 4)))))
def test_secure_sums_in_bad_weather(seed: int, tmp_path: Path) -> None:
    """Clients vanish and return, servers die, messages are lost: nothing is unmasked twice, and sums are conserved."""
    e = experiment({"name": "shared", "sigma": 0.2, "noise": "gaussian"}, algorithm=SECURE)
    prices = agreed(e)
    cut = (Cut(5.0, 25.0, ("server", 0, 0), ("server", 1, 0)), Cut(5.0, 25.0, ("server", 1, 0), ("server", 0, 0)))
    weather = Weather(
        delay=(0.001, 0.3), loss=0.02, duplication=0.1, crash=0.01, client_crash=0.02, away=(0.5, 15.0), cuts=cut,
        calm=60.0,
    )  # fmt: skip
    units = training_units(prices, e.problem, e.seed, store=sqlite(prices, tmp_path))
    watch = Watch([u.terms for u in units], [u.store.load() for u in units])
    network = Network(units, weather, seed=seed, committed=watch.committed, sent=watch.sent)
    network.run(until=10_000.0, done=lambda: network.calm and network.finished())
    assert [u.server.phase for u in units if u.server] == [Phase.FINISHED] * 4
    balanced(watch.terms, watch.books)
    for unit in units:
        assert [entry.event.round for entry in unit.store.entries()] == list(range(1, ROUNDS + 1))
        unit.store.close()


def test_a_budget_that_earlier_runs_have_used(tmp_path: Path) -> None:
    """Every unit stops before its budget is passed, with the model of the last paid round."""
    e = experiment({"name": "homomorphic", "sigma": 0.2, "noise": "gaussian"})
    prices = agreed(e)
    network, watch = play(prices, e, rounds=4)
    assert np.array_equal(models(network), reference_bits(e, 4))
    for unit in network.units:
        kinds = [entry.event.kind for entry in unit.store.entries()]
        assert kinds == ["message"] * 4 + ["skip"] * 2
    assert watch.commits > 0


def test_the_noise_of_a_real_pairwise_network_cancels_in_the_sum() -> None:
    """Both ends of an edge derive its noise from their own keys: no word is exchanged, and nothing stays in the sum."""
    exchange = [KeyPair.of(bytes([p + 1]) * 32) for p in range(4)]
    quiet, noisy = ({"name": "pairwise", "sigma": 0.0, "sigma_pair": s, "noise": "gaussian"} for s in (0.0, 0.5))
    sums, single = [], []
    for scheme in (quiet, noisy):
        e = experiment(scheme, algorithm={"clip": "update", "step": 0.01, "bound": 1e-3})
        prices = agreed(e)
        units = training_units(prices, e.problem, e.seed)
        for p, unit in enumerate(units):
            secrets = {(min(p, m), max(p, m)): exchange[p].agree([exchange[m].public])[0] for m in unit.terms.weights}
            quantum = prices.arithmetic.quantum
            unit.noise = secret_noise(quantum, secrets, bytes.fromhex(prices.plan.hash))
        network = Network(units, seed=1)
        network.run(until=10_000.0, done=network.finished)
        sums.append(np.sum([u.server.books.contribution for u in units if u.server], axis=0))
        single.append(models(network)[0])
    moved = np.abs(sums[0] - sums[1]).max() * prices.arithmetic.quantum
    assert moved < 6 * 0.01 * 1e-3 * 4 * 2  # the clients' updates, which see other models, and nothing of the noise
    assert np.abs(single[0] - single[1]).max() * prices.arithmetic.quantum > 0.05  # which is in every model
