"""Everything at once on a network of real processes, and stores that are read by somebody else: `make soak`.

    python tests/chaos.py [--seconds 600] [--seed N] [--units 4] [--clients 5] [--keep FOLDER]

Disks are full, processes die inside a checkpoint, clocks jump, stores are lost or put back, links swallow what they are
given, clients are absent, one client of a unit lies about shares and sums, and the last server of the ring lies to its
neighbours all the time. Faults come from the seed; when they hit, the machine says, so a seed repeats a story and not
every instant of it. `independent.py` looks at copies of all stores meanwhile, and asks in the end: is everything
conserved to the last bit, did any server ever say two things in one round, is every ledger right, and has everybody the
same release? Ends with exit code 1 if not.
"""

from __future__ import annotations

import argparse
import heapq
import json
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import independent
import nodes
from confide.cluster.layout import Layout, lay_out
from confide.cluster.try_out import TRY_OUT
from confide.plans.config import parse
from confide.privacy.price import agreed
from independent import Seen, Witness, WrongError, require
from nodes import Nodes
from patience import LIMIT
from soak import Soak, Ways, events_of, workplace

TICK: Final = 1.0
CLOCKS: Final = {"adapt": 8.0, "tick": TICK, "exchange": 2.0, "drain": 20.0}
MORE: Final = 30.0  # seconds by the plan's clock after the last fault: before, nobody can be led to the last round
LOOK: Final = 4.0  # seconds between two looks at all stores
OLD: Final = "older than what left"
CONFIG: Final[dict[str, Any]] = TRY_OUT | {
    "problem": TRY_OUT["problem"] | {"features": 20},
    "algorithm": TRY_OUT["algorithm"] | {"step": 0.004},
    "privacy": {"proof": "convex-glm:0.2", "smoothness": 400.0, "unprotected": True, "release": "centroid:0.3"},
}


class Reader:
    """What the stores say, for whoever knows nothing of the machines.

    Attributes:
        rows: of the ledgers, by unit.
        life: how often a unit's store was lost or put back.
    """

    def __init__(self, layout: Layout, liar: str) -> None:
        self.layout, self.liar = layout, liar
        self.honest = [unit for unit in layout.units if unit != liar]
        self.witness = Witness(layout.units, frozenset({layout.number(liar)}))
        self.rows: dict[str, list[Any]] = {unit: [] for unit in layout.units}
        self.life: Counter[str] = Counter()
        self.looks = self.wire = 0
        self._read = 0  # bytes of what came over the wire

    @cached_property
    def price(self) -> Any:
        return agreed(self.layout.plan)

    def look(self, unit: str) -> Seen | None:
        if unit == self.liar or not self.layout.store(unit).exists():
            return None
        seen = independent.read(self.layout.store(unit), unit)
        self.witness.look(seen, self.life[unit])
        independent.paid(seen, self.price)
        independent.waiting(seen)
        self.rows[unit] = seen.ledger
        self.looks += 1
        return seen

    def look_at_all(self, taps: Path) -> list[Seen]:
        self._tap(taps)
        return [seen for unit in self.honest if (seen := self.look(unit)) is not None]

    def _tap(self, taps: Path) -> None:
        """What honest servers said to the one that lies."""
        if not taps.exists():
            return
        with open(taps, encoding="utf-8") as file:
            file.seek(self._read)
            for line in file.read().splitlines(keepends=True):
                if line.endswith("\n"):
                    self._read += len(line)
                    said = json.loads(line)
                    self.witness.note(said["server"], said["round"], said["sha256"], "the wire")
                    self.wire += 1


