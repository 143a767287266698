"""One client of a unit is never started, another one is killed: real processes go on with those who are there.

The same with the clocks of every default, in virtual time: `tests/testing/test_absent.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from confide.cluster.layout import lay_out
from confide.cluster.processes import Cluster
from confide.cluster.try_out import TRY_OUT
from confide.plans.config import parse
from patience import SCALE, wait_finished, wait_round
from ports import own_ports
from soak import Auditor, events_of

ROUNDS, CLIENTS = 12, 5  # of whom three are enough
# Neighbours do not wait for as long as a client would be waited for that is there and silent.
CLOCKS = {"adapt": 90.0 * SCALE, "tick": 0.5, "exchange": 30.0 * SCALE, "drain": 60.0 * SCALE}


@pytest.mark.skipif("CONFIDE_SOAK" not in os.environ, reason="a dozen processes: `make soak` runs it")
def test_one_client_that_is_off_costs_its_unit_no_round(tmp_path: Path) -> None:
    config = parse(TRY_OUT, ["algorithm.sampled=5"])
    layout = lay_out(tmp_path / "n", config, 2, CLIENTS, rounds=ROUNDS, log="json", ports=own_ports, **CLOCKS)
    with Cluster(layout) as cluster:
        auditor = Auditor(cluster)
        for node in layout.nodes:
            if node != "alpha-c4":
                cluster.start(node)
        wait_round(cluster, "alpha", 3)
        cluster.kill("alpha-c3")
        wait_finished(cluster)
        said = {unit: [line["event"] for line in events_of(cluster.log(unit))] for unit in layout.units}
        clients = [line["clients"] for line in events_of(cluster.log("alpha")) if line["event"] == "published"]
        cluster.stop_all()
        books = auditor.settle()
    assert [b.published for b in books] == [ROUNDS] * 2
    assert not any("skipped" in events or "down" in events for events in said.values())
    assert clients[0] <= CLIENTS - 1
    assert clients[-1] == CLIENTS - 2
