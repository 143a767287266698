"""A client as a process: it dials its unit's server and stays, one thread training, an event loop on the network.

Nothing heavy is imported here: with the built-in models a client needs NumPy, cryptography and gRPC, and little memory.
"""

from __future__ import annotations

import asyncio
import math
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from confide.clipping import Clip
from confide.deploy import client_data, pki, training
from confide.deploy.client import Client, ClientTerms
from confide.deploy.handshake import Common
from confide.deploy.memory import keep_buffers
from confide.deploy.node_config import ClientConfig, not_expired
from confide.deploy.observing import observe, start
from confide.deploy.record import FileRecord
from confide.deploy.store import At, nowhere
from confide.deploy.training import Trainer
from confide.deploy.transport import Credentials, Dialer, Limits, Target
from confide.deploy.worker import Clock, Worker
from confide.errors import InputError, RunError
from confide.privacy import canonical
from confide.privacy.plan import Plan
from confide.secure.client import Member

AGAIN: Final = 5.0  # seconds until a hello that nobody answered is said again
JUMP: Final = 5.0  # seconds by which the clock may be set before it is worth a word


@dataclass(frozen=True, repr=False)
class ClientSetup:
    """What a client's config stands for, each part compared with the others."""

    config: ClientConfig
    plan: Plan
    unit: int
    client: int
    node: pki.Node
    authority: bytes

    @classmethod
    def load(cls, config: ClientConfig) -> Self:
        plan, node = Plan.load(config.path(config.plan)), pki.Node.load(config.path(config.node))
        if plan.deployment is None:
            path = str(config.path(config.plan))
            raise InputError("plan", path, "is of a simulation; `confide agree` makes this one")
        unit, client = _place(plan, node)
        pem = canonical.read_bytes(config.path(config.authority), "authority", pki.LARGEST_PEM)
        found, wanted = pki.fingerprint(pem), plan.deployment["units"][unit]["authority"]
        if found != wanted:
            remedy = f"is not the authority that the plan has for this unit ({wanted[:16] or 'none'}…); get its ca.crt"
            raise InputError("authority", str(config.path(config.authority)), remedy)
        if config.server.organisation != node.org:
            remedy = f"this client is of {node.org}, and so is the server of its unit"
            raise InputError("server.organisation", config.server.organisation, remedy)
        pki.check_name("server.name", config.server.name)
        return cls(config, plan, unit, client, node, pem)

    @property
    def units(self) -> Any:
        assert self.plan.deployment is not None  # noqa: S101 - checked
        return self.plan.deployment["units"]

    @property
    def target(self) -> Target:
        given = self.config.server
        return Target(given.organisation, given.name, bytes.fromhex(self.units[self.unit]["identity"]))

    @property
    def credentials(self) -> Credentials:
        return Credentials(self.node, {self.config.server.organisation: self.authority})

    @property
    def member(self) -> Member:
        """With an active server keys are signed."""
        a = self.plan.aggregation
        if a is None or a["server"] != "active":
            return Member(self.client)
        roster = {k: bytes.fromhex(c["identity"]) for k, c in enumerate(self.units[self.unit]["clients"])}
        return Member(self.client, self.node.identity, roster)

    def trainer(self, test_seed: int | None) -> Trainer:
        plan, config = self.plan, self.config
        assert plan.deployment is not None and plan.dim is not None and plan.bound is not None  # noqa: S101, PT018
        own = plan.deployment["model"]["kind"] == "own"
        if config.train is not None:
            if not own and plan.clip != "update":
                raise InputError("train", config.train, "the plan has a built-in model; give data = 'file.npz'")
            return training.entry_point(config.train, Clip(plan.clip, plan.bound, plan.norm), plan.step)
        assert config.data is not None  # noqa: S101 - the config has one of the two
        if own:
            raise InputError("data", config.data, "the plan has no built-in model; give train = 'package.module:name'")
        X, y = client_data.read(config.path(config.data), plan.dim)
        if plan.deployment["model"]["kind"] == "logistic" and not set(y.tolist()) <= {-1.0, 1.0}:
            raise InputError("data", str(config.path(config.data)), "the targets of a logistic model are -1 and 1")
        if test_seed is None:
            return training.of_plan(plan, self.unit, self.client, X, y)
        from confide.deploy import seeded

        return training.of_plan(plan, self.unit, self.client, X, y, seeded.batches(test_seed, self.unit, self.client))


def _place(plan: Plan, node: pki.Node) -> tuple[int, int]:
    """Unit and number of a client, by its identity key."""
    assert plan.deployment is not None  # noqa: S101 - checked
    who = f"{node.role} {node.name} of {node.org}"
    if node.role != "client":
        raise InputError("node", who, "is not a client's certificate; name one")
    mine = node.identity.public.hex()
    for p, unit in enumerate(plan.deployment["units"]):
        for k, client in enumerate(unit["clients"]):
            if client["identity"] == mine:
                return p, k
    raise InputError("node", who, "its identity key is of no client in the plan; use the plan that was made with it")


