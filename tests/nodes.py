"""The processes of a network of which some lie, and some have a disk that fails or a clock that jumps (`chaos.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import disk
from confide.cluster.layout import Layout
from confide.cluster.processes import Cluster

FAKETIME: Final = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


class Nodes(Cluster):
    """Attributes:
    lying: nodes that are started as liars.
    taps: where a lying server writes what it was sent.
    """

    def __init__(self, layout: Layout, seed: int, **options: Any) -> None:
        super().__init__(layout, **options)
        self.seed, self.lying = seed, set[str]()
        self.taps = layout.folder / "wire.jsonl"
        self._library: Path | None = None

    def start(self, node: str, *options: str, crash: str | None = None) -> subprocess.Popen[bytes]:
        if node not in self.lying:
            return super().start(node, *options, crash=crash)
        kind = "server" if node in self.layout.units else "client"
        script, toml = str(Path(__file__).with_name("liars.py")), str(self.layout.toml(node))
        line = [sys.executable, script, str(self._held), kind, toml, str(self.seed), str(self.taps)]
        self._meant.discard(node)
        with open(self.logs / f"{node}.log", "ab") as log:
            self.processes[node] = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=(self._held,)
            )
        return self.processes[node]

    def on_failing_disk(self, node: str, fault: str, step: int, *options: str) -> None:
        """Its disk fails at this step (`disk.py`); so does that of the node's children."""
        if self._library is None:
            self._library = disk.built(self.layout.folder)
        with _environment(disk.failing(self._library, self.layout.place(node), fault, step)):
            self.start(node, *options)

    def with_own_clock(self, node: str, ahead: float) -> Path:
        """Its clock is so many seconds ahead, and as many as are written into the file that is returned."""
        file = self.layout.folder / f"{node}.clock"
        set_clock(file, ahead)
        faked = {
            "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1",
        }  # fmt: skip
        with _environment(faked):
            self.start(node)
        return file


def set_clock(file: Path, ahead: float) -> None:
    file.write_text(f"{ahead:+.1f}\n")


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
