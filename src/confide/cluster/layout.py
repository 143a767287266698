"""Everything that a network on one machine needs, in one folder: what several engineers would make by hand.

    FOLDER/cluster.json           the config that was used, names and ports
    FOLDER/plan.json              the same for every node
    FOLDER/announcements/ORG.json
    FOLDER/pki/ORG/               an authority for each organisation, with the keys of its nodes
    FOLDER/nodes/alpha/           server.toml; its store, its released models
    FOLDER/nodes/alpha-c0/        client.toml, data.npz; its record

Nodes are named by their unit (alpha, beta, ...), and clients by their number in it: alpha-c0.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from confide.base.entry_points import look_in
from confide.base.errors import InputError
from confide.base.files import write_text
from confide.cluster.module import code_of, put_code
from confide.cluster.try_out import deployable
from confide.deploy.keys.announcement import announce
from confide.deploy.keys.authority import Authority
from confide.deploy.machines import terms
from confide.deploy.machines.terms import Terms
from confide.plans.build import model_of, of_deployment
from confide.plans.config import Config, Experiment, named_as_in_config, parse
from confide.plans.plan import Plan
from confide.privacy.price import Price, agreed
from confide.problems import start
from confide.problems.features import toml_key
from confide.problems.train_function_config import OwnConfig

RECORD, PLAN, SERVER = "cluster.json", "plan.json", "one"
FORMAT: Final = 1
HOST: Final = "127.0.0.1"
PROCESS: Final = 80 * 2**20  # bytes, roughly, of a process
_GREEK = (
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu", "xi",
    "omicron", "pi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega",
)  # fmt: skip
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
Via = Mapping[tuple[str, str], str]  # (node that dials, unit that it dials) -> HOST:PORT in place of the unit's own


def unit_names(n: int) -> tuple[str, ...]:
    return tuple(_GREEK[p] if p < len(_GREEK) else f"unit-{p}" for p in range(n))


def free_ports(n: int) -> list[int]:
    """Ports on which nobody listens, and from which nobody dials: a server that is down would lose such a one."""
    low, high = 32768, 60999
    if _EPHEMERAL.exists():
        low, high = map(int, _EPHEMERAL.read_text().split())
    outside = [port for port in range(10000, 65536) if not low <= port <= high] or list(range(10000, 65536))
    found: list[int] = []
    for port in random.SystemRandom().sample(outside, len(outside)):
        if len(found) == n:
            return found
        if is_free(port):
            found.append(port)
    raise InputError("ports", n, "this machine has fewer free ports; use fewer units")


def is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
        except OSError as e:
            if e.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


@dataclass(frozen=True)
class Layout:
    """Where everything is.

    Attributes:
        config: as it was deployed.  notes: what was set that the config did not say.
        units: names, in the plan's order.  ports: of each unit's server.
        options: of every node's config.
    """

    folder: Path
    config: Config = field(repr=False)
    notes: tuple[str, ...]
    units: tuple[str, ...]
    ports: dict[str, int]
    plan: Plan = field(repr=False)
    dataset: str
    options: dict[str, Any]

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """One that was laid out before."""
        folder = Path(folder).absolute()
        try:
            table = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            if table["format"] != FORMAT:
                raise ValueError(f"format {table['format']!r}")
            config = parse(table["config"])
            units, notes, ports = tuple(table["units"]), tuple(table["notes"]), dict(table["ports"])
            plan, options = Plan.load(folder / PLAN), dict(table["options"])
            found = cls(folder, config, notes, units, ports, plan, str(table["dataset"]), options)
            look_in(found.place(found.clients(units[0])[0]))  # the user's code, as every client there has it
            return found
        except FileNotFoundError:
            raise InputError("folder", str(folder), f"holds no {RECORD}; name another, or a new one") from None
        except (OSError, ValueError, KeyError, TypeError) as e:
            if isinstance(e, InputError):
                raise
            raise InputError("folder", str(folder), f"its {RECORD} is damaged ({e}); name another folder") from None

    def renew_ports(self) -> None:
        """Others, if somebody has taken one meanwhile; nobody may be running here."""
        if not all(is_free(port) for port in self.ports.values()):
            self.ports.update(zip(self.units, free_ports(len(self.units)), strict=True))
            self.write()
            self.save()  # last: if the disk is full before, others are looked for again

    def save(self) -> None:
        table = {
            "format": FORMAT,
            "config": self.config.model_dump(mode="json", exclude_none=True),
            "notes": self.notes,
            "units": self.units,
            "ports": self.ports,
            "dataset": self.dataset,
            "options": self.options,
        }
        write_text(self.folder / RECORD, json.dumps(table, indent=1) + "\n")

    @cached_property
    def experiment(self) -> Experiment:
        return self.config.build()

    @cached_property
    def price(self) -> Price:
        return agreed(self.plan)

    def terms(self, unit: str) -> Terms:
        return terms.of_plan(self.price, self.number(unit))

    def number(self, unit: str) -> int:
        return self.units.index(unit)

    def clients(self, unit: str) -> tuple[str, ...]:
        return tuple(f"{unit}-c{k}" for k in range(self.plan.units[self.number(unit)].size))

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """All servers, then all clients."""
        return self.units + tuple(node for unit in self.units for node in self.clients(unit))

    def place(self, node: str) -> Path:
        """The node's own folder."""
        if node not in self.nodes:
            raise InputError("node", node, f"is none of this network: {', '.join(self.nodes)}")
        return self.folder / "nodes" / node

    def toml(self, node: str) -> Path:
        return self.place(node) / ("server.toml" if node in self.units else "client.toml")

    def store(self, unit: str) -> Path:
        return self.place(unit) / "store.db"

    def socket(self, unit: str) -> Path:
        return self.place(unit) / "store.db.sock"

    def released(self, unit: str) -> Path:
        return self.place(unit) / "released" / "model.npz"

    def authority(self, unit: str) -> Path:
        return self.folder / "pki" / unit

    def address(self, unit: str) -> str:
        return f"{HOST}:{self.ports[unit]}"

    def write(self, via: Via | None = None, **options: Any) -> None:
        """Every node's TOML. `options` are for servers and clients alike, besides the layout's: log, grace, reload."""
        via, options = via or {}, self.options | options
        for dialing, dialed in via:
            if dialing not in self.nodes or dialed not in self.units:
                raise InputError("via", (dialing, dialed), "must be a node that dials and a unit that it dials")
        for unit in self.units:
            write_text(self.toml(unit), self._server(unit, via, options))
            for node in self.clients(unit):
                write_text(self.toml(node), self._client(node, unit, via, options))

    def _server(self, unit: str, via: Via, options: Mapping[str, Any]) -> str:
        general: dict[str, Any] = {
            "plan": "../../plan.json",
            "node": f"../../pki/{unit}/server-{SERVER}",
            "listen": self.address(unit),
            "store": self.store(unit).name,
            "dataset": f"{unit} {self.dataset}",
            "patience": 60.0,
            "grace": 5.0,
        }
        if self.plan.algorithm.model.start is not None:
            general["weights"] = f"../../{start.FILE}"
        text = _table(general | dict(options))
        for org in self.units:
            files = {"certificate": f"../../pki/{org}/ca.crt", "crl": f"../../pki/{org}/crl.pem"}
            text += f"\n[authorities.{org}]\n{_table(files)}"
        for other in self.units:
            if other != unit:
                text += f"\n[servers.{other}]\n{self._peer(unit, other, via)}"
        return text

    def _client(self, node: str, unit: str, via: Via, options: Mapping[str, Any]) -> str:
        general: dict[str, Any] = {
            "plan": "../../plan.json",
            "node": f"../../pki/{unit}/client-{node.rpartition('-')[2]}",
            "record": "record",
            "ledger": "spent.jsonl",
            "authority": f"../../pki/{unit}/ca.crt",
            "crl": f"../../pki/{unit}/crl.pem",
            "grace": 5.0,
        }
        problem, told = self.config.problem, ""
        if isinstance(problem, OwnConfig):
            own = problem.told(self.number(unit), int(node.rpartition("-c")[2]))
            general |= {"train": problem.train, "dataset": f"{node} {self.dataset}"}
            told = f"\n[train_config]\n{_table(own)}"
        else:
            general["data"] = "data.npz"
            if (code := code_of(problem, self.place(node))) is not None:
                general["model"] = code
            if self.plan.algorithm.model.start is not None and self.plan.algorithm.model.start.frozen:
                general["weights"] = f"../../{start.FROZEN}"
        return f"{_table(general | dict(options))}{told}\n[server]\n{self._peer(node, unit, via)}"

    def _peer(self, dialing: str, unit: str, via: Via) -> str:
        address = via.get((dialing, unit), self.address(unit))
        return _table({"organisation": unit, "name": SERVER, "addresses": [address]})


