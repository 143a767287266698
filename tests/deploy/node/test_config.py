"""A node's TOML: every mistake is one line that names the field and says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.deploy.node import client_data, start
from confide.deploy.node.config import load_client, load_server, not_expired

SERVER = """
plan = "plan.json"
node = "keys/server-one"
listen = "0.0.0.0:7001"
store = "data/alpha.db"
dataset = "hospital 2026"
ledgers = ["old.jsonl"]

[authorities.alpha]
certificate = "alpha.crt"
crl = "alpha.pem"

[authorities.beta]
certificate = "beta.crt"
crl = "beta.pem"

[servers.beta-unit]
organisation = "beta"
name = "two"
addresses = ["beta.example.org:7001", "[::1]:7002"]
"""
CLIENT = """
plan = "plan.json"
node = "keys/client-c7"
record = "c7.record"
data = "c7.npz"
authority = "alpha.crt"
crl = "alpha.pem"

[server]
organisation = "alpha"
name = "one"
addresses = ["alpha.example.org:7001"]
"""
FILES = (
    "plan.json", "keys/server-one.crt", "keys/server-one.key", "keys/server-one.identity", "keys/server-one.exchange",
    "keys/client-c7.crt", "keys/client-c7.key", "keys/client-c7.identity", "old.jsonl", "alpha.crt", "alpha.pem",
    "beta.crt", "beta.pem", "c7.npz",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "keys").mkdir()
    for name in FILES:
        (tmp_path / name).touch()
    return tmp_path


def written(folder: Path, text: str) -> Path:
    path = folder / "node.toml"
    path.write_text(text)
    return path


def test_paths_are_relative_to_the_config(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    server = load_server(written(folder, SERVER))
    assert server.path(server.store) == folder / "data" / "alpha.db"
    assert server.control == folder / "data" / "alpha.db.sock"
    assert (server.log, server.grace, server.reload, server.patience) == ("text", 10.0, 60.0, 600.0)
    assert load_server(written(folder, 'socket = "/run/x.sock"\n' + SERVER)).control == Path("/run/x.sock")
    monkeypatch.chdir(folder)
    assert load_client("node.toml" if written(folder, CLIENT) else "").path("x") == folder / "x"


SERVER_MISTAKES: list[tuple[Callable[[str], str], str, str]] = [
    (lambda s: s.replace("plan.json", "paln.json"), "plan", "confide agree"),
    (lambda s: s.replace("server-one", "server-two"), "node", "confide pki sign"),
    (lambda s: s.replace('listen = "0.0.0.0:7001"\n', ""), "listen", "missing: HOST:PORT"),
    (lambda s: s.replace("listen", "lisen"), "listen", "missing"),
    (lambda s: 'lisen = "a:1"\n' + s, "lisen", "did you mean 'listen'"),
    (lambda s: s.replace("0.0.0.0:7001", "7001"), "listen", "HOST:PORT"),
    (lambda s: s.replace("0.0.0.0:7001", "0.0.0.0:99999"), "listen", "HOST:PORT"),
    (lambda s: s.replace("0.0.0.0:7001", "::1:7001"), "listen", "brackets"),
    (lambda s: s.replace('store = "data/alpha.db"', "store = 5"), "store", "valid string"),
    (lambda s: s.replace("hospital 2026", "  "), "dataset", "must be a name"),
    (lambda s: s.replace("old.jsonl", "older.jsonl"), "ledgers[0]", "earlier run"),
    (lambda s: s.replace("alpha.crt", "gone.crt"), "authorities.alpha.certificate", "ca.crt"),
    (lambda s: s.replace("beta.pem", "gone.pem"), "authorities.beta.crl", "crl.pem"),
    (lambda s: s.replace('crl = "beta.pem"', ""), "authorities.beta.crl", "missing: crl.pem"),
    (lambda s: s.replace('organisation = "beta"', 'organisation = "gamma"'), "servers.beta-unit.organisation", "gamma"),
    (lambda s: s.replace("[::1]:7002", "[::1]"), "servers.beta-unit.addresses[1]", "HOST:PORT"),
    (lambda s: re.sub("addresses = .*", "addresses = []", s), "servers.beta-unit.addresses", "at least one"),
    (lambda s: re.sub("addresses = .*", 'address = "a:1"', s), "servers.beta-unit.addresses", "missing: HOST:PORT"),
    (lambda s: 'log = "xml"\n' + s, "log", "'text' or 'json'"),
    (lambda s: "grace = -1\n" + s, "grace", "not negative"),
    (lambda s: "reload = 0\n" + s, "reload", "above 0"),
    (lambda s: "patience = inf\n" + s, "patience", "above 0"),
    (lambda s: "authorities = 3\n" + s.split("[authorities.alpha]")[0], "authorities", "[authorities]"),
    (lambda s: 'folder = "/"\n' + s, "folder", "own folder"),
    (lambda s: "plan = \n" + s, "config", "cannot be parsed"),
]


@pytest.mark.parametrize(("change", "field", "remedy"), SERVER_MISTAKES, ids=[m[1] + str(n) for n, m in enumerate(SERVER_MISTAKES)])  # fmt: skip # noqa: E501
def test_a_servers_mistake_is_named(folder: Path, change: Callable[[str], str], field: str, remedy: str) -> None:
    assert change(SERVER) != SERVER
    with pytest.raises(InputError) as refused:
        load_server(written(folder, change(SERVER)))
    assert refused.value.field == field, refused.value
    assert remedy in refused.value.remedy, refused.value
    assert "\n" not in str(refused.value)


CLIENT_MISTAKES: list[tuple[Callable[[str], str], str, str]] = [
    (lambda s: s.replace('data = "c7.npz"', ""), "data", "either"),
    (lambda s: 'train = "a:b"\n' + s, "data", "either"),
    (lambda s: s.replace('data = "c7.npz"', 'train = "a:b"'), "dataset", "that the train function reads"),
    (lambda s: s.replace("c7.npz", "c7.pickle"), "data", ".npz"),
    (lambda s: s.replace("c7.npz", "c8.npz"), "data", "own samples"),
    (lambda s: s.replace("alpha.crt", "gone.crt"), "authority", "ca.crt"),
    (lambda s: s.replace('record = "c7.record"', ""), "record", "never copied back"),
    (lambda s: s.split("[server]", maxsplit=1)[0], "server", "missing: [server]"),
    (lambda s: s.replace('name = "one"', ""), "server.name", "as in its certificate"),
    (lambda s: s + "[train_config]\nx = 1\n", "train_config", "train function"),
    (lambda s: s.replace("keys/client-c7", "keys/client-c9"), "node", "copy all files"),
]


@pytest.mark.parametrize(("change", "field", "remedy"), CLIENT_MISTAKES, ids=[m[1] + str(n) for n, m in enumerate(CLIENT_MISTAKES)])  # fmt: skip # noqa: E501
def test_a_clients_mistake_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], change: Callable[[str], str], field: str, remedy: str
) -> None:
    path = written(folder, change(CLIENT))
    with pytest.raises(InputError) as refused:
        load_client(path)
    assert (refused.value.field, remedy in refused.value.remedy) == (field, True), refused.value
    assert start.run("client", str(path)) == 2  # what the process says and returns
    assert capsys.readouterr().err == f"error: {refused.value}\n"


def test_a_config_that_is_not_there(tmp_path: Path) -> None:
    for load in (load_server, load_client):
        with pytest.raises(InputError, match="cannot be opened"):
            load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        load_server(tmp_path / "bad.toml")


def test_an_expired_certificate_is_refused_at_the_start() -> None:
    def node(until: datetime) -> Any:
        return SimpleNamespace(org="alpha", name="one", not_after=until)

    not_expired("x", node(datetime.now(UTC) + timedelta(days=1)))
    with pytest.raises(InputError, match="confide pki renew alpha one"):
        not_expired("x", node(datetime.now(UTC) - timedelta(seconds=1)))


# ---- a client's samples


def test_samples_from_both_kinds_of_file(tmp_path: Path) -> None:
    X, y = np.arange(6.0).reshape(3, 2), np.array([1.0, -1.0, 0.5])
    np.savez(tmp_path / "a.npz", allow_pickle=False, X=X.astype(np.float32), y=y)
    rows = "\n".join(",".join(map(str, [*x, d])) for x, d in zip(X.tolist(), y.tolist(), strict=True))
    (tmp_path / "b.csv").write_text("age,weight,target\n" + rows)
    (tmp_path / "c.csv").write_text("age,weight,target\n" + rows + "\n")
    (tmp_path / "d.csv").write_bytes(b"\xff,,\r\n" + rows.replace("\n", "\r\n").encode())
    for name in ("a.npz", "b.csv", "c.csv", "d.csv"):
        found = client_data.read(tmp_path / name, 2)
        assert np.array_equal(found[0], X), name
        assert np.array_equal(found[1], y), name
        assert found[0].dtype == np.float64


def test_samples_that_do_not_do(tmp_path: Path) -> None:
    def refused(name: str, remedy: str, features: int = 2) -> None:
        with pytest.raises(InputError, match=remedy) as e:
            client_data.read(tmp_path / name, features)
        assert e.value.field == "data"
        assert "4.25" not in str(e.value)  # no value of the data

    np.savez(tmp_path / "a.npz", allow_pickle=False, X=np.full((3, 2), 4.25), d=np.zeros(3))
    refused("a.npz", "no array y")
    np.savez(tmp_path / "b.npz", allow_pickle=False, X=np.full((3, 2), 4.25), y=np.zeros(2))
    refused("b.npz", "one row of features")
    np.savez(tmp_path / "c.npz", allow_pickle=False, X=np.full((3, 2), 4.25), y=np.zeros(3))
    refused("c.npz", "the plan's model has 3", 3)
    np.savez(tmp_path / "d.npz", allow_pickle=False, X=np.full((3, 2), "4.25"), y=np.zeros(3))
    refused("d.npz", "save an array of numbers")
    np.savez(tmp_path / "e.npz", X=np.array([object()]), y=np.zeros(1))  # pickled
    refused("e.npz", "pickled objects are not read")
    (tmp_path / "f.npz").write_bytes(b"4.25")
    refused("f.npz", "is no .npz")
    (tmp_path / "g.csv").write_text("a,b\n1,4.25,3\n")
    refused("g.csv", "has 2 names; the plan's model has 2 features and a target")
    (tmp_path / "h.csv").write_text("a,b,c\n")
    refused("h.csv", "one row of features")


def test_every_line_of_a_csv_is_a_row_but_the_first_which_is_names(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = ["1,2,3", "4,5,6", "", "4,x,6", "4,5", "4,5,6,7", "# 4,5,6", "7,8,9"]
    for first, numbers in (("a,b,c", False), ("1,2,3", True), ("1,b,3", False)):
        path.write_text("\n".join([first, *lines]))
        X, y = client_data.read(path, 2)
        assert np.isfinite(y).tolist() == [True, True, *[False] * 5, True]
        assert np.array_equal(np.isfinite(X).all(axis=1), np.isfinite(y))
        assert client_data.begins_with_numbers(path) == numbers
