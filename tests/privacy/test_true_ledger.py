"""Item 4: unlike promises are not added, units add by the worst of each run, nothing that was spent is forgotten."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from builders import a_deployed_plan, a_shared_plan, deployed
from confide.base import canonical
from confide.base.errors import InputError
from confide.base.files import locked
from confide.engines.driver import simulate
from confide.engines.run import Run
from confide.graph.graph import Graph
from confide.laws.conversion import gaussian_epsilon, rho_epsilon, zcdp_epsilon
from confide.plans.plan import Plan
from confide.plans.privacy import Privacy
from confide.plans.words import Adjacency, Level
from confide.privacy import spent as spending
from confide.privacy.asked import add_up, sum_line, sum_lines
from confide.privacy.bundle import make_bundle, save_bundle, verify_bundle
from confide.privacy.data_index import known
from confide.privacy.data_ledger import DataLedger, Enrolment, added_up
from confide.privacy.ledger import Cost, Event, dataset_id, paid_by, read, read_all, write_events
from confide.privacy.paid import Terms
from confide.privacy.price import price
from confide.privacy.run_ledger import check_folder, plans_in
from confide.privacy.statement import rounded_up
from confide.problems import regression
from confide.problems import table as user_table
from confide.problems.federation import Federation
from confide.problems.models import Linear
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.clipping import Clip
from confide.rounds.schemes import scheme

DATA = dataset_id("wards")
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def plan(**changes: Any) -> Plan:
    return a_shared_plan(**{"graph": Graph.ring(5)} | changes)


def written(path: Path, unit: int = 0, rho: float = 0.5, data: str = DATA, cost: Cost | None = None, **of: Any) -> Path:
    p, paid = plan(**of), cost or Cost(rho, None, 1.0, 1.0, "gaussian")
    write_events(path, data, p, [Event(p.hash, "message", 1, unit, paid)], run=path.name)
    return path


# ---- sums


def test_units_by_number_mean_nothing_across_plans(tmp_path: Path) -> None:
    """Unit 0 of one plan may be unit 3 of the other: 6.573, where 4.377 was printed."""
    answer = add_up([written(tmp_path / "a", 0), written(tmp_path / "b", 3, rounds=5)], 1e-5)
    assert answer["rho"] == 1.0
    assert answer["epsilon"] == pytest.approx(6.573, abs=5e-4)
    assert answer["epsilon"] == pytest.approx(gaussian_epsilon(math.sqrt(2.0), 1e-5), rel=1e-12)
    assert add_up([tmp_path / "a"], 1e-5)["epsilon"] == pytest.approx(4.377, abs=5e-4)
    words = sum_line(answer)
    assert "at most epsilon 6.573 at delta 1e-05 (client level, replace; against an eavesdropper" in words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"threat": "neighbours"}, "against neighbours"),
        ({"threat": "own-server"}, "against own-server"),
        ({"threat": "own-server", "level": "example"}, "against own-server"),
    ],
)
def test_unlike_promises_have_no_sum(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    paths = [written(tmp_path / "a"), written(tmp_path / "b", **changes)]
    with pytest.raises(InputError, match=f"is about client level, replace, against links; .*{words}") as e:
        add_up(paths, 1e-5)
    assert e.value.value == str(tmp_path / "b")
    for path in paths:  # each alone has a number, with its promise
        assert sum_line(add_up([path], 1e-5)).count("level") == 1


def test_servers_by_number_mean_nothing_across_plans(tmp_path: Path) -> None:
    paths = [written(tmp_path / name, threat="colluders:1") for name in "ab"]
    with pytest.raises(InputError, match="names servers by number"):
        add_up(paths, 1e-5)
    assert add_up(paths[:1], 1e-5)["threat"] == "colluders:1"


def test_other_data_are_not_added(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only runs on the same data add up"):
        add_up([written(tmp_path / "a"), written(tmp_path / "b", data=dataset_id("other"))], 1e-5)


def test_laplace_and_gaussian_add_up_by_rho(tmp_path: Path) -> None:
    laplace = written(tmp_path / "b", cost=Cost(0.02, 0.2, 1.0, 1.0, "laplace"))
    answer = add_up([written(tmp_path / "a"), laplace], 1e-5)
    assert answer["rho"] == pytest.approx(0.52)
    assert answer["epsilon"] == pytest.approx(zcdp_epsilon(0.52, 1e-5), rel=1e-12)
    assert add_up([laplace], 1e-5)["epsilon"] == 0.2  # pure


def test_what_has_no_bound_has_no_sum(tmp_path: Path) -> None:
    free = written(tmp_path / "b", cost=Cost(None, None, 0.0, 0.0, "none"))
    answer = add_up([written(tmp_path / "a"), free], 1e-5)
    assert (answer["epsilon"], answer["leak"]) == (None, True)
    assert "NO BOUND" in sum_line(answer)


# ---- older ledgers


def older(path: Path, p: Plan | None = None, run: str = "seed 1") -> Path:
    """As an earlier confide wrote it: nothing of its promise."""
    p = p or plan()
    event = Event(p.hash, "message", 1, 0, Cost(0.5, None, 1.0, 1.0, "gaussian"))
    table = {"dataset": DATA, "events": 1, "format": 1, "run": run}
    head = canonical.digest(canonical.dumps(table))
    text = canonical.dumps(event.to_dict())
    hash = canonical.digest(head + text)
    line = f'{{"event":{text},"hash":"{hash}","n":1,"previous":"{head}"}}'
    path.write_text(canonical.dumps(table | {"hash": head}) + f"\n{line}\n")
    return path


def test_an_older_ledger_is_read_and_not_added(tmp_path: Path) -> None:
    old = older(tmp_path / "old")
    alone = add_up([old], 1e-5)
    assert (alone["rho"], alone["level"]) == (0.5, None)
    assert "its promise is not known" in sum_line(alone)
    with pytest.raises(InputError, match="promise is not known"):
        add_up([old], 1e-5, Terms.parse("client", "replace"))
    for paths in ([old, written(tmp_path / "a")], [tmp_path / "a", old]):
        with pytest.raises(InputError, match="older ledger, whose promise is not known"):
            read_all(paths)


def test_the_plan_beside_it_says_what_an_older_ledger_promised(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    old = older(tmp_path / "old" / "ledger.jsonl")
    plan().save(tmp_path / "old" / "plan.json")
    assert add_up([old, written(tmp_path / "a")], 1e-5)["rho"] == 1.0
    with pytest.raises(InputError, match=r"against links; this one about .* against neighbours"):
        read_all([old, written(tmp_path / "n", threat="neighbours")])
    weaker = add_up([old, written(tmp_path / "b", level="example")], 1e-5)  # a client's data hold the example
    assert (weaker["rho"], weaker["level"]) == (1.0, "example")
    plan(rounds=7).save(tmp_path / "old" / "plan.json")  # another plan than that of its events
    with pytest.raises(InputError, match="promise is not known"):
        read_all([old, tmp_path / "a"])


# ---- no hash of the data


def table(value: float) -> Problem:
    """Somebody's data, of which one number differs."""
    X = np.linspace(-0.1, 0.1, 48 * 2).reshape(48, 2)
    X[0, 0] = value
    federation = Federation(X, np.zeros(48), np.arange(0, 49, 2), np.arange(0, 25, 6))
    return Problem(federation, Linear(0.1), None, {"name": "own"})