def _table(values: Mapping[str, Any]) -> str:
    """JSON's strings, numbers and lists are TOML's; a table in it is written in one line."""
    return "".join(f"{toml_key(key)} = {_value(value)}\n" for key, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_key(key)} = {_value(x)}" for key, x in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return value.isoformat() if isinstance(value, date | time) else json.dumps(value)


def lay_out(
    folder: str | Path,
    config: Config,
    units: int | None = None,
    clients: int | None = None,
    *,
    rounds: int | None = None,
    release: bool = False,
    adapt: float = 10.0,
    tick: float | None = 0.5,
    exchange: float = 7.0,
    drain: float = 30.0,
    start: float | None = None,
    window: int = 4,
    ports: Callable[[int], Sequence[int]] = free_ports,
    **options: Any,
) -> Layout:
    """Authorities, certificates, announcements, the plan, every node's config and every client's data.

    Args:
        folder: a new or empty one.
        units, clients, rounds: in place of the config's.
        release: the plan has a release, also where the config has none.
        adapt, tick, exchange, drain, start, window: of the plan, see `plans.build.of_deployment`.
        ports: how many -> as many free ones.
        options: of every node's config: log, grace, reload.
    """
    folder = Path(folder).absolute()
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError("folder", str(folder), "is not empty; name a new one")
    used, notes = deployable(config, units=units, clients=clients, rounds=rounds, release=release)
    P, K = used.problem.given("units"), used.problem.given("clients")
    if P is not None and K is not None:
        _check_memory(P * (1 + K))  # before the data are made
    experiment = used.build()
    federation = experiment.problem.federation
    _check_memory(federation.P + federation.clients)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    clocks = {"adapt": adapt, "tick": tick, "exchange": exchange, "drain": drain, "start": start}
    try:
        found = fill(folder, used, notes, experiment, ports(federation.P), options, window=window, **clocks)
        found.write()
        found.save()  # last: with it the folder is whole
    except BaseException:
        for part in folder.iterdir():
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        raise
    return found


