"""What all parties agree on: every difference is another session, and the graph is random but the same for all."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from confide.base.errors import InputError
from confide.secure import messages
from confide.secure.messages import SEALED_BYTES, UNSIGNED, Entry
from confide.secure.parameters import Parameters
from confide.secure.session import Session, Task, Why, _hash, advertisement, commitment, consent
from confide.secure.shares import SHARE_BYTES
from exploring import more

COMPLETE, SPARSE = Parameters(12, 11, 9, 11, 1), Parameters(40, 8, 5, 20, 2)


def h(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


def task(parameters: Parameters = COMPLETE, **changes: Any) -> Task:
    return dataclasses.replace(Task(h("plan"), 3, 7, h("model"), parameters, 100), **changes)


def entries(n: int, ids: list[int] | None = None) -> list[Entry]:
    return [Entry(i, h("mask", i), h("channel", i), UNSIGNED) for i in (ids or range(n))]


# The task


def test_every_field_is_in_the_digest() -> None:
    t, p = task(), COMPLETE
    changed = [
        task(plan=h("other plan")),
        task(unit=4),
        task(round=8),
        task(model=h("other model")),
        task(length=101),
        task(ring_bits=64),
        *(
            task(parameters=dataclasses.replace(p, **change))
            for change in (
                {"clients": 13, "degree": 12},
                {"degree": 10},
                {"threshold": 8},
                {"quorum": 12},
                {"corrupted": 2},
                {"server": "active"},
            )
        ),
    ]
    digests = {t.digest, *(c.digest for c in changed)}
    assert len(digests) == len(changed) + 1
    assert {f.name for f in dataclasses.fields(Task)} == {
        "plan",
        "unit",
        "round",
        "model",
        "parameters",
        "length",
        "ring_bits",
    }
    assert {f.name for f in dataclasses.fields(Parameters)} == {
        "clients",
        "degree",
        "threshold",
        "quorum",
        "corrupted",
        "server",
    }, "a new field belongs into the digest, and into this test"
    assert task().digest == t.digest
    assert all(len(d) == 32 for d in digests)


def test_fields_do_not_run_into_each_other() -> None:
    assert task(unit=1, round=2).digest != task(unit=2, round=1).digest
    assert task(plan=h("a"), model=h("b")).digest != task(plan=h("b"), model=h("a")).digest
    assert task(unit=1, round=256).digest != task(unit=256, round=1).digest
    assert task(length=32, ring_bits=64).digest != task(length=64, ring_bits=32).digest


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        *(("plan", v) for v in (b"", bytes(31), bytes(33))),
        *(("model", v) for v in (b"", bytes(31), bytes(33))),
        *(("unit", v) for v in (-1, 2**32, 1.5, None)),
        *(("round", v) for v in (0, -1, 2**32, True)),
        *(("length", v) for v in (0, -1, 2**31 + 1, 1.0)),
        *(("ring_bits", v) for v in (0, 16, 33, None)),
    ],
)
def test_bad_tasks(field: str, bad: object) -> None:
    with pytest.raises(InputError, match=field):
        task(**{field: bad})


def test_hashes_are_not_shown() -> None:
    shown = repr(task(plan=b"p" * 32, model=b"m" * 32))
    assert "pppp" not in shown
    assert "mmmm" not in shown


@pytest.mark.parametrize("bits", [8, 32, 64])
@pytest.mark.parametrize(
    "parameters", [Parameters(3, 2, 2, 3, 0), COMPLETE, SPARSE, Parameters(1000, 999, 700, 700, 0)]
)
def test_no_message_is_longer_than_allowed(parameters: Parameters, bits: int) -> None:
    """The longest of each kind: everybody in it, with the longest numbers; and not ten times too much is allowed."""
    t, n = task(parameters, ring_bits=bits), parameters.clients
    ids = [2**32 - 1 - i for i in range(n)]
    everyone = tuple(Entry(i, bytes(32), bytes(32), bytes(64)) for i in ids)
    opened = tuple((i, bytes(SHARE_BYTES)) for i in ids)
    sealed = tuple((i, bytes(SEALED_BYTES)) for i in ids)
    longest: list[Any] = [
        messages.Advertise(bytes(32), everyone[0]),
        messages.Roster(bytes(32), everyone),
        messages.Shares(bytes(32), ids[0], bytes(32), sealed),
        messages.Inbox(bytes(32), sealed),
        messages.Masked(bytes(32), ids[0], bytes(t.length * t.dtype.itemsize)),
        messages.Question(bytes(32), tuple(ids), ()),
        messages.Consent(bytes(32), ids[0], bytes(64)),
        messages.Consents(bytes(32), tuple((i, bytes(64)) for i in ids)),
        messages.Answer(bytes(32), ids[0], opened[: n // 2], opened[n // 2 :]),
    ]
    assert {type(m).__name__ for m in longest} == {*messages.FROM_CLIENT, *messages.FROM_SERVER}
    sizes = [len(messages.encode(m)) for m in longest]
    assert max(sizes) <= t.largest_message < 1500 + 2 * n * 140 + t.length * 8


# The session's id


def test_every_key_is_in_the_id() -> None:
    some = entries(6)
    base = Session(task(), some).id
    ids = {base}
    for i, entry in enumerate(some):
        for change in (
            {"client": 99},
            {"mask_key": h("other")},
            {"channel_key": h("other")},
            {"mask_key": entry.channel_key, "channel_key": entry.mask_key},
        ):
            ids.add(Session(task(), [*some[:i], entry._replace(**change), *some[i + 1 :]]).id)
        ids.add(Session(task(), some[:i] + some[i + 1 :]).id)
        for byte in range(32):  # all bytes of a key count
            key = bytearray(entry.mask_key)
            key[byte] ^= 1
            ids.add(Session(task(), [*some[:i], entry._replace(mask_key=bytes(key)), *some[i + 1 :]]).id)
    ids.add(Session(task(), entries(7)).id)
    swapped = [some[0]._replace(client=1), some[1]._replace(client=0), *some[2:]]
    ids.add(Session(task(), swapped).id)
    assert len(ids) == 1 + 6 * (4 + 1 + 32) + 2


def test_other_task_other_id() -> None:
    tasks = [task(), task(round=8), task(unit=4), task(model=h("other")), task(plan=h("other")), task(SPARSE)]
    assert len({Session(t, entries(6)).id for t in tasks}) == len(tasks)


def test_the_order_of_arrival_does_not_matter() -> None:
    some = entries(6)
    assert {Session(task(), order).id for order in itertools.permutations(some)} == {Session(task(), some).id}
    assert list(Session(task(), some[::-1]).entries) == [0, 1, 2, 3, 4, 5]


# The graph of neighbours


@pytest.mark.parametrize(("n", "degree"), [(40, 8), (39, 8), (21, 8), (12, 8), (11, 8), (10, 8), (33, 2), (40, 38)])
def test_symmetric_regular_and_the_same_for_all(n: int, degree: int) -> None:
    t = task(Parameters(40, degree, degree // 2 + 1, degree + 1, 0))
    ids = [int(i) for i in np.random.default_rng(n).choice(2**32, n, replace=False)]
    one, other = Session(t, entries(n, ids)), Session(t, entries(n, ids[::-1]))
    found = {i: one.neighbours(i) for i in ids}
    expected = min(degree, n - 1)
    for i, near in found.items():
        assert near == other.neighbours(i)
        assert len(set(near)) == len(near) == expected
        assert near == sorted(near)
        assert i not in near
        assert all(i in found[j] for j in near)
        assert one.holders(i) == near  # nobody holds a share of its own


@pytest.mark.parametrize("n", [2, 3, 7, 12])
def test_complete_when_all_are_neighbours(n: int) -> None:
    """Also with fewer than were invited; everybody, the owner too, then has a share, in the order of numbers."""
    s = Session(task(COMPLETE), entries(n)[::-1])
    for i in range(n):
        assert s.neighbours(i) == [j for j in range(n) if j != i]
        assert s.holders(i) == list(range(n))


def test_complete_when_few_came() -> None:
    s = Session(task(SPARSE), entries(9))
    assert all(s.neighbours(i) == [j for j in range(9) if j != i] for i in range(9))
    s = Session(task(SPARSE), entries(10))
    assert all(len(s.neighbours(i)) == 8 for i in range(10))


def test_other_keys_other_graph() -> None:
    def graph(t: Task, some: list[Entry]) -> tuple[tuple[int, ...], ...]:
        s = Session(t, some)
        return tuple(tuple(s.neighbours(i)) for i in range(30))

    some = entries(30)
    graphs = {graph(task(SPARSE, round=r), some) for r in range(1, 11)}
    graphs |= {graph(task(SPARSE), [*some[:29], some[29]._replace(mask_key=h(i))]) for i in range(10)}
    assert len(graphs) == 20


N, K, MARKED, SESSIONS = 24, 6, 8, 6000


def neighbourhoods(t: Task) -> list[list[int]]:
    """One client's neighbours in each of many sessions; another client every time."""
    some = entries(N)
    return [Session(dataclasses.replace(t, round=r), some).neighbours(r % N) for r in range(1, SESSIONS + 1)]


