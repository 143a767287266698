"""Federations: offsets, weights, maps into memory, and every refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.base.errors import InputError
from confide.problems.federation import Federation
from paper import sample_weights
from work import lines

ARRAYS = ("X", "d", "client_offsets", "unit_offsets")


def small() -> Federation:
    """Unit 0 has clients of 2 and 1 samples, unit 1 one client of 3; label n is in row n."""
    rows = np.arange(6.0)
    return Federation(np.column_stack([rows, rows**2]), rows, np.array([0, 2, 3, 6]), np.array([0, 2, 3]))


@st.composite
def assignments(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Any row to any client, any client to any unit, none empty: (client of each row, unit of each client)."""
    P = draw(st.integers(1, 4))
    units = draw(st.permutations([*range(P), *draw(st.lists(st.integers(0, P - 1), max_size=5))]))
    last = len(units) - 1
    clients = draw(st.permutations([*range(last + 1), *draw(st.lists(st.integers(0, last), max_size=15))]))
    return np.array(clients), np.array(units)


def made(assignment: tuple[np.ndarray, np.ndarray]) -> Federation:
    rows = np.arange(float(len(assignment[0])))
    return Federation.from_assignment(np.column_stack([rows, -rows]), rows, *assignment)


# ---- offsets


def test_offsets_say_who_owns_what() -> None:
    f = small()
    assert (f.P, f.clients, f.samples, f.M) == (2, 3, 6, 2)
    assert f.K.tolist() == [2, 1]
    assert f.N.tolist() == [2, 1, 3]
    assert [f.client(*pk)[1].tolist() for pk in [(0, 0), (0, 1), (1, 0)]] == [[0, 1], [2], [3, 4, 5]]
    X, d = f.client(1, 0)
    assert X.tolist() == [[3, 9], [4, 16], [5, 25]]
    assert np.shares_memory(X, f.X)
    assert np.shares_memory(d, f.d)
    assert repr(f) == "Federation(units=2, clients=3, samples=6, features=2)"


def test_nested_lists_keep_their_places() -> None:
    f = Federation.from_clients([[([[1, 2]], [3]), ([[4, 5], [6, 7]], [8, 9])], [([[0, 1]], [2])]])
    assert f.X.dtype == f.d.dtype == np.float64
    assert f.K.tolist() == [2, 1]
    assert f.N.tolist() == [1, 2, 1]
    assert f.client(0, 1)[0].tolist() == [[4, 5], [6, 7]]
    assert f.client(0, 1)[1].tolist() == [8, 9]
    assert f.client(1, 0)[1].tolist() == [2]


@given(assignments())
def test_every_client_gets_its_rows_in_their_order(assignment: tuple[np.ndarray, np.ndarray]) -> None:
    client, unit = assignment
    f = made(assignment)
    assert f.samples == len(client)
    assert f.K.tolist() == np.bincount(unit).tolist()
    for p in range(f.P):
        for k, c in enumerate(np.flatnonzero(unit == p)):  # clients of a unit keep their order too
            X, d = f.client(p, k)
            assert d.tolist() == np.flatnonzero(client == c).tolist()
            assert X.tolist() == [[n, -n] for n in np.flatnonzero(client == c)]


# ---- weights


@given(assignments())
def test_units_and_clients_weigh_equally(assignment: tuple[np.ndarray, np.ndarray]) -> None:
    f = made(assignment)
    weights = sample_weights(f)
    assert weights.shape == (f.samples,)
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    per_client = np.add.reduceat(weights, f.client_offsets[:-1])
    np.testing.assert_allclose(per_client, 1 / (f.P * f.K[np.repeat(np.arange(f.P), f.K)]), rtol=1e-12)
    np.testing.assert_allclose(np.add.reduceat(per_client, f.unit_offsets[:-1]), 1 / f.P, rtol=1e-12)
    for a, b in zip(f.client_offsets, f.client_offsets[1:], strict=False):
        assert np.ptp(weights[a:b]) == 0