class Chaos(Soak):
    """Attributes:
    honest: units whose server says what is true; `liar` is the other one.
    story: what befell whom, and when.
    """

    cluster: Nodes
    auditor: Reader

    def __init__(self, layout: Layout, cluster: Nodes, ways: Ways, reader: Reader, seed: int, seconds: float) -> None:
        super().__init__(layout, cluster, ways, reader, seed, seconds)
        self.liar, self.honest = reader.liar, reader.honest
        cluster.lying.add(self.liar)
        self.story: list[str] = []
        self._begin = time.monotonic()
        self._over = False
        self._still = False  # a store was lost or put back: its neighbours are to be there
        self._backups: dict[str, tuple[int, int, Path]] = {}  # life, rounds, files
        self._clocks: dict[str, Path] = {}
        self._later(LOOK, self._look)

    @property
    def kinds(self) -> dict[Callable[[], None], int]:
        faked = {self._clock: 4} if nodes.FAKETIME else {}
        return {
            self._server: 3, self._client: 2, self._cut: 5, self._term: 2, self._sleep: 2, self._all: 1,
            self._full: 5, self._checkpoint: 5, self._lost: 4, self._lie: 4, self._absent: 3, **faked,
        }  # fmt: skip

    def tell(self, what: str) -> None:
        self.story.append(f"{time.monotonic() - self._begin:7.1f} s  {what}")
        with open(self.layout.folder / "story.log", "a", encoding="utf-8") as file:
            file.write(self.story[-1] + "\n")

    def _event(self) -> None:
        if not self._over:
            super()._event()

    def _free(self, found: Iterable[Any]) -> list[Any]:
        units = self.layout.units
        return [x for x in super()._free(found) if not (self._still and (x in units or isinstance(x, tuple)))]

    def _away(self, nodes: list[str], longest: float) -> None:
        self.tell(f"gone: {', '.join(nodes)}")
        super()._away(nodes, longest)

    def _look(self) -> None:
        found = self.auditor.look_at_all(self.cluster.taps)
        for seen in found:  # a backup, as somebody makes one of a running machine
            unit = seen.name
            if unit not in self._busy and self.random.random() < 0.1:
                to = self.layout.folder / "backups" / unit
                independent.copied(self.layout.store(unit), to)
                self._backups[unit] = self.auditor.life[unit], independent.read(to / "store.db", unit).decided, to
        self._later(LOOK, self._look)

    def _pick(self, found: Iterable[str]) -> str | None:
        """A node that runs and is not busy, which is then."""
        free = self._free(found)
        if not free:
            return None
        node = self.random.choice(free)
        self._busy.add(node)
        return str(node)

    @property
    def _clients(self) -> list[str]:
        return [node for node in self.layout.nodes if node not in self.layout.units]

    # Disks

    def _full(self) -> None:
        if (node := self._pick([*self.honest, *self.random.sample(self._clients, 2)])) is None:
            return
        step = self.random.randrange(80)
        self.cluster.kill(node)
        self.cluster.on_failing_disk(node, "full", step)
        self.tell(f"full disk at {node}, from write {step} on")
        self._until_dead(node, 15.0, partial(self._was_full, node))

    def _was_full(self, node: str, dead: bool) -> None:
        if dead:
            code, said = self.cluster.ended()[node], self.cluster.last_line(node)
            require(code == 1, f"{node} ended with {code} on a full disk: {said}")
            require("damaged" not in said, f"{node} takes a full disk for damage: {said}")
            self.counts["disks full"] += 1
        self._restart(node)

    def _checkpoint(self) -> None:
        """Killed, it leaves a log; while it writes that back at its next start, it is killed again."""
        if (unit := self._pick(self.honest)) is None:
            return
        self.cluster.kill(unit)
        store = self.layout.store(unit)
        log = store.with_name(store.name + "-wal")
        pages = (log.stat().st_size - 32) // 4120 if log.exists() else 0
        step = self.random.randrange(max(1, pages) + 4)
        before = store.read_bytes() if store.exists() else b""
        self.cluster.on_failing_disk(unit, "kill", step)
        self.tell(f"{unit} is killed at write {step} after its start, with {pages} pages in its log")
        self._until_dead(unit, 30.0, partial(self._was_killed, unit, before))

    def _was_killed(self, unit: str, before: bytes, dead: bool) -> None:
        store = self.layout.store(unit)
        log = store.with_name(store.name + "-wal")
        inside = dead and store.exists() and store.read_bytes() != before and log.exists() and log.stat().st_size > 0
        self.counts["kills inside a checkpoint" if inside else "kills at a write"] += 1
        self._restart(unit)

    def _until_dead(self, node: str, patience: float, then: Callable[[bool], None]) -> None:
        end = time.monotonic() + patience

        def look() -> None:
            dead = not self.cluster.alive(node)
            if dead or time.monotonic() > end:
                then(dead)
            else:
                self._later(0.2, look)

        look()

    def _restart(self, node: str) -> None:
        self.cluster.kill(node)
        self._back(node)

    # Clocks

    def _clock(self) -> None:
        """It starts with a clock that is a little off, or its clock is set while it runs; then all is as it was."""
        if (node := self._pick([*self.honest, *self.random.sample(self._clients, 3)])) is None:
            return
        r = self.random
        off = r.choice((0.0, 0.0, r.uniform(-8.0, 8.0)))
        jump = off + r.choice((-1, 1)) * r.choice((3.0, 60.0, 3600.0, 200_000.0))
        self.cluster.kill(node)
        file = self.cluster.with_own_clock(node, off)
        self.tell(f"{node} starts with a clock {off:+.1f} s off, which then jumps to {jump:+.1f} s")
        self.counts["clocks set"] += 1
        self._clocks[node] = file
        self._later(r.uniform(4.0, 8.0), partial(nodes.set_clock, file, jump))
        self._later(r.uniform(10.0, 20.0), partial(self._restart, node))

    # Stores

    def _lost(self) -> None:
        """A store, when nobody is away and no link is cut: to rejoin takes all neighbours."""
        if self._still:
            return
        self._still = True
        end = time.monotonic() + LIMIT

        def look() -> None:
            away = [x for x in self._busy if x in self.layout.units or isinstance(x, tuple)]
            if not away and all(self.cluster.status(unit) for unit in self.honest):
                self._lose()
                return
            require(time.monotonic() < end, f"{away} do not come back")
            self._later(0.2, look)

        look()

    def _lose(self) -> None:
        unit = self.random.choice(self.honest)
        life, rounds, files = self._backups.get(unit, (-1, 0, Path()))
        me, seen = self.layout.number(unit), self.auditor.look_at_all(self.cluster.taps)
        shown = [i for one in seen if me in one.edges for server, i, _ in one.signed if server == me]
        known = max(shown, default=0)  # rounds that were skipped leave no trace that would prove anything
        if not known:  # nobody has come so far yet
            self._still = False
            return
        self._busy.add(unit)
        self.cluster.kill(unit)
        self.auditor.look(unit)
        store = self.layout.store(unit)
        for path in (store, store.with_name(store.name + "-wal")):
            path.unlink(missing_ok=True)
        self.auditor.life[unit] += 1
        self._backups.pop(unit, None)
        if life + 1 == self.auditor.life[unit] and rounds < known and self.random.random() < 0.6:
            for path in files.iterdir():
                shutil.copy(path, store.parent)
            self.tell(f"{unit} has its store of round {rounds} again, and round {known} has left")
            self.counts["old stores"] += 1
            self._refuses(unit, 2)
        else:
            self.tell(f"{unit} has lost its store, after round {known}")
            self.counts["stores lost"] += 1
            self._rejoin(unit)

    def _refuses(self, unit: str, times: int) -> None:
        """Every start, until the operator says that it rejoins."""
        self.cluster.start(unit)

        def ended(dead: bool) -> None:
            said = self.cluster.last_line(unit)
            require(dead, f"{unit} runs with a store that is {OLD}")
            require(self.cluster.ended()[unit] == 2 and OLD in said, f"{unit} ended otherwise: {said}")
            self.counts["old stores refused"] += 1
            self._refuses(unit, times - 1) if times > 1 else self._rejoin(unit)

        self._until_dead(unit, LIMIT, ended)

    def _rejoin(self, unit: str) -> None:
        before = len(self.cluster.log(unit))
        self.cluster.start(unit, "--rejoin")
        end = time.monotonic() + LIMIT

        def look() -> None:
            said = [e for e in events_of(self.cluster.log(unit)[before:]) if e["event"] == "rejoined"]
            require(self.cluster.alive(unit), f"{unit} cannot rejoin: {self.cluster.last_line(unit)}")
            require(time.monotonic() < end, f"{unit} does not rejoin")
            if not said:
                self._later(0.3, look)
                return
            self.tell(f"{unit} has rejoined at round {said[0]['round']}, charged {said[0]['charged']}")
            self._still = False
            self._busy.discard(unit)

        look()

    # Clients

    def _lie(self) -> None:
        unit = self.random.choice(self.layout.units)
        of_unit = self.layout.clients(unit)
        if self.cluster.lying & set(of_unit) or (client := self._pick(of_unit)) is None:
            return
        self.cluster.kill(client)
        self.cluster.lying.add(client)
        self.cluster.start(client)
        self.tell(f"{client} lies")
        self.counts["clients lying"] += 1

        def honest() -> None:
            self.cluster.lying.discard(client)
            self._restart(client)

        self._later(self.random.uniform(10.0, 30.0), honest)

    def _absent(self) -> None:
        if (client := self._pick(self._clients)) is None:
            return
        self.cluster.kill(client)
        self.tell(f"{client} is absent")
        self.counts["clients absent"] += 1
        self._later(self.random.uniform(15.0, 40.0), partial(self._back, client))

    def _back(self, node: str) -> None:
        if not self.cluster.alive(node):
            super()._back(node)
        self._busy.discard(node)

    # The end

    def _calm(self) -> None:
        """The faults end, but for clients and a server that lie: all publish again, and come to the plan's end."""
        self.tell("faults end")
        self._over = True
        end = time.monotonic() + LIMIT
        while self._still and time.monotonic() < end:
            self._pass()
        self._due.clear()
        self.ways.heal()
        liars = {self.layout.clients(unit)[-1] for unit in self.honest}
        for node in self.layout.nodes:
            if node in self._clocks or node in liars or node in self.cluster.lying - {self.liar} or node in self._busy:
                self.cluster.kill(node)
        self.cluster.lying = {self.liar, *liars}
        for node in self.layout.nodes:
            if not self.cluster.alive(node):
                self._back(node)
        self._busy.clear()
        self._publish_again()
        self.cluster.stop(liars)
        self.cluster.lying = {self.liar}
        for node in liars:
            self._back(node)
        self._finish()

    def _pass(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
        self._nobody_ended()
        time.sleep(0.05)

    def _told(self, unit: str) -> dict[str, Any]:
        return self.cluster.wait(f"{unit} answers", lambda: self.cluster.status(unit), LIMIT)  # type: ignore[no-any-return]

    def _publish_again(self) -> None:
        before = {unit: self._told(unit) for unit in self.honest}

        def again(unit: str) -> bool:
            told, first = self._told(unit), before[unit]
            return bool(told["published"] > first["published"] + 1 or told["round"] == told["rounds"])

        for unit in self.honest:
            self.cluster.wait(f"{unit} publishes again", partial(again, unit), LIMIT)

    def _finish(self) -> None:
        """Every honest server decides the last round: as long as any of them goes on, it is waited for."""
        reached, since = 0, time.monotonic()
        while True:
            told = [self._told(unit) for unit in self.honest]
            if all(one["phase"] == "finished" for one in told):
                return
            if (rounds := sum(one["round"] for one in told)) > reached:
                reached, since = rounds, time.monotonic()
            told_of = [(one["unit"], one["phase"], one["round"], one.get("waits")) for one in told]
            require(time.monotonic() - since < LIMIT, f"nobody goes on: {told_of}")
            self._nobody_ended()
            self.auditor.look_at_all(self.cluster.taps)
            time.sleep(2.0)

    def remove_the_liar(self) -> None:
        """As operators do: each signs, one collects."""
        signed = []
        for unit in self.honest:
            signed += ["--with", str(self.layout.folder / f"{unit}.sig")]
            self._command("remove", str(self.layout.toml(unit)), self.liar, "--sign", signed[-1])
        self.cluster.kill(self.liar)
        self._busy.add(self.liar)
        self._command("remove", str(self.layout.toml(self.honest[0])), self.liar, *signed)

        def known() -> bool:
            peers = [peer for unit in self.honest for peer in self._told(unit)["peers"] if peer["unit"] == self.liar]
            return all(peer["edge"] == "removed" for peer in peers)

        self.cluster.wait("all know of the removal", known, LIMIT)

    def release(self) -> None:
        def nothing_open() -> bool:
            return not any(peer["open"] for unit in self.honest for peer in self._told(unit)["peers"])

        self.cluster.wait("nothing is open", nothing_open, LIMIT)
        self.cluster.release(self.random.choice(self.honest), patience=LIMIT)
        files = [self.layout.released(unit) for unit in self.honest]
        self.cluster.wait("all have it", lambda: all(file.exists() for file in files), LIMIT)

    def _command(self, *words: str) -> None:
        done = subprocess.run([sys.executable, "-m", "confide", *words], capture_output=True, text=True)
        require(done.returncode == 0, f"confide {' '.join(words[:2])}: {done.stdout}{done.stderr}")

    # What must hold

    def verdicts(self, *, settled: bool) -> dict[str, Callable[[], object]]:
        """When no process runs. Where not all has come to its end, flows may be open, and nothing is released."""
        stores = self.auditor.look_at_all(self.cluster.taps)
        liars, reader = [self.layout.number(self.liar)], self.auditor
        files = {unit: self.layout.released(unit) for unit in self.honest}
        terms = reader.price.reveal_terms.left(len(self.honest))
        quantum = reader.price.arithmetic.quantum
        paid = [sum(e["kind"] == "message" and e["sha256"] is not None for e in seen.ledger) for seen in stores]
        many = f"{len(reader.witness.said)} of them, {reader.wire} times on the wire"
        found: dict[str, Callable[[], object]] = {
            "conserved to the last bit": partial(independent.conserved, stores, liars=liars, settled=settled),
            f"never two messages for a round ({many})": partial(self._witnessed, stores),
            f"every ledger right, in {reader.looks} looks": partial(self._paid, stores),
            f"every unit has published: {paid}": lambda: require(min(paid) > 0, "one has not"),
            "no alarm about anybody who is honest": self._alarms,
            "no error of the program in any log": self._logs,
        }
        if settled:
            same = partial(independent.same_release, stores, files, quantum, terms.sigma)
            found["the release equal everywhere"] = same
        return found

    def _witnessed(self, stores: list[Seen]) -> None:
        for seen in stores:
            self.auditor.witness.look(seen, self.auditor.life[seen.name])

    def _paid(self, stores: list[Seen]) -> None:
        for seen in stores:
            independent.paid(seen, self.auditor.price)

    def _alarms(self) -> None:
        """But for those of whom the harness made a liar: by an old store, or by a clock."""
        names = {u for u in self.layout.units if u == self.liar or self.auditor.life[u] or u in self._clocks}
        off = {self.layout.number(unit) for unit in names}
        for unit in self.honest:
            for line in events_of(self.cluster.log(unit)):
                if line["event"] == "alarm" and unit not in self._clocks:
                    about = {int(m) for m in re.findall(r"server (\d+)", line["what"])}
                    require(about & off or any(name in line["what"] for name in names), f"{unit}: {line['what']}")

    def _logs(self) -> None:
        for node in self.layout.nodes:
            text = self.cluster.log(node)
            at = text.find("Traceback")
            require(at < 0, f"{node}: {text[at:][:2000]}")


def deployed(folder: Path, seed: int, units: int, clients: int, seconds: float) -> Layout:
    config = parse(CONFIG | {"seed": seed})
    rounds = round((seconds + MORE) / TICK)
    return lay_out(folder, config, units, clients, rounds=rounds, release=True, log="json", grace=1.0, **CLOCKS)


def run(layout: Layout, cluster: Nodes, ways: Ways, seed: int, seconds: float) -> int:
    chaos = Chaos(layout, cluster, ways, Reader(layout, layout.units[-1]), seed, seconds)
    failed = 0
    try:
        chaos.run()
        chaos.remove_the_liar()
        chaos.release()
    except Exception as e:
        failed += 1
        print(f"FAILED  {type(e).__name__}: {e}\n" + "\n".join(chaos.story[-12:]))
    print(f"     end  {chaos.line()}")
    cluster.stop_all(LIMIT)
    try:
        verdicts = chaos.verdicts(settled=not failed)
    except WrongError as e:
        print(f"FAILED  {e}")
        return 1
    for what, verdict in verdicts.items():
        try:
            verdict()
        except WrongError as e:
            failed += 1
            print(f"FAILED  {what}: {e}")
        else:
            print(f"ok      {what}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Everything that can befall a network of real processes.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--units", type=int, default=4)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--keep", metavar="FOLDER")
    given = parser.parse_args()
    print(f"seed {given.seed}, {given.seconds:g} s", flush=True)
    if nodes.FAKETIME is None:
        print("no clock jumps: libfaketime is not installed (Debian: faketime)", flush=True)
    try:
        with workplace(given.keep) as folder:
            layout = deployed(folder, given.seed, given.units, given.clients, given.seconds)
            with Ways(layout) as ways, Nodes(layout, given.seed, via=ways.via) as cluster:
                try:
                    require(not run(layout, cluster, ways, given.seed, given.seconds), "see above")
                finally:
                    cluster.kill_all()
    except Exception as e:
        print(f"FAILED with seed {given.seed}: {type(e).__name__}: {e}", file=sys.stderr)
        return 1
    print(f"all holds: seed {given.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