ALGORITHM = GFL(
    scheme=scheme("shared", 30.0, noise="gaussian"), step=0.1, sampled=3, local_steps=1, batch=2,
    clip=Clip("example", 1.0),
)  # fmt: skip
BUILT_IN = regression(units=4, clients=6, samples=8, seed=2)


def run(problem: Problem = BUILT_IN, rounds: int = 3, seed: int = 0, **privacy: Any) -> Run:
    made = Privacy(**privacy) if privacy.pop("accounted", True) else None
    algorithm = replace(ALGORITHM, replacement=False) if privacy.get("level") == "example" else ALGORITHM
    return simulate(problem, Graph.ring(4), algorithm, rounds=rounds, seed=seed, privacy=made)


def test_a_ledger_tells_nothing_about_the_data(tmp_path: Path) -> None:
    """Two candidate data sets, and a ledger that was told apart by its header: now the id is drawn anew."""
    for name, value in (("a", 0.0), ("b", 0.05), ("again", 0.0)):
        run(table(value)).save(tmp_path / name)
    ids = [read(tmp_path / name / "ledger.jsonl").dataset for name in ("a", "b", "again")]
    assert len(set(ids)) == 3  # the same data have another id too
    for name in ("a", "b"):
        record = json.loads((tmp_path / name / "run.json").read_text())
        assert record["privacy"]["ledger"]["dataset"] is None
    run(table(0.0), dataset="wards").save(tmp_path / "named")
    assert read(tmp_path / "named" / "ledger.jsonl").dataset == DATA  # of the name alone


# ---- a second run into the same folder


def rho_of(done: Run) -> float:
    assert done.privacy is not None
    return math.fsum(c["rho"] for c in done.privacy["ledger"]["costs"])


