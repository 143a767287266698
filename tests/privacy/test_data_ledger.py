"""Spending belongs to the data: what every plan on them cost, whoever ran it, at whatever level, is paid first."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from builders import a_deployed_plan, a_plan, a_shared_plan
from confide.base import canonical
from confide.base.errors import InputError, RunError
from confide.deploy.node.client_setup import ClientSetup
from confide.deploy.node.config import ClientConfig, PeerConfig
from confide.deploy.node.memory import apart
from confide.engines import driver
from confide.engines.driver import simulate
from confide.engines.run import DivergenceWarning, Run
from confide.graph.graph import Graph
from confide.laws.conversion import gaussian_epsilon
from confide.laws.law import LAWS
from confide.plans.plan import Plan
from confide.plans.privacy import Privacy
from confide.plans.words import Adjacency, Level
from confide.privacy import data_index, data_ledger
from confide.privacy.asked import add_up, sum_lines
from confide.privacy.data_index import known
from confide.privacy.data_ledger import DataLedger, added_up, of_data
from confide.privacy.ledger import Cost, Event, Spending, dataset_id, lines, read, write_events
from confide.privacy.paid import ADVERSARIES, NOTHING, Paid, Terms, adversary
from confide.privacy.price import price
from confide.privacy.statement import rounded_up
from confide.problems import regression, table
from confide.problems.federation import Federation
from confide.problems.models import Linear
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.clipping import Clip
from confide.rounds.schemes import scheme

UNIT, CLIENT, EXAMPLE = Level
REPLACE, ZERO_OUT = Adjacency
ALGORITHM = GFL(
    scheme=scheme("shared", 3.0, noise="gaussian"), step=0.1, sampled=3, local_steps=1, batch=2,
    clip=Clip("example", 1.0),
)  # fmt: skip
LINE = (2 * 0.1 / 3) ** 2 / (2 * 9)  # rho of one of its rounds at client level: (2 mu B / L)^2 / (2 sigma^2)


def paid(rho: float | None = 1.0, epsilon: float | None = None, **more: Any) -> Paid:
    return Paid(rho, epsilon, **more)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A table of 3 units, 4 clients each."""
    path, rng = tmp_path / "rows.csv", np.random.default_rng(0)
    lines = [f"u{i % 3},c{i % 12},{rng.normal():.3f},{rng.normal():.3f},{rng.normal():.3f}" for i in range(120)]
    path.write_text("\n".join(["u,c,x,z,y", *lines, ""]))
    return path


def prepared(path: Path, numeric: tuple[str, ...] = ("x",), **more: Any) -> Problem:
    scaling = {name: [0, 1] for name in numeric}
    return table(path, label="y", unit="u", client="c", numeric=numeric, scaling=scaling, **{"test_fraction": 0} | more)


def run(problem: Problem, rounds: int = 4, ledger: Path | None = None, repeats: int = 1, **privacy: Any) -> Run:
    made = Privacy(**privacy)
    algorithm = replace(ALGORITHM, replacement=False) if made.level is EXAMPLE else ALGORITHM
    return simulate(
        problem,
        Graph.ring(problem.federation.P),
        algorithm,
        rounds=rounds,
        repeats=repeats,
        privacy=made,
        ledger=ledger,
    )


def ledgers(state: Path) -> list[Path]:
    return sorted((state / "ledgers").glob("*.jsonl"))


def spent(path: Path, who: str = "receiver", terms: Terms | None = None) -> float | None:
    book = read(path)
    return added_up(book, terms or book.terms)[who].rho


# ---- unlike promises


@pytest.mark.parametrize(
    ("of", "to", "rows", "steps"),
    [
        ((UNIT, REPLACE), (CLIENT, REPLACE), None, 1),
        ((UNIT, REPLACE), (EXAMPLE, ZERO_OUT), None, 1),
        ((CLIENT, REPLACE), (CLIENT, ZERO_OUT), None, 1),
        ((CLIENT, ZERO_OUT), (CLIENT, REPLACE), None, 2),
        ((UNIT, ZERO_OUT), (EXAMPLE, REPLACE), None, 2),
        ((CLIENT, REPLACE), (UNIT, REPLACE), (9, 9), None),
        ((EXAMPLE, REPLACE), (UNIT, REPLACE), (9, 9), None),
        ((EXAMPLE, REPLACE), (CLIENT, REPLACE), None, None),
        ((EXAMPLE, REPLACE), (CLIENT, REPLACE), (9, 9), 9),
        ((EXAMPLE, REPLACE), (CLIENT, REPLACE), (9, 4), 13),  # through nothing: 9 out, 4 in
        ((EXAMPLE, REPLACE), (CLIENT, ZERO_OUT), (9, 4), 9),
        ((EXAMPLE, ZERO_OUT), (CLIENT, ZERO_OUT), (9, 4), 9),
        ((EXAMPLE, ZERO_OUT), (CLIENT, REPLACE), (9, 4), 13),
        ((EXAMPLE, ZERO_OUT), (CLIENT, REPLACE), (9, 9), 18),
    ],
)
def test_how_many_changes_of_one_promise_make_one_of_another(
    of: tuple[Level, Adjacency], to: tuple[Level, Adjacency], rows: tuple[int, int] | None, steps: int | None
) -> None:
    assert Terms(*of).steps(Terms(*to), rows) == steps