def fill(
    folder: Path,
    config: Config,
    notes: tuple[str, ...],
    e: Experiment,
    ports: Sequence[int],
    options: dict[str, Any],
    **clocks: Any,
) -> Layout:
    """An experiment's network in this folder, but for its nodes' configs."""
    federation = e.problem.federation
    names = unit_names(federation.P)
    announced = [_announce(folder, name, int(K)) for name, K in zip(names, federation.K, strict=True)]
    with named_as_in_config():
        plan = of_deployment(
            announced, e.graph, e.algorithm, model_of(e.problem, e.algorithm), e.rounds, e.seed, e.privacy, **clocks
        )
        agreed(plan)
    plan.save(folder / PLAN)
    found = Layout(folder, config, notes, names, dict(zip(names, ports, strict=True)), plan, plan.hash[:8], options)
    for p, unit in enumerate(names):
        found.place(unit).mkdir(parents=True)
        for k, node in enumerate(found.clients(unit)):
            found.place(node).mkdir(mode=0o700)
            if not isinstance(config.problem, OwnConfig):
                X, y = federation.client(p, k)
                np.savez(found.place(node) / "data.npz", allow_pickle=False, X=X, y=y)
            put_code(config.problem, e.problem.model, found.place(node))
    if plan.algorithm.model.start is not None:
        start.write(e.problem.model, folder)
    return found


def _announce(folder: Path, org: str, clients: int) -> Any:
    authority = Authority.create(folder / "pki" / org)
    authority.issue("server", SERVER)
    for k in range(clients):
        authority.issue("client", f"c{k}")
    path = folder / "announcements" / f"{org}.json"
    path.parent.mkdir(exist_ok=True)
    return announce(authority, org, out=path)


def _check_memory(processes: int) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if processes * PROCESS > memory:
        need, have = processes * PROCESS / 2**30, memory / 2**30
        remedy = f"{processes} processes need about {need:.3g} GiB and this machine has {have:.3g}; use fewer of each"
        raise InputError("--units, --clients", processes, remedy)
