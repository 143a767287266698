"""What a second attacker found in the ledgers of data sets: whose bytes are whose, and what a sum of them may say."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import a_deployed_plan
from confide.base.errors import InputError
from confide.engines.driver import simulate
from confide.engines.run import DivergenceWarning, Run
from confide.graph.graph import Graph
from confide.plans.privacy import Privacy
from confide.privacy.asked import add_up
from confide.privacy.data_index import INDEX, known
from confide.privacy.data_ledger import DataLedger, Enrolment, of_data
from confide.privacy.ledger import read
from confide.privacy.price import price
from confide.problems import regression, table
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.clipping import Clip
from confide.rounds.schemes import scheme

MEAN = GFL(
    scheme=scheme("shared", 3.0, noise="gaussian"), step=0.1, sampled=3, local_steps=1, batch=2,
    clip=Clip("example", 1.0),
)  # fmt: skip


def written(path: Path, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    rows = [f"u{i % 3},c{i % 12},{rng.normal():.3f},{rng.normal():.3f}" for i in range(120)]
    path.write_text("\n".join(["u,c,x,y", *rows, ""]))
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return written(tmp_path / "rows.csv")


def made(path: Path) -> Problem:
    return table(path, label="y", unit="u", client="c", numeric=["x"], scaling={"x": [0, 1]}, test_fraction=0)


def spend(data: Path | Problem, rounds: int = 4, ledger: Path | None = None, name: str | None = None) -> Run:
    problem = data if isinstance(data, Problem) else made(data)
    return simulate(problem, Graph.ring(3), MEAN, rounds=rounds, privacy=Privacy(dataset=name), ledger=ledger)


def rounds_of(data: Path | str) -> list[int]:
    """Of the plans in the ledger of these data."""
    ledger = known(data)
    return [] if ledger is None else [spending.rounds for spending in read(ledger).standing]


# ---- which ledger


def test_bytes_that_went_on_with_a_ledger_are_its_own(rows: Path) -> None:
    """LOST SPENDING: the remedy for a changed file, then a copy of it: a new ledger, and a full budget."""
    spend(rows, 10)
    with open(rows, "a") as file:
        file.write("u0,c0,1,1\n")
    spend(rows, 50, ledger=known_before(rows))
    shutil.copy(rows, rows.with_name("copy.csv"))
    spend(rows.with_name("copy.csv"), 1)
    assert rounds_of(rows) == rounds_of(rows.with_name("copy.csv")) == [10, 50, 1]


def known_before(rows: Path) -> Path:
    """As the remedy names it."""
    with pytest.raises(InputError, match="has changed since earlier runs") as e:
        spend(rows)
    return Path(str(e.value).split("output.ledger = '")[1].split("'")[0])


def test_a_ledger_that_is_given_is_not_that_of_others(rows: Path) -> None:
    """LOST SPENDING: bytes that have a ledger of their own, paid for in another one."""
    other = written(rows.with_name("other.csv"), 1)
    spend(rows)
    spend(other)
    with pytest.raises(InputError, match="is another data set than these bytes are known as") as e:
        spend(other, ledger=known(rows))
    assert e.value.field == "output.ledger"
    assert rounds_of(rows) == rounds_of(other) == [4]


@pytest.mark.parametrize("how", ["link", "relative"])
def test_the_ledger_is_one_however_the_state_folder_is_written(
    rows: Path, state: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """LOST SPENDING: paid through a linked folder as `output.ledger`, the end of the ledger was not remembered."""
    rows.with_name("link").symlink_to(state)
    monkeypatch.chdir(rows.parent)
    monkeypatch.setenv("CONFIDE_STATE", str(rows.with_name("link")) if how == "link" else os.path.relpath(state))
    spend(rows, 2)
    ledger = known(rows)
    assert ledger is not None
    before = ledger.read_bytes()
    spend(rows, 200, ledger=rows.with_name("link") / "ledgers" / ledger.name)
    ledger.write_bytes(before)
    for given in (None, ledger, rows.with_name("link") / "ledgers" / ledger.name):
        with pytest.raises(InputError, match="is an older one, without its last lines"):
            spend(rows, 2, ledger=given)


@pytest.mark.parametrize("older", [False, True])
def test_an_index_that_forgot_a_ledger_knows_nothing_new(rows: Path, state: Path, older: bool) -> None:
    """LOST SPENDING: without its index, or with an older one, a ledger is nobody's and its data are new."""
    index, other = state / "ledgers" / INDEX, written(rows.with_name("other.csv"), 1)
    spend(other)
    before = index.read_bytes()
    spend(rows, 50)
    kept = known(rows)
    assert kept is not None
    index.write_bytes(before) if older else index.unlink()
    for name in (None, "visits"):
        with pytest.raises(InputError, match=r"does not say whose ledger \w+.jsonl is: .*output\.ledger = ") as e:
            spend(rows, 1, name=name)
        assert e.value.field == "index"
    spend(rows, 1, ledger=kept)  # as it says
    assert rounds_of(rows) == [50, 1]


