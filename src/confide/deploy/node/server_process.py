"""A unit's server as a process: one thread has the machine and its store, an event loop has the network.

    listener, dialers  --events-->  worker (Server, SqliteStore)  --sends-->  listener, dialers
    control socket     --questions-->

The store is the truth: the process may be killed at any moment, and starts again from it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from confide.base.errors import FinalError, InputError, RunError
from confide.deploy.keys.certificates import RefusedPeer
from confide.deploy.keys.node_keys import NodeKeys
from confide.deploy.machines.ahead import Ahead
from confide.deploy.machines.draws import secret_noise
from confide.deploy.machines.ports import Phase, Ports
from confide.deploy.machines.relay import Relay
from confide.deploy.machines.release import Part, Released, secret_share
from confide.deploy.machines.server import Server
from confide.deploy.net.dialer import Dialer
from confide.deploy.net.endpoints import Node
from confide.deploy.net.listener import Listener
from confide.deploy.node import control, seeded
from confide.deploy.node.config import ServerConfig, not_expired, not_of_before
from confide.deploy.node.findings import CLOSE
from confide.deploy.node.life import NodeProcess, begin
from confide.deploy.node.observing import Observer
from confide.deploy.node.released import ReleasedFolder
from confide.deploy.node.server_setup import ServerSetup, initial
from confide.deploy.node.server_status import machine_status, receipts_of
from confide.deploy.node.trust import Trust
from confide.deploy.node.watch import Daily, Watch
from confide.deploy.node.worker import Worker
from confide.deploy.store.books import Books
from confide.deploy.store.sqlite import SqliteStore
from confide.deploy.store.store import At, Store, nowhere
from confide.privacy.ledger import dataset_id
from confide.privacy.spent import status_of
from confide.problems import model_file
from confide.rounds.noise import NoiseSource

if TYPE_CHECKING:
    from confide.deploy.node.metrics import Metrics

HELD: Final = 4  # messages that wait for a connection that is dialed on demand
POLL: Final = 0.2  # seconds between looks at a release
FIGURES: Final = 5.0  # seconds between looks for the figures
TWICE: Final = "two processes with the same keys take its stream from each other; end one, or revoke the keys"
LAST: Final = 0.3  # seconds for the last words after the machine has stopped


def open_store(setup: ServerSetup, *, create: bool = True) -> SqliteStore:
    """This server's store, made if there is none; one of another plan, server or data set is refused.

    Args:
        create: else it is only looked at.
    """
    path = setup.config.path(setup.config.store)
    dataset = dataset_id(setup.config.dataset)
    if not os.path.lexists(path):
        if not create:
            raise InputError("store", str(path), "is not there yet; the first start of the server makes it")
        books = Books.fresh(setup.start(), tuple(setup.terms.weights))
        run = secrets.token_hex(8)  # tells the ledgers of two runs of one plan apart
        return SqliteStore.create(path, plan=setup.plan.text, server=setup.me, dataset=dataset, books=books, run=run)
    store = SqliteStore.open(path, setup.plan, setup.me, look=not create)
    if store.dataset != dataset:
        store.close()
        remedy = f"the store {path} was made for another data set; give that name, or a new store"
        raise InputError("dataset", setup.config.dataset, remedy)
    return store


def _secret_sample(L: int, K: int) -> Callable[[int], tuple[int, ...]]:
    random = secrets.SystemRandom()
    return lambda _: tuple(random.sample(range(K), L))


class ServerProcess(NodeProcess):
    kind = "server"

    def __init__(
        self,
        setup: ServerSetup,
        *,
        rejoin: bool = False,
        test_seed: int | None = None,
        until_finished: bool = False,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(observer, until_finished, setup.config)
        self.setup, self._rejoin, self._seed = setup, rejoin, test_seed
        begun = initial(setup.config, setup.plan)
        self._tensors = None if begun is None else [[name, list(begun[name].shape)] for name in sorted(begun)]
        self._store = self._patiently(lambda: open_store(setup))
        try:
            self._socket = control.bind(setup.config.control)
            self.server = Server(setup.terms, self._measured(), self._ports())
            releases = self.server.releases
            kept = () if releases is None else releases.results.released.values()
            self._released = ReleasedFolder(setup.config.path(setup.config.released), self._described, kept)
        except BaseException:
            self._store.close()
            raise
        self._worker = Worker(self._clock, lambda: self.server.wake, self.server.tick, self._looked, self._broke)
        self._dialers: dict[int, Dialer] = {}
        self._held: dict[int, deque[bytes]] = {}
        self._called: dict[Node, str] = {}  # who dialed in, by the names that people have for them
        self._apart: dict[str, float] = {}  # seconds by which neighbours' clocks were ahead when that was last said
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping_at: int | None = None  # rounds that were decided when the signal came
        self._linger: float | None = None
        self._spent: dict[tuple[int, int], dict[str, Any]] = {}  # by publications and releases, for the status
        self._started = self._clock()
        self._daily = Daily()

    def _measured(self) -> Store:
        """The store, with figures around it where the config has a port for them."""
        self._metrics: Metrics | None = None
        address = self.setup.config.metrics
        if address is None:
            return self._store
        from confide.deploy.node.metrics import Metered, Metrics

        self._metrics = metrics = Metrics({m: self.setup.plan.units[m].name for m in self.setup.terms.weights})
        self._endpoint = self._patiently(lambda: metrics.serve(address))
        self._observer.counted_by(self._metrics.event, self._metrics.dropped)
        return Metered(self._store, self._metrics)

    async def _figures(self, metrics: Metrics) -> None:
        while True:
            metrics.snapshot(await self.status())
            await asyncio.sleep(FIGURES)

    # The machine's ports, on the worker's thread

    def _ports(self) -> Ports:
        setup, seed = self.setup, self._seed
        L, K = setup.plan.algorithm.sampled, setup.plan.units[setup.me].size
        arithmetic = setup.price.arithmetic
        noise: NoiseSource
        at: At = nowhere
        if seed is None:
            noise = Ahead(secret_noise(arithmetic.quantum, setup.edge_secrets, setup.terms.rules.plan))
            sample = _secret_sample(L, K)
        else:
            noise, sample = seeded.server_noise(seed, arithmetic), seeded.sample(seed, setup.me, L, K)
            at = seeded.crash_points()
        sign = setup.node.identity.sign
        return Ports(self._to_server, self._to_client, noise, sample, sign, at, self._log, self._part())

    def _log(self, event: str, **fields: Any) -> None:
        """An event of the machine, with the names that its operator has for servers."""
        who, servers = self.setup.terms.who, fields.get("servers")
        if "neighbour" in fields:
            fields["name"] = who(fields["neighbour"])
        if isinstance(servers, Sequence):
            fields["names"] = [who(p) for p in servers]
        self._observer.observe(event, fields)

    def _part(self) -> Part | None:
        setup, terms = self.setup, self.setup.price.reveal_terms
        if terms is None:
            return None
        return Part(
            terms,
            setup.price.release_after,
            setup.plan.privacy.releases,
            setup.allowance.releases,
            setup.node.identity,
            secret_share() if self._seed is None else seeded.release_share(self._seed, setup.me),
            setup.config.patience,
            self._has_released,
        )

    def _has_released(self, found: Released) -> None:
        self._released.add(found)
        self._on_loop(self._task, self._look_at_released)

    async def _look_at_released(self) -> None:
        if why := await asyncio.to_thread(self._released.look):
            self._observer.log("not written", why=why)

    def _described(self, found: Released) -> dict[str, Any]:
        plan = self.setup.plan
        return {
            "format": model_file.FORMAT,
            "plan": plan.hash,
            "model": {"kind": plan.algorithm.model.kind, "rho": plan.algorithm.model.ridge},
            "rounds": plan.rounds,
            "sigma": found.sigma,
            "servers": found.servers,
            "attempt": found.attempt,
            "sha256": found.sha256,
        } | ({} if self._tensors is None else {"tensors": self._tensors})

    def _to_server(self, m: int, raw: bytes) -> None:
        if self._metrics is not None:
            self._metrics.message("out", "server", len(raw))
        self._on_loop(self._send, m, raw)

    def _to_client(self, k: int, raw: bytes) -> None:
        if self._metrics is not None:
            self._metrics.message("out", "client", len(raw))
        self._on_loop(self._listener.send, Node("client", k), raw)

    def _looked(self) -> None:
        """After every event: is it time to go?"""
        server = self.server
        if server.phase is Phase.STOPPED:
            self._on_loop(self._end, FinalError(server.why))
        elif self._stopping_at is not None and (
            server.phase is not Phase.ADAPT or server.books.decided > self._stopping_at
        ):
            self._on_loop(self._end, None)
        elif self._until_finished and server.phase is Phase.FINISHED and self._linger is None:
            self._linger = 2.0 * server.terms.clocks.neighbours  # neighbours may still have to hear from this server
            self._on_loop(self._end_later, self._linger)

    # The network, on the loop

    def _send(self, m: int, raw: bytes) -> None:
        if m not in self._dialers:
            if m not in self.setup.peers:
                return
            self._dial(m)
        if not self._dialers[m].send(raw) and m not in self.setup.terms.weights:
            self._held.setdefault(m, deque(maxlen=HELD)).append(raw)

    def _dial(self, m: int) -> None:
        setup, name = self.setup, self.setup.plan.units[m].name

        def connected() -> None:
            self._observer.log("connected", to=name)
            self._compare_clocks(name, self._dialers[m].ahead)
            for raw in self._held.pop(m, ()):
                self._dialers[m].send(raw)
            if m in setup.terms.weights:
                self._worker.submit(self.server.connected, m)

        self._dialers[m] = Dialer(
            setup.dialing(m),
            setup.peers[m],
            setup.common,
            lambda _: None,  # a neighbour dials to speak
            connected,
            lambda: self._observer.log("disconnected", to=name),
            lambda lines: self._observer.observe("differs", {"with": name, "what": lines}),
            setup.limits,
            clock=self._clock,
        )
        self._dialers[m].start()

    def _compare_clocks(self, name: str, ahead: float | None) -> None:
        """A word where a neighbour's clock is off, and another where that has changed."""
        if ahead is not None and abs(ahead - self._apart.get(name, 0.0)) > CLOSE:
            self._apart[name] = ahead
            effect = "set both by NTP: servers miss each other's rounds" if abs(ahead) > CLOSE else "none any more"
            fields = {"with": name, "ahead_by_seconds": round(ahead, 1), "effect": effect}
            self._observer.observe("clocks differ", fields)

    def _receive(self, node: Node, raw: bytes) -> None:
        if self._metrics is not None:
            self._metrics.message("in", node.role, len(raw))
        take = self.server.from_server if node.role == "server" else self.server.from_client
        self._worker.submit(take, node.number, raw, peer=node)

    @cached_property
    def _listener(self) -> Listener:
        def told(event: str) -> Any:
            return lambda node: self._observer.observe(event, {"from": self._called[node]})

        def connected(node: Node) -> None:
            told("connected")(node)
            if node.role == "client":
                self._worker.submit(self.server.client_connected, node.number)
            elif node.number in self._dialers:
                self._dialers[node.number].hurry()

        def disconnected(node: Node) -> None:
            told("disconnected")(node)
            if node.role == "client":
                self._worker.submit(self.server.client_lost, node.number)

        def differs(node: Node, lines: list[str]) -> None:
            self._observer.observe("differs", {"with": self._called[node], "what": lines})

        return Listener(
            self.setup.config.listen, self.setup.listening, self.setup.common, self._door, self._receive,
            connected, disconnected, differs, self._two, self.setup.limits, self._clock,
        )  # fmt: skip

    def _two(self, node: Node, who: str) -> None:
        if self._daily.due(node):
            self._worker.submit(lambda _: self.server.alarm(f"{who} runs twice: {TWICE}"))

    def _door(self, peer: Any) -> Node:
        try:
            node = self.setup.door(peer)
            server = node.role == "server"
            self._called[node] = self.setup.terms.who(node.number) if server else f"client {peer.name}"
            return node
        except RefusedPeer as e:
            self._observer.log("refused", why=str(e))
            raise

    # Running

    def run(self) -> None:
        super().run()
        if self._until_finished and self.server.pending:
            flows = {self.setup.terms.who(m): rounds for m, rounds in self.server.pending.items()}
            raise RunError(f"finished with open flows: {flows}; start it again to settle them")

    def _close(self) -> None:
        with suppress(OSError):
            self.setup.config.control.unlink()
        self._store.close()
        if self._metrics is not None:
            self._endpoint.close()

    async def _start(self) -> None:
        self._worker.submit(partial(self.server.boot, rejoin=self._rejoin))  # before any client is heard
        await self._patiently_on_loop(self._listener.start)
        self._answering = await control.serve(self._socket, self._answer)
        setup = self.setup
        self._observer.log(
            "started", plan=setup.plan.hash, unit=setup.plan.units[setup.me].name, server=setup.me,
            port=self._listener.port, round=self.server.books.decided, budget=setup.allowance.said,
        )  # fmt: skip
        for m in setup.terms.weights:
            self._dial(m)
        self._worker.start()
        self._task(self._reload_for_ever)
        if self._metrics is not None:
            self._task(partial(self._figures, self._metrics))

    async def _stop(self) -> None:
        self._worker.submit(lambda _: self.server.settle())
        whole = await asyncio.to_thread(self._worker.stop, max(1.0, self.setup.config.grace))
        await asyncio.sleep(LAST)
        for task in self._tasks:
            task.cancel()
        self._answering.close()
        await asyncio.gather(*(dialer.stop() for dialer in self._dialers.values()))
        await self._listener.stop()
        self._observer.log("ended", round=self.server.books.decided, whole=whole)

    def _task(self, work: Callable[[], Any]) -> None:
        task = asyncio.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _signalled(self) -> None:
        """The round may end within the grace; a second signal does not wait for it."""
        if self._stopping_at is not None:
            self._end(None)
            return
        self._observer.log("stopping", grace=self.setup.config.grace)
        self._stopping_at = self.server.books.decided
        self._worker.submit(lambda _: None)  # it looks whether there is anything to wait for
        self._end_later(self.setup.config.grace)

    def _end_later(self, seconds: float) -> None:
        self._loop.call_later(seconds, self._end, None)

    # Certificates and the clock

    async def _reload_for_ever(self) -> None:
        setup = self.setup
        prefix = setup.config.path(setup.config.node)
        watch = Watch(setup.node, setup.trust, prefix, setup.passphrase, self._observer, self._use)
        while True:
            watch.look()
            await self._look_at_released()
            await self._pause(setup.config.reload)
            self._look_at_clock()

    def _use(self, node: NodeKeys, trust: Trust) -> None:
        if (node, trust) != (self.setup.node, self.setup.trust):
            self.setup = replace(self.setup, node=node, trust=trust)
        self._listener.renew(self.setup.listening)
        for m, dialer in self._dialers.items():
            dialer.renew(self.setup.dialing(m))

    # Questions of the operator

    async def _answer(self, question: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        try:
            match question:
                case {"ask": "status"}:
                    yield {"done": await self.status()}
                case {"ask": "release", "again": bool(again), "anyway": bool(anyway)}:
                    async for line in self._relay(again, anyway):
                        yield line
                case {"ask": "stop release"}:
                    yield {"done": await self._asked(lambda _: self._stop_relay())}
                case {"ask": "ledger", "path": str(path)}:
                    await self._asked(lambda _: self._store.export_ledger(path))
                    yield {
                        "done": {"file": path, "receipts": await self._asked(lambda _: receipts_of(self.server.books))}
                    }
                case {"ask": "remove", "epoch": str(epoch)}:
                    await self._asked(lambda now: self.server.follow(now, bytes.fromhex(epoch)))
                    yield {"done": {"epoch": await self._asked(lambda _: self.server.epoch_number)}}
                case _:
                    yield {"failed": "ask for status, release, remove or ledger"}
        except (RunError, ValueError) as e:  # an input error too, or an epoch that does not hold
            yield {"failed": str(e)}

    def _stop_relay(self) -> dict[str, Any]:
        relay = None if self.server.releases is None else self.server.releases.relay
        if relay is None or relay.done:
            return {"stopped": True}
        return {"stopped": relay.stop(), "stage": str(relay.stage), "attempt": relay.attempt}

    async def _relay(self, again: bool, anyway: bool) -> AsyncIterator[dict[str, Any]]:
        relay: Relay = await self._asked(lambda now: self.server.release(now, again=again, anyway=anyway))
        said = None
        while True:
            stage, attempt, result, failed, kept = await self._asked(
                lambda _: (str(relay.stage), relay.attempt, relay.result, relay.failed, relay.kept)
            )
            if failed:
                yield {"failed": failed}
                return
            if result is not None and stage == "done":
                unheard = [self.setup.plan.units[p].name for p in relay.unheard]
                if not kept:
                    yield {
                        "failed": f"attempt {attempt}: its result is not what this server keeps; see its alarms and log"
                    }
                    return
                if why := await asyncio.to_thread(self._released.look):
                    lasts = "the model is in the store, and not lost; mend this, and it is written at the next look"
                    yield {"failed": f"{why} ({lasts}, every {self.setup.config.reload:g} s)"}
                    return
                yield {"done": {"file": str(self._released.path), "unheard": unheard} | self._described(result)}
                return
            if (stage, attempt) != said:
                said = stage, attempt
                yield {"stage": stage, "attempt": attempt}
            await asyncio.sleep(POLL)

    async def _asked(self, what: Any) -> Any:
        return await asyncio.wrap_future(self._worker.ask(what))

    async def status(self) -> dict[str, Any]:
        machine: dict[str, Any] = await self._asked(lambda _: machine_status(self.setup, self.server))
        left = machine["published"], machine["releases"]
        if left not in self._spent:
            earlier = self.setup.allowance.spent
            self._spent = {left: await asyncio.to_thread(status_of, self.setup.price, *left, earlier)}
        inward = self._listener.nodes
        for peer in machine["peers"]:
            m = peer["server"]
            dialer = self._dialers.get(m)
            peer["dialed"] = dialer is not None and not dialer.why
            peer["why"] = "" if dialer is None else dialer.why
            peer["dials_in"] = Node("server", m) in inward
            peer["clock"] = None if dialer is None else dialer.ahead
        return (
            machine
            | self._spent[left]
            | {
                "running": True,
                "pid": os.getpid(),
                "port": self._listener.port,
                "since": round(self._started, 3),
                "clients": machine["clients"] | {"connected": sum(n.role == "client" for n in inward)},
                "certificate_until": self.setup.node.not_after.isoformat(),
                "last_error": self._observer.last_error.text,
                "network": dict(self._listener.counts) | {"overrun": self._worker.dropped},
                "test_seed": self._seed is not None,
            }
        )


def serve(config: ServerConfig, rejoin: bool, test_seed: int | None, until_finished: bool) -> None:
    """The whole life of `confide server`."""
    with begin(config, test_seed) as observer:
        setup = ServerSetup.load(config)
        not_expired(config.node, setup.node)
        not_of_before(config.plan, setup.plan)
        ServerProcess(setup, rejoin=rejoin, test_seed=test_seed, until_finished=until_finished, observer=observer).run()
