"""A bundle holds together or says what does not; keys stay with their owner."""

from __future__ import annotations

import json
import math
import os
import stat
import traceback
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as elliptic_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import a_deployed_plan, a_shared_plan, forged_units, units
from confide.base import canonical
from confide.base.errors import InputError, RunError
from confide.graph.graph import Graph
from confide.laws.conversion import gaussian_epsilon, rho_epsilon
from confide.plans.plan import Plan
from confide.plans.text import encoded
from confide.privacy import bundle
from confide.privacy.bundle import (
    Report,
    generate_key,
    load_key,
    make_bundle,
    public_hex,
    save_bundle,
    unit_totals,
    verify_bundle,
)
from confide.privacy.data_ledger import DataLedger
from confide.privacy.ledger import FREE, Book, Cost, Event, dataset_id, lines, paid_by, read, write_events
from confide.privacy.price import price
from confide.rounds.arithmetic import on_grid
from confide.rounds.schemes import Scheme, scheme
from confide.secure import receipts
from confide.secure.receipts import Receipt
from confide.testing.rehearsal import server_identity

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
DATA = dataset_id("tests")
NONE: dict[str, Any] = {"epsilon": None, "rho": None}
VERSIONS = {"confide": "0.1.0", "python": "3.11"}
RHO = (2 * 0.1 * 1.0 / 5) ** 2 / 2  # of a round of `plan()`: (2 mu B / L)^2 / (2 sigma^2)
PURE = 2 * 0.1 * 1.0 / 5 * math.sqrt(2)  # epsilon of a round of Laplace noise, of scale sigma / sqrt(2)
GAUSSIAN = rho_epsilon(4 * RHO, 1e-5, True)
PARTS = list(bundle._PARTS)
CHECKS = ["signature", "signer", "plan", "ledger", "events", "rounds", "prices", "budget", "statement"]


def plan(**changes: Any) -> Plan:
    return a_shared_plan(**{"rho": 4 * RHO} | changes)


def noisy(name: str, sigma: float, law: str = "gaussian") -> Scheme:
    return scheme(name, sigma, noise=law)


def priced(rho: float | None = RHO, epsilon: float | None = None, law: str = "gaussian", **changes: Any) -> Cost:
    return Cost(**{"rho": rho, "epsilon": epsilon, "sensitivity": 0.04, "sigma": 1.0, "law": law} | changes)


def events(p: Plan, cost: Cost | None = None) -> list[Event]:
    """Four messages of each of three units; what `plan()` costs, unless a cost is given."""
    return [Event(p.hash, "message", t, unit, cost or priced()) for t in range(1, 5) for unit in range(3)]


def written(path: Path, p: Plan, found: list[Event]) -> Book:
    write_events(path, DATA, p, found)
    return read(path)


def bundled(folder: Path, p: Plan, found: list[Event], **more: Any) -> Path:
    """A bundle of what may not hold together: signed by hand, as someone with a key could."""
    ledger, path = folder / "ledger.jsonl", folder / "bundle.json"
    for old in (ledger, path):
        old.unlink(missing_ok=True)
    write_events(ledger, DATA, plan_of(found, p), found)
    book = read(ledger)
    content = {
        "format": 2,
        "plan": encoded(p),
        "others": [],
        "ledger": list(lines(book.header, book.events)),
        "versions": VERSIONS,
        "statement": {"totals": unit_totals(book)},
        "public_key": public_hex(KEY.public_key()),
    } | more
    return sign(path, content)


def plan_of(found: list[Event], p: Plan) -> Any:
    """What `write_events` believes to be the plan of these events."""
    return SimpleNamespace(hash=found[0].plan if found else p.hash, privacy=p.privacy)


def sign(path: Path, content: dict[str, Any], key: Ed25519PrivateKey = KEY) -> Path:
    content = {name: value for name, value in content.items() if name != "signature"}
    signature = key.sign(canonical.dumps(content).encode()).hex()
    save_bundle(path, canonical.dumps(content | {"signature": signature}))
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    p = plan()
    write_events(tmp_path / "l", DATA, p, events(p))
    text = make_bundle(p, tmp_path / "l", {"words": "rho 0.0032 in 4 rounds"}, VERSIONS, KEY)
    save_bundle(tmp_path / "bundle.json", text)
    return tmp_path / "bundle.json"


