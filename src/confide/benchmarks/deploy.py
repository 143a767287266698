"""`confide bench deploy`: a round of real processes against the bytes alone, in one run on one machine.

One unit without neighbours, its server and its clients each a process, with sums in clear and with secure sums: model
to all, no training, updates, sum, noise, the store. The floor is `echo`: the same bytes between as many processes
over gRPC and mutual TLS. All three stand ready from the start and take turns, a few rounds each, so that what else the
machine does meets them alike. A ratio is the median of those of the turns, a time of all turns.

How long a round takes is one figure, how much work it is another: the processor seconds of all its processes, whose
ratios (`cpu_ratio_...`) hardly change when the machine has other work besides.
"""

from __future__ import annotations

import fcntl
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from confide.base.errors import RunError
from confide.base.validation import whole
from confide.benchmarks import echo
from confide.benchmarks.network import trivial
from confide.benchmarks.timing import Turns, all_told
from confide.cluster.layout import fill, free_ports
from confide.cluster.processes import Cluster
from confide.cluster.try_out import TRY_OUT
from confide.plans.config import parse
from confide.secure.settings import Secure

TURNS: Final = 16
ROUNDS: Final = 4  # of each in a turn
WORD: Final = 8  # bytes of a coordinate of the model, and of an update in clear
PATIENCE: Final = 60.0  # seconds for a turn
PLENTY: Final = 10_000  # rounds of the plan
CLOCKS: Final = {"adapt": 600.0, "tick": 0.001, "exchange": 5.0, "drain": 5.0}
UNIT: Final = echo.ORGANISATION