@pytest.mark.parametrize("problem", [BUILT_IN, table(0.0)], ids=["built-in", "somebody's"])
def test_a_second_run_into_a_folder_adds_to_its_ledger(tmp_path: Path, problem: Problem) -> None:
    folder = tmp_path / "r"
    first, second = run(problem), run(problem, rounds=5, seed=1)
    first.save(folder)
    before = (folder / "ledger.jsonl").read_bytes()
    id = read(folder / "ledger.jsonl").dataset
    second.save(folder)
    book = read(folder / "ledger.jsonl")
    assert (folder / "ledger.jsonl").read_bytes().startswith(before)  # the same chain goes on
    assert (len(book.runs), book.dataset) == (2, id)
    assert paid_by([book]).rho == pytest.approx(rho_of(first) + rho_of(second), rel=1e-12)
    answer = add_up([folder], 1e-5)
    assert answer["epsilon"] == pytest.approx(rho_epsilon(rho_of(first) + rho_of(second), 1e-5, True), rel=1e-9)
    assert [r["plan"] for r in answer["runs"]] == [p.hash for p in plans_in(folder, book)][::-1]
    assert Run.load(folder).rounds == 5
    second.save(folder)  # saved again, it is the same run
    assert len(read(folder / "ledger.jsonl").runs) == 2


def test_the_same_run_of_somebodys_data_is_paid_for_again(tmp_path: Path) -> None:
    """Its noise is another; a built-in problem is a function of the seed, and the same run costs once."""
    for n in range(2):
        run(table(0.0)).save(tmp_path / "r")
        run().save(tmp_path / "s")
        assert len(read(tmp_path / "r" / "ledger.jsonl").runs) == n + 1
        assert len(read(tmp_path / "s" / "ledger.jsonl").runs) == 1


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"level": "example"}, "it is about client level.*this run about example level"),
        ({"adjacency": "zero-out"}, "zero-out"),
        ({"threat": "neighbours"}, "against neighbours"),
        ({"dataset": "other wards"}, "names other data"),
        ({"accounted": False}, "without an account"),
    ],
)
def test_an_unlike_second_run_is_refused_and_nothing_is_lost(
    tmp_path: Path, second: dict[str, Any], words: str
) -> None:
    run().save(tmp_path / "r")
    before = {p: p.read_bytes() for p in (tmp_path / "r").iterdir()}
    done = run(**second)
    settings = None if second.get("accounted") is False else Privacy(**second)
    for refuse in (lambda: done.save(tmp_path / "r"), lambda: check_folder(tmp_path / "r", settings)):
        with pytest.raises(InputError, match=rf"{words}.*; name another folder"):
            refuse()
    assert {p: p.read_bytes() for p in (tmp_path / "r").iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["r"]
    done.save(tmp_path / "other")  # what was computed is still there


def test_a_ledger_that_is_not_whole_is_not_replaced(tmp_path: Path) -> None:
    run().save(tmp_path / "r")
    path = tmp_path / "r" / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(InputError, match=r"is not whole .*name another folder"):
        run(seed=1).save(tmp_path / "r")


def test_the_end_of_a_folders_ledger_is_missed(tmp_path: Path) -> None:
    run().save(tmp_path / "r")
    first = (tmp_path / "r" / "ledger.jsonl").read_bytes()
    run(rounds=5).save(tmp_path / "r")
    (tmp_path / "r" / "ledger.jsonl").write_bytes(first)  # a whole ledger, of the first run alone
    with pytest.raises(InputError, match="its end is gone"):
        add_up([tmp_path / "r"], 1e-5)


def test_a_run_that_did_nothing_keeps_the_ledger(tmp_path: Path) -> None:
    """It broke in its first round: it has no account, and nothing of it left."""
    run().save(tmp_path / "r")
    before = add_up([tmp_path / "r"], 1e-5)
    done = run()
    empty = {name: rows[:, :0] for name, rows in done.metrics.items()}
    replace(done, metrics=empty, privacy=None).save(tmp_path / "r")
    assert add_up([tmp_path / "r"], 1e-5) == before
    run(seed=1).save(tmp_path / "r")
    assert add_up([tmp_path / "r"], 1e-5)["rho"] == pytest.approx(2 * before["rho"])


def test_two_at_once_forget_neither(tmp_path: Path) -> None:
    runs = [run(table(0.0), rounds=1 + n) for n in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda done: done.save(tmp_path / "r"), runs))
    book = read(tmp_path / "r" / "ledger.jsonl")
    assert sorted(len(part.events) for part in book.runs) == [4 * (1 + n) for n in range(6)]
    assert len(plans_in(tmp_path / "r", book)) == 6
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_runs_in_one_file_are_of_one_promise_and_in_order(tmp_path: Path) -> None:
    p, q = plan(), plan(level="example")
    cost = Cost(0.5, None, 1.0, 1.0, "gaussian")
    write_events(tmp_path / "a", DATA, p, [Event(p.hash, "message", 1, 0, cost)])
    first = read(tmp_path / "a")
    write_events(tmp_path / "b", DATA, q, [Event(q.hash, "message", 1, 0, cost)], after=first)
    with pytest.raises(InputError, match="line 3 begins a run on other data or with another promise"):
        read(tmp_path / "b")
    write_events(tmp_path / "c", DATA, p, [Event(p.hash, "message", 1, 0, cost)], "2", first)
    lines = (tmp_path / "c").read_text().splitlines(keepends=True)
    for wrong in (lines[2:], lines[2:] + lines[:2], lines[:1] + lines[2:], lines + lines[2:]):
        (tmp_path / "c").write_text("".join(wrong))
        with pytest.raises(InputError, match=r"line [1235] "):
            read(tmp_path / "c")