def by_id() -> list[list[int]]:
    """A circle in the order of the clients' numbers."""
    steps = [s for s in range(-K // 2, K // 2 + 1) if s]
    return [[(r % N + s) % N for s in steps] for r in range(1, SESSIONS + 1)]


def by_rotation() -> list[list[int]]:
    """A graph that only turns: every client's neighbours are random, but always next to each other in number."""
    rng = np.random.default_rng(1)
    return [[(int(c) + s) % N for s in range(K)] for c in rng.integers(0, N, SESSIONS)]


def hypergeometric_test(found: list[list[int]], marked: frozenset[int]) -> float:
    """Chi-square of the number of marked neighbours, of clients that are not marked themselves."""
    clear = [near for r, near in enumerate(found, 1) if r % N not in marked]
    observed = np.bincount([len(marked.intersection(near)) for near in clear], minlength=K + 1)
    expected = stats.hypergeom(N - 1, MARKED, K).pmf(np.arange(K + 1)) * len(clear)
    join = expected < 5
    observed = np.append(observed[~join], observed[join].sum())
    expected = np.append(expected[~join], expected[join].sum())
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


@pytest.fixture(scope="module")
def drawn() -> list[list[int]]:
    return neighbourhoods(task(Parameters(N, K, 4, 10, 2)))


@pytest.mark.parametrize("marked", [range(MARKED), range(0, N, 3), [0, 1, 4, 9, 16, 17, 22, 23]])
def test_corrupted_neighbours_are_hypergeometric(drawn: list[list[int]], marked: list[int]) -> None:
    """Whatever numbers the corrupted have: that is what the parameters count on."""
    which = frozenset(marked)
    assert hypergeometric_test(drawn, which) > 1e-3
    assert hypergeometric_test(by_id(), which) < 1e-9


def test_a_turning_circle_is_not_hypergeometric() -> None:
    assert hypergeometric_test(by_rotation(), frozenset(range(MARKED))) < 1e-9


def test_everybody_is_a_neighbour_equally_often(drawn: list[list[int]]) -> None:
    distance = np.array([(j - r) % N for r, near in enumerate(drawn, 1) for j in near])
    counts = np.bincount(distance, minlength=N)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:]).pvalue > 1e-3