def failed(path: Path, *names: str, words: str = "", **more: Any) -> Report:
    report = verify_bundle(path, **more)
    assert report.failed == names
    assert not report.ok
    assert words in " ".join(check.reason for check in report.checks if check.ok is False)
    return report


# ---- what holds


def test_a_good_bundle_passes_every_check(good: Path) -> None:
    report = verify_bundle(good, public_hex(KEY.public_key()))
    # Its statement is words of its own, which nothing is compared with.
    assert [(c.name, c.ok) for c in report.checks] == [(name, None if name == "statement" else True) for name in CHECKS]
    assert report.ok
    assert (report.plan, report.dataset, report.signer) == (plan().hash, DATA, public_hex(KEY.public_key()))
    assert [dict(t) for t in report.totals] == [
        {"run": 0, "unit": unit, "events": 4, "rho": pytest.approx(4 * RHO), "epsilon": None} for unit in range(3)
    ]
    json.dumps(report.to_dict(), allow_nan=False)
    assert report.to_dict()["checks"][0] == {"name": "signature", "ok": True, "reason": report.checks[0].reason}


def test_the_key_may_be_an_object(good: Path) -> None:
    assert verify_bundle(good, KEY.public_key()).ok
    assert verify_bundle(good, public_hex(KEY.public_key()).upper() + "\n").ok


def test_an_auditor_needs_nothing_of_ours(good: Path) -> None:
    """The signature is over sorted, compact JSON without the signature: any JSON reader can check it."""
    content = json.loads(good.read_text())
    signature = bytes.fromhex(content.pop("signature"))
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(content["public_key"])).verify(signature, text)


def test_the_ledger_comes_out_as_it_went_in(good: Path) -> None:
    assert "\n".join([*json.loads(good.read_text())["ledger"], ""]) == (good.parent / "l").read_text()


def test_the_same_inputs_give_the_same_bundle(good: Path) -> None:
    again = make_bundle(plan(), good.parent / "l", {"words": "rho 0.0032 in 4 rounds"}, VERSIONS, KEY)
    assert again + "\n" == good.read_text()


def test_without_a_trusted_key_the_signer_is_not_checked(good: Path) -> None:
    report = verify_bundle(good)
    [signer] = [c for c in report.checks if c.name == "signer"]
    assert signer.ok is None
    assert public_hex(KEY.public_key()) in signer.reason
    assert report.ok


# ---- what does not


def changed(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, str):
        return ("1" if value[0] == "0" else "0") + value[1:]
    if isinstance(value, list):
        return value[:-1] if value else [{}]
    return value + 1 if isinstance(value, int) else value | {"threat": "own-server", "extra": "x"}


@pytest.mark.parametrize("name", PARTS)
def test_every_field_is_signed(good: Path, name: str) -> None:
    content = canonical.loads(good.read_text().strip())
    content[name] = changed(content[name])
    good.write_text(canonical.dumps(content) + "\n")
    if name == "format":
        with pytest.raises(InputError, match="has format 4"):
            verify_bundle(good)
    else:
        report = verify_bundle(good)
        assert "signature" in report.failed


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
def test_any_changed_byte_is_noticed(good: Path, data: st.DataObject) -> None:
    text = bytearray(good.read_bytes())
    body = len(text) - 1
    at = data.draw(st.integers(0, body - 1))
    text[at] ^= data.draw(st.integers(1, 255))
    other = good.with_name("other.json")
    other.write_bytes(text)
    try:
        noticed = "signature" in verify_bundle(other).failed
    except InputError as e:
        noticed = e.field == "bundle"  # no longer a bundle at all
    assert noticed


def test_another_key_cannot_stand_in(good: Path) -> None:
    """Signed anew by someone else: the signature is valid, the signer is not the trusted one."""
    content = canonical.loads(good.read_text().strip()) | {"public_key": public_hex(OTHER.public_key())}
    sign(good, content, OTHER)
    assert verify_bundle(good).ok
    failed(good, "signer", words=public_hex(OTHER.public_key()), trusted_key=KEY.public_key())


def test_another_key_under_the_trusted_name(good: Path) -> None:
    sign(good, canonical.loads(good.read_text().strip()), OTHER)  # the public key still says KEY
    failed(good, "signature", trusted_key=KEY.public_key())


@pytest.mark.parametrize("key", ["", "00", "zz" * 32, "0x" + "00" * 31])
def test_trusted_keys_are_checked(good: Path, key: str) -> None:
    with pytest.raises(InputError, match="trusted_key"):
        verify_bundle(good, key)


