"""A client as a process: it dials its unit's server and stays, one thread training, an event loop on the network.

Nothing heavy is imported here: with the built-in models a client needs NumPy, cryptography and gRPC, and little memory.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from confide.base.errors import DataError
from confide.deploy.keys.node_keys import NodeKeys
from confide.deploy.machines import training
from confide.deploy.machines.client import Client
from confide.deploy.machines.training import Trainer
from confide.deploy.net.dialer import Dialer
from confide.deploy.node.client_setup import ClientSetup
from confide.deploy.node.config import ClientConfig, not_expired, not_of_before
from confide.deploy.node.life import NodeProcess, begin
from confide.deploy.node.memory import resident
from confide.deploy.node.observing import Observer
from confide.deploy.node.trust import Trust
from confide.deploy.node.watch import Watch
from confide.deploy.node.worker import Worker
from confide.deploy.store.record import FileRecord
from confide.deploy.store.store import At, nowhere

if TYPE_CHECKING:
    from confide.base.arrays import Floats
    from confide.deploy.node.training_process import TrainingProcess

WEIGHED: Final = 60.0  # seconds after which the log tells anew how much memory is in use
AGAIN: Final = 5.0  # seconds until a hello that nobody answered is said again
_log = logging.getLogger(__name__)


class ClientProcess(NodeProcess):
    kind = "client"

    def __init__(
        self,
        setup: ClientSetup,
        process: TrainingProcess | None = None,
        *,
        test_seed: int | None = None,
        until_finished: bool = False,
        observer: Observer | None = None,
    ) -> None:
        source = setup.source
        setup.pay()
        super().__init__(observer, until_finished, setup.config)
        self.setup, config = setup, setup.config
        noise = None
        self._at: At = nowhere
        if test_seed is not None:
            from confide.deploy.node import seeded

            noise = seeded.client_noise(test_seed, setup.plan, setup.unit, setup.client)
            self._at = seeded.crash_points()
        self._metrics = self._endpoint = None
        if config.metrics is not None:
            from confide.deploy.node.client_metrics import ClientMetrics  # a client need not carry it

            self._metrics, address = (metrics := ClientMetrics()), config.metrics
            self._endpoint = self._patiently(lambda: metrics.serve(address))
            self._metrics.expires(setup.node.not_after)
            self._metrics.memory("client", os.getpid)
            if process is not None:
                self._metrics.memory("trainer", lambda: process.pid)
            self._observer.counted_by(self._metrics.event, self._metrics.dropped)
        self._process = process
        try:
            trainer = setup.trainer(test_seed, _rows_failed, process)
        except DataError:  # to stay away would tell of the data; its operator is told, and no event is counted
            effect = "this client takes part and adds zeros; run `confide check` on its config to see why"
            _log.error("the data fail a check: %s", effect)
            trainer = training.without_data(setup.plan, setup.unit, setup.client)
        if source is not None:
            source.check("data")
        self._record = self._patiently(lambda: FileRecord(config.path(config.record), setup.terms.owner))
        self.client = Client(
            setup.terms,
            self._told(trainer),
            self._record,
            setup.member,
            noise=noise,
            config=config.train_config,
            clock=self._clock,
        )
        self._worker = Worker(self._clock, lambda: self._wake, self._tick, lambda: None, self._broke)
        self._wake = math.inf
        self._weigh_at = -math.inf
        self._refused: list[str] = []

    # On the worker's thread

    def _told(self, train: Trainer) -> Trainer:
        """With its begin and its end in the log: one that hangs or crawls is seen."""

        def told(weights: Floats, number: int, given: Mapping[str, Any], /) -> Floats:
            self._observer.log("training", round=number)
            begin = time.monotonic()
            try:
                return train(weights, number, given)
            finally:
                self._trained(number, begin)

        return told

    def _trained(self, number: int, begin: float) -> None:
        """With the memory of both processes now and then: to look takes longer than a short round has."""
        end = time.monotonic()
        seconds = round(end - begin, 1)
        if end < self._weigh_at:
            self._observer.log("trained", round=number, seconds=seconds)
            return
        self._weigh_at = end + WEIGHED
        client = resident(os.getpid())
        trainer = client if self._process is None else resident(self._process.pid)
        self._observer.log("trained", round=number, seconds=seconds, client_mib=client >> 20, trainer_mib=trainer >> 20)

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
        before = self.client.enrolled, self.client.finished
        for reply in self.client.receive(raw):
            self._at("client.replying")
            self._say(reply)
            self._at("client.replied")
        if self.client.enrolled and not before[0]:
            self._observer.log("enrolled", unit=self.setup.plan.units[self.setup.unit].name, client=self.setup.client)
        if self.client.finished and not before[1]:
            self._observer.log("finished")
            if self._until_finished:
                self._on_loop(self._end, None)
        if self.client.refused != self._refused:
            self._refused = self.client.refused
            if self._refused:
                self._observer.log("refused", why=self._refused)

    def _say(self, raw: bytes) -> None:
        self._on_loop(self._dialer.send, raw)

    # On the loop

    def _close(self) -> None:
        self._record.close()
        if self._endpoint is not None:
            self._endpoint.close()
        if self._process is not None:
            self._process.close()

    async def _start(self) -> None:
        setup = self.setup
        self._dialer = Dialer(
            setup.credentials,
            setup.target,
            setup.common,
            self._receive,
            self._connects,
            self._loses,
            lambda lines: self._observer.observe("differs", {"with": "the server", "what": lines}),
            setup.limits,
        )
        unit = setup.plan.units[setup.unit].name
        self._observer.log("started", plan=setup.plan.hash, unit=unit, client=setup.client)
        self._worker.start()
        self._dialer.start()
        self._watching = asyncio.create_task(self._watch())

    async def _stop(self) -> None:
        self._watching.cancel()
        whole = await asyncio.to_thread(self._worker.stop, self.setup.config.grace)
        await asyncio.sleep(0.1)  # for the last words
        await self._dialer.stop()
        self._observer.log("ended", whole=whole)

    def _receive(self, raw: bytes) -> None:
        self._worker.submit(self._take, raw, peer="server")

    def _connects(self) -> None:
        self._observer.log("connected", to="the server")
        self._worker.submit(self._connected)

    def _loses(self) -> None:
        self._observer.observe("disconnected", {"from": "the server"})
        self._worker.submit(self._disconnected)

    async def _watch(self) -> None:
        """The way to the server, the certificate and the clock."""
        said, setup = "", self.setup
        prefix = setup.config.path(setup.config.node)
        watch = Watch(setup.node, setup.trust, prefix, setup.passphrase, self._observer, self._use)
        watch.look()
        while True:
            await self._pause(setup.config.reload)
            if self._dialer.why != said:
                said = self._dialer.why
                if said:
                    self._observer.log("unreachable", why=said)
            self._look_at_clock()
            watch.look()

    def _use(self, node: NodeKeys, trust: Trust) -> None:
        self.setup = replace(self.setup, node=node, trust=trust)
        self._dialer.renew(self.setup.credentials)
        if self._metrics is not None:
            self._metrics.expires(node.not_after)

    def _signalled(self) -> None:
        """What has arrived is answered within the grace; the record is whole at any moment."""
        self._observer.log("stopping", grace=self.setup.config.grace)
        self._end(None)


def _rows_failed(bad: int, rows: int) -> None:
    """How many is for `confide check` to say: a log may leave the machine."""
    effect = "rows that do count as zeros; run `confide check` on this client's config to see how many"
    _log.error("the data fail a check: %s", effect)


def serve(config: ClientConfig, process: TrainingProcess | None, test_seed: int | None, until_finished: bool) -> None:
    """The whole life of `confide client`."""
    with begin(config, test_seed) as observer:
        setup = ClientSetup.load(config)
        not_expired(config.node, setup.node)
        not_of_before(config.plan, setup.plan)
        ClientProcess(setup, process, test_seed=test_seed, until_finished=until_finished, observer=observer).run()
