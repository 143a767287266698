"""The processes of a network on one machine: started, killed, asked, and none left behind."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal as signals
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from confide.base.closing import Closing
from confide.base.errors import InputError, RunError
from confide.cluster.layout import Layout, Via
from confide.deploy.node import control
from confide.deploy.node.training_process import ONE_THREAD
from confide.deploy.store.books import Books
from confide.deploy.store.sqlite import SqliteStore

CRASH: Final = "CONFIDE_CRASH_AT"  # `seeded.CRASH`, which only the nodes need
POLL: Final = 0.1
PATIENCE: Final = 10.0  # seconds for an answer of a server
GRACE: Final = 60.0  # seconds for all to end in good order, on a machine that has other things to do
LITTLE: Final = 2**18  # bytes: less room than that is none
TAIL: Final = 2**14  # bytes of a log in which its last line is looked for


class Cluster(Closing):
    """Args:
    test_seed: FOR TESTS: all randomness of all nodes from this seed.
    via: see `Layout.write`: the nodes' configs are written again with these addresses.
    options: of every node's config, besides the layout's.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        test_seed: int | None = None,
        via: Via | None = None,
        **options: Any,
    ) -> None:
        self.layout, self.test_seed = layout, test_seed
        self.logs = layout.folder / "logs"  # one file a node
        self.logs.mkdir(parents=True, exist_ok=True)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._meant: set[str] = set()  # nodes that were told to end
        self._lock = os.open(layout.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise InputError("folder", str(layout.folder), "a network runs there already; stop it first") from None
        if not via:  # a proxy knows the ports
            layout.renew_ports()
        if via or options:
            layout.write(via, **options)
        self._held, self._holding = os.pipe()  # nodes have the first end, see `leash`
        atexit.register(self.kill_all)

    def close(self) -> None:
        """Stops whatever runs; the folder may be used by another then."""
        if self._lock < 0:
            return
        self.stop_all()
        atexit.unregister(self.kill_all)
        for fd in (self._held, self._holding, self._lock):
            os.close(fd)
        self._lock = -1

    # Starting and ending

    def start_all(self) -> None:
        """Servers first: they take longer to come up."""
        for node in self.layout.nodes:
            self.start(node)

    def start(self, node: str, *options: str, crash: str | None = None) -> subprocess.Popen[bytes]:
        """`crash`: "POINT:PASSED", the node kills itself at a crash point; only with a test seed."""
        if self.alive(node):
            raise InputError("node", node, "runs already")
        if crash is not None and self.test_seed is None:
            raise InputError("crash", crash, "needs a test seed")
        kind = "server" if node in self.layout.units else "client"
        line = [sys.executable, "-P", "-X", "no_debug_ranges", "-m", "confide.cluster.leash", str(self._held), kind]
        line += [str(self.layout.toml(node)), *options]
        if self.test_seed is not None:
            line += ["--test-seed", str(self.test_seed)]
        environment = {name: value for name, value in os.environ.items() if name != CRASH}
        environment = dict.fromkeys(ONE_THREAD, "1") | environment  # they share the machine
        if crash is not None:
            environment[CRASH] = crash
            self._meant.add(node)
        else:
            self._meant.discard(node)
        with open(self.logs / f"{node}.log", "ab") as log:
            # A session of its own: Ctrl-C is for this process, which then ends them in order.
            self.processes[node] = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
                pass_fds=(self._held,),
            )  # fmt: skip
        return self.processes[node]

    def alive(self, node: str) -> bool:
        process = self.processes.get(node)
        return process is not None and process.poll() is None

    def ended(self) -> dict[str, int]:
        """Exit codes of all that were started and do not run; negative: the signal."""
        found = {node: process.poll() for node, process in self.processes.items()}
        return {node: code for node, code in found.items() if code is not None}

    def kill(self, node: str, signal: int = signals.SIGKILL) -> None:
        """Send a signal; after SIGKILL the process is gone when this returns."""
        process = self.processes.get(node)
        if process is None or process.poll() is not None:
            return
        if signal in (signals.SIGKILL, signals.SIGTERM, signals.SIGINT):
            self._meant.add(node)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal)
        if signal == signals.SIGKILL:
            process.wait()

    def stop(self, nodes: Iterable[str], grace: float = GRACE) -> None:
        """SIGTERM to all of them, and SIGKILL to what is left after the grace."""
        end, nodes = time.monotonic() + grace, list(nodes)
        for node in nodes:
            self.kill(node, signals.SIGTERM)
            self.kill(node, signals.SIGCONT)  # a stopped process would not hear
        for node in nodes:
            if node in self.processes:
                try:
                    self.processes[node].wait(max(0.0, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    self.kill(node)

    def stop_all(self, grace: float = GRACE) -> dict[str, int]:
        """Servers first, so that a round may end while the clients still answer; returns exit codes."""
        try:
            self.stop(self.layout.units, grace)
            self.stop(self.processes, grace)
        finally:
            self.kill_all()
        return self.ended()

    def kill_all(self) -> None:
        for node in list(self.processes):
            self.kill(node)

    # Asking

    def status(self, unit: str) -> dict[str, Any] | None:
        """What `confide status --json` says of a running server; None if it does not answer (yet)."""
        return self._ask(unit, {"ask": "status"}, PATIENCE)

    def _ask(self, unit: str, question: Mapping[str, Any], patience: float) -> dict[str, Any] | None:
        if not self.alive(unit):
            return None
        try:
            lines = list(control.ask(self.layout.socket(unit), dict(question), patience))
        except (control.NotRunningError, RunError):
            return None
        last = lines[-1] if lines else {}
        if "failed" in last:
            raise RunError(f"{unit}: {last['failed']}")
        return last.get("done")

    def release(self, unit: str, *, again: bool = False, patience: float = 240.0) -> dict[str, Any]:
        """What `confide release --json` says."""
        found = self._ask(unit, {"ask": "release", "again": again, "anyway": False}, patience)
        if found is None:
            raise RunError(f"{unit}: the server does not run, or did not answer: {self.last_line(unit)}")
        return found

    def wait(self, what: str, condition: Callable[[], Any], timeout: float) -> Any:
        """The condition's value once it is true; raises `RunError` if time runs out or a process ended by itself."""
        end = time.monotonic() + timeout
        while not (found := condition()):
            for node, code in self.ended().items():
                if node not in self._meant:  # who ended the others may start them again
                    raise RunError(f"{node} ended with {code}: {self.last_line(node)}{self._full()}")
            if time.monotonic() > end:
                raise RunError(f"not within {timeout:g} s: {what}")
            time.sleep(POLL)
        return found

    def _full(self) -> str:
        """What a log that is on a full disk cannot say."""
        full = shutil.disk_usage(self.layout.folder).free < LITTLE
        return f"; the disk of {self.layout.folder} is full: make room, and it goes on" if full else ""

    def log(self, node: str) -> str:
        path = self.logs / f"{node}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def last_line(self, node: str) -> str:
        path = self.logs / f"{node}.log"
        if not path.exists():
            return ""
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read().decode(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "")

    # Looking into what they left

    def store(self, unit: str) -> SqliteStore:
        """The store of a server that does not run; close it again."""
        if self.alive(unit):
            raise InputError("unit", unit, "its server runs and holds the store; stop it first")
        return SqliteStore.open(self.layout.store(unit), self.layout.plan, self.layout.number(unit))

    def books(self, unit: str) -> Books:
        with self.store(unit) as store:
            return store.load()
