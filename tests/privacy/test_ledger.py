"""A ledger that was touched is refused at the right line; one that was not survives crashes, locks and copies."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import work
from confide.errors import InputError, RunError
from confide.federation import Federation
from confide.graph import Graph
from confide.privacy import canonical, ledger
from confide.privacy.ledger import (
    FREE,
    Cost,
    Event,
    FileLedger,
    Header,
    Ledger,
    Total,
    compose,
    dataset_id,
    federation_id,
    lines,
    link,
    read,
    read_all,
    verify_lines,
    write_events,
)
from confide.privacy.plan import Plan

DATA = dataset_id("tests")
PLAN = Plan(
    graph=Graph.ring(3).to_dict(),
    scheme={"name": "shared", "law": "gaussian", "carry": 0.0, "noise_on": "server", "sigma": 1.0},
    rounds=1000,
    step=0.1,
    bound=1.0,
    norm="l2",
    clip="example",
    sampled=5,
    clients=5,
    dim=2,
    local_steps=1,
    batch=1,
    level="client",
    adjacency="replace",
    proof="none",
    participation="all",
    threat="links",
    release="none",
    delta=1e-5,
)


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
    path = tmp_path / "growing.jsonl"
    with FileLedger.create(path, DATA) as book:
        for e in few():
            book.append(e)
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
    assert rest == {"format": 1, "dataset": DATA, "run": "seed 1", "events": 6}
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


def test_written_at_once_or_one_by_one_is_the_same_chain(growing: Path) -> None:
    assert growing.read_text().splitlines() == list(lines(Header(DATA), few()))
    assert verify_lines(growing.read_text().splitlines(), "x").events == read(growing).events


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
    header = Header(DATA, run, len(events))
    book = verify_lines(list(lines(header, events)), "x")
    assert list(book.events) == events
    assert book.header == header


TEXT = "".join(text + "\n" for text in lines(Header(DATA, "é", 6), few())).encode()


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
    [b"", b"\n", b"{}\n", b"[]\n", b"null\n", b"hello\n", b"\xff\xfe\n", b'{"format":2}\n', b'{"format":true}\n'],
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


def test_a_ledger_is_never_overwritten(whole: Path, growing: Path) -> None:
    before = whole.read_bytes()
    with pytest.raises(InputError, match="never overwritten"):
        write_events(whole, DATA, PLAN, [])
    with pytest.raises(InputError, match="never overwritten"):
        FileLedger.create(whole, DATA)
    assert whole.read_bytes() == before
    assert {p.name for p in whole.parent.iterdir()} == {"ledger.jsonl", "growing.jsonl"}


def test_an_empty_ledger(tmp_path: Path) -> None:
    write_events(tmp_path / "x", DATA, PLAN, [])
    assert read(tmp_path / "x").events == ()


def test_file_ledger_is_a_ledger(growing: Path) -> None:
    with FileLedger(growing, DATA) as book:
        known: Ledger = book
        assert known.dataset == DATA
        assert list(known.events()) == few()
        before = len(book)
        hash = known.append(event(7))
        assert hash == book.head
        assert len(book) == before + 1
        assert list(known.events()) == [*few(), event(7)]  # also what came after the first reading
    assert read(growing).head == hash


def test_appending_goes_on_after_reopening(growing: Path) -> None:
    for n in range(3):
        with FileLedger(growing) as book:
            book.append(event(10 + n))
    assert [e.round for e in read(growing).events[-3:]] == [10, 11, 12]


def test_opened_for_the_wrong_data_set_or_when_finished(growing: Path, whole: Path) -> None:
    with pytest.raises(InputError, match="data set"):
        FileLedger(growing, dataset_id("other"))
    with pytest.raises(InputError, match="finished with 6 events"):
        FileLedger(whole)
    FileLedger(growing).close()  # and no lock was left


def test_a_tampered_ledger_is_not_continued(growing: Path) -> None:
    texts = growing.read_bytes().splitlines(keepends=True)
    growing.write_bytes(b"".join(texts[:2] + texts[3:]))
    with pytest.raises(InputError, match="line 3 "):
        FileLedger(growing)


def test_on_the_disk_before_append_returns(growing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    write, sync = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda fd, data: calls.append("write") or write(fd, data))
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync") or sync(fd))
    with FileLedger(growing) as book:
        calls.clear()
        book.append(event())
        assert calls == ["write", "fsync"]


def test_a_short_write_is_completed(growing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with FileLedger(growing) as book:
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
        book.append(event())
        monkeypatch.undo()
    assert len(read(growing).events) == 7


def test_a_full_disk_leaves_the_ledger_as_it_was(growing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, write = growing.read_bytes(), os.write
    written: list[int] = []

    def full(fd: int, data: bytes) -> int:
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(write(fd, data[:20]))
        return 20

    with FileLedger(growing) as book:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(RunError, match="could not be recorded"):
            book.append(event())
        monkeypatch.undo()
        assert growing.read_bytes() == before
        with pytest.raises(RunError, match="open it again"):
            book.append(event())
    with FileLedger(growing) as book:
        book.append(event())


def test_after_a_failed_sync_nothing_is_appended(growing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with FileLedger(growing) as book:
        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(RunError, match="could not be recorded"):
            book.append(event())
        monkeypatch.undo()
        with pytest.raises(RunError, match="open it again"):
            book.append(event())


def test_closed(growing: Path) -> None:
    book = FileLedger(growing)
    book.close()
    for use in (lambda: book.append(event()), book.events):
        with pytest.raises(RunError, match="closed"):
            use()


def test_threads_share_a_ledger(growing: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with FileLedger(growing) as book, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: book.append(event(n)), range(1, 101)))
    assert sorted(e.round for e in read(growing).events[6:]) == list(range(1, 101))


# ---- crashes


@pytest.mark.parametrize("cut", [1, 2, 30, 200])
def test_a_torn_last_line_is_removed_only_when_asked(growing: Path, cut: int) -> None:
    data = growing.read_bytes()
    growing.write_bytes(data[:-cut])
    torn = growing.read_bytes()
    refused(growing, 7, "truncated")
    with pytest.raises(InputError, match=r"line 7 is truncated.*recover"):
        FileLedger(growing)
    assert growing.read_bytes() == torn  # nobody touched it
    last = len(data.splitlines(keepends=True)[-1])
    if cut == 1:  # only its end is gone: the event is whole, and stays charged
        assert FileLedger.recover(growing) == 0
        assert growing.read_bytes() == data
    else:
        assert FileLedger.recover(growing) == last - cut
        assert growing.read_bytes() == data[:-last]
    with FileLedger(growing) as book:
        book.append(event(99))
    assert read(growing).events[-1].round == 99


def test_nothing_to_recover(growing: Path, whole: Path) -> None:
    for path in (growing, whole):
        before = path.read_bytes()
        assert FileLedger.recover(path) == 0
        assert path.read_bytes() == before


def test_recovering_heals_no_tampering(growing: Path) -> None:
    texts = growing.read_bytes().splitlines(keepends=True)
    for data, line in (
        (b"".join(texts[:2] + texts[3:])[:-5], 3),  # a removed line, and a torn one
        (b"".join([*texts[:-1], texts[-1].replace(b"0", b"1")]), 7),  # a changed last line with its end
        (texts[0][:-9], 1),
        (b"", 1),
    ):
        growing.write_bytes(data)
        with pytest.raises(InputError, match=f"line {line} "):
            FileLedger.recover(growing)
        assert growing.read_bytes() == data


CHILD = """
import sys
from confide.privacy.ledger import Cost, Event, FileLedger
path, plan, work = sys.argv[1:]
with FileLedger(path) as book:
    print("ready", flush=True)
    if work == "hold":
        sys.stdin.read()
    for n in range(1, 10**6):
        print(book.append(Event(plan, "message", n, 0, Cost(0.1, None, 1.0, 1.0, "gaussian"))), flush=True)
