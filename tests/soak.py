"""Kills and cuts at random on a network of real processes: `make soak`, ten minutes of it; `test_kills`, `test_cuts`.

    python tests/soak.py [--seconds 600] [--seed N] [--units 3] [--clients 3] [--keep FOLDER]

Noise is that of the operating system, so a second draw would be another message, and an alarm of whoever got the first.
Ends with exit code 0 if the sum over servers is conserved to the last bit and every ledger is right, 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import random
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from confide.cluster.layout import HOST, Layout, lay_out
from confide.cluster.processes import Cluster
from confide.cluster.try_out import TRY_OUT
from confide.deploy.store.books import Books
from confide.plans.config import parse
from confide.privacy import ledger
from confide.privacy.ledger import FREE, Event
from invariants import balanced, bounded, conserved, digest, require
from patience import LIMIT, wait_round

Way = tuple[str, str]  # (unit that dials, unit that it dials): the messages of the first to the second


class Ways:
    """A TCP proxy in each direction between any two servers, which can be cut; use as a context manager.

    "freeze": nothing passes and nobody is told, as behind a cable that was pulled out; what waited arrives later.
    "drop": connections are reset, and new ones end at once.
    """

    def __init__(self, layout: Layout) -> None:
        names = layout.units
        pairs = [(a, b) for a in names for b in names if a != b]
        self._goals = {way: layout.ports[way[1]] for way in pairs}
        self._ports: dict[Way, int] = {}
        self._state: dict[Way, str] = dict.fromkeys(pairs, "open")
        self._open: dict[Way, set[asyncio.StreamWriter]] = {way: set() for way in pairs}
        self._changed: dict[Way, asyncio.Event] = {}
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ways", daemon=True)

    @property
    def via(self) -> dict[Way, str]:
        """For `Cluster`."""
        return {way: f"{HOST}:{port}" for way, port in self._ports.items()}

    def __enter__(self) -> Ways:
        self._thread.start()
        self._call(self._serve())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self, ways: Iterable[Way], kind: str = "freeze") -> None:
        self._call(self._set(list(ways), kind))

    def heal(self, ways: Iterable[Way] | None = None) -> None:
        self._call(self._set(list(self._goals if ways is None else ways), "open"))

    def _call(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT)

    async def _serve(self) -> None:
        for way in self._goals:
            self._changed[way] = asyncio.Event()
            self._changed[way].set()
            self._servers.append(await asyncio.start_server(self._accept(way), HOST, 0))
            self._ports[way] = self._servers[-1].sockets[0].getsockname()[1]

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # each closes its connections

    async def _set(self, ways: list[Way], state: str) -> None:
        for way in ways:
            self._state[way] = state
            if state == "freeze":
                self._changed[way].clear()
            else:
                self._changed[way].set()
            if state == "drop":
                for writer in list(self._open[way]):
                    writer.transport.abort()

    def _accept(self, way: Way) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            mine = self._open[way]
            mine.add(writer)
            beyond = None
            try:
                await self._changed[way].wait()
                if self._state[way] == "drop":
                    return
                there, beyond = await asyncio.open_connection(HOST, self._goals[way])
                mine.add(beyond)
                pumps = [asyncio.create_task(self._pump(way, *ends)) for ends in ((reader, beyond), (there, writer))]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
            except OSError:
                return  # the server is down: so is the way to it
            finally:
                for end in (writer, beyond):
                    if end is not None:
                        mine.discard(end)
                        end.transport.abort()

        return accepted

    async def _pump(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._changed[way].wait()
                writer.write(data)
                await writer.drain()


class Auditor:
    """Looks into the stores of servers that are down, as often as one is, and remembers what was there."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.layout = cluster, cluster.layout
        self.rows: dict[str, list[Event]] = {unit: [] for unit in self.layout.units}
        self._applied: set[tuple[str, str, int, str]] = set()  # (server, neighbour, round, hash of what came from it)
        self.rightly: tuple[str, ...] = ()  # words of alarms that the test gave cause for

    def look(self, unit: str) -> Books:
        """The ledger only grows, and what waits to be sent is what was paid for."""
        with self.cluster.store(unit) as store:
            books, rows = store.load(), [entry.event for entry in store.entries()]
        before = self.rows[unit]
        require(rows[: len(before)] == before, f"{unit}: rows of its ledger have changed")
        self.rows[unit] = rows
        paid = {event.round: event.sha256 for event in rows if event.kind == "message"}
        for (i, to), blob in books.out.items():
            require(paid.get(i) == digest({to: blob}), f"{unit}: another message of round {i} than its ledger has")
        for m, records in books.open.items():
            for i, record in records.items():
                if record.applied:
                    self._applied.add((unit, self.layout.units[m], i, record.peer_sha256.hex()))
        return books

    def settle(self, *, drained: bool = True, removed: bool = False) -> list[Books]:
        """When all servers are down: everything that must hold in the end.

        Args:
            drained: no flow may be open.
            removed: a server was, and the sum is not over all.
        """
        layout = self.layout
        books = [self.look(unit) for unit in layout.units]
        terms = [layout.terms(unit) for unit in layout.units]
        if drained:
            balanced(terms, books)
        elif not removed:
            conserved(terms, books)
        for one, of in zip(terms, books, strict=True):
            bounded(one, of)
        for unit, of in zip(layout.units, books, strict=True):
            self._ledger(unit, of)
        for unit, m, i, sha in self._applied:
            paid = next((e.sha256 for e in self.rows[m] if e.kind == "message" and e.round == i), None)
            require(paid == sha, f"{unit} applied another message of {m} and round {i} than the ledger of {m} has")
        self._logs()
        return books

    def _ledger(self, unit: str, books: Books) -> None:
        """One row a round, the j-th publication at the j-th price; the exported file says the same."""
        path = self.layout.place(unit) / "ledger.jsonl"
        path.unlink(missing_ok=True)
        with self.cluster.store(unit) as store:
            store.export_ledger(path)
            head = store.head
        events = ledger.read(path, head).events
        require(list(events) == self.rows[unit], f"{unit}: the exported ledger is another")
        rows = [event for event in events if event.kind != "release"]
        require([e.round for e in rows] == list(range(1, books.decided + 1)), f"{unit}: not one row for each round")
        paid = [event for event in rows if event.kind == "message"]
        require(len(paid) == books.published, f"{unit}: paid for {len(paid)} of {books.published} publications")
        prices = self.layout.terms(unit).costs
        me = (self.layout.plan.hash, self.layout.number(unit))
        require(all((e.plan, e.unit) == me for e in events), f"{unit}: a row of another plan or unit")
        require(all(e.cost == prices[j] and e.sha256 for j, e in enumerate(paid)), f"{unit}: a wrong price")
        require(all(e.cost == FREE for e in rows if e.kind == "skip"), f"{unit}: a skipped round was paid for")

    def _logs(self) -> None:
        for node in self.layout.nodes:
            text = self.cluster.log(node)
            require("Traceback" not in text, f"{node}: {text[text.find('Traceback') :][:2000]}")
            said = list(events_of(text))
            alarms = [x for x in said if x["event"] == "alarm" and not any(word in x["what"] for word in self.rightly)]
            require(not alarms, f"{node}: {alarms}")
            rounds = Counter(line["round"] for line in said if line["event"] == "published")
            require(not rounds or max(rounds.values()) == 1, f"{node}: published a round twice")