def test_a_name_is_one_however_it_is_written(rows: Path) -> None:
    """Blanks and capitals are no other people's data."""
    of_data("wards 2024", None)
    for name in ("wards 2024 ", "Wards 2024", "wards  2024"):
        with pytest.raises(InputError, match="write it like that"):
            of_data(name, None)
    of_data("wards 2025", None)


# ---- what account says


def test_account_is_about_these_bytes(rows: Path) -> None:
    """FALSE NUMBER: of a path that held other data before, either ledger, at random."""
    other = written(rows.with_name("other.csv"), 1)
    spend(rows, 50)
    spend(other, 1)
    shutil.copy(other, rows)
    assert rounds_of(rows) == [1]
    rows.write_text("other bytes still")
    with pytest.raises(InputError, match="has changed since earlier runs"):
        known(rows)


def test_account_checks_what_a_run_checks(rows: Path, command: Callable[..., tuple[int, str, str]]) -> None:
    """FALSE NUMBER: 0.616 of a ledger that was put back, where 1.054 had been spent."""
    spend(rows)
    ledger = known(rows)
    assert ledger is not None
    before = ledger.read_bytes()
    spend(rows, 9)
    ledger.write_bytes(before)
    with pytest.raises(InputError, match="is an older one"):
        add_up([ledger], 1e-5)
    ledger.unlink()
    code, _, err = command("account", rows)
    assert (code, "is gone: what was spent on these data is not known" in err) == (2, True)


# ---- what shares its noise


def enrolment(data: Path, who: str = "client 0", name: str | None = None, **plan: Any) -> Enrolment:
    made = {"level": "client", "rounds": 4, "scheme": scheme("shared", 3.0, noise="gaussian")} | plan
    return Enrolment(a_deployed_plan(**made), who, None, name, data)


def test_two_clients_of_a_plan_have_not_the_same_data(rows: Path) -> None:
    """FALSE NUMBER: both updates move under one noise: 4 times the rho of one of them, not twice (3.82, not 2.795)."""
    copy = shutil.copy(rows, rows.with_name("copy.csv"))
    enrolment(rows).pay()
    for door in (Enrolment.pay, Enrolment.outlook):
        with pytest.raises(InputError, match=r"clients of the plan \w+ share its noise") as e:
            door(enrolment(copy, "client 1"))
        assert e.value.field == "ledger"
    assert rounds_of(rows) == [4]
    enrolment(rows).pay()
    enrolment(rows, "client 1", rounds=5).pay()  # of another plan, with noise of its own
    assert rounds_of(rows) == [4, 5]


def test_a_ledger_in_which_two_clients_of_a_plan_are_has_no_bound(rows: Path) -> None:
    """As an earlier confide wrote it."""
    first = enrolment(rows)
    first.pay()
    ledger = known(rows)
    assert ledger is not None
    DataLedger(ledger).add(read(ledger), price(first.plan), "client 1", 4, 1)
    answer = add_up([ledger], 1e-5)
    assert answer["rho"] is None
    assert "share its noise" in answer["unbounded"]