@pytest.mark.parametrize(
    ("name", "value"), [("public_key", "00"), ("public_key", "é"), ("signature", ""), ("signature", "0" * 128)]
)
def test_malformed_keys_and_signatures_fail(good: Path, name: str, value: str) -> None:
    content = canonical.loads(good.read_text().strip()) | {name: value}
    good.write_text(canonical.dumps(content))
    failed(good, "signature")


def test_events_of_another_plan(tmp_path: Path) -> None:
    failed(bundled(tmp_path, plan(), events(plan(step=0.2))), "events", words="event 1 was made under plan")


@pytest.mark.parametrize(
    ("event", "names", "words"),
    [
        ({"round": 5}, ("rounds", "prices"), "outside"),
        ({"unit": 3}, ("rounds",), "outside"),
        ({"round": 4}, ("rounds", "prices"), "second time"),
        ({"kind": "skip", "round": 4, "cost": FREE}, ("rounds",), "second time"),
        ({"kind": "release", "round": 4}, ("rounds", "prices"), "not in the plan"),
    ],
)
def test_events_that_the_plan_does_not_allow(
    tmp_path: Path, event: dict[str, Any], names: tuple[str, ...], words: str
) -> None:
    p = plan(**NONE)
    extra = Event(**{"plan": p.hash, "kind": "message", "round": 1, "unit": 0, "cost": priced()} | event)
    report = failed(bundled(tmp_path, p, [*events(p), extra]), *names, words=words)
    if len(names) > 1:  # a price for what the plan does not have is no price either
        [prices] = [check for check in report.checks if check.name == "prices"]
        assert prices.reason == f"event 13: the plan has no such {event.get('kind', 'message')}"


def test_one_release_of_a_unit_where_the_plan_has_one(tmp_path: Path) -> None:
    p = plan(release="centroid:0.5")  # of a state that the messages tell: it adds nothing
    release = Event(p.hash, "release", 4, 0, priced(0.0, 0.0, sensitivity=0.0, sigma=0.5))
    assert verify_bundle(bundled(tmp_path, p, [*events(p), release])).ok
    failed(bundled(tmp_path, p, [*events(p), release, release]), "rounds", words="one more than the 1 that the plan")
    twice = plan(release="centroid:0.5", releases=2)
    release = Event(twice.hash, "release", 4, 0, priced(0.0, 0.0, sensitivity=0.0, sigma=0.5))
    assert verify_bundle(bundled(tmp_path, twice, [*events(twice), release, release])).ok


# ---- prices are computed anew


def near(found: Sequence[Cost], expected: Sequence[Cost]) -> bool:
    """Equal up to rounding, None and the law exactly."""
    pairs = [(getattr(a, f.name), getattr(b, f.name)) for a, b in zip(found, expected, strict=True) for f in fields(a)]
    return all(a == b or (isinstance(a, float) and isinstance(b, float) and math.isclose(a, b)) for a, b in pairs)


def test_a_plan_costs_what_the_formula_says() -> None:
    found = price(plan())
    assert near(found.messages, [priced()] * 4)
    assert found.release is None


FORGED = [
    priced(1e-9),
    priced(RHO * (1 - 1e-6)),
    priced(RHO * (1 + 1e-6)),
    priced(0.0, 0.0),
    priced(None),
    priced(RHO, 1e-9),
    priced(law="none"),
    priced(law="discrete-gaussian"),
    priced(sigma=2.0),
    priced(sensitivity=0.02),
]