def settled(cluster: Cluster, units: Iterable[str]) -> bool:
    """Whether these servers answer, and have no open flow."""
    told = [cluster.status(unit) for unit in units]
    return all(one is not None and not any(peer["open"] for peer in one["peers"]) for one in told)


def settle_flows(cluster: Cluster, units: Iterable[str]) -> None:
    """Ends the clients of these servers: after the round that was open nothing new is published, and flows end."""
    units = list(units)
    cluster.stop([client for unit in units for client in cluster.layout.clients(unit)], LIMIT)
    open_rounds = {unit: wait_round(cluster, unit, 0)["round"] + 1 for unit in units}
    for unit, round in open_rounds.items():
        wait_round(cluster, unit, round)
    cluster.wait("nothing is open", lambda: settled(cluster, units), LIMIT)


def events_of(text: str) -> Iterator[dict[str, Any]]:
    """Of a log in JSON; a line that a kill has cut off is passed over."""
    for line in text.splitlines():
        if line.startswith("{"):
            with suppress(ValueError):
                found = json.loads(line)
                yield found | found.get("fields", {})


class Soak:
    def __init__(self, layout: Layout, cluster: Cluster, ways: Ways, auditor: Any, seed: int, seconds: float) -> None:
        self.layout, self.cluster, self.ways, self.seconds = layout, cluster, ways, seconds
        self.random = random.Random(seed)  # noqa: S311 - weather
        self.auditor = auditor
        self.counts: Counter[str] = Counter()
        self._busy: set[Any] = set()  # nodes that are away, ways that are cut
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def run(self) -> None:
        begin, minute = time.monotonic(), 1
        self.cluster.start_all()
        self._later(8.0, self._event)  # let them come up
        while (now := time.monotonic()) - begin < self.seconds:
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            self._nobody_ended()
            if now - begin >= 60.0 * minute:
                print(f"{minute:3} min  {self.line()}", flush=True)
                minute += 1
            time.sleep(0.05)
        self._calm()

    def line(self) -> str:
        rounds = [s["round"] if (s := self.cluster.status(unit)) else "-" for unit in self.layout.units]
        return f"rounds {rounds}  " + ", ".join(f"{n} {what}" for what, n in sorted(self.counts.items()))

    def _nobody_ended(self) -> None:
        for node, code in self.cluster.ended().items():
            require(node in self._busy, f"{node} ended by itself with {code}: {self.cluster.last_line(node)}")

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), what))

    @property
    def kinds(self) -> dict[Callable[[], None], int]:
        """What can happen, and how often."""
        return {self._server: 8, self._client: 8, self._cut: 8, self._term: 2, self._sleep: 2, self._all: 1}

    def _event(self) -> None:
        r, kinds = self.random, self.kinds
        r.choices(list(kinds), list(kinds.values()))[0]()
        self._later(r.expovariate(1 / 2.5), self._event)

    def _away(self, nodes: list[str], longest: float) -> None:
        self._busy.update(nodes)
        for node in nodes:
            self._later(self.random.choice((0.0, self.random.uniform(0.0, longest))), partial(self._back, node))

    def _back(self, node: str) -> None:
        if node in self.layout.units and (self.auditor.rows[node] or self.layout.store(node).exists()):
            self.auditor.look(node)  # it may have been killed before it had a store
        self.cluster.start(node)
        self._busy.discard(node)

    def _free(self, nodes: Iterable[Any]) -> list[Any]:
        """Of these nodes or ways: those that nothing has befallen."""
        return [node for node in nodes if node not in self._busy]

    def _server(self) -> None:
        if found := self._free(self.layout.units):
            node = self.random.choice(found)
            self.cluster.kill(node)
            self.counts["servers killed"] += 1
            self._away([node], 12.0)

    def _client(self) -> None:
        if found := self._free(n for n in self.layout.nodes if n not in self.layout.units):
            node = self.random.choice(found)
            self.cluster.kill(node)
            self.counts["clients killed"] += 1
            self._away([node], 5.0)

    def _term(self) -> None:
        """One that is up: until it listens to signals, SIGTERM ends a process as SIGKILL does."""
        if found := [node for node in self._free(self.layout.units) if self.cluster.status(node) is not None]:
            node = self.random.choice(found)
            self.cluster.stop([node], LIMIT)
            require(self.cluster.ended()[node] == 0, f"{node} did not end in order: {self.cluster.last_line(node)}")
            self.counts["servers stopped"] += 1
            self._away([node], 5.0)

    def _sleep(self) -> None:
        if found := self._free(self.layout.nodes):
            node = self.random.choice(found)
            self.cluster.kill(node, signal.SIGSTOP)
            self._busy.add(node)
            self.counts["suspended"] += 1

            def wake() -> None:
                self.cluster.kill(node, signal.SIGCONT)
                self._busy.discard(node)

            self._later(self.random.uniform(0.5, 8.0), wake)

    def _all(self) -> None:
        found = self._free(self.layout.nodes)
        for node in found:
            self.cluster.kill(node)
        self.counts["all killed"] += 1
        self._away(found, 3.0)

    def _cut(self) -> None:
        r, units = self.random, list(self.layout.units)
        one = r.choice(units)
        others = [u for u in units if u != one]
        chosen = {
            "cut off": [way for u in others for way in ((one, u), (u, one))],
            "edges cut": [(one, others[0]), (others[0], one)],
            "one way cut": [(one, r.choice(others))],
        }
        what = r.choice(list(chosen))
        ways = self._free(chosen[what])
        self.ways.cut(ways, r.choice(("freeze", "drop")))
        self._busy.update(ways)
        self.counts[what] += 1

        def heal() -> None:
            self.ways.heal(ways)
            self._busy.difference_update(ways)

        self._later(r.uniform(0.5, 10.0), heal)

    def _calm(self) -> None:
        """All come back, and rounds go on; then the servers alone settle what is open: without clients nothing new."""
        self.ways.heal()
        for node in self.layout.nodes:
            if node in self._busy and self.cluster.alive(node):
                self.cluster.kill(node, signal.SIGCONT)
            elif not self.cluster.alive(node):
                self._back(node)
        reached = max(len(rows) for rows in self.auditor.rows.values())
        rounds = [wait_round(self.cluster, unit, 0)["round"] for unit in self.layout.units]
        for unit in self.layout.units:
            wait_round(self.cluster, unit, max(reached, *rounds) + 3)
        self.cluster.stop_all(LIMIT)
        self.auditor.settle(drained=False)
        for unit in self.layout.units:
            self.cluster.start(unit)
        settle_flows(self.cluster, self.layout.units)
        self.cluster.stop_all(LIMIT)
        self.auditor.settle()
        paid = {u: sum(e.kind == "message" for e in rows) for u, rows in self.auditor.rows.items()}
        print(f"     end  of {[len(rows) for rows in self.auditor.rows.values()]} rounds published: {paid}", flush=True)
        require(min(paid.values()) > 0, "a server has published nothing")