def test_a_client_that_lost_its_record_can_keep_no_cap(rows: Path) -> None:
    """It would give data in more rounds than the plan says, and only its record counts them."""
    capped = enrolment(rows, participation="cap:1")
    capped.pay()
    with pytest.raises(InputError, match="nobody can keep its cap now"):
        capped.pay(anew=True)
    capped.pay()
    assert rounds_of(rows) == [4]


# ---- what was read


def test_what_was_read_is_paid_for(rows: Path) -> None:
    """LOST SPENDING: a table that was moved between its reading and its run, where other data lie by then."""
    problem, moved = made(rows), rows.with_name("moved.csv")
    rows.rename(moved)
    written(rows, 1)
    spend(problem, 50)
    spend(moved, 1)
    assert rounds_of(moved) == [50, 1]
    with pytest.raises(InputError, match="has changed since earlier runs"):
        rounds_of(rows)


def test_a_file_that_changes_while_it_is_read_is_refused(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from confide.problems import user_table

    def read_then_changed(path: Path, field: str) -> Any:
        frame = read_table(path, field)
        written(path, 1)
        return frame

    read_table = user_table.read_table
    monkeypatch.setattr(user_table, "read_table", read_then_changed)
    with pytest.raises(InputError, match="was changed while it was read"):
        made(rows)


# ---- clients that come back


def test_what_a_paid_client_holds_by_then_is_spent_on(rows: Path) -> None:
    """LOST SPENDING: it takes part with bytes that have a ledger of their own, which said nothing of it."""
    other = written(rows.with_name("other.csv"), 1)
    spend(other, 1)
    enrolment(rows).pay()
    shutil.copy(other, rows)
    for _ in range(2):
        enrolment(rows).pay()
    assert rounds_of(other) == [1, 4]


def test_new_bytes_of_a_paid_client_are_those_of_its_ledger(rows: Path) -> None:
    """LOST SPENDING: they took part, and under a name they had a full budget."""
    enrolment(rows).pay()
    written(rows, 1)
    enrolment(rows).pay()
    enrolment(rows, name="visits", rounds=5).pay()
    assert rounds_of("visits") == [4, 5]


# ---- one number for one run


def test_a_run_that_diverged_has_one_number(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FALSE NUMBER: statement and folder said epsilon of the rounds before it broke, and where it breaks tells."""
    for last in (0, 1):
        monkeypatch.setattr("confide.engines.compiled.CompiledEngine.advance", breaking(last))
        with pytest.warns(DivergenceWarning):
            run = spend(rows)
        run.save(tmp_path / "r")
        assert run.privacy is not None
        assert run.privacy["statement"]["rounds"] == 4
        assert add_up([tmp_path / "r"], 1e-5)["epsilon"] == add_up([known(rows) or rows], 1e-5)["epsilon"]


def breaking(last: int) -> Callable[..., tuple[int, int] | None]:
    """An engine whose state is no number after so many rounds."""
    return lambda self, n, state, first, until, out: (last + 1, n) if until > last else None


def test_repeats_are_said_to_be_priced_alone(tmp_path: Path) -> None:
    problem = regression(units=3, clients=4)
    run = simulate(problem, Graph.ring(3), MEAN, rounds=2, repeats=8, privacy=Privacy(), ledger=tmp_path / "l")
    assert "about one of 8 repeats; the ledger of the data counts all" in run.notes[-1]


def test_what_has_no_finite_epsilon_is_said_in_words(command: Callable[..., tuple[int, str, str]]) -> None:
    """CRASH: a raw ValueError."""
    code, out, err = command("account", "--bound", "1e200", "--sigma", 1)
    assert (code, out) == (2, "")
    assert "epsilon overflows at this noise level; increase sigma" in err