def sums(n: int, kind: Adjacency, other: int = 0) -> float:
    """How far a sum of rows in [-1, 1] moves when n rows of +1 become nothing, or `other` rows of -1."""
    return float(n if kind is ZERO_OUT else n + other)


@pytest.mark.parametrize(
    ("of", "to", "rows"),
    [
        ((CLIENT, ZERO_OUT), (CLIENT, REPLACE), None),
        ((EXAMPLE, REPLACE), (CLIENT, REPLACE), (7, 7)),
        ((EXAMPLE, ZERO_OUT), (CLIENT, ZERO_OUT), (7, 7)),
        ((EXAMPLE, ZERO_OUT), (CLIENT, REPLACE), (7, 4)),
    ],
)
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_the_factors_are_attained(
    law: str, of: tuple[Level, Adjacency], to: tuple[Level, Adjacency], rows: tuple[int, int] | None
) -> None:
    """A noisy sum of rows in [-1, 1]: of some data the change of many rows costs exactly what the factor says."""

    def cost(terms: Terms) -> Paid:
        n, other = rows if rows is not None and terms.level is CLIENT else (1, 1)
        found = LAWS[law].cost(np.array([sums(n, terms.adjacency, other)]), 5.0, 1.0)
        return paid(float(found.rho[0]), None if found.pure is None else float(found.pure[0]))

    steps = Terms(*of).steps(Terms(*to), rows)
    assert steps is not None
    converted, true = cost(Terms(*of)).over(steps), cost(Terms(*to))
    if law == "laplace":
        assert converted.epsilon == pytest.approx(true.epsilon, rel=1e-12)
    else:
        assert converted.rho == pytest.approx(true.rho, rel=1e-12)
        mu = steps * math.sqrt(2 * (cost(Terms(*of)).rho or 0))  # group privacy of mu-GDP, exactly
        assert replace(converted, gaussian=True).at(1e-5) == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-9)


def test_costs_add_up_and_what_has_no_bound_has_no_sum() -> None:
    both = paid(0.5, 1.0, gaussian=True, draws=3) + paid(0.25, 0.5, draws=4)
    assert (both.rho, both.epsilon, both.gaussian, both.draws) == (0.75, 1.5, False, 7)
    assert paid(0.5, None) + paid(None, 1.0) == paid(None, None)
    assert (NOTHING + paid(0.5, gaussian=True)).at(1e-5) == pytest.approx(gaussian_epsilon(1.0, 1e-5))
    assert paid(None).at(1e-5) is None
    assert paid(None, 2.0).at(0.0) == 2.0
    assert paid(1e4, draws=10**9).at(1e-5) is None  # less noise than the sampler is exact
    assert paid(0.5, 1.0).times(3) == paid(1.5, 3.0)


def test_a_curve_is_not_added_but_who_is_drawn_at_random_is_bounded() -> None:
    """By a client that is always there: a sum of rho, where a curve has none."""
    always = price(a_shared_plan(rounds=4, sampled=2))
    chance = price(a_shared_plan(rounds=4, sampled=2, participation="random:0.4"))
    assert chance.account(4).rho is None
    assert chance.spent(4)["links"].rho == always.spent(4)["links"].rho


def test_every_adversary_of_the_statement_has_a_cost_and_its_proof() -> None:
    found = price(a_plan(rounds=5, level="unit", release="centroid:0.5"))
    costs, said = found.spent(5), found.statement()
    assert list(costs) == list(ADVERSARIES)
    by = {a.threat.partition(":")[0]: a for a in said.accounts}  # of links the one with the release
    for name, threat in {"receiver": "links", "colluder": "colluders", "neighbours": "neighbours"}.items():
        assert costs[name].rho == by[threat].rho
        assert costs[name].at(1e-5) == pytest.approx(by[threat].epsilon)
    assert costs["links"].rho < costs["receiver"].rho < costs["colluder"].rho < costs["neighbours"].rho
    assert costs["own-server"].rho is None
    assert costs["own-server"].proof.startswith("leak: the own server sees every client's update in clear")
    assert found.spent(0) == dict.fromkeys(ADVERSARIES, NOTHING)
    assert adversary(Privacy(threat="colluders:1,2").threat) is None


def test_a_single_server_has_no_colluders_who_know_more_than_the_receiver() -> None:
    costs = price(a_plan(graph=Graph.complete(1), rounds=3, level="unit", release="centroid:0.5")).spent(3)
    assert costs["links"].rho == 0.0
    assert costs["colluder"] == costs["neighbours"] == costs["receiver"]


