"""A deployed client takes part in secure sums without the simulator's libraries."""

from __future__ import annotations

import subprocess
import sys


def test_a_client_loads_no_heavy_library() -> None:
    program = (
        "import sys, confide.rounds.local, confide.laws.noise, confide.secure.client, confide.secure.encoding\n"
        "import confide.deploy.machines.client, confide.deploy.machines.training, confide.deploy.store.record\n"
        "print(*(m for m in ('scipy', 'numba', 'networkx', 'polars', 'dp_accounting') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