def test_neighbours_come_in_all_pairs(drawn: list[list[int]]) -> None:
    pairs = np.zeros((N, N))
    for near in drawn:
        for a, b in itertools.combinations(near, 2):
            pairs[a, b] += 1
    counts = pairs[np.triu_indices(N, 1)]
    # K of N - 1 without replacement: the variance of a count is smaller than a multinomial's, so only excess is tested
    assert stats.chisquare(counts).statistic < stats.chi2.ppf(0.999, len(counts) - 1)
    assert counts.min() > 0


# What is signed

ids = st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 3), max_size=5, unique=True)


@settings(max_examples=more(80, 200))
@given(ids, ids, ids, ids)
def test_two_questions_are_never_one_statement(a: list[int], b: list[int], c: list[int], d: list[int]) -> None:
    same = (sorted(a), sorted(b)) == (sorted(c), sorted(d))
    assert (consent(h(1), a, b) == consent(h(1), c, d)) == same


def test_lists_split_elsewhere_are_other_statements() -> None:
    people = list(range(6))
    statements = {consent(h(1), people[:i], people[i:]) for i in range(7)}
    statements |= {consent(h(1), people[:i], people[i + 1 :]) for i in range(6)}
    statements |= {consent(h(2), people[:i], people[i:]) for i in range(7)}
    assert len(statements) == 7 + 6 + 7
    assert consent(h(1), [2, 1], [4, 3]) == consent(h(1), (1, 2), iter([3, 4]))  # an order means nothing


def test_ids_do_not_run_into_each_other() -> None:
    one, other = [1, 2**16], [2**16 + 1, 0]
    assert consent(h(1), one, []) != consent(h(1), other, [])
    (joined,) = struct.unpack("<Q", struct.pack("<II", 1, 0))
    assert joined == 1
    assert consent(h(1), [0, 1], []) != consent(h(1), [1], [])


def test_an_advertisement_vouches_for_everything_but_itself() -> None:
    entry = entries(1)[0]
    base = advertisement(task(), entry)
    others = [
        advertisement(task(), entry._replace(client=1)),
        advertisement(task(), entry._replace(mask_key=h("x"))),
        advertisement(task(), entry._replace(channel_key=h("x"))),
        advertisement(task(), entry._replace(mask_key=entry.channel_key, channel_key=entry.mask_key)),
        advertisement(task(model=h("another model")), entry),
        advertisement(task(round=8), entry),
        advertisement(task(plan=h("another plan")), entry),
        advertisement(task(unit=9), entry),
    ]
    assert len({base, *others}) == len(others) + 1
    assert advertisement(task(), entry._replace(signature=b"s" * 64)) == base


def test_statements_of_one_kind_are_none_of_another() -> None:
    """The same bytes under different names: a signature or a commitment cannot be moved elsewhere."""
    seed = h("seed")
    found = {consent(h(1), [], []), commitment(h(1), seed), commitment(h(2), seed), commitment(h(1), h("other"))}
    found |= {_hash(name, h(1), seed) for name in (b"consent", b"advertise", b"session")}
    assert len(found) == 7


@settings(max_examples=more(80, 200))
@given(st.lists(st.binary(max_size=3), max_size=4), st.lists(st.binary(max_size=3), max_size=4))
def test_lists_of_parts_are_unambiguous(a: list[bytes], b: list[bytes]) -> None:
    assert (_hash(*a) == _hash(*b)) == (a == b)
    assert _hash(*a, b"x") != _hash(*a)
    assert _hash(b"".join(a)) != _hash(*a) or len(a) == 1


def test_reasons_are_different() -> None:
    assert len({str(w) for w in Why}) == len(Why) == len(Why.__members__)