# ---- whose data


def test_a_table_has_one_ledger_however_it_is_prepared(rows: Path, state: Path) -> None:
    """Other features, other held-out rows and another label are the same people's rows."""
    run(prepared(rows))
    run(prepared(rows, ("x", "z"), test_fraction=0.3, seed=4), rounds=6)
    run(prepared(Path(os.path.relpath(rows))), rounds=1)
    [path] = ledgers(state)
    assert len(read(path).standing) == 3
    assert spent(path) == pytest.approx(11 * LINE)


def test_a_file_that_was_moved_is_the_same_data(rows: Path, state: Path) -> None:
    run(prepared(rows))
    rows.rename(rows.with_name("moved.csv"))
    (rows.parent / "link.csv").symlink_to(rows.with_name("moved.csv"))
    run(prepared(rows.with_name("moved.csv")))
    run(prepared(rows.parent / "link.csv"))
    assert spent(*ledgers(state)) == pytest.approx(12 * LINE)
    rows.with_name("copy.csv").write_bytes(rows.with_name("moved.csv").read_bytes())
    run(prepared(rows.with_name("copy.csv")))
    assert spent(*ledgers(state)) == pytest.approx(16 * LINE)  # the same bytes are the same data


def test_changed_bytes_need_a_name(rows: Path, state: Path) -> None:
    run(prepared(rows))
    before = ledgers(state)
    with open(rows, "a") as file:
        file.write("u0,c0,0.5,0.5,0.5\n")
    with pytest.raises(InputError, match=r"has changed since .*privacy\.dataset = 'NAME'.*output\.ledger = ") as e:
        run(prepared(rows))
    assert e.value.field == "problem.path"
    assert ledgers(state) == before
    run(prepared(rows), ledger=before[0])  # still those people's
    assert spent(*before) == pytest.approx(8 * LINE)
    with open(rows, "a") as file:
        file.write("u0,c0,0.5,0.5,0.5\n")
    run(prepared(rows), dataset="the second year")
    assert len(ledgers(state)) == 2
    run(prepared(rows))  # these bytes have that name now
    assert sorted(len(read(path).standing) for path in ledgers(state)) == [2, 2]


def test_a_name_for_known_bytes_forgets_nothing(rows: Path, state: Path) -> None:
    run(prepared(rows))
    run(prepared(rows), dataset="wards")
    assert len(ledgers(state)) == 1
    run(array(), dataset="others")
    with pytest.raises(InputError, match="another data set than these bytes are known as"):
        run(prepared(rows), dataset="others")


def array() -> Problem:
    X = np.linspace(-0.1, 0.1, 48 * 2).reshape(48, 2)
    return Problem(Federation(X, np.zeros(48), np.arange(0, 49, 2), np.arange(0, 25, 6)), Linear(0.1))


def test_a_named_data_set_needs_no_file(state: Path) -> None:
    for _ in range(2):
        run(array(), dataset="wards")
    [path] = ledgers(state)
    assert path.name == f"{dataset_id('wards')}.jsonl"
    assert len(read(path).standing) == 2
    run(array())  # without a name nobody could find it again
    assert ledgers(state) == [path]


def test_built_in_problems_keep_none_unless_they_are_told_to(state: Path, tmp_path: Path) -> None:
    made = regression(units=4, clients=6, samples=8, seed=2)
    run(made, dataset="wards")
    assert not state.joinpath("ledgers").exists()
    run(made, ledger=tmp_path / "own.jsonl", repeats=5)
    assert spent(tmp_path / "own.jsonl") == pytest.approx(5 * 4 * LINE)  # every repeat is paid for
    run(made, rounds=5, ledger=tmp_path / "own.jsonl")  # the same noise under another plan, without a budget
    assert spent(tmp_path / "own.jsonl") is None


def test_nothing_outside_the_index_follows_from_the_data(rows: Path, state: Path, tmp_path: Path) -> None:
    done = run(prepared(rows))
    done.save(tmp_path / "r")
    [path] = ledgers(state)
    index = json.loads((state / "ledgers" / "index.json").read_text())
    digest = index["sources"][str(rows.resolve())]["digest"]
    assert canonical.is_digest(digest)
    others = [p for p in (*state.rglob("*"), *(tmp_path / "r").iterdir()) if p.is_file() and p.name != "index.json"]
    assert all(digest.encode() not in p.read_bytes() for p in others)
    assert all((p.stat().st_mode & 0o077) == 0 for p in (path, state / "ledgers" / "index.json", state / "ledgers"))
    assert read(path).dataset == path.stem != digest