"""


@contextmanager
def child(path: Path, work: str) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-c", CHILD, str(path), PLAN.hash, work]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_killed_at_any_moment_nothing_acknowledged_is_lost(growing: Path) -> None:
    with child(growing, "append") as process:
        assert process.stdout is not None
        told = [process.stdout.readline().strip() for _ in range(5)]
        time.sleep(random.Random(1).random() * 0.05)  # noqa: S311
        process.send_signal(signal.SIGKILL)
        told += [line.strip() for line in process.stdout if line.endswith("\n")]
        process.wait()
    FileLedger.recover(growing)
    book = read(growing)
    assert set(told) <= set(book.hashes)
    assert len(book.events) - 6 - len(told) in (0, 1)  # the last may have been on the disk and not yet told


# ---- locks


def test_a_ledger_that_another_process_writes_is_locked(growing: Path) -> None:
    uses: list[Callable[[], object]] = [
        lambda: read(growing),
        lambda: read_all([growing]),
        lambda: FileLedger(growing),
        lambda: FileLedger.recover(growing),
    ]
    with child(growing, "hold"):
        for use in uses:
            with pytest.raises(InputError, match=r"growing\.jsonl.*is being written by another process"):
                use()
    assert len(read(growing).events) == 6  # the lock ended with the process, which was killed


def test_two_writers_in_one_process(growing: Path) -> None:
    with FileLedger(growing), pytest.raises(InputError, match="is being written"):
        FileLedger(growing)
    FileLedger(growing).close()


def test_readers_share_and_keep_writers_out(growing: Path) -> None:
    with open(growing, "rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        assert len(read(growing).events) == 6
        with pytest.raises(InputError, match="is being read by another process"):
            FileLedger(growing)
    FileLedger(growing).close()


# ---- several ledgers


def test_runs_on_the_same_data_add_up(tmp_path: Path) -> None:
    other = dataset_id("other data")
    write_events(tmp_path / "a", DATA, PLAN, few(), run="1")
    write_events(tmp_path / "b", DATA, PLAN, few(), run="2")
    write_events(tmp_path / "c", other, PLAN, few(1), run="3")
    found = read_all([tmp_path / "a", tmp_path / "b", tmp_path / "c"])
    assert {key: len(books) for key, books in found.items()} == {DATA: 2, other: 1}
    totals = compose(book for books in found.values() for book in books)
    assert totals == {
        (DATA, 0): Total(4, 0.04, None),
        (DATA, 1): Total(4, 0.04, None),
        (DATA, 2): Total(4, 0.02, None),
        (other, 0): Total(1, 0.01, None),
    }


def test_one_event_without_a_bound_leaves_no_total(tmp_path: Path) -> None:
    pure = [event(n, rho=None, epsilon=0.1) for n in range(1, 11)]
    assert compose([write_events(tmp_path / "a", DATA, PLAN, pure)]) == {(DATA, 0): Total(10, None, 1.0)}
    both = [event(1, rho=0.5, epsilon=1.0), event(2, rho=None, epsilon=1.0), Event(PLAN.hash, "skip", 3, 0)]
    assert compose([write_events(tmp_path / "b", DATA, PLAN, both)]) == {(DATA, 0): Total(3, None, 2.0)}


def test_a_skip_costs_nothing(tmp_path: Path) -> None:
    book = write_events(tmp_path / "a", DATA, PLAN, [Event(PLAN.hash, "skip", 1, 0)])
    assert book.events[0].cost == FREE
    assert compose([book]) == {(DATA, 0): Total(1, 0.0, 0.0)}


def test_sums_do_not_depend_on_the_order(tmp_path: Path) -> None:
    costs = [1e16, 1.0, -0.0, 1e-3, 1.0]
    events = [event(n, rho=abs(c)) for n, c in enumerate(costs, 1)]
    a = compose([write_events(tmp_path / "a", DATA, PLAN, events)])
    b = compose([write_events(tmp_path / "b", DATA, PLAN, events[::-1])])
    assert a == b
    assert a[DATA, 0].rho == 1e16 + 2.0


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
        with FileLedger(growing) as book:
            book.append(event(50))
    with pytest.raises(InputError, match="is the same ledger as"):
        read_all([growing, other])


def test_units_of_one_run_have_their_own_ledgers(tmp_path: Path) -> None:
    for unit in range(2):
        write_events(tmp_path / str(unit), DATA, PLAN, [event(1, unit)], run="one")
    assert len(read_all([tmp_path / "0", tmp_path / "1"])[DATA]) == 2


# ---- data sets


def test_dataset_ids() -> None:
    assert dataset_id("a") == dataset_id("a") != dataset_id("b")
    assert canonical.is_digest(dataset_id("a"))
    for wrong in ("", "  ", 3, None):
        with pytest.raises(InputError, match="dataset"):
            dataset_id(wrong)  # type: ignore[arg-type]


def federation(**changes: Any) -> Federation:
    rng = np.random.default_rng(0)
    parts = {
        "X": rng.standard_normal((12, 2)),
        "d": rng.standard_normal(12),
        "client_offsets": np.array([0, 3, 6, 9, 12]),
        "unit_offsets": np.array([0, 2, 4]),
    }
    return Federation(**parts | changes)


def test_a_federation_is_known_by_every_number(tmp_path: Path) -> None:
    base = federation()
    ids = {federation_id(base)}
    for n in range(24):
        X = base.X.copy()
        X.flat[n] += 1e-9
        ids.add(federation_id(federation(X=X)))
    for n in range(12):
        d = base.d.copy()
        d[n] += 1e-9
        ids.add(federation_id(federation(d=d)))
    ids.add(federation_id(federation(client_offsets=np.array([0, 2, 6, 9, 12]))))
    ids.add(federation_id(federation(unit_offsets=np.array([0, 1, 4]))))
    assert len(ids) == 1 + 24 + 12 + 2
    base.save(tmp_path)
    assert federation_id(Federation.load(tmp_path)) in ids  # mapped from disk
    assert federation_id(federation(X=np.asfortranarray(base.X))) == federation_id(base)


def test_blocks_do_not_show_in_the_id() -> None:
    """More than one block of a million numbers, and the last block counts."""
    n = 700_000
    X, d = np.zeros((n, 2)), np.zeros(n)
    offsets = {"client_offsets": np.array([0, n]), "unit_offsets": np.array([0, 1])}
    before = federation_id(Federation(X, d, **offsets))
    X[-1, -1] = 1.0
    assert federation_id(Federation(X, d, **offsets)) != before


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
