"""`confide remove`: operators sign, one collects, and the running servers tell each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from confide.cluster.layout import Layout, lay_out
from confide.cluster.processes import Cluster
from confide.cluster.try_out import TRY_OUT
from confide.plans.config import parse
from patience import LIMIT, until
from ports import own_ports

Outcome = tuple[int, str, str]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    folder = tmp_path_factory.mktemp("three")
    return lay_out(folder / "net", parse(TRY_OUT), 3, 3, rounds=3, adapt=LIMIT, grace=0.2, ports=own_ports)


def test_what_is_signed_is_remembered(three: Layout, tmp_path: Path, command: Callable[..., Outcome]) -> None:
    alpha, out = three.toml("alpha"), tmp_path / "alpha.json"
    code, said, _ = command("remove", alpha, "gamma", "--sign", out, "--json")
    assert code == 0
    assert json.loads(said)["removed"] == [2]
    assert command("remove", alpha, "gamma", "--sign", out)[0] == 0  # the same again
    code, _, err = command("remove", alpha, "beta", "--sign", out)
    assert code == 2
    assert "epoch 1 was signed for [2]: take a higher number" in err
    code, _, err = command("remove", alpha, "alpha", "gamma", "--number", 2, "--sign", out)
    assert (code, "does not sign its own removal" in err) == (2, True)
    code, _, err = command("remove", alpha, "delta", "--sign", out)
    assert (code, "is not in the plan; its units are alpha, beta, gamma" in err) == (2, True)
    code, _, err = command("remove", alpha, "gamma")
    assert (code, "give either --sign FILE, or --with FILE" in err) == (2, True)


def test_too_few_or_other_signatures(three: Layout, tmp_path: Path, command: Callable[..., Outcome]) -> None:
    alpha, mine = three.toml("alpha"), tmp_path / "alpha.json"
    assert command("remove", alpha, "gamma", "--sign", mine)[0] == 0
    code, _, err = command("remove", alpha, "gamma", "--with", mine)
    assert (code, "1 of 3 servers signed it; more than half must" in err) == (2, True)
    other = tmp_path / "other.json"
    for changes, words in (
        ({"number": 7}, "is of another number"),
        ({"signature": "00" * 64, "server": 1}, "the signature of server 1 is not valid"),
        ({"signature": "x"}, "is not what `confide remove --sign` writes"),
        ({"colour": 1}, "is unknown"),
    ):
        other.write_text(json.dumps(json.loads(mine.read_text()) | changes))
        code, _, err = command("remove", alpha, "gamma", "--with", mine, "--with", other)
        assert (code, words in err) == (2, True), err


def test_running_servers_follow_and_the_removed_one_stops(
    three: Layout, tmp_path: Path, command: Callable[..., Outcome]
) -> None:
    files = []
    for unit in ("alpha", "beta"):
        files += ["--with", tmp_path / unit]
        assert command("remove", three.toml(unit), "gamma", "--sign", tmp_path / unit)[0] == 0
    code, _, err = command("remove", three.toml("alpha"), "gamma", *files)
    assert (code, "no server runs with this config" in err) == (1, True)
    with Cluster(three, test_seed=0) as cluster:
        for unit in three.units:
            cluster.start(unit)
        cluster.wait("all are up", lambda: all(cluster.status(unit) for unit in three.units), LIMIT)
        code, said, err = command("remove", three.toml("alpha"), "gamma", *files)
        assert (code, said.startswith("epoch 1: gamma removed")) == (0, True), err
        assert cluster.processes["gamma"].wait(LIMIT) == 2
        assert "this server was removed from the network" in cluster.last_line("gamma")

        def told() -> bool:
            peers = (cluster.status("beta") or {"peers": []})["peers"]
            return "removed" in [peer["edge"] for peer in peers if peer["unit"] == "gamma"]

        until(told, "beta hears of it")