@pytest.mark.parametrize("cost", FORGED, ids=range(len(FORGED)))
def test_other_prices_than_the_plans_fail(tmp_path: Path, cost: Cost) -> None:
    """A ledger that asks for less, or for more, in every event or in the last one only."""
    p = plan(**NONE)
    for found, event in ((events(p, cost), 1), ([*events(p)[:-1], events(p, cost)[-1]], 12)):
        failed(bundled(tmp_path, p, found), "prices", words=f"event {event}, a message of unit")
        (tmp_path / "l").unlink(missing_ok=True)
        write_events(tmp_path / "l", DATA, p, found)
        with pytest.raises(InputError, match=r"bundle\.prices"):
            make_bundle(p, tmp_path / "l", {}, VERSIONS, KEY)


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_a_laplace_ledger_cannot_be_converted_as_if_it_were_gaussian(tmp_path: Path, law: str) -> None:
    """The law decides how a rho becomes an epsilon."""
    p = plan(scheme=noisy("shared", 0.05, "laplace"), norm="l1", **NONE | {"epsilon": 20.0})
    costs = price(p).messages
    pure = 0.04 * math.sqrt(2) / 0.05
    assert near(costs, [Cost(min(pure, pure**2 / 2), pure, 0.04, 0.05, "laplace")] * 4)
    found = events(p, replace(costs[0], law=law))
    report = verify_bundle(bundled(tmp_path, p, found))
    assert report.failed == (() if law == "laplace" else ("prices",))
    paid = paid_by([written(tmp_path / "l", p, found)])
    assert paid.gaussian is (law == "gaussian")
    assert report.spent is not None
    rho = rho_epsilon(4 * costs[0].rho, 1e-5, law == "gaussian")
    assert report.spent["epsilon"] == pytest.approx(min(4 * pure, rho))


def test_a_release_costs_what_the_plan_says(tmp_path: Path) -> None:
    """Unit level, homomorphic: after 4 rounds the state is 4 * 0.2 away, a third of that is the mean's, and all but one
    of three shares put 0.5 on it: all three, which who listens to links does not know, sqrt(3 / 2) times that."""
    p = plan(scheme=noisy("homomorphic", 30.0), level="unit", release="centroid:0.5", **NONE)
    costs, release = price(p).messages, price(p).release
    assert near(costs, [Cost((0.2 * j / 30) ** 2 / 2, None, 0.2 * j, 30.0, "gaussian") for j in (1, 2, 3, 4)])
    rho = (0.8 / 3) ** 2 / (0.5**2 * 3 / 2) / 2
    assert release is not None
    assert near([release], [Cost(rho, None, 0.5 * math.sqrt(2 * rho), 0.5, "gaussian")])
    sent = [Event(p.hash, "message", t, unit, costs[t - 1]) for t in range(1, 5) for unit in range(3)]
    for cost in (release, FREE, replace(release, rho=rho / 2), replace(release, rho=1e-9)):
        path = bundled(tmp_path, p, [*sent, *(Event(p.hash, "release", 4, unit, cost) for unit in range(3))])
        if cost is release:
            assert verify_bundle(path).ok
        else:
            failed(path, "prices", words="event 13, a release of unit 0")
    late = [Event(p.hash, "message", t, unit, costs[0]) for t in range(1, 5) for unit in range(3)]
    failed(bundled(tmp_path, p, late), "prices", words="event 4, a message of unit 0")  # each as cheap as the first