class ClientProcess:
    def __init__(self, setup: ClientSetup, *, test_seed: int | None = None) -> None:
        self.setup, config = setup, setup.config
        self._clock = Clock()
        terms = ClientTerms.of_plan(setup.plan, setup.unit, setup.client)
        noise = None
        self._at: At = nowhere
        if test_seed is not None:
            from confide.deploy import seeded

            noise = seeded.client_noise(test_seed, setup.plan, setup.unit, setup.client)
            self._at = seeded.crash_points()
        trainer = setup.trainer(test_seed)
        self._record = FileRecord(config.path(config.record), terms.owner)
        self.client = Client(terms, trainer, self._record, setup.member, noise=noise, config=config.train_config)
        self._worker = Worker(self._clock, lambda: self._wake, self._tick, lambda: None, self._broke)
        self._wake = math.inf
        self._refused: list[str] = []
        self._failure: BaseException | None = None

    # On the worker's thread

    def _connected(self, now: float) -> None:
        self.client.enrolled = False
        self._hello(now)

    def _disconnected(self, _: float) -> None:
        self._wake = math.inf

    def _tick(self, now: float) -> None:
        if not self.client.enrolled:
            self._hello(now)
        else:
            self._wake = math.inf

    def _hello(self, now: float) -> None:
        self._wake = now + AGAIN
        self._say(self.client.hello())

    def _take(self, _: float, raw: bytes) -> None:
        self._at("client.received")
        before = self.client.enrolled
        for reply in self.client.receive(raw):
            self._at("client.replying")
            self._say(reply)
            self._at("client.replied")
        if self.client.enrolled and not before:
            observe("enrolled", {"unit": self.setup.units[self.setup.unit]["name"], "client": self.setup.client})
        if self.client.refused != self._refused:
            self._refused = self.client.refused
            if self._refused:
                observe("refused", {"why": self._refused})

    def _say(self, raw: bytes) -> None:
        try:
            self._loop.call_soon_threadsafe(self._dialer.send, raw)
        except RuntimeError:  # the loop has ended, and this process with it
            return

    def _broke(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self._end, error)

    # On the loop

    def run(self) -> None:
        """Until a signal; raises `RunError` or `InputError` if it had to end."""
        try:
            asyncio.run(self._main())
        finally:
            self._record.close()
        if isinstance(self._failure, RunError | InputError):
            raise self._failure
        if self._failure is not None:
            raise RunError(f"the client failed: {type(self._failure).__name__}, see the log") from self._failure

    async def _main(self) -> None:
        setup = self.setup
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        for sign in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(sign, self._signalled)
        largest = self.client.terms.largest
        self._dialer = Dialer(
            setup.config.server.addresses,
            setup.credentials,
            setup.target,
            Common(self.client.terms.protocol, self.client.terms.text),
            self._receive,
            self._connects,
            self._loses,
            lambda lines: observe("differs", {"with": "the server", "what": lines}),
            Limits(from_server=largest, outbox=max(Limits.outbox, 4 * largest)),
        )
        unit = setup.units[setup.unit]["name"]
        observe("started", {"plan": setup.plan.hash, "unit": unit, "client": setup.client})
        self._worker.start()
        self._dialer.start()
        watching = asyncio.create_task(self._watch())
        try:
            self._failure = await self._ended
        finally:
            watching.cancel()
            whole = await asyncio.to_thread(self._worker.stop, setup.config.grace)
            await asyncio.sleep(0.1)  # for the last words
            await self._dialer.stop()
            observe("ended", {"whole": whole})

    def _receive(self, raw: bytes) -> None:
        self._worker.submit(self._take, raw, peer="server")

    def _connects(self) -> None:
        observe("connected", {"to": "the server"})
        self._worker.submit(self._connected)

    def _loses(self) -> None:
        observe("disconnected", {"from": "the server"})
        self._worker.submit(self._disconnected)

    async def _watch(self) -> None:
        """The way to the server, the certificate and the clock."""
        jumped, said = 0.0, ""
        while True:
            await asyncio.sleep(self.setup.config.reload)
            if self._dialer.why != said:
                said = self._dialer.why
                if said:
                    observe("unreachable", {"why": said})
            if abs(self._clock.jumped - jumped) > JUMP:
                jumped = self._clock.jumped
                observe("clock", {"set_by_seconds": round(jumped, 1), "effect": "none until the next start"})
            try:
                self._reload()
            except (InputError, RunError) as e:
                observe("reload failed", {"why": str(e), "effect": "the certificate of before stays in use"})
            if self.setup.node.not_after - pki.utc_now() < pki.SOON:
                observe("expires", {"certificate": self.setup.config.node, "on": str(self.setup.node.not_after)})

    def _reload(self) -> None:
        node = pki.Node.load(self.setup.config.path(self.setup.config.node))
        if node.certificate == self.setup.node.certificate:
            return
        if node.identity.public != self.setup.node.identity.public:
            raise InputError("node", self.setup.config.node, "is another node's certificate; renew the one of before")
        self.setup = replace(self.setup, node=node)
        self._dialer.renew(self.setup.credentials)
        observe("reloaded", {"certificate_until": str(node.not_after)})

    def _signalled(self) -> None:
        """What has arrived is answered within the grace; the record is whole at any moment."""
        observe("stopping", {"grace": self.setup.config.grace})
        self._end(None)

    def _end(self, failure: BaseException | None) -> None:
        if not self._ended.done():
            if failure is not None:
                observe("failed", {"why": str(failure), "kind": type(failure).__name__})
            self._ended.set_result(failure)


def serve(config: ClientConfig, *, test_seed: int | None = None) -> None:
    """The whole life of `confide client`."""
    keep_buffers()
    start(config.log, Path(config.node).name)
    if test_seed is not None:
        from confide.deploy import seeded

        observe("test seed", {"warning": seeded.WARNING})
    setup = ClientSetup.load(config)
    not_expired(config.node, setup.node)
    ClientProcess(setup, test_seed=test_seed).run()
