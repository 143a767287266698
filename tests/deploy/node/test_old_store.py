"""A store that is put back, with real processes: refused once, it is refused for ever, whoever is up."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from confide.cluster.layout import Layout, lay_out
from confide.cluster.processes import Cluster
from confide.cluster.try_out import TRY_OUT
from confide.plans.config import parse
from patience import LIMIT, SCALE, until, wait_round
from ports import own_ports

Outcome = tuple[int, str, str]
OLD = "older than what left; rejoin with a new store"


def files(layout: Layout, unit: str) -> list[Path]:
    store = layout.store(unit)
    return [path for path in store.parent.iterdir() if path.name in (store.name, f"{store.name}-wal")]


def test_a_store_that_was_put_back_is_refused_also_when_nobody_is_there_to_say_so(
    tmp_path: Path, command: Callable[..., Outcome]
) -> None:
    open_end = {"privacy": TRY_OUT["privacy"] | {"unprotected": True}}  # rounds that nobody runs leave no epsilon
    config = parse(TRY_OUT | open_end | {"algorithm": TRY_OUT["algorithm"] | {"aggregation": "plain"}})
    clocks = {"adapt": LIMIT, "tick": 0.05, "exchange": 0.5 * SCALE}
    layout = lay_out(tmp_path / "net", config, 2, 1, rounds=5000, grace=0.2, ports=own_ports, **clocks)
    copy, (client,) = tmp_path / "copy", layout.clients("alpha")
    copy.mkdir()
    with Cluster(layout) as cluster:
        cluster.start_all()
        wait_round(cluster, "alpha", 5)
        cluster.kill("alpha")
        for path in files(layout, "alpha"):
            shutil.copy(path, copy)
        before = cluster.books("alpha")
        cluster.start("alpha")

        def known() -> bool:
            alpha = cluster.status("alpha")
            return alpha is not None and alpha["published"] >= before.published + 8

        cluster.wait("alpha has published later rounds", known, LIMIT)
        heard = wait_round(cluster, "alpha", 0)["round"]
        until(lambda: wait_round(cluster, "beta", 0)["peers"][0]["round"] >= heard, "beta has heard of them")
        for node in ("alpha", "beta", client):
            cluster.kill(node)
        for path in files(layout, "alpha"):
            path.unlink()
        for path in copy.iterdir():
            shutil.copy(path, layout.store("alpha").parent)
        assert cluster.books("alpha").decided == before.decided
        cluster.start(client)
        cluster.start("alpha")  # nobody can tell it that it is old, so it waits
        until(lambda: (cluster.status("alpha") or {}).get("waits") == "to hear its neighbours: beta", "it waits")
        cluster.start("beta")
        assert cluster.processes["alpha"].wait(LIMIT) == 2
        assert OLD in cluster.last_line("alpha")
        cluster.kill("beta")
        cluster.start("alpha")
        assert cluster.processes["alpha"].wait(LIMIT) == 2
        assert OLD in cluster.last_line("alpha")
        after = cluster.books("alpha")
        assert (after.decided, after.published) == (before.decided, before.published)
        assert after.overtaken > before.decided + 4

        code, said, _ = command("status", layout.toml("alpha"))
        assert (code, f"OLD STORE round {after.overtaken} has left" in said) == (0, True)
        code, said, _ = command("check", layout.toml("alpha"))
        assert (code, "start once with --rejoin" in said) == (1, True)
        cluster.start("beta")
        cluster.start("alpha", "--rejoin")
        wait_round(cluster, "alpha", after.overtaken + 10)
        told = cluster.status("beta")
        assert told is not None
        assert not told["alarms"]
        cluster.stop_all()
        assert cluster.books("alpha").overtaken == 0