def test_graphs_that_take_turns_are_priced_round_by_round(tmp_path: Path) -> None:
    """Noise on every link, unit level: the worst server is the hub of the star, where it has three neighbours and in
    the ring two; what it keeps of a deviation is its own weight in the graph of that round."""
    star, ring = Graph.star(4), Graph.ring(4)
    changes = {"graph": star, "scheme": noisy("per-link", 1.0), "level": "unit"} | NONE
    p = plan(**changes | {"graph": (star, ring)})
    costs = price(p).messages
    deltas, expected = [0.2], []
    for t in range(4):
        graph = (star, ring)[t % 2]
        expected.append(graph.degrees[0] * deltas[-1] ** 2 / 2)
        deltas.append(graph.A[0, 0] * deltas[-1] + 0.2)
    assert [cost.rho for cost in costs] == pytest.approx(expected)
    book = [Event(p.hash, "message", t, unit, costs[t - 1]) for t in range(1, 5) for unit in range(4)]
    assert verify_bundle(bundled(tmp_path, p, book)).ok
    once = price(plan(**changes)).messages  # as if the star stayed
    wrong = [Event(p.hash, "message", t, unit, once[t - 1]) for t in range(1, 5) for unit in range(4)]
    failed(bundled(tmp_path, p, wrong), "prices", words="event 5, a message of unit 0")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"proof": "regulariser:0.5"}, "0.5"),
        ({"undeclared": ("the scaling of age is computed from everybody's rows",)}, "by the plan None"),
    ],
)
def test_a_plan_without_a_price_passes_no_audit(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    p = plan(**NONE | changes)
    failed(bundled(tmp_path, p, events(p)), "prices", words=words)
    write_events(tmp_path / "l", DATA, p, events(p))
    with pytest.raises(InputError, match=r"bundle\.prices"):
        make_bundle(p, tmp_path / "l", {}, VERSIONS, KEY)


def test_a_report_says_who_is_protected_and_how_well(good: Path) -> None:
    said = verify_bundle(good).statement
    assert said is not None
    links = said["accounts"][0]
    assert (links["threat"], links["level"], links["adjacency"], links["delta"]) == ("links", "client", "replace", 1e-5)
    assert links["epsilon"] == pytest.approx(gaussian_epsilon(math.sqrt(8 * RHO), 1e-5))
    assert {a["threat"].partition(":")[0]: a["leak"] for a in said["accounts"]}["own-server"]
    assert verify_bundle(good).to_dict()["statement"] == said


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: [a[0] | {"epsilon": 0.9 * a[0]["epsilon"]}, *a[1:]],
        lambda a: [a[0] | {"epsilon": None}, *a[1:]],
        lambda a: [a[0] | {"level": "unit"}, *a[1:]],
        lambda a: [a[0] | {"adjacency": "zero-out"}, *a[1:]],
        lambda a: [a[0] | {"delta": 1e-3}, *a[1:]],
        lambda a: [*a[:-1], a[-1] | {"leak": False, "epsilon": 1.0}],
        lambda a: [*a[:-1], a[-1] | {"adversary": "nobody"}],
        lambda a: a[:-1],
        lambda a: [*a, {}],
        lambda a: [*a[:-1], 1],
        lambda a: a[0],
        lambda a: None,
    ],
)
def test_accounts_that_the_plan_does_not_give(good: Path, spoil: Callable[[Any], Any]) -> None:
    content = canonical.loads(good.read_text().strip())
    said = canonical.loads(canonical.dumps(verify_bundle(good).statement))
    whole = said | {"totals": content["statement"]["totals"]}
    sign(good, content | {"statement": whole})
    assert verify_bundle(good).ok
    spoilt = whole | {"accounts": spoil(said["accounts"])}
    sign(good, content | {"statement": spoilt})
    failed(good, "statement")
    with pytest.raises(InputError, match=r"bundle\.statement"):
        make_bundle(plan(), good.parent / "l", spoilt, VERSIONS, KEY)


# ---- budgets

SILENT = {"scheme": noisy("none", 0.0)}  # a leak: no bound at all
LAPLACE = {"scheme": noisy("shared", 1.0, "laplace"), "norm": "l1"}  # pure, and with a rho
COSTS = {
    "gaussian": priced(),
    "laplace": priced(PURE**2 / 2, PURE, "laplace"),
    "none": priced(None, sigma=0.0, sensitivity=0.0, law="none"),
}


@pytest.mark.parametrize(
    ("budget", "changes", "words"),
    [
        ({"rho": 4 * RHO}, {}, None),  # exactly, up to rounding
        ({"rho": 4 * RHO * (1 - 1e-6)}, {}, "spent rho 0.0032"),
        ({"rho": 0.4}, SILENT, "no bound in rho"),
        ({"epsilon": 4 * PURE}, LAPLACE, None),
        ({"epsilon": 4 * PURE * (1 - 1e-6)}, LAPLACE, "spent epsilon 0.226"),
        ({"epsilon": 0.4}, SILENT, "no bound in epsilon"),
        ({"epsilon": GAUSSIAN}, {}, None),
        ({"epsilon": GAUSSIAN * (1 - 1e-6)}, {}, "spent epsilon 0.2"),
        ({"rho": 2 * PURE**2}, LAPLACE, None),
        ({"rho": 2 * PURE**2 * (1 - 1e-6)}, LAPLACE, "spent rho 0.0064"),
        ({}, SILENT, None),
    ],
)
def test_budgets(tmp_path: Path, budget: dict[str, float], changes: dict[str, Any], words: str | None) -> None:
    p = plan(**changes, **NONE | budget)
    law = p.scheme.law.name if p.scheme.sigma else "none"
    path = bundled(tmp_path, p, events(p, COSTS[law]))
    if words is None:
        assert verify_bundle(path).ok
    else:
        failed(path, "budget", words=words)