@contextmanager
def workplace(keep: str | None) -> Iterator[Path]:
    """A folder that stays only if it is asked for, or if something went wrong."""
    folder = Path(keep) if keep else Path(tempfile.mkdtemp(prefix="confide-soak-"))
    try:
        yield folder / "network"
    except BaseException:
        print(f"logs and stores are in {folder}", file=sys.stderr)
        raise
    if not keep:
        shutil.rmtree(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description="Random kills and cuts on a network of real processes.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--units", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--keep", metavar="FOLDER")
    given = parser.parse_args()
    print(f"seed {given.seed}, {given.seconds:g} s", flush=True)
    rounds = round(2 * given.seconds) + 300  # more than there is time for
    config = parse(TRY_OUT | {"seed": given.seed, "privacy": TRY_OUT["privacy"] | {"unprotected": True}})
    try:
        with workplace(given.keep) as folder:
            layout = lay_out(
                folder, config, given.units, given.clients, rounds=rounds, adapt=8, tick=0.5, exchange=2, drain=20
            )
            with Ways(layout) as ways, Cluster(layout, via=ways.via, log="json", grace=1.0) as cluster:
                soak = Soak(layout, cluster, ways, Auditor(cluster), given.seed, given.seconds)
                try:
                    soak.run()
                finally:
                    cluster.kill_all()
                print(f"     end  {soak.line()}")
    except Exception as e:
        print(f"FAILED with seed {given.seed}: {type(e).__name__}: {e}", file=sys.stderr)
        return 1
    print(f"conserved to the last bit, every ledger right: seed {given.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
