"""What a client's config stands for: plan, keys, data and server, each compared with the others before it dials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

from confide.base import canonical
from confide.base.errors import InputError
from confide.base.files import Source
from confide.deploy.keys.certificates import LARGEST_PEM, check_name, fingerprint
from confide.deploy.keys.lists import Lists
from confide.deploy.keys.node_keys import NodeKeys
from confide.deploy.machines import own_training, training
from confide.deploy.machines.client import ClientTerms
from confide.deploy.machines.training import Trainer
from confide.deploy.net.endpoints import Credentials, Limits, Target
from confide.deploy.net.handshake import Common
from confide.deploy.node import client_data
from confide.deploy.node.config import ClientConfig, load_keys, load_plan
from confide.deploy.node.memory import apart
from confide.deploy.node.trust import Trust
from confide.plans.plan import NETWORK, Plan
from confide.secure.client import Member
from confide.secure.keys import Secret

if TYPE_CHECKING:
    from confide.deploy.node.network_training import Job
    from confide.deploy.node.training_process import TrainingProcess
    from confide.privacy.data_ledger import Enrolment


@dataclass(frozen=True, repr=False)
class ClientSetup:
    config: ClientConfig
    plan: Plan
    unit: int
    client: int
    node: NodeKeys
    passphrase: Secret | None
    trust: Trust

    @classmethod
    def load(cls, config: ClientConfig) -> Self:
        plan, (node, passphrase) = load_plan(config), load_keys(config)
        unit, client = _place(plan, node)
        pem = canonical.read_bytes(config.path(config.authority), "authority", LARGEST_PEM)
        found, wanted = fingerprint(pem), plan.units[unit].authority
        if found != wanted:
            remedy = f"is not the authority that the plan has for this unit ({wanted[:16] or 'none'}…); get its ca.crt"
            raise InputError("authority", str(config.path(config.authority)), remedy)
        if config.server.organisation != node.org:
            remedy = f"this client is of {node.org}, and so is the server of its unit"
            raise InputError("server.organisation", config.server.organisation, remedy)
        check_name("server.name", config.server.name)
        trust = Trust.load(config.sources, Lists(config.lists))
        return cls(config, plan, unit, client, node, passphrase, trust)

    @cached_property
    def terms(self) -> ClientTerms:
        return ClientTerms.of_plan(self.plan, self.unit, self.client)

    @property
    def common(self) -> Common:
        return Common(self.terms.protocol, self.terms.text)

    @property
    def limits(self) -> Limits:
        return Limits(from_server=self.terms.largest, outbox=max(Limits.outbox, 4 * self.terms.largest))

    @property
    def target(self) -> Target:
        given = self.config.server
        identity = bytes.fromhex(self.plan.units[self.unit].identity)
        return Target(given.organisation, given.name, identity, tuple(given.addresses))

    @property
    def credentials(self) -> Credentials:
        return Credentials(self.node, self.trust.authorities, self.trust.revoked)

    @property
    def member(self) -> Member:
        """With an active server keys are signed."""
        if not self.plan.signed:
            return Member(self.client)
        roster = {k: bytes.fromhex(c.identity) for k, c in enumerate(self.plan.units[self.unit].clients)}
        return Member(self.client, self.node.identity, roster)

    @property
    def enrolment(self) -> Enrolment:
        """How this client pays for the plan, in the ledger of its data."""
        from confide.privacy.data_ledger import Enrolment
        from confide.privacy.ledger import CLIENT

        config = self.config
        source = None if config.data is None else config.path(config.data)
        given = None if config.ledger is None else config.path(config.ledger)
        return Enrolment(self.plan, f"{CLIENT}{self.node.identity.public.hex()}", given, config.dataset, source)

    def pay(self) -> None:
        """Write the plan into the ledger of this client's data, before it enrols.

        Raises:
            InputError: the ledger cannot pay for all of it.
        """
        apart(lambda: self.enrolment.pay(anew=self.forgot))  # what it imports is not kept

    @property
    def source(self) -> Source | None:
        """The data as they are now; those that are paid for are those that are read."""
        return None if self.config.data is None else Source.of(self.config.path(self.config.data))

    @property
    def forgot(self) -> bool:
        """There is no record of what this client answered, so that it may answer again: it pays again."""
        return not self.config.path(self.config.record).exists()

    @property
    def timeout(self) -> float:
        """Seconds of a training of its own; then zeros, which by default are still in time for the round."""
        given = self.config.train_timeout
        return self.plan.deployed().clocks.adapt / 2.0 if given is None else given

    @property
    def _job(self) -> Job:
        """Of the process in which this client's network trains."""
        from confide.deploy.node.network_training import Job

        a, config, own = self.plan.algorithm, self.config, self.plan.units[self.unit].clients[self.client]
        if config.data is None:
            raise InputError("data", None, "a network trains on data: give data = 'file.npz'")
        return Job(
            str(config.path(config.data)),
            None if config.weights is None else str(config.path(config.weights)),
            a.model.length,
            a.model.ridge if a.model.kind == NETWORK else None,
            "" if a.model.start is None else a.model.start.frozen,
            a.step,
            own.local_steps,
            own.batch,
            a.replacement,
            (a.clip.kind, a.clip.bound, a.clip.norm),
        )

    def trainer(
        self,
        test_seed: int | None,
        told: Callable[[int, int], None] = lambda bad, rows: None,
        process: TrainingProcess | None = None,
    ) -> Trainer:
        """What this client computes; a `DataError` where its data fail a check as a whole.

        Args:
            told: called with how many rows fail one on their own and are taken for zeros, and of how many.
            process: that of the train function, if the config names one.
        """
        plan, config, clip = self.plan, self.config, self.plan.algorithm.clip
        features = plan.algorithm.model.features
        key: Callable[[int], int] = training.fresh_key
        if test_seed is not None:
            from confide.deploy.node import seeded

            key = seeded.batches(test_seed, self.unit, self.client)
        if config.model is not None:
            if features is not None:
                raise InputError("model", config.model, "the plan has a built-in model; leave it out")
            if process is None:
                raise InputError("model", config.model, "has no process; start one with TrainingProcess.of")
            bad, rows = process.load(self._job)
            if bad:
                told(bad, rows)
            process.timeout = self.timeout
            return training.of_network(plan, self.unit, self.client, config.model, process, key)
        if plan.algorithm.model.kind == NETWORK:
            remedy = "the plan's model is a network: name it beside your data, model = 'package.module:network'"
            raise InputError("model", None, remedy)
        if config.train is not None:
            if features is not None and clip.kind != "update":
                raise InputError("train", config.train, "the plan has a built-in model; give data = 'file.npz'")
            if process is None:
                raise InputError("train", config.train, "has no process; start one with TrainingProcess.of")
            train = own_training.within(config.train, clip, plan.algorithm.step, process)
            process.load()
            process.timeout = self.timeout
            return train
        if features is None or config.data is None:
            raise InputError("data", config.data, "the plan has no built-in model; give train = 'package.module:name'")
        X, y = client_data.read(config.path(config.data), features)
        return training.of_plan(plan, self.unit, self.client, X, y, key, told)


def _place(plan: Plan, node: NodeKeys) -> tuple[int, int]:
    """Unit and number of a client, by its identity key."""
    who = f"{node.role} {node.name} of {node.org}"
    if node.role != "client":
        raise InputError("node", who, "is not a client's certificate; name one")
    mine = node.identity.public.hex()
    for p, unit in enumerate(plan.units):
        for k, client in enumerate(unit.clients):
            if client.identity == mine:
                return p, k
    raise InputError("node", who, "its identity key is of no client in the plan; use the plan that was made with it")