def test_a_plan_without_a_delta_or_with_two_budgets_is_none(tmp_path: Path) -> None:
    """Nobody can make such a plan: whatever its ledger says, it does not pass."""
    p = plan()
    for key, changes in (("delta", {"delta": 0.0}), ("rho", {"epsilon": 0.4})):
        table = encoded(p)
        table["privacy"] |= changes
        report = failed(bundled(tmp_path, p, events(p), plan=table), "plan", words=f"privacy.{key}")
        assert [c.ok for c in report.checks[-5:]] == [None] * 5


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: t[:-1],
        lambda t: [*t[:-1], t[-1] | {"rho": 3.9 * RHO}],
        lambda t: [*t[:-1], t[-1] | {"rho": None}],
        lambda t: [*t[:-1], t[-1] | {"epsilon": 1.0}],
        lambda t: [*t[:-1], t[-1] | {"events": 3}],
        lambda t: t[::-1],
        lambda t: [{"unit": row["unit"]} for row in t],
        lambda t: "none",
        lambda t: [1, 2, 3],
        lambda t: None,
    ],
)
def test_a_statement_that_says_something_else(tmp_path: Path, spoil: Callable[[Any], Any]) -> None:
    p = plan()
    book = written(tmp_path / "x", p, events(p))
    statement = {"totals": spoil(unit_totals(book))}
    failed(bundled(tmp_path, p, events(p), statement=statement), "statement")
    with pytest.raises(InputError, match=r"bundle\.statement"):
        make_bundle(p, tmp_path / "x", statement, VERSIONS, KEY)


def test_a_signed_plan_that_is_no_plan(tmp_path: Path) -> None:
    p = plan()
    for wrong in ({}, encoded(p) | {"rounds": -1}, encoded(p) | {"more": 1}, encoded(p) | {"scheme": 1}):
        report = failed(bundled(tmp_path, p, events(p), plan=wrong), "plan")
        assert report.plan is None
        assert [c.ok for c in report.checks[-5:]] == [None] * 5


def test_a_signed_ledger_that_is_broken(tmp_path: Path) -> None:
    p = plan()
    book = written(tmp_path / "x", p, events(p))
    texts = list(lines(book.header, book.events))
    for wrong, words in (
        ([], "line 1 is missing"),
        (texts[:-1], "line 13 is missing"),
        (texts[:3] + texts[4:], "line 4 "),
        ([*texts[:2], texts[2] + "\n" + texts[3], *texts[4:]], "line 3 "),
        ([1, 2], "list of lines"),
    ):
        report = failed(bundled(tmp_path, p, events(p), ledger=wrong), "ledger", words=words)
        assert (report.dataset, report.totals) == (None, ())


def test_the_ledger_of_a_data_set_is_not_that_of_a_run(tmp_path: Path) -> None:
    """It has no events whose prices could be compared, and would pass as a run that did nothing."""
    p = plan()
    DataLedger(tmp_path / "d").reserve(price(p), 4, "r")
    texts = (tmp_path / "d").read_text().splitlines()
    failed(bundled(tmp_path, p, events(p), ledger=texts), "ledger", words="is the ledger of a data set")
    with pytest.raises(InputError, match=r"bundle\.ledger.*is the ledger of a data set"):
        make_bundle(p, tmp_path / "d", {}, VERSIONS, KEY)


# ---- files


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        "garbage",
        '{"format":1}',
        "\ufeff{}",
        "[" * 10**5,
    ],
    ids=range(8),
)
def test_a_file_that_is_no_bundle(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bundle.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"bundle\.json"):
        verify_bundle(path)


@pytest.mark.parametrize("name", PARTS)
def test_fields_of_the_wrong_type_or_missing(good: Path, name: str) -> None:
    content = canonical.loads(good.read_text().strip())
    good.write_text(canonical.dumps(content | {name: None}))
    with pytest.raises(InputError, match=f"its {name} is a NoneType"):
        verify_bundle(good)
    del content[name]
    good.write_text(canonical.dumps(content))
    with pytest.raises(InputError, match=rf"{name}.*is missing"):
        verify_bundle(good)


def test_unknown_fields_and_other_spellings(good: Path) -> None:
    content = json.loads(good.read_text())
    good.write_text(json.dumps(content | {"note": 1}, sort_keys=True, separators=(",", ":")))
    with pytest.raises(InputError, match="unknown"):
        verify_bundle(good)
    good.write_text(json.dumps(content, sort_keys=True, indent=1))
    with pytest.raises(InputError, match="not canonical JSON"):
        verify_bundle(good)


def test_size_is_bounded(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "LARGEST", 1000)
    with pytest.raises(InputError, match="at most 1000 are read"):
        verify_bundle(good)