def test_weights_by_hand() -> None:
    assert sample_weights(small()).tolist() == [1 / 8, 1 / 8, 1 / 4, 1 / 6, 1 / 6, 1 / 6]


# ---- files


def test_load_maps_the_files_instead_of_reading_them(tmp_path: Path) -> None:
    f = small()
    f.save(tmp_path / "deep" / "data")
    g = Federation.load(tmp_path / "deep" / "data")
    for name in ARRAYS:
        a = getattr(g, name)
        assert isinstance(a, np.memmap), name
        assert a.base is not None
        assert a.dtype == getattr(f, name).dtype
        assert np.array_equal(a, getattr(f, name))
        assert not a.flags.writeable
    X, d = g.client(1, 0)
    assert np.shares_memory(X, g.X)
    assert np.shares_memory(d, g.d)


def test_a_mapped_federation_may_be_saved_where_it_came_from(tmp_path: Path) -> None:
    rows = 20_000  # more than one page, so that truncating the file would take the data away
    f = Federation(np.ones((rows, 3)), np.arange(float(rows)), np.array([0, rows]), np.array([0, 1]))
    f.save(tmp_path)
    Federation.load(tmp_path).save(tmp_path)
    g = Federation.load(tmp_path)
    assert np.array_equal(g.X, f.X)
    assert np.array_equal(g.d, f.d)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f"{name}.npy" for name in ARRAYS)


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("harm", ["missing", "truncated", "empty", "text", "pickled"])
def test_a_damaged_folder_is_refused_by_name(tmp_path: Path, name: str, harm: str) -> None:
    small().save(tmp_path)
    file = tmp_path / f"{name}.npy"
    if harm == "missing":
        file.unlink()
    elif harm == "pickled":
        np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    else:
        file.write_bytes({"truncated": file.read_bytes()[:-5], "empty": b"", "text": b"1 2 3\n"}[harm])
    with pytest.raises(InputError, match=rf"federation.folder = .*{name}\.npy cannot be read"):
        Federation.load(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        Federation.load(tmp_path / "nowhere")


def test_what_was_saved_is_checked_again(tmp_path: Path) -> None:
    small().save(tmp_path)
    np.save(tmp_path / "d.npy", np.array([0, 1, 2, np.nan, 4, 5]))
    with pytest.raises(InputError, match=r"federation.d = .*nan.*: row 3 is not a finite number"):
        Federation.load(tmp_path)


# ---- refusals


def refused(**changes: object) -> Callable[[], Federation]:
    f = small()
    return lambda: Federation(**{name: changes.get(name, getattr(f, name)) for name in ARRAYS})


X, D = small().X, small().d
REFUSALS = {
    "empty client": (refused(client_offsets=np.array([0, 2, 2, 6])), "client 1 of unit 0'?: has no sample"),
    "empty last client": (refused(client_offsets=np.array([0, 2, 6, 6])), "client 0 of unit 1'?: has no sample"),
    "empty unit": (refused(unit_offsets=np.array([0, 0, 3])), "unit 0'?: has no client"),
    "empty last unit": (refused(unit_offsets=np.array([0, 3, 3])), "unit 1'?: has no client"),
    "NaN": (refused(X=np.where(X == 16, np.nan, X)), "federation.X = .*nan.*row 4 is not a finite number"),
    "infinity": (refused(d=np.where(D == 2, np.inf, D)), "federation.d = .*inf.*row 2 is not a finite number"),
    "flat X": (refused(X=D), r"federation.X = \(6,\): must be a table"),
    "no feature": (refused(X=X[:, :0]), r"federation.X = \(6, 0\): must be a table"),
    "short d": (refused(d=D[:-1]), r"federation.d = \(5,\): .*shape \(6,\)"),
    "wide d": (refused(d=X), r"federation.d = \(6, 2\): .*shape \(6,\)"),
    "text": (refused(X=X.astype(str)), "federation.X = dtype.*: must hold floating-point numbers"),
    "offsets from 1": (refused(client_offsets=np.array([1, 2, 3, 6])), "client_offsets.*must rise from 0 to 6"),
    "offsets fall": (refused(client_offsets=np.array([0, 3, 2, 6])), "client_offsets.*must rise from 0 to 6"),
    "offsets end early": (refused(client_offsets=np.array([0, 2, 3, 5])), "client_offsets.*must rise from 0 to 6"),
    "offsets too short": (refused(unit_offsets=np.array([0])), "unit_offsets.*must rise from 0 to 3"),
    "offsets in a table": (refused(unit_offsets=np.array([[0, 3]])), "unit_offsets.*must rise from 0 to 3"),
    "half a client": (refused(client_offsets=np.array([0, 1.5, 3, 6])), "client_offsets.*in whole numbers"),
    "nobody": (lambda: Federation.from_clients([]), "federation.units = 0: at least one unit"),
    "no client at all": (lambda: Federation.from_clients([[], []]), "federation.units = 2: at least one unit"),
    "a unit without clients": (lambda: Federation.from_clients([[(X, D)], []]), "unit 1'?: has no client"),
    "two widths": (
        lambda: Federation.from_clients([[(X, D), (X[:, :1], D)]]),
        r"federation.X = \[1, 2\]: every client must have the same number of features",
    ),
    "labels of a neighbour": (  # the totals agree, so only a look at each client can tell
        lambda: Federation.from_clients([[(X[:2], D[:3]), (X[2:5], D[3:5])]]),
        r"federation.d = \(3,\): .*client 0.*\(2, 2\); give one label a row",
    ),
    "row without client": (
        lambda: Federation.from_assignment(X, D, np.array([0, 1, 0]), np.array([0, 0])),
        r"federation.client = \(3,\): must hold one client a row, shape \(6,\)",
    ),
    "client below zero": (
        lambda: Federation.from_assignment(X, D, np.array([0, 1, 0, -1, 0, 0]), np.array([0, 0])),
        "federation.client = -1: must be a client in 0 to 1",
    ),
    "client without unit": (
        lambda: Federation.from_assignment(X, D, np.array([0, 1, 0, 2, 0, 0]), np.array([0, 0])),
        "federation.client = 2: must be a client in 0 to 1",
    ),
    "client without row": (
        lambda: Federation.from_assignment(X, D, np.zeros(6, dtype=int), np.array([0, 0])),
        "client 1 of unit 0'?: has no sample",
    ),
    "unit left out": (
        lambda: Federation.from_assignment(X, D, np.array([0, 1] * 3), np.array([0, 2])),
        "unit 1'?: has no client",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_what_makes_no_sense_is_refused(case: str) -> None:
    make, message = REFUSALS[case]
    with pytest.raises(InputError, match=message):
        make()


def test_a_bad_number_past_the_first_block_is_found_at_its_row() -> None:
    rows = (1 << 20) + 10
    d = np.zeros(rows)
    d[-3] = np.nan
    with pytest.raises(InputError, match=f"row {rows - 3} is not a finite number"):
        Federation(np.zeros((rows, 1)), d, np.array([0, rows]), np.array([0, 1]))


# ---- size


def test_a_million_clients_are_two_integer_arrays() -> None:
    clients = 1_000_000
    X = np.ones((clients, 1))
    made: list[Federation] = []

    def work() -> None:
        made.append(Federation.from_assignment(X, X[:, 0], np.arange(clients)[::-1], np.arange(clients) % 1000))

    assert lines(work) < 1000  # no loop over them
    f = made[0]
    assert f.clients == clients
    assert (f.K == 1000).all()
    assert {name: (a.dtype.kind, a.shape) for name, a in vars(f).items()} == {
        "X": ("f", (clients, 1)),
        "d": ("f", (clients,)),
        "client_offsets": ("i", (clients + 1,)),
        "unit_offsets": ("i", (1001,)),
    }
    assert f.client(999, 999)[1].tolist() == [1.0]