# ---- bundles


def test_a_bundle_holds_every_run_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    first, second = run(), run(rounds=5, seed=1)
    first.save(folder)
    second.save(folder)
    assert second.privacy is not None
    latest, *others = plans_in(folder, read(folder / "ledger.jsonl"))
    statement = second.privacy["statement"]
    with pytest.raises(InputError, match=r"bundle\.events.*was made under plan"):  # the latest alone
        make_bundle(latest, folder / "ledger.jsonl", statement, {}, KEY)
    text = make_bundle(latest, folder / "ledger.jsonl", statement, {}, KEY, others)
    save_bundle(tmp_path / "b", text)
    report = verify_bundle(tmp_path / "b", None)
    assert report.ok
    assert report.spent is not None
    assert report.spent["runs"] == 2
    assert report.spent["rho"] == pytest.approx(rho_of(first) + rho_of(second))
    assert len(report.totals) == 8

    content = canonical.loads(text)
    content["ledger"] = content["ledger"][: 1 + 3 * 4]  # as if there had been no second run
    content["plan"], content["others"] = content["others"][0], []
    _sign(tmp_path / "short", content)
    assert "statement" in verify_bundle(tmp_path / "short", None).failed
    content = canonical.loads(text)
    content["others"] = []
    _sign(tmp_path / "one", content)
    assert "events" in verify_bundle(tmp_path / "one", None).failed