def test_what_does_not_hold_together_is_not_signed(tmp_path: Path) -> None:
    p = plan()
    write_events(tmp_path / "l", DATA, p, events(p))
    with pytest.raises(InputError, match=r"bundle\.events"):
        make_bundle(plan(step=0.5), tmp_path / "l", {}, VERSIONS, KEY)
    data = (tmp_path / "l").read_bytes()
    (tmp_path / "l").write_bytes(data[:-3])
    with pytest.raises(InputError, match="line 13 is truncated"):
        make_bundle(p, tmp_path / "l", {}, VERSIONS, KEY)


def test_a_passed_budget_is_signed_for_the_auditor_to_see(tmp_path: Path) -> None:
    p = plan(**NONE | {"rho": 3.9 * RHO})
    write_events(tmp_path / "l", DATA, p, events(p))
    save_bundle(tmp_path / "b", make_bundle(p, tmp_path / "l", {}, VERSIONS, KEY))
    failed(tmp_path / "b", "budget", words="spent rho 0.0032")


# ---- keys


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_key_is_its_owners(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "key.pem"
    old = os.umask(umask)
    try:
        public = generate_key(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert public_hex(load_key(path).public_key()) == public
    assert path.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    with pytest.raises(InputError, match="never overwritten"):
        generate_key(path)
    assert public_hex(load_key(path).public_key()) == public


def test_two_keys_differ(tmp_path: Path) -> None:
    assert generate_key(tmp_path / "a") != generate_key(tmp_path / "b")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o601, 0o666])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key.pem"
    generate_key(path)
    path.chmod(mode)
    with pytest.raises(InputError, match=r"chmod 600 .*key\.pem"):
        load_key(path)
    path.chmod(0o400)
    load_key(path)


def pem(key: Any, password: bytes | None = None) -> bytes:
    lock = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a private key"),
        (b"hello", "not a private key"),
        (pem(KEY)[:60], "not a private key"),
        (pem(KEY, b"secret"), "encrypted"),
        (pem(elliptic_key(SECP256R1())), "not an Ed25519 key"),
        (b"x" * (bundle.LARGEST_KEY + 1), "are read"),
    ],
    ids=["empty", "text", "torn", "encrypted", "elliptic", "large"],
)
def test_files_that_are_no_key(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InputError, match=words):
        load_key(path)


def test_no_secret_in_any_message(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    generate_key(path)
    secret = path.read_text().splitlines()[1]
    key = load_key(path)
    assert secret not in repr(key)
    assert key.private_bytes_raw().hex() not in repr(key)
    path.write_text(path.read_text().replace("PRIVATE KEY", "PRIVATE THING"))
    with pytest.raises(InputError) as e:
        load_key(path)
    assert secret not in "".join(traceback.format_exception(e.value))
    with pytest.raises(InputError):
        load_key(tmp_path / "missing")
    with pytest.raises(InputError, match="cannot be written"):
        generate_key(tmp_path / "no" / "folder")


def test_a_key_half_written_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RunError, match="No space"):
        generate_key(tmp_path / "key.pem")
    assert list(tmp_path.iterdir()) == []


def test_what_a_bundle_cannot_show_is_said(tmp_path: Path, good: Path) -> None:
    """A message that is written as a skip costs nothing, and no bundle tells."""
    assert "skips" not in [check.name for check in verify_bundle(good).checks]
    p = plan()
    found = [*events(p)[:-1], Event(p.hash, "skip", 4, 2)]
    report = verify_bundle(bundled(tmp_path, p, found))
    assert report.ok
    (check,) = [check for check in report.checks if check.name == "skips"]
    assert check.ok is None
    assert check.reason.startswith("1 rounds are written as skipped, and cost nothing: that no message left in them is")


def test_a_statement_must_say_first_what_has_no_price(tmp_path: Path) -> None:
    p = plan(scheme=noisy("none", 0.0), **NONE)
    said = price(p).statement(4).to_dict()
    assert said["unprotected"]
    free = [Event(p.hash, "message", 1, 0, priced(None, None, "none", sensitivity=0.0, sigma=0.0))]
    write_events(tmp_path / "l", DATA, p, free)
    make_bundle(p, tmp_path / "l", said, VERSIONS, KEY)
    with pytest.raises(InputError, match="unprotected has 0 entries, by the plan 1"):
        make_bundle(p, tmp_path / "l", said | {"unprotected": []}, VERSIONS, KEY)


