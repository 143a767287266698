"""A ledger that was touched is refused at the right line; unlike ledgers are not added up."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import work
from builders import a_shared_plan
from confide.base import canonical
from confide.base.errors import InputError
from confide.privacy import ledger
from confide.privacy.ledger import (
    FREE,
    Book,
    Cost,
    Event,
    Header,
    Promise,
    compose,
    dataset_id,
    lines,
    link,
    paid_by,
    random_id,
    read,
    read_all,
    verify_lines,
    write_events,
)
from confide.privacy.paid import NOTHING, Paid, Terms

DATA = dataset_id("tests")
PLAN = a_shared_plan(rounds=1000)
PROMISE = Promise(Terms.parse("client", "replace"), "links")


def event(round: int = 1, unit: int = 0, rho: float | None = 0.01, epsilon: float | None = None, **more: Any) -> Event:
    return Event(PLAN.hash, "message", round, unit, Cost(rho, epsilon, 0.1 * round, 1.0, "gaussian"), **more)


def few(n: int = 6) -> list[Event]:
    found = [event(1 + k // 3, k % 3) for k in range(n)]
    if n > 2:
        found[2] = Event(PLAN.hash, "skip", 1, 2)
    return found


def refused(path: Path, line: int, words: str = "") -> str:
    """The file is refused at this line, by name."""
    with pytest.raises(InputError) as e:
        read(path)
    assert str(path) in str(e.value)
    assert e.value.remedy.startswith(f"line {line} "), e.value.remedy
    assert words in e.value.remedy
    return e.value.remedy


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    write_events(path, DATA, PLAN, few(), run="seed 1")
    return path


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    """As a store exports it while its run goes on."""
    path = tmp_path / "growing.jsonl"
    path.write_text("".join(text + "\n" for text in lines(Header(DATA, PROMISE), few())))
    return path


# ---- the chain


def test_written_is_read(whole: Path) -> None:
    book = read(whole)
    assert list(book.events) == few()
    assert (book.dataset, book.header.run, book.header.events) == (DATA, "seed 1", 6)
    assert len(book.hashes) == 7
    assert whole.read_bytes().count(b"\n") == 7


def test_the_format_is_fixed(whole: Path) -> None:
    """What an auditor can recompute with sha256 and a JSON reader, and nothing of ours."""
    import hashlib

    texts = whole.read_text().splitlines()
    head = json.loads(texts[0])
    rest = {k: v for k, v in head.items() if k != "hash"}
    assert head["hash"] == hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    promise = {"level": "client", "adjacency": "replace", "threat": "links"}
    named = {"dataset": DATA, "run": "seed 1", "promise": promise}
    assert rest == named | {"format": 2, "events": 6, "previous": None}
    previous = head["hash"]
    for n, text in enumerate(texts[1:], 1):
        line = json.loads(text)
        content = json.dumps(line["event"], sort_keys=True, separators=(",", ":"))
        assert (line["n"], line["previous"]) == (n, previous)
        assert line["hash"] == hashlib.sha256((previous + content).encode()).hexdigest()
        previous = line["hash"]


def test_output_is_reproducible(tmp_path: Path, whole: Path) -> None:
    write_events(tmp_path / "again", DATA, PLAN, few(), run="seed 1")
    assert (tmp_path / "again").read_bytes() == whole.read_bytes()


EVENTS = st.builds(
    Event,
    plan=st.just(PLAN.hash),
    kind=st.sampled_from(["message", "release"]),
    round=st.integers(1, 2**40),
    unit=st.integers(0, 2**20),
    cost=st.builds(
        Cost,
        rho=st.none() | st.floats(0, allow_infinity=False),
        epsilon=st.none() | st.floats(0, allow_infinity=False),
        sensitivity=st.floats(0, allow_infinity=False),
        sigma=st.floats(0, allow_infinity=False),
        law=st.sampled_from(["gaussian", "discrete-laplace", "none"]),
    ),
    sha256=st.none() | st.binary(min_size=32, max_size=32).map(bytes.hex),
    time=st.none() | st.integers(0, 2**40),
)


@given(st.lists(EVENTS, max_size=5), st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_round_trip_of_any_events(events: list[Event], run: str) -> None:
    header = Header(DATA, PROMISE, run, len(events))
    book = verify_lines(list(lines(header, events)), "x")
    assert list(book.events) == events
    assert book.header == header


TEXT = "".join(text + "\n" for text in lines(Header(DATA, PROMISE, "é", 6), few())).encode()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ledger") / "scratch.jsonl"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=400)
@given(at=st.integers(0, len(TEXT) - 1), flip=st.integers(1, 255))
@example(at=len(TEXT) - 1, flip=1)
@example(at=0, flip=0x20)
def test_any_changed_byte_is_refused_at_its_line(scratch: Path, at: int, flip: int) -> None:
    data = bytearray(TEXT)
    data[at] ^= flip
    scratch.write_bytes(data)
    refused(scratch, TEXT[:at].count(b"\n") + 1)


def test_every_byte_has_been_flipped_once(scratch: Path) -> None:
    for at in range(0, len(TEXT)):
        data = bytearray(TEXT)
        data[at] ^= 1
        scratch.write_bytes(data)
        refused(scratch, TEXT[:at].count(b"\n") + 1)


@given(at=st.integers(0, len(TEXT) - 1))
@settings(max_examples=200)
@example(at=0)
def test_a_ledger_cut_anywhere_is_refused(scratch: Path, at: int) -> None:
    scratch.write_bytes(TEXT[:at])
    ends_whole = at == 0 or TEXT[at - 1 : at] == b"\n"
    refused(scratch, TEXT[:at].count(b"\n") + 1, "missing" if ends_whole else "truncated")


@pytest.mark.parametrize("k", range(7))
def test_a_removed_line_is_noticed_where_it_was(whole: Path, k: int) -> None:
    texts = whole.read_bytes().splitlines(keepends=True)
    whole.write_bytes(b"".join(texts[:k] + texts[k + 1 :]))
    refused(whole, k + 1, f"holds event {k + 1} where {k} belongs" if 0 < k < 6 else "")


@pytest.mark.parametrize("k", range(6))
def test_two_lines_that_changed_places(whole: Path, k: int) -> None:
    texts = whole.read_bytes().splitlines(keepends=True)
    texts[k], texts[k + 1] = texts[k + 1], texts[k]
    whole.write_bytes(b"".join(texts))
    refused(whole, k + 1)


@pytest.mark.parametrize("k", range(7))
def test_a_line_that_comes_twice(whole: Path, k: int) -> None:
    texts = whole.read_bytes().splitlines(keepends=True)
    whole.write_bytes(b"".join(texts[: k + 1] + texts[k:]))
    refused(whole, k + 2)


def test_a_line_from_another_ledger(tmp_path: Path, whole: Path) -> None:
    write_events(tmp_path / "other", DATA, PLAN, few(), run="seed 2")
    texts, others = (p.read_bytes().splitlines(keepends=True) for p in (whole, tmp_path / "other"))
    whole.write_bytes(b"".join([*texts[:3], others[3], *texts[4:]]))
    refused(whole, 4, "does not follow")


def test_another_data_set_cannot_be_written_over(whole: Path) -> None:
    whole.write_bytes(whole.read_bytes().replace(DATA.encode(), dataset_id("other").encode()))
    refused(whole, 1, "was changed")


def test_a_cost_made_smaller(whole: Path) -> None:
    texts = whole.read_text().splitlines(keepends=True)
    assert (0.01).hex() in texts[2]
    texts[2] = texts[2].replace((0.01).hex(), (0.001).hex())
    whole.write_text("".join(texts))
    refused(whole, 3, "was changed")


def test_an_event_appended_to_a_finished_ledger(whole: Path) -> None:
    text, _ = link(7, read(whole).head, event(9))
    with open(whole, "a") as file:
        file.write(text + "\n")
    refused(whole, 8, "was added")


def test_an_impossible_event_with_a_valid_hash(whole: Path) -> None:
    texts = whole.read_text().splitlines()[:3]
    previous = json.loads(texts[2])["hash"]
    content = canonical.dumps(event().to_dict() | {"unit": -1})
    hash = canonical.digest(previous + content)
    forged = f'{{"event":{content},"hash":"{hash}","n":3,"previous":"{previous}"}}'
    whole.write_text("\n".join([*texts, forged, ""]))
    refused(whole, 4, "event.unit = -1")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b"hello\n",
        b"\xff\xfe\n",
        b'{"format":3}\n',
        b'{"format":2}\n',
        b'{"format":true}\n',
    ],
)
def test_what_is_no_ledger(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(text)
    refused(path, 1)


def test_a_line_without_end(tmp_path: Path, whole: Path) -> None:
    whole.write_bytes(TEXT + b"x" * (ledger.LONGEST + 10))
    refused(whole, 8, "holds more than")


def test_files_are_bounded(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "LARGEST", 1000)
    with pytest.raises(InputError, match="at most 1000 are read"):
        read(whole)


def test_places_that_hold_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("missing", "No such file"), (".", "not a file"), ("pipe", "not a file"), ("\0", "null")):
        with pytest.raises(InputError, match=words):
            read(f"{tmp_path}/{name}")


def test_lines_lost_at_the_end_of_a_growing_ledger(growing: Path) -> None:
    """The one thing that the chain cannot see; a head that was kept elsewhere can."""
    head = read(growing).head
    assert read(growing, head=head).head == head
    texts = growing.read_bytes().splitlines(keepends=True)
    growing.write_bytes(b"".join(texts[:-1]))
    assert len(read(growing).events) == 5
    with pytest.raises(InputError, match=r"line 7 is missing.*" + head):
        read(growing, head=head)


# ---- events


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"plan": "x"}, "event.plan"),
        ({"plan": PLAN.hash.upper()}, "event.plan"),
        ({"kind": "gift"}, "event.kind"),
        ({"round": 0}, "event.round"),
        ({"round": 1.0}, "event.round"),
        ({"unit": -1}, "event.unit"),
        ({"unit": True}, "event.unit"),
        ({"cost": None}, "event.cost"),
        ({"kind": "skip"}, "event.cost"),
        ({"sha256": "abc"}, "event.sha256"),
        ({"time": 1.5}, "event.time"),
        ({"time": -1}, "event.time"),
    ],
)
def test_events_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as e:
        replace(event(), **changes)
    assert e.value.field == field


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rho", -0.1),
        ("rho", math.nan),
        ("rho", math.inf),
        ("epsilon", "1"),
        ("sensitivity", None),
        ("sigma", None),
        ("law", ""),
    ],
)
def test_costs_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InputError) as e:
        replace(event().cost, **{name: value})
    assert e.value.field == f"event.cost.{name}"


def test_event_fields_are_all_needed() -> None:
    for name in event().to_dict():
        data = event().to_dict()
        del data[name]
        with pytest.raises(InputError, match=f"event.{name} = None: is missing"):
            Event.from_dict(data)
    with pytest.raises(InputError, match=r"event\.note"):
        Event.from_dict(event().to_dict() | {"note": 1})


def test_events_must_be_of_the_plan(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"event\.plan"):
        write_events(tmp_path / "x", DATA, PLAN, [replace(event(), plan="0" * 64)])
    assert list(tmp_path.iterdir()) == []


# ---- writing


def test_a_ledger_is_never_overwritten(whole: Path) -> None:
    before = whole.read_bytes()
    with pytest.raises(InputError, match="never overwritten"):
        write_events(whole, DATA, PLAN, [])
    assert whole.read_bytes() == before
    assert [p.name for p in whole.parent.iterdir()] == ["ledger.jsonl"]


def test_an_empty_ledger(tmp_path: Path) -> None:
    write_events(tmp_path / "x", DATA, PLAN, [])
    assert read(tmp_path / "x").events == ()


# ---- several ledgers


def written(path: Path, events: list[Event]) -> Book:
    write_events(path, DATA, PLAN, events)
    return read(path)


def test_runs_on_the_same_data_add_up(tmp_path: Path) -> None:
    write_events(tmp_path / "a", DATA, PLAN, few(), run="1")
    write_events(tmp_path / "b", DATA, PLAN, few(), run="2")
    books = read_all([tmp_path / "a", tmp_path / "b"])
    one = [Paid(0.02, None, True), Paid(0.02, None, True), Paid(0.01, None, True)]
    assert compose(books) == {(run, unit): one[unit] for run in range(2) for unit in range(3)}
    assert paid_by(books) == Paid(0.04, None, True)
    assert paid_by([]) == NOTHING


def test_one_event_without_a_bound_leaves_no_total(tmp_path: Path) -> None:
    pure = [event(n, rho=None, epsilon=0.1) for n in range(1, 11)]
    assert compose([written(tmp_path / "a", pure)]) == {(0, 0): Paid(None, 1.0, True)}
    both = [event(1, rho=0.5, epsilon=1.0), event(2, rho=None, epsilon=1.0), Event(PLAN.hash, "skip", 3, 0)]
    assert compose([written(tmp_path / "b", both)]) == {(0, 0): Paid(None, 2.0, True)}


def test_a_skip_costs_nothing(tmp_path: Path) -> None:
    book = written(tmp_path / "a", [Event(PLAN.hash, "skip", 1, 0)])
    assert book.events[0].cost == FREE
    assert compose([book]) == {(0, 0): NOTHING}


def test_sums_do_not_depend_on_the_order(tmp_path: Path) -> None:
    costs = [1e16, 1.0, -0.0, 1e-3, 1.0]
    events = [event(n, rho=abs(c)) for n, c in enumerate(costs, 1)]
    a = compose([written(tmp_path / "a", events)])
    b = compose([written(tmp_path / "b", events[::-1])])
    assert a == b
    assert a[0, 0].rho == 1e16 + 2.0


@pytest.mark.parametrize("how", ["same", "link", "symlink", "copy", "earlier"])
def test_the_same_ledger_twice_is_refused(growing: Path, how: str) -> None:
    other = growing.with_name("other")
    if how == "same":
        other = growing.parent / "." / growing.name
    elif how == "link":
        os.link(growing, other)
    elif how == "symlink":
        other.symlink_to(growing)
    else:
        other.write_bytes(growing.read_bytes())
    if how == "earlier":  # a copy from before the last events
        growing.write_text("".join(text + "\n" for text in lines(Header(DATA, PROMISE), [*few(), event(50)])))
    with pytest.raises(InputError, match="is the same ledger as"):
        read_all([growing, other])


def test_units_of_one_run_have_their_own_ledgers(tmp_path: Path) -> None:
    for unit in range(2):
        write_events(tmp_path / str(unit), DATA, PLAN, [event(1, unit)], run="one")
    assert len(read_all([tmp_path / "0", tmp_path / "1"])) == 2


# ---- data sets


def test_dataset_ids() -> None:
    assert dataset_id("a") == dataset_id("a") != dataset_id("b")
    assert canonical.is_digest(dataset_id("a"))
    for wrong in ("", "  ", 3, None):
        with pytest.raises(InputError, match="dataset"):
            dataset_id(wrong)  # type: ignore[arg-type]


def test_an_id_without_a_name_says_nothing() -> None:
    ids = {random_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(canonical.is_digest(one) for one in ids)


# ---- work


def test_work_grows_with_the_events_and_not_with_their_square(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the disk is waited for as often as for an empty ledger; `confide bench accountant` has the seconds."""
    synced, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(fd) or sync(fd))

    def cost(n: int) -> tuple[int, int]:
        """Lines of Python, and how often the disk was waited for."""
        events, path = [event(1 + t) for t in range(n)], tmp_path / str(n)
        synced.clear()
        written = work.lines(lambda: write_events(path, DATA, PLAN, events))
        return written + work.lines(lambda: read(path)), len(synced)

    (_, waits), (few, few_waits), (many, many_waits) = cost(0), cost(100), cost(400)
    assert many < 5 * few
    assert few_waits == many_waits == waits