def test_prices_of_every_run_are_computed_anew(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    run().save(folder)
    cheap = run(rounds=5, seed=1)
    assert cheap.privacy is not None
    costs = [c | {"rho": 1e-9} for c in cheap.privacy["ledger"]["costs"]]
    forged = {**cheap.privacy, "ledger": {**cheap.privacy["ledger"], "costs": costs}}
    replace(cheap, privacy=forged).save(folder)
    run(rounds=4, seed=2).save(folder)
    latest, *others = plans_in(folder, read(folder / "ledger.jsonl"))
    with pytest.raises(InputError, match=r"bundle\.prices.*event 13"):
        make_bundle(latest, folder / "ledger.jsonl", {}, {}, KEY, others)


def test_a_budget_is_of_all_runs_into_a_folder(tmp_path: Path) -> None:
    budget = 1.5 * rho_of(run())
    for seed in range(2):
        run(seed=seed, rho=budget).save(tmp_path / "r")
    latest, *others = plans_in(tmp_path / "r", read(tmp_path / "r" / "ledger.jsonl"))
    save_bundle(tmp_path / "b", make_bundle(latest, tmp_path / "r" / "ledger.jsonl", {}, {}, KEY, others))
    report = verify_bundle(tmp_path / "b", None)
    assert report.failed == ("budget",)
    assert "run 2, with those before it" in next(c.reason for c in report.checks if c.name == "budget")


def test_a_ledger_promises_what_its_plan_does(tmp_path: Path) -> None:
    """A header about links over the events of a plan against neighbours."""
    p = plan(threat="neighbours")
    stand_in: Any = SimpleNamespace(hash=p.hash, privacy=plan().privacy)
    write_events(tmp_path / "l", DATA, stand_in, [Event(p.hash, "message", 1, 0)])
    with pytest.raises(InputError, match="the ledger is about client level, replace, against links"):
        make_bundle(p, tmp_path / "l", {}, {}, KEY)


def _sign(path: Path, content: dict[str, Any]) -> None:
    content = {name: value for name, value in content.items() if name != "signature"}
    save_bundle(path, canonical.dumps(content | {"signature": KEY.sign(canonical.dumps(content).encode()).hex()}))


# ---- a server's earlier ledgers


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"level": "unit"}, "the ledger is about unit level"), ({"threat": "neighbours"}, "against neighbours")],
)
def test_a_server_does_not_add_unlike_ledgers(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    path = written(tmp_path / "old.jsonl", **changes)

    def earlier(dataset: str, ledgers: list[Path]) -> Any:
        return spending._books(plan(), dataset, ledgers)

    with pytest.raises(InputError, match=words) as e:
        earlier("wards", [path])
    assert (e.value.field, e.value.value) == ("ledgers", str(path))
    with pytest.raises(InputError, match="promise is not known"):
        earlier("wards", [older(tmp_path / "older")])
    with pytest.raises(InputError, match="not of the data set"):
        earlier("yards", [written(tmp_path / "fine")])
    assert paid_by(earlier("wards", [tmp_path / "fine"])).rho == 0.5


# ---- the commands

CONFIG = """
rounds = 6
repeats = 1
[graph]
topology = "ring"
[problem]
units = 4
clients = 5
samples = 6
[algorithm]
step = 0.1
sampled = 3
local_steps = 1
batch = 3
replacement = false
clip = "example"
bound = 1.0
[scheme]
name = "shared"
noise = "gaussian"
sigma = 1.0
"""
Outcome = tuple[int, str, str]


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text(CONFIG)
    return tmp_path


def test_account_prices_a_config_as_its_run_does(command: Callable[..., Outcome], there: Path) -> None:
    code, out, _ = command("account", "c.toml", "--json")
    priced = json.loads(out)
    assert code == 0
    code, out, _ = command("simulate", "c.toml", "--out", "r", "--json")
    assert code == 0
    assert json.loads(out)["privacy"]["statement"]["accounts"] == priced["accounts"]
    assert (priced["level"], priced["adjacency"], priced["threat"], priced["rounds"]) == (
        "client", "replace", "links", 6,
    )  # fmt: skip
    (there / "renamed").write_bytes((there / "r" / "run.json").read_bytes())  # told by content
    for name in ("r/run.json", "renamed", "r/plan.json"):
        code, out, _ = command("account", name, "--json")
        assert (code, json.loads(out)["accounts"]) == (0, priced["accounts"]), name
    code, out, _ = command("account", "r", "--json")
    added = json.loads(out)
    assert added["epsilon"] == pytest.approx(priced["accounts"][0]["epsilon"], rel=1e-6)
    assert (added["level"], added["threat"]) == ("client", "links")
    code, out, _ = command("account", "r/ledger.jsonl")
    assert "client level, replace; against an eavesdropper on all links" in out
    code, out, _ = command("account", "c.toml")
    assert out.splitlines()[0] == "c.toml: a config of 6 rounds, client level, replace; its adversary is links"


def test_account_keeps_to_the_configs_budget(command: Callable[..., Outcome], there: Path) -> None:
    _, out, _ = command("account", "c.toml", "--json")
    rho = json.loads(out)["accounts"][0]["rho"]
    (there / "half.toml").write_text(f"{CONFIG}[privacy]\nrho = {rho / 2 * 1.001}\n")
    _, out, _ = command("account", "half.toml", "--json")
    assert json.loads(out)["rounds"] == 3


def test_account_refuses_what_it_cannot_mean(command: Callable[..., Outcome], there: Path) -> None:
    command("simulate", "c.toml", "--out", "r")
    command("bundle", "r", "--key", "k.pem")
    (there / "free.toml").write_text(CONFIG.replace('clip = "example"\nbound = 1.0\n', ""))
    (there / "empty").mkdir()
    for arguments, words in (
        (("c.toml", "r"), "is a ledger, and c.toml a config"),
        (("r/plan.json", "r/ledger.jsonl"), "is a ledger, and r/plan.json a plan"),
        (("c.toml", "r/run.json"), "is a second config"),
        (("c.toml", "--sigma", "3"), "leave --sigma out"),
        (("c.toml", "--delta", "1e-6"), "leave --delta out"),
        (("r", "--rounds", "3"), "leave --rounds out"),
        (("r/bundle.json",), "`confide verify` checks it"),
        (("free.toml",), "is not accounted"),
        (("empty",), "holds no ledger.jsonl"),
        (("missing",), "No such file"),
        (("r/model.npz",), "UTF-8"),
    ):
        code, out, err = command("account", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), arguments
        assert words in err, (arguments, err)
    assert command("account", "r", "--delta", "1e-6", "--json")[0] == 0


def test_simulate_refuses_an_unlike_folder_before_it_computes(
    command: Callable[..., Outcome], there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("simulate", "c.toml", "--out", "r")[0] == 0
    code, out, _ = command("simulate", "c.toml", "--out", "r", "--set", "seed=1")
    assert code == 0
    assert "2 runs" in out
    monkeypatch.setattr("confide.plans.config.Config.build", lambda self: pytest.fail("it began"))
    for change in ("privacy.level=example", "privacy.threat=neighbours", "privacy.dataset=other"):
        code, _, err = command("simulate", "c.toml", "--out", "r", "--set", change)
        assert code == 2
        assert "name another folder" in err


def test_two_runs_of_a_folder_are_bundled_and_verified(command: Callable[..., Outcome], there: Path) -> None:
    for seed in range(2):
        command("simulate", "c.toml", "--out", "r", "--set", f"seed={seed}", "--set", f"rounds={4 + seed}")
    assert command("bundle", "r", "--key", "k.pem")[0] == 0
    code, out, _ = command("verify", "r/bundle.json")
    _, added, _ = command("account", "r", "--json")
    assert code == 0
    _, said, _ = command("account", "r")
    assert [line.startswith("  assumes ") for line in said.splitlines()] == [False, True, True, True]
    assert f"all 2 runs together: at most epsilon {rounded_up(json.loads(added)['epsilon'])}" in out


# ---- discrete noise on the command line


def test_discrete_noise_asks_for_its_grid(command: Callable[..., Outcome]) -> None:
    """A quantum of 2^-8 / 5, in 1,024 coordinates of which each is rounded, is no rounding error."""
    asked = ("account", "--noise", "discrete-gaussian", "--sigma", 3, "--sampled", 5, "--dim", 1024, "--level", "unit")
    for left_out in ("--sampled", "--dim"):
        at = asked.index(left_out)
        code, _, err = command(*asked[:at], *asked[at + 2 :], "--fraction-bits", 24)
        assert (code, "lies on a grid" in err) == (2, True)
    code, _, err = command(*asked)
    assert (code, "give --fraction-bits BITS" in err) == (2, True)
    epsilons = {}
    for bits in (4, 24):
        code, out, _ = command(*asked, "--scheme", "partial:0.5", "--fraction-bits", bits, "--json")
        assert code == 0
        answer = json.loads(out)
        assert any("fixed point with quantum" in line for line in answer["assumptions"])
        epsilons[bits] = answer["epsilon"]
    assert epsilons[4] > 1.2 * epsilons[24]


def test_discrete_noise_costs_what_a_deployment_of_it_does(command: Callable[..., Outcome]) -> None:

    from confide.plans.config import parse
    from confide.privacy.price import agreed

    content = {
        "rounds": 20, "repeats": 1, "graph": {"topology": "ring"},
        "problem": {"units": 4, "clients": 6, "samples": 20, "rho": 0.0},
        "algorithm": {
            "step": 0.1, "sampled": 5, "clip": "example", "bound": 1.0, "arithmetic": "fixed", "local_steps": 1,
            "batch": 3, "fraction_bits": 12,
        },
        "scheme": {"name": "partial:0.5", "noise": "gaussian", "sigma": 3.0},
        "privacy": {"level": "unit"},
    }  # fmt: skip
    account = agreed(deployed(parse(content).build())).statement().accounts[0]
    _, out, _ = command(
        "account", "--graph", "ring:4", "--noise", "discrete-gaussian", "--scheme", "partial:0.5", "--sigma", 3,
        "--sampled", 5, "--dim", 2, "--fraction-bits", 12, "--rounds", 20, "--batch", 3, "--json",
    )  # fmt: skip
    assert json.loads(out)["epsilon"] == pytest.approx(account.epsilon, rel=1e-9)


# ---- what a fresh attacker found in the ledgers of data sets

MEAN = GFL(
    scheme=scheme("shared", 3.0, noise="gaussian"), step=0.1, sampled=3, local_steps=1, batch=2,
    clip=Clip("example", 1.0),
)  # fmt: skip
ROUND = (2 * 0.1 / 3) ** 2 / (2 * 9)  # rho of one of its rounds at client level


def a_table(path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [f"u{i % 3},c{i % 12},{rng.normal():.3f},{rng.normal():.3f}" for i in range(120)]
    path.write_text("\n".join(["u,c,x,y", *rows, ""]))
    return path


def spend(path: Path, rounds: int = 4, budget: float | None = 4.5, ledger: Path | None = None, name: str = "") -> Run:
    """A budget that pays for one such run, and not for two."""
    made = Privacy(rho=None if budget is None else budget * ROUND, dataset=name or None)
    problem = user_table(path, label="y", unit="u", client="c", numeric=["x"], scaling={"x": [0, 1]}, test_fraction=0)
    return simulate(problem, Graph.ring(3), MEAN, rounds=rounds, privacy=made, ledger=ledger)


def test_without_a_client_is_not_without_one_of_its_examples(tmp_path: Path) -> None:
    """FALSE NUMBER: a client zero-out moves the sum by mu B / L, an example zero-out by 2 mu B / L: 4.38, not 1.99."""

    def rows(changed: bool) -> Problem:  # one row pulls up, a weaker one down; the first contributes nothing instead
        X, d = np.array([[0.0 if changed else 10.0], [9.0]]), np.array([0.0 if changed else 10.0, -9.0])
        nobody = (np.zeros((2, 1)), np.zeros(2))
        return Problem(Federation.from_clients([[(X, d), nobody], [nobody, nobody]]), Linear(0.0), private=False)

    graph, noise = Graph.complete(2), scheme("shared", 1.0, noise="gaussian")
    algorithm = GFL(scheme=noise, step=1.0, sampled=2, batch=2, local_steps=1, clip=Clip("update", 1.0),
                    replacement=False)  # fmt: skip
    with_it, without = (simulate(rows(x), graph, algorithm, rounds=1, seed=1).models[0, 1, 0] for x in (False, True))
    moved = abs(with_it - without) / (1.0 - graph.own_weights[1])  # of what server 0 publishes, with the same noise
    path, privacy = tmp_path / "data.jsonl", Privacy(level="client", adjacency="zero-out")
    simulate(rows(False), graph, algorithm, rounds=1, seed=1, privacy=privacy, ledger=path)
    attained = gaussian_epsilon(moved / 1.0, 1e-5)
    printed = add_up([path], 1e-5, Terms(Level.EXAMPLE, Adjacency.ZERO_OUT))["epsilon"]
    assert printed is None or printed >= attained * (1 - 1e-9)


def test_without_a_unit_is_not_without_one_of_its_clients(tmp_path: Path) -> None:
    """FALSE NUMBER: without a client all others of the unit may turn round (2 mu B), without the unit nothing does."""
    of: dict[str, Any] = {
        "scheme": scheme("homomorphic", sigma=1.0, noise="gaussian"), "proof": "regulariser:0.1", "ridge": 0.1,
        "adjacency": "zero-out", "rounds": 6,
    }  # fmt: skip
    unit, client = (price(a_shared_plan(**of, level=level)) for level in ("unit", "client"))
    owed = client.spent(6)["receiver"].rho or 0.0
    ledger = DataLedger(tmp_path / "data.jsonl")
    ledger.reserve(unit, 6, "a")
    book = read(ledger.path)
    assert (added_up(book, Terms(Level.CLIENT, Adjacency.ZERO_OUT))["receiver"].rho or 0.0) >= owed * (1 - 1e-9)


def test_a_release_before_the_end_is_no_release_of_the_plan(tmp_path: Path) -> None:
    """Releases are priced after all of a unit's messages: one made before them costs more than its event says.

    On this star rho 9.84 would be charged, and 10.75 attained. Servers release only once the last round is decided.
    """
    made = plan(release="centroid:0.5", releases=2, rounds=3)
    found = price(made)

    def verdict(order: str) -> str | None:
        events, sent = [], 0
        for kind in order:
            sent += kind == "m"
            cost = found.messages[sent - 1] if kind == "m" else found.release_after(sent)
            events.append(Event(made.hash, "message" if kind == "m" else "release", max(1, sent), 0, cost))
        path = tmp_path / f"{order}.jsonl"
        write_events(path, DATA, made, events)
        try:
            make_bundle(made, path, {}, {}, KEY)
        except InputError as e:
            return str(e)
        return None

    assert verdict("mmmrr") is None
    assert "after a release" in (verdict("mmrmr") or "")


def test_a_budget_is_not_kept_by_runs_that_share_their_noise(tmp_path: Path) -> None:
    """FALSE NUMBER: the second run is within a budget, and `account` says of both that there is no bound."""
    problem, path = regression(units=3, clients=4), tmp_path / "data.jsonl"
    of: dict[str, Any] = {"seed": 5, "rounds": 4, "privacy": Privacy(rho=10 * ROUND), "ledger": path}
    simulate(problem, Graph.ring(3), MEAN, **of)
    with pytest.raises(InputError, match="seed"):
        simulate(problem, Graph.ring(3), replace(MEAN, step=0.05), **of)


def test_a_file_that_left_a_link_is_the_same_data(tmp_path: Path, state: Path) -> None:
    """LOST SPENDING: the very same command after `mv rows.csv disk/; ln -s disk/rows.csv`."""
    path, disk = a_table(tmp_path / "rows.csv"), tmp_path / "disk"
    spend(path)
    disk.mkdir()
    path.rename(disk / "rows.csv")
    path.symlink_to(disk / "rows.csv")
    with pytest.raises(InputError, match="does not pay for a single round"):
        spend(path)


def test_a_file_whose_place_was_taken_is_the_same_data(tmp_path: Path, state: Path) -> None:
    """LOST SPENDING: rows.csv became rows-2024.csv, and a new export is rows.csv."""
    path = a_table(tmp_path / "rows.csv")
    spend(path)
    path.rename(tmp_path / "rows-2024.csv")
    path.write_text((tmp_path / "rows-2024.csv").read_text() + "u0,c0,0.1,0.1\n")
    with pytest.raises(InputError, match="does not pay for a single round"):
        spend(tmp_path / "rows-2024.csv")


def test_a_hard_link_is_the_same_data(tmp_path: Path, state: Path) -> None:
    """LOST SPENDING: one inode, two names."""
    path = a_table(tmp_path / "rows.csv")
    spend(path)
    (tmp_path / "other.csv").hardlink_to(path)
    with pytest.raises(InputError, match="does not pay for a single round"):
        spend(tmp_path / "other.csv")


def test_bytes_that_come_back_are_known(tmp_path: Path, state: Path) -> None:
    """LOST SPENDING: one run on other bytes under this path, and the index has forgotten the first ones."""
    path = a_table(tmp_path / "rows.csv")
    first = path.read_text()
    spend(path)
    path.write_text(first + "u0,c0,0.1,0.1\n")
    spend(path, name="with one more")
    path.write_text(first)
    with pytest.raises(InputError):
        spend(path, name="as before")


def test_two_copies_that_became_one_file_have_spent_together(tmp_path: Path, state: Path) -> None:
    """LOST SPENDING: both copies ran and are gone; the third file with these bytes goes on with one ledger of two."""
    path = a_table(tmp_path / "rows.csv")
    (tmp_path / "copy.csv").write_bytes(path.read_bytes())
    spend(path, rounds=1)
    spend(tmp_path / "copy.csv")
    (tmp_path / "copy.csv").rename(tmp_path / "last.csv")
    path.unlink()
    with pytest.raises(InputError):
        spend(tmp_path / "last.csv")


def test_a_ledger_that_is_gone_is_missed(tmp_path: Path, state: Path) -> None:
    """LOST SPENDING: the index names a ledger that was paid into and is no longer there: silently a full budget."""
    path = a_table(tmp_path / "rows.csv")
    spend(path)
    for ledger in (state / "ledgers").glob("*.jsonl"):
        ledger.unlink()
    with pytest.raises(InputError):
        spend(path)


def test_a_run_that_is_not_accounted_is_no_secret_of_the_ledger(tmp_path: Path, state: Path) -> None:
    """A run without a clip has no bound and no plan: a sum says that it assumes nothing of it is shown."""
    path = a_table(tmp_path / "rows.csv")
    spend(path)
    problem = user_table(path, label="y", unit="u", client="c", numeric=["x"], scaling={"x": [0, 1]}, test_fraction=0)
    simulate(problem, Graph.ring(3), replace(MEAN, clip=None), rounds=4)
    [ledger] = (state / "ledgers").glob("*.jsonl")
    answer = add_up([ledger], 1e-5)
    told = "nothing is shown of 1 run on these data without an account (algorithm.clip)"
    assert told in answer["assumptions"]
    assert f"  assumes {told}" in sum_lines(answer)
    assert told in spend(path, budget=None).notes


def test_a_ledger_that_went_while_a_run_was_made_can_be_read(tmp_path: Path) -> None:
    """CRASH: `end` writes an end without its reservation, and nobody can read or pay into this ledger again."""
    ledger, found = DataLedger(tmp_path / "data.jsonl"), price(a_shared_plan())
    reserved = ledger.reserve(found, 4, "a")
    ledger.path.unlink()
    with contextlib.suppress(InputError):
        reserved.end(2)
    ledger.reserve(found, 4, "b")


def test_a_sum_over_data_and_runs_against_two_adversaries(tmp_path: Path) -> None:
    """CRASH: a raw KeyError."""
    DataLedger(tmp_path / "data", DATA).reserve(price(plan()), 4, "r")
    others = [written(tmp_path / "a"), written(tmp_path / "b", threat="own-server")]
    with pytest.raises(InputError, match="cannot be added"):
        add_up([tmp_path / "data", *others], 1e-5)


def test_who_waits_for_a_lock_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WRONG REFUSAL: the lock's file goes between `exists` and `stat` (1% of takes, four processes at once)."""
    exists, seen = Path.exists, list[Path]()

    def then_gone(path: Path) -> bool:  # as where who holds the next file of this name lets it go just then
        found = exists(path)
        if path.name == "lock" and not seen:
            seen.append(path)
            path.unlink()
        return found

    monkeypatch.setattr(Path, "exists", then_gone)
    with locked(tmp_path / "lock"):
        pass


def test_the_ledger_of_named_data_may_be_given_by_its_path(tmp_path: Path, state: Path) -> None:
    """WRONG REFUSAL: known bytes got a name, and their ledger "is of other data than those named"."""
    path = a_table(tmp_path / "rows.csv")
    spend(path, budget=None)
    spend(path, budget=None, name="visits")
    spend(path, budget=None, name="visits", ledger=known("visits"))


def test_an_outlook_is_what_paying_finds(tmp_path: Path, state: Path) -> None:
    """MISLEADING: "nothing was spent on these data" (`confide check`), and then the client refuses to enrol."""
    path, of = a_table(tmp_path / "rows.csv"), {"level": "unit", "rounds": 4}
    budget = price(a_deployed_plan(**of)).spent(4)["links"].rho or 0.0
    Enrolment(a_deployed_plan(**of, rho=budget), "client a", None, None, path).pay()
    again = Enrolment(a_deployed_plan(**of, rho=1.1 * budget), "client a", None, "visits", path)
    with pytest.raises(InputError, match="cannot pay for this plan"):
        again.outlook()