# ---- receipts of released results


def deployed() -> Plan:
    """Of two units whose servers can sign."""
    announced = [one._replace(identity=server_identity(p).public.hex()) for p, one in enumerate(forged_units([3, 3]))]
    terms = {"release": "centroid:0.5", "level": "unit", "rounds": 1}
    return a_deployed_plan(graph=on_grid(Graph.parse("path:2")), units=units(announced), **terms)


def told(p: Plan, relay: int, server: int, result: bytes = bytes(32), attempt: int = 1) -> Receipt:
    hash = bytes.fromhex(p.hash)
    signature = receipts.sign(server_identity(relay), hash, attempt, relay, result)
    own = receipts.countersign(server_identity(server), hash, attempt, relay, server, result)
    return Receipt(attempt, relay, server, result, signature, own)


def audited(folder: Path, given: list[dict[str, Any]]) -> dict[str, tuple[bool | None, str]]:
    """The checks that are about receipts, of a bundle of a unit that has released once."""
    p = deployed()
    cost = price(p)
    made = [
        Event(p.hash, "message", 1, 0, cost.messages[0], "0" * 64, 1),
        Event(p.hash, "release", 1, 0, cost.release_after(1), None, 2),
    ]
    write_events(folder / "l", DATA, p, made)
    text = make_bundle(p, folder / "l", {"words": ""}, VERSIONS, KEY, (), given)
    save_bundle(folder / "bundle.json", text)
    (folder / "l").unlink()
    report = verify_bundle(folder / "bundle.json")
    assert {"signature", "prices"}.isdisjoint(report.failed)
    return {c.name: (c.ok, c.reason) for c in report.checks if c.name in ("receipts", "results")}


def test_receipts_show_who_was_told_the_same(tmp_path: Path) -> None:
    p = deployed()
    names = [unit.name for unit in p.units]
    both = [receipts.to_dict(told(p, 0, server)) for server in (0, 1)]
    found = audited(tmp_path, both)
    assert found["receipts"] == (True, "2 are signed by the server that told and the one that was told")
    alike = "were told alike, which does not show that the sum is right"
    assert found["results"] == (True, f"{alike} (attempt 1: 2 of 2 servers)")
    assert audited(tmp_path, both[:1])["results"] == (
        True, f"{alike} (attempt 1: 1 of 2 servers, not known of {names[1]})",
    )  # fmt: skip
    ok, reason = audited(tmp_path, [])["results"]
    assert (ok, reason.split(",")[0]) == (None, "1 releases")


def test_different_results_are_signed_for_the_auditor_to_see(tmp_path: Path) -> None:
    p = deployed()
    names = [unit.name for unit in p.units]
    other = bytes([1]) * 32
    one_lied = [receipts.to_dict(r) for r in (told(p, 0, 0), told(p, 0, 1, other))]
    assert audited(tmp_path, one_lied)["results"] == (
        False,
        f"{names[0]} told different results of attempt 1, and lied",
    )
    which = [receipts.to_dict(r) for r in (told(p, 0, 0), told(p, 1, 1, other))]
    ok, reason = audited(tmp_path, which)["results"]
    assert (ok, reason.startswith(f"{names[0]} and {names[1]} told different")) == (False, True)
    later = [receipts.to_dict(r) for r in (told(p, 0, 0), told(p, 0, 1, other, attempt=2))]
    assert audited(tmp_path, later)["results"][0]  # of another attempt


def test_forged_receipts_are_not_signed(tmp_path: Path) -> None:
    p = deployed()
    good = receipts.to_dict(told(p, 0, 1))
    for wrong in (
        good | {"sha256": "11" * 32}, good | {"server": 0}, good | {"relay": 7}, good | {"attempt": True},
        good | {"signature": "zz"}, good | {"more": 1}, {}, 7,
    ):  # fmt: skip
        with pytest.raises(InputError, match=r"bundle\.receipts"):
            audited(tmp_path, [wrong])  # type: ignore[list-item]
        (tmp_path / "l").unlink()


def test_a_bundle_from_before_there_were_receipts_is_read(tmp_path: Path) -> None:
    p = plan()
    assert verify_bundle(bundled(tmp_path, p, events(p))).ok
    assert json.loads(bundled(tmp_path, p, events(p)).read_text())["format"] == 2
    with pytest.raises(InputError, match="receipts"):
        verify_bundle(bundled(tmp_path, p, events(p), format=3))