def bench(
    clients: int, length: int, turns: int | None = None, watch: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Seconds of a round, by the clock and of all its processors, and memory of a process at its peak.

    `floor_s` has the model's bytes both ways. Masked updates are words of half the size: `floor_short_s` has those.
    """
    whole("clients", clients, 3, 100)
    whole("length", length, 1, 10**7)
    turns = whole("turns", TURNS if turns is None else turns, 1, 1000)
    with tempfile.TemporaryDirectory(prefix="confide-bench-") as folder, ExitStack() as stack:
        plain = stack.enter_context(closing(_Network(Path(folder) / "plain", clients, length, None)))
        secure = stack.enter_context(closing(_Network(Path(folder) / "secure", clients, length, Secure())))
        floor = stack.enter_context(closing(_Echo(plain.layout.authority(UNIT), clients, WORD * length)))
        for part in (plain, secure, floor):
            part.start()
        work: dict[str, Callable[[], _Round]] = {
            "floor": partial(floor.rounds, ROUNDS, WORD * length),
            "plain": partial(plain.rounds, ROUNDS),
            "short": partial(floor.rounds, ROUNDS, Secure().ring_bits // 8 * length),
            "secure": partial(secure.rounds, ROUNDS),
        }
        rounds: dict[str, list[_Round]] = {name: [] for name in work}
        for turn in range(1 + turns):
            for name in list(work)[:: -1 if turn % 2 else 1]:
                found = work[name]()
                rounds[name] += [found] if turn else []  # the first find caches cold and connections slow
                watch()
        took = Turns({name: [each.seconds for each in found] for name, found in rounds.items()})
        cost = Turns({name: [each.processor for each in found] for name, found in rounds.items()})
        memory = [secure.memory(), plain.memory()]
    return {
        "clients": clients,
        "length": length,
        "rounds": turns * ROUNDS,
        **{f"{name}_s": took.median(name) for name in ("floor", "plain", "secure")},
        "floor_short_s": took.median("short"),
        **{f"{name}_cpu_s": cost.median(name) for name in ("floor", "plain", "secure")},
        **all_told(
            {
                "ratio_plain": took.ratios("plain", "floor"),
                "ratio_secure": took.ratios("secure", "floor"),
                "ratio_secure_short": took.ratios("secure", "short"),
                "cpu_ratio_plain": cost.ratios("plain", "floor"),
                "cpu_ratio_secure": cost.ratios("secure", "floor"),
            }
        ),
        "client_rss_mib": max(client for _, client in memory),
        "server_rss_mib": max(server for server, _ in memory),
    }


class _Round(NamedTuple):
    """One of several in a turn: the median of their seconds, and the mean of the processor's."""

    seconds: float
    processor: float


class _Network:
    """A unit's processes, which work while the gate is open."""

    def __init__(self, folder: Path, clients: int, length: int, aggregation: Secure | None) -> None:
        experiment = trivial(1, clients, length, PLENTY, aggregation)
        self.layout = fill(folder, parse(TRY_OUT), (), experiment, free_ports(1), {"log": "json"}, **CLOCKS)
        self.layout.write()
        self._gate = folder / "gate"
        self._gate.touch()
        for node in self.layout.clients(UNIT):
            path = self.layout.toml(node)
            own = 'train = "confide.benchmarks.gated:train"\ndataset = "none"\n'
            own += f"train_config = {{gate = {json.dumps(str(self._gate))}}}\n"
            path.write_text(path.read_text(encoding="utf-8").replace('data = "data.npz"\n', own), encoding="utf-8")
        self._cluster = Cluster(self.layout)
        self._lock = self._closed_gate()

    def start(self) -> None:
        self._cluster.start_all()

    def close(self) -> None:
        self._cluster.kill_all()
        self._cluster.close()
        self._lock.close()

    def rounds(self, n: int) -> _Round:
        """Open the gate until n whole rounds have passed."""
        pids = [process.pid for process in self._cluster.processes.values()]
        seen, before = len(self._published()), processor_seconds(pids)
        self._lock.close()
        try:
            self._cluster.wait("rounds", lambda: len(self._published()) > seen + n, PATIENCE)
            at = self._published()[seen : seen + n + 1]
        finally:
            self._lock = self._closed_gate()
            time.sleep(0.1)  # what is under way ends
        seconds = statistics.median(later - earlier for earlier, later in pairwise(at))
        return _Round(seconds, (processor_seconds(pids) - before) / (len(self._published()) - seen))

    def _published(self) -> list[float]:
        """When each round was."""
        found = []
        for line in self._cluster.log(UNIT).splitlines():
            event = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
            if event.get("event") == "published":
                found.append(datetime.fromisoformat(event["time"]).timestamp())
        return found

    def _closed_gate(self) -> BinaryIO:
        lock = self._gate.open("rb")
        fcntl.flock(lock, fcntl.LOCK_EX)
        return lock

    def memory(self) -> tuple[float, float]:
        """MiB at the peak, of the server and of the largest client."""
        nodes = self._cluster.processes
        peaks = {node: _peak(process.pid) for node, process in nodes.items()}
        return peaks.pop(UNIT), max(peaks.values())


def _peak(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def processor_seconds(pids: Iterable[int]) -> float:
    """Processor seconds of these processes, and of those that they have started, so far."""
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in with_children(pids))  # as clock_getcpuclockid(3) makes it


def with_children(pids: Iterable[int]) -> Iterator[int]:
    for pid in pids:
        yield pid
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children = ""
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                children = (thread / "children").read_text(encoding="ascii")
            yield from with_children(map(int, children.split()))


class _Echo:
    def __init__(self, certificates: Path, clients: int, size: int) -> None:
        self._certificates, self._clients, self._size = certificates, clients, size
        self._processes: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        self._server = self._start("server", self._clients, self._size)
        port = int(self._line())
        for k in range(self._clients):
            self._start("client", k, port)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate()

    def _start(self, kind: str, *numbers: int) -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "confide.benchmarks.echo", kind, str(self._certificates), *map(str, numbers)]
        pipes = subprocess.PIPE if kind == "server" else subprocess.DEVNULL
        self._processes.append(subprocess.Popen(line, stdin=pipes, stdout=pipes, text=True))  # noqa: S603 - our own
        return self._processes[-1]

    def _line(self) -> str:
        assert self._server.stdout is not None  # noqa: S101 - a pipe
        if not (line := self._server.stdout.readline()):
            raise RunError("the floor's server ended; its error stands above")
        return line

    def rounds(self, n: int, back: int) -> _Round:
        assert self._server.stdin is not None  # noqa: S101 - a pipe
        pids = [process.pid for process in self._processes]
        before = processor_seconds(pids)
        self._server.stdin.write(f"{n} {back}\n")
        self._server.stdin.flush()
        seconds = statistics.median(json.loads(self._line()))
        return _Round(seconds, (processor_seconds(pids) - before) / n)