def test_the_state_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: Path) -> None:
    assert data_index.folder() == state / "ledgers"
    monkeypatch.delenv("CONFIDE_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert data_index.folder() == tmp_path / "xdg" / "confide" / "ledgers"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_index.folder() == tmp_path / ".local" / "state" / "confide" / "ledgers"


# ---- budgets


def test_earlier_spending_is_paid_first(rows: Path) -> None:
    assert run(prepared(rows), rounds=50, rho=10 * LINE).rounds == 10
    second = run(prepared(rows), rounds=50, rho=14.5 * LINE)
    assert second.rounds == 4
    said = f"spent rho {rounded_up(10 * LINE)} against links, client level, replace"
    assert second.notes[-1] == f"earlier plans on the same data {said}"
    with pytest.raises(InputError, match=rf"after {14 * LINE:.4g} that earlier runs on the same data spent") as e:
        run(prepared(rows), rho=14.5 * LINE)
    assert e.value.field == "privacy.rho"
    assert run(prepared(rows), rounds=50, epsilon=1.0).rounds > 1


def test_an_epsilon_pays_for_all_plans_together(rows: Path) -> None:
    """Gaussian noise throughout, so the sum is exact."""
    rounds = run(prepared(rows), rounds=500, epsilon=0.5).rounds
    more = run(prepared(rows), rounds=500, epsilon=1.0).rounds
    together = math.sqrt(2 * (rounds + more) * LINE)
    assert gaussian_epsilon(together, 1e-5) <= 1.0 < gaussian_epsilon(math.sqrt(together**2 + 2 * LINE), 1e-5)


def test_spending_at_another_level_is_priced_again_from_the_plan(rows: Path, state: Path) -> None:
    """A round costs a unit 9 times what it costs one of three clients, and no factor says so."""
    run(prepared(rows), rounds=10)
    assert run(prepared(rows), rounds=50, level="unit", rho=12 * 9 * LINE).rounds == 2
    [path] = ledgers(state)
    assert read(path).terms == Terms(CLIENT, REPLACE)
    assert spent(path) == pytest.approx(12 * LINE)
    assert spent(path, terms=Terms(UNIT, REPLACE)) == pytest.approx(12 * 9 * LINE)
    assert spent(path, terms=Terms(CLIENT, ZERO_OUT)) == pytest.approx(12 * LINE / 4)  # less than "unchanged"
    for plan in (path.parent / "plans").iterdir():
        plan.unlink()
    assert spent(path, terms=Terms(CLIENT, ZERO_OUT)) == pytest.approx(12 * LINE)
    with pytest.raises(InputError, match="at client level, replace says nothing about unit level, replace"):
        spent(path, terms=Terms(UNIT, REPLACE))
    with pytest.raises(InputError, match="says nothing about unit level"):
        run(prepared(rows), level="unit", rho=1.0)


def test_a_price_from_the_plan_is_never_looser(rows: Path, state: Path) -> None:
    run(prepared(rows), adjacency="zero-out")
    [path] = ledgers(state)
    again = spent(path, terms=Terms(CLIENT, REPLACE))
    for plan in (path.parent / "plans").iterdir():
        plan.unlink()
    converted = spent(path, terms=Terms(CLIENT, REPLACE))
    assert again is not None
    assert converted is not None
    assert again <= converted * (1 + 1e-12) == pytest.approx(4 * LINE)


def test_a_budget_against_servers_by_number_stands_alone(rows: Path) -> None:
    assert run(prepared(rows), threat="colluders:1", rho=1.0).rounds == 4
    assert run(prepared(rows), threat="colluders:1", rho=1.0).rounds == 4  # any one of them
    with pytest.raises(InputError, match="names servers by number, which mean nothing in the earlier plans"):
        run(prepared(rows), threat="colluders:1,2", rho=1.0)


def test_who_saw_what_has_no_bound_is_told(rows: Path) -> None:
    """Not in a budget that is about them."""
    run(prepared(rows))
    for budget in ({"rho": 1.0}, {"epsilon": 1.0}):
        with pytest.raises(InputError, match=r"privacy\.(rho|epsilon)"):
            run(prepared(rows), threat="own-server", **budget)


# ---- reservations


def reserved(path: Path, plan: Plan, run: str = "r") -> data_ledger.Reservation:
    return DataLedger(path).reserve(price(plan), plan.rounds, run)


def test_a_reservation_without_an_end_is_spent(tmp_path: Path) -> None:
    path, plan = tmp_path / "l", a_shared_plan(rounds=8)
    all_of_it, half = (price(plan).spent(n)["links"].rho for n in (8, 4))
    first = reserved(path, plan)
    assert (spent(path), first.earlier) == (all_of_it, NOTHING)
    first.end(4)
    assert spent(path) == half
    second = reserved(path, plan, "s")
    assert second.earlier.rho == half
    assert spent(path) == pytest.approx((half or 0) + (all_of_it or 0))
    second.end(0)
    assert [s.rounds for s in read(path).standing] == [4, 0]
    assert spent(path) == half


def test_an_end_ends_one_reservation_once(tmp_path: Path) -> None:
    path, plan = tmp_path / "l", a_shared_plan(rounds=8)
    one = reserved(path, plan)
    one.end(4)
    before = path.read_bytes()
    one.end(2)
    assert path.read_bytes() == before
    for wrong in ({"of": 7}, {"of": 1}, {"of": 2}, {"run": "other"}, {"rounds": 9}):
        reserved(path, plan)
        book = read(path)
        forged = [*book.spendings, replace(book.spendings[2], **{"of": 3} | wrong)]
        path.write_text("".join(f"{line}\n" for line in lines(book.header, forged)))
        with pytest.raises(InputError, match="line 5 ends event"):
            read(path)
        path.write_bytes(before)


def test_two_at_once_see_each_other(tmp_path: Path) -> None:
    """Ten plans, and a budget for five of them."""
    found = price(a_shared_plan(rounds=4))
    rho = found.spent(4)["links"].rho or 0.0
    within = replace(found.plan, privacy=Privacy(rho=5.5 * rho))

    def attempt(n: int) -> int:
        try:
            return DataLedger(tmp_path / "l").reserve(price(within), 4, str(n)).rounds
        except InputError:
            return 0

    with ThreadPoolExecutor(10) as pool:
        rounds = list(pool.map(attempt, range(10)))
    assert sorted(rounds) == [0, 0, 0, 0, 2, 4, 4, 4, 4, 4]
    assert spent(tmp_path / "l") == pytest.approx(5.5 * rho)


def test_processes_see_each_other(tmp_path: Path) -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from builders import a_shared_plan\n"
        "from confide.privacy.data_ledger import DataLedger\n"
        "from confide.privacy.price import price\n"
        "from pathlib import Path\n"
        "for n in range(5): DataLedger(Path(sys.argv[1])).reserve(price(a_shared_plan()), 4, str(n))\n"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "l"), *sys.path]
    both = [subprocess.Popen(arguments) for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0]
    assert len(read(tmp_path / "l").standing) == 10


def ends(monkeypatch: pytest.MonkeyPatch, after: int, how: type[BaseException] | None) -> None:
    """Every engine from now on gives up after so many rounds; None: its states blow up."""
    named = driver.engine_named

    def engine(*arguments: Any, **more: Any) -> Any:
        made = named("compiled")(*arguments, **more)
        truly = made.advance

        def advance(repetition: int, w: Any, first: int, last: int, out: Any) -> tuple[int, int] | None:
            if first > after and how is None:
                return first, repetition
            if first > after:
                raise how
            return truly(repetition, w, first, last, out)

        made.advance = advance
        return made

    monkeypatch.setattr(driver, "engine_named", lambda name, device: engine)


def test_a_crash_in_a_round_has_spent_all(rows: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        ends(patched, 1, MemoryError)
        with pytest.raises(MemoryError):
            run(prepared(rows))
    assert spent(*ledgers(state)) == pytest.approx(4 * LINE)

    def crash(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(driver, "engine_named", lambda name, device: crash)
        with pytest.raises(MemoryError):
            run(prepared(rows))
    assert spent(*ledgers(state)) == pytest.approx(4 * LINE)  # nothing was computed


def test_ctrl_c_spends_what_was_done(rows: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        ends(patched, 1, KeyboardInterrupt)
        assert run(prepared(rows)).interrupted
    ends(monkeypatch, 0, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        run(prepared(rows))
    assert [s.rounds for s in read(*ledgers(state)).standing] == [1, 0]


def test_a_run_that_diverged_has_spent_all(rows: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In which round it broke follows from the data."""
    ends(monkeypatch, 1, None)
    with pytest.warns(DivergenceWarning):
        assert run(prepared(rows)).diverged
    [spending] = read(*ledgers(state)).standing
    assert (spending.rounds, spending.of) == (4, None)


def test_a_full_disk_loses_nothing(rows: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(prepared(rows))
    [path] = ledgers(state)
    before, sync = path.read_bytes(), os.fsync

    def full(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".jsonl") and len(read(path).spendings) >= most:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(fd)

    monkeypatch.setattr(os, "fsync", full)
    most = 2
    with pytest.raises(RunError, match="the disk is full"):
        run(prepared(rows))
    assert path.read_bytes() == before
    most = 3
    done = run(prepared(rows), rounds=5)  # its end cannot be written; the run is whole, and all of it is spent
    assert "counts all rounds that were reserved" in done.notes[-1]
    assert spent(path) == pytest.approx(9 * LINE)


def test_any_changed_byte_of_the_ledger_is_noticed(tmp_path: Path) -> None:
    path, plan = tmp_path / "l", a_shared_plan(rounds=8)
    reserved(path, plan).end(3)
    text = path.read_bytes()
    for at in range(0, len(text), 7):
        path.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
        with pytest.raises(InputError, match=f"line {text[:at].count(10) + 1} "):
            DataLedger(path).reserve(price(plan), 8, "again")
    path.write_bytes(text)
    assert len(read(path).spendings) == 2


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"plan": "x"}, "event.plan"),
        ({"run": "x" * 201}, "event.run"),
        ({"rounds": -1}, "event.rounds"),
        ({"repeats": 0}, "event.repeats"),
        ({"of": -1}, "event.of"),
        ({"time": 1.5}, "event.time"),
        ({"costs": {}}, "event.costs.links"),
        ({"costs": dict.fromkeys((*ADVERSARIES, "mine"), NOTHING)}, "event.costs.mine"),
    ],
)
def test_spendings_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as e:
        replace(Spending(a_plan().hash, "r", 1, 1, dict.fromkeys(ADVERSARIES, NOTHING)), **changes)
    assert e.value.field == field


@pytest.mark.parametrize(
    "wrong", [{"rho": -1.0}, {"rho": "1"}, {"epsilon": math.inf}, {"draws": -1}, {"gaussian": 1}, {"proof": "x" * 501}]
)
def test_costs_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"event.costs.{next(iter(wrong))}"):
        Paid(**{"rho": 1.0, "epsilon": None} | wrong)


def test_a_runs_own_ledger_is_none_of_a_data_set(tmp_path: Path) -> None:
    plan = a_shared_plan()
    write_events(tmp_path / "l", dataset_id("wards"), plan, [])
    with pytest.raises(InputError, match="is the ledger of a run"):
        reserved(tmp_path / "l", plan)
    reserved(tmp_path / "d", plan)
    with pytest.raises(InputError, match="is of other data than those named"):
        DataLedger(tmp_path / "d", dataset_id("wards")).reserve(price(plan), 4, "r")


@pytest.mark.parametrize("others", [0, 2])
def test_a_ledger_that_is_taken_away_while_a_run_is_on_can_still_be_read(tmp_path: Path, others: int) -> None:
    """What the run spent is in it."""
    plan, path = a_shared_plan(), tmp_path / "l"
    paid = DataLedger(path, dataset_id("wards")).reserve(price(plan), 4, "r")
    path.unlink()
    for n in range(others):
        DataLedger(path, dataset_id("wards")).reserve(price(plan), 4, f"other {n}").end(1)
    paid.end(2)
    assert [s.rounds for s in read(path).standing] == [1] * others + [2]


# ---- what it says


def test_older_ledgers_of_the_same_data_are_added(tmp_path: Path) -> None:
    plan = a_shared_plan()
    DataLedger(tmp_path / "d", dataset_id("wards")).reserve(price(plan), 4, "r")
    cost = Cost(0.5, None, 1.0, 1.0, "gaussian")
    write_events(tmp_path / "l", dataset_id("wards"), plan, [Event(plan.hash, "message", 1, 0, cost)])
    for paths in ([tmp_path / "d", tmp_path / "l"], [tmp_path / "l", tmp_path / "d"]):
        answer = add_up(paths, 1e-5)
        assert answer["rho"] == pytest.approx(0.5 + (price(plan).spent(4)["receiver"].rho or 0))
        assert len(answer["runs"]) == 2
    write_events(tmp_path / "n", dataset_id("yards"), plan, [])
    with pytest.raises(InputError, match="only runs on the same data add up"):
        add_up([tmp_path / "d", tmp_path / "n"], 1e-5)


def older(path: Path, rho: float, **words: Any) -> Path:
    plan = a_shared_plan(**words)
    event = Event(plan.hash, "message", 1, 0, Cost(rho, None, 1.0, 1.0, "gaussian"))
    write_events(path, dataset_id("wards"), plan, [event], run=path.name)
    return path


def test_ledgers_of_runs_are_converted_where_a_proof_exists(tmp_path: Path) -> None:
    client = older(tmp_path / "client", 0.5)
    unit, example = older(tmp_path / "unit", 0.25, level="unit"), older(tmp_path / "example", 0.01, level="example")
    out = older(tmp_path / "out", 0.125, adjacency="zero-out")

    def total(*paths: Path, **more: Any) -> tuple[float, str, str]:
        answer = add_up(paths, 1e-5, **more)
        return answer["rho"], answer["level"], answer["adjacency"]

    assert total(unit, client) == total(client, unit) == (0.75, "client", "replace")
    assert total(client, out) == (1.0, "client", "replace")
    assert total(out, client) == (0.625, "client", "zero-out")
    assert total(client, example) == (0.51, "example", "replace")
    assert total(client, example, rows=(5, 5)) == (0.75, "client", "replace")
    assert total(client, example, to=Terms(CLIENT, REPLACE), rows=(5, 2)) == pytest.approx((0.99, "client", "replace"))
    with pytest.raises(InputError, match="is about client level, replace, which says nothing about unit level"):
        total(client, unit, to=Terms(UNIT, REPLACE))


def test_a_run_whose_plan_is_at_hand_is_priced_again(rows: Path, tmp_path: Path) -> None:
    """As a data set's ledger is: the smaller of the factor's number and the plan's."""
    folder = tmp_path / "run"
    run(prepared(rows), rounds=10).save(folder)
    assert add_up([folder], 1e-5)["rho"] == pytest.approx(10 * LINE)
    assert add_up([folder], 1e-5, Terms(UNIT, REPLACE))["rho"] == pytest.approx(10 * 9 * LINE)
    assert add_up([folder], 1e-5, Terms(CLIENT, ZERO_OUT))["rho"] == pytest.approx(10 * LINE / 4)
    (folder / "plan.json").rename(tmp_path / "plan.json")
    assert add_up([folder / "ledger.jsonl"], 1e-5, Terms(CLIENT, ZERO_OUT))["rho"] == pytest.approx(10 * LINE)
    with pytest.raises(InputError, match="is about client level, replace, which says nothing about unit level"):
        add_up([folder / "ledger.jsonl"], 1e-5, Terms(UNIT, REPLACE))


def test_a_plan_that_was_changed_beside_a_ledger_prices_nothing(rows: Path, state: Path) -> None:
    """One with more noise in its place would make of earlier runs what they never were."""
    run(prepared(rows), rounds=10)
    [path] = ledgers(state)
    [kept] = (path.parent / "plans").iterdir()
    plan = Plan.load(kept)
    loud = replace(plan.scheme, noises=tuple(replace(noise, sigma=100 * noise.sigma) for noise in plan.scheme.noises))
    replace(plan, scheme=loud).save(kept)
    assert spent(path, terms=Terms(CLIENT, ZERO_OUT)) == pytest.approx(10 * LINE)
    with pytest.raises(InputError, match="says nothing about unit level"):
        spent(path, terms=Terms(UNIT, REPLACE))


def test_account_knows_data_by_name_and_by_file(
    command: Callable[..., tuple[int, str, str]], rows: Path, state: Path
) -> None:
    run(prepared(rows), rounds=3)
    run(array(), dataset="wards")
    for what in (rows, ledgers(state)[0], "wards"):
        code, out, err = command("account", what, "--json")
        assert (code, err) == (0, "")
        assert list(json.loads(out)["adversaries"]) == list(ADVERSARIES)
    [answer] = [json.loads(command("account", rows, "--json")[1])]
    assert (answer["rho"], answer["level"]) == (pytest.approx(3 * LINE), "client")
    assert answer["runs"][0]["ended"]
    said = sum_lines(answer)
    assert said[0].startswith("data set ")
    assert [line for line in said if "any one colluding server: at most epsilon" in line]
    assert [line for line in said if "own server: NO BOUND" in line]
    assert json.loads(command("account", rows, "--level", "unit", "--json")[1])["rho"] == pytest.approx(27 * LINE)
    for wrong, words in ((("--adjacency", "replace"), "give --level too"), (("--rows", "0"), "write N, or N:M")):
        code, _, err = command("account", rows, *wrong)
        assert (code, words in err) == (2, True)
    assert known("nobody's") is None
    assert of_data("wards", None).path == known("wards")


CONFIG = """
rounds = 4
[graph]
topology = "ring"
[problem]
name = "table"
path = "rows.csv"
label = "y"
unit = "u"
client = "c"
numeric = ["x"]
scaling = {x = [0, 1]}
test_fraction = 0
[algorithm]
step = 0.1
sampled = 3
local_steps = 1
batch = 2
clip = "example"
bound = 1.0
[scheme]
name = "shared"
noise = "gaussian"
sigma = 3.0
[privacy]
release = "centroid:1.0"
"""


def test_what_is_handed_out_again_costs_nothing(
    command: Callable[..., tuple[int, str, str]], rows: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(rows.parent)
    (rows.parent / "c.toml").write_text(CONFIG)
    for again in (False, True):
        code, out, _ = command("simulate", "c.toml", "--out", "r", "--json")
        assert (code, json.loads(out)["kept"]) == (0, again)
        assert len(read(*ledgers(state)).standing) == 1
    command("simulate", "c.toml", "--out", "elsewhere")  # other noise: another release
    assert len(read(*ledgers(state)).standing) == 2
    code, _, err = command("simulate", "c.toml", "--out", "r", "--set", f"privacy.rho={8.9 * LINE}")
    assert (code, "that earlier runs on the same data spent" in err) == (2, True)
    code, _, _ = command("simulate", "c.toml", "--out", "own", "--set", "output.ledger=own.jsonl")
    assert (code, len(read("own.jsonl").standing)) == (0, 1)


# ---- deployments


def client(folder: Path, plan: Plan, key: int = 1, **config: Any) -> ClientSetup:
    """A client of this plan whose keys nobody asks for."""
    server = PeerConfig(organisation="a", name="b", addresses=["c:1"])
    given = {"plan": "p", "node": "n", "record": "r", "authority": "a", "crl": "l", "data": "rows.csv"} | config
    made = ClientConfig(folder=folder, server=server, **given)
    node: Any = SimpleNamespace(identity=SimpleNamespace(public=bytes([key])))
    nobody: Any = None
    return ClientSetup(made, plan, 0, 0, node, b"", nobody)


def deployed(times: float = 1.0, **changes: Any) -> Plan:
    """A plan with a budget for so many times its rounds."""
    plan = a_deployed_plan(level="unit", rounds=4, **changes)
    return replace(plan, privacy=replace(plan.privacy, rho=times * (price(plan).spent(4)["links"].rho or 0.0)))


def test_a_client_pays_for_all_of_a_plan_once(rows: Path, state: Path) -> None:
    plan = deployed()
    (rows.parent / "r").touch()  # its record
    for said in ("nothing was spent on these data", "this plan is paid for"):
        assert client(rows.parent, plan).enrolment.outlook() == said
        client(rows.parent, plan).pay()
    rows.write_text("u,c,x,z,y\n")  # it comes back with other data in the middle of the plan: to stay away would tell
    client(rows.parent, plan).pay()
    [path] = ledgers(state)
    assert [s.rounds for s in read(path).standing] == [4]
    assert spent(path) == price(plan).spent(4)["links"].rho


def test_a_client_that_lost_its_record_pays_again(rows: Path, state: Path) -> None:
    """It may answer again what it has answered, with other noise."""
    plan = deployed(2.01)
    (rows.parent / "r").touch()
    for _ in range(2):
        client(rows.parent, plan).pay()
    assert len(read(*ledgers(state)).standing) == 1
    (rows.parent / "r").unlink()
    assert client(rows.parent, plan).enrolment.outlook(anew=True).startswith("pays for this plan; earlier plans on")
    client(rows.parent, plan).pay()
    assert len(read(*ledgers(state)).standing) == 2
    with pytest.raises(InputError, match="cannot pay for this plan"):
        client(rows.parent, plan).pay()


def test_a_client_refuses_a_plan_that_its_ledger_cannot_pay_for(rows: Path, state: Path) -> None:
    client(rows.parent, deployed()).pay()
    before = ledgers(state)[0].read_bytes()
    for times in (1.9, 1.01):
        with pytest.raises(InputError, match="cannot pay for this plan, since earlier plans on the same data") as e:
            client(rows.parent, deployed(times)).pay()
        assert e.value.field == "ledger"
        with pytest.raises(InputError, match="cannot pay for this plan"):
            client(rows.parent, deployed(times)).enrolment.outlook()
    assert client(rows.parent, deployed(3)).enrolment.outlook().startswith("pays for this plan; earlier plans on the")
    assert ledgers(state)[0].read_bytes() == before
    client(rows.parent, deployed(2.01)).pay()
    client(rows.parent, a_deployed_plan(level="unit", rounds=4)).pay()  # without a budget it is written down
    assert len(read(*ledgers(state)).standing) == 3


def test_a_clients_data_keep_their_ledger_under_a_name(rows: Path, state: Path) -> None:
    client(rows.parent, deployed(), dataset="visits").pay()
    rows.write_text("u,c,x,z,y\n")
    with pytest.raises(InputError, match="has changed since earlier runs"):
        client(rows.parent, deployed(9.0)).pay()
    client(rows.parent, deployed(9.0), dataset="visits").pay()
    assert [len(read(path).standing) for path in ledgers(state)] == [2]
    client(rows.parent, deployed(9.0), dataset="visits", ledger="own.jsonl").pay()
    assert len(read(rows.parent / "own.jsonl").standing) == 1


def test_a_train_functions_data_are_known_by_their_name(tmp_path: Path, state: Path) -> None:
    """Other settings of the function are the same data."""
    function = {"data": None, "train": "mine:train"}
    for where in ("a", "b", "a"):
        client(tmp_path, deployed(9.0), **function, dataset=f"visits {where}", train_config={"x": where}).pay()
    client(tmp_path, deployed(9.0), **function, dataset="visits a", train_config={"x": "c"}).pay()
    assert sorted(len(read(path).standing) for path in ledgers(state)) == [1, 3]


def test_what_is_done_apart_says_why_it_failed() -> None:
    def refuse() -> None:
        raise InputError("ledger", "x", "is not right")

    with pytest.raises(InputError, match="ledger = 'x': is not right"):
        apart(refuse)
    with pytest.raises(RunError, match="failed, see the log"):
        apart(lambda: os.kill(os.getpid(), 9))
    apart(lambda: None)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CONFIDE_STATE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"cannot be kept .*; name another file, or set CONFIDE_STATE"):
        run(array(), dataset="wards")
