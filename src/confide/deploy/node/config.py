"""The TOML of a server and of a client: names and types are checked here, with the files that they name.

Paths are relative to the config's folder, so that a node's folder can be moved as a whole. Who a node is follows from
its keys and the plan, and is not written down twice.
"""

from __future__ import annotations

import math
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import Field

from confide.base import canonical
from confide.base.errors import InputError
from confide.base.tables import Table, checked
from confide.deploy.node.trust import Source

if TYPE_CHECKING:
    from confide.deploy.keys.node_keys import NodeKeys
    from confide.plans.plan import Plan
    from confide.secure.keys import Secret

LARGEST = 2**20  # bytes of a config
KEYS = "`confide pki request` makes the keys, `confide pki sign` the .crt; copy all files of the node here"


class AuthorityConfig(Table):
    certificate: str = Field(description="ca.crt of the organisation; its fingerprint is in the plan")
    crl: str = Field(description="crl.pem of the organisation, read again whenever it changes")


class PeerConfig(Table):
    organisation: str = Field(description="whose authority issued the server's certificate")
    name: str = Field(description="of the server, as in its certificate")
    addresses: list[str] = Field(description='HOST:PORT, all of the same server: ["alpha.example.org:7001"]')


class NodeTable(Table):
    """What both kinds have; `folder` is where relative paths begin."""

    folder: Path = Field(Path("."), exclude=True)
    plan: str = Field(description="plan.json, as `confide agree` made it")
    node: str = Field(description="certificate and keys: the path of the .crt without its ending")
    passphrase: str | None = Field(None, description="of encrypted keys: file:PATH, fd:NUMBER or prompt")
    log: Literal["text", "json"] = Field("text", description="form of the log on stderr")
    grace: float = Field(10.0, description="seconds that SIGTERM leaves a round to end")
    reload: float = Field(60.0, description="seconds between looks at certificates and CRLs")
    metrics: str | None = Field(None, description="HOST:PORT for Prometheus, such as 127.0.0.1:9464; none by default")
    health: str | None = Field(
        None, description="HOST:PORT that tells a probe without a certificate that this process lives; none by default"
    )

    def path(self, name: str) -> Path:
        return self.folder / Path(name).expanduser()


class ServerConfig(NodeTable):
    listen: str = Field(description="HOST:PORT on which clients and neighbours dial in")
    store: str = Field(description="the state of the run; made at the first start")
    dataset: str = Field(description="name of the data; ledgers of all runs on them add up")
    authorities: dict[str, AuthorityConfig] = Field(description="[authorities.ORG]: whom this server believes")
    servers: dict[str, PeerConfig] = Field({}, description="[servers.UNIT]: the other servers of the plan")
    ledgers: list[str] = Field([], description="of earlier runs on the same data")
    released: str = Field("released", description="folder for released models")
    patience: float = Field(600.0, description="seconds that a release waits for the others")
    weights: str | None = Field(None, description="start.safetensors of a plan that does not begin at zero")
    socket: str | None = Field(None, description="for `confide status` and `release`; STORE.sock by default")

    @property
    def sources(self) -> list[Source]:
        return [
            Source(
                org,
                self.path(given.certificate),
                self.path(given.crl),
                (f"authorities.{org}.certificate", f"authorities.{org}.crl"),
            )
            for org, given in self.authorities.items()
        ]

    @property
    def lists(self) -> Path:
        """The newest lists of revoked certificates that this server has seen."""
        return self.path(f"{self.store}.lists")

    @property
    def control(self) -> Path:
        return self.path(self.socket or f"{self.store}.sock")


class ClientConfig(NodeTable):
    record: str = Field(description="what this client must not forget; made at the first start, never copied back")
    server: PeerConfig = Field(description="[server]: the server of this client's unit")
    authority: str = Field(description="ca.crt of the server's organisation")
    crl: str = Field(description="crl.pem of the server's organisation, read again whenever it changes")
    data: str | None = Field(None, description=".npz with X and y, or .csv: a line of names, then rows, target last")
    model: str | None = Field(None, description="package.module:network, of a plan whose model is a network")
    weights: str | None = Field(None, description="safetensors file of the part of the network that is not trained")
    train: str | None = Field(None, description="package.module:function(weights, round, config), in place of data")
    train_config: dict[str, Any] = Field({}, description="[train_config]: given to the train function")
    train_timeout: float | None = Field(None, description="seconds of a training, then zeros; half of adapt by default")
    train_log: str | None = Field(None, description="file for what the train function writes; nowhere by default")
    dataset: str | None = Field(None, description="name of the data, which stays theirs when the file changes")
    ledger: str | None = Field(None, description="what was spent on the data; in the user's state folder by default")

    @property
    def sources(self) -> list[Source]:
        files = self.path(self.authority), self.path(self.crl)
        return [Source(self.server.organisation, *files, ("authority", "crl"))]

    @property
    def lists(self) -> Path:
        """The newest list of revoked certificates that this client has seen."""
        return self.path(f"{self.record}.lists")


Config = TypeVar("Config", ServerConfig, ClientConfig)


def load_server(path: str | Path) -> ServerConfig:
    config = _load(Path(path), ServerConfig)
    host_port("listen", config.listen, listening=True)
    for name, authority in config.authorities.items():
        _exists(config, f"authorities.{name}.certificate", authority.certificate, "copy the organisation's ca.crt here")
        _exists(config, f"authorities.{name}.crl", authority.crl, "copy the organisation's crl.pem here")
    for name, peer in config.servers.items():
        _peer(f"servers.{name}", peer)
        if peer.organisation not in config.authorities:
            remedy = f"has no table [authorities.{peer.organisation}]; add one, with its certificate and crl"
            raise InputError(f"servers.{name}.organisation", peer.organisation, remedy)
    if config.weights is not None:
        _exists(config, "weights", config.weights, "copy the start.safetensors here that `confide agree` made")
    for n, ledger in enumerate(config.ledgers):
        _exists(config, f"ledgers[{n}]", ledger, "name the ledger.jsonl of an earlier run")
    if not config.dataset.strip():
        raise InputError("dataset", config.dataset, "must be a name: all runs on the same data use the same")
    _positive("patience", config.patience)
    return config


def load_client(path: str | Path) -> ClientConfig:
    config = _load(Path(path), ClientConfig)
    _peer("server", config.server)
    _exists(config, "authority", config.authority, "copy the ca.crt of the server's organisation here")
    _exists(config, "crl", config.crl, "copy the crl.pem of the server's organisation here")
    if config.dataset is not None and not config.dataset.strip():
        raise InputError("dataset", config.dataset, "must be a name: all plans on the same data use the same")
    if (config.data is None) == (config.train is None):
        remedy = (
            "give either data = 'file.npz' (or .csv), with model = 'package.module:network' where the plan has one, or "
            "train = 'package.module:function' in its place"
        )
        raise InputError("data", config.data, remedy)
    for field, value in (("model", config.model), ("weights", config.weights)):
        if value is not None and config.train is not None:
            raise InputError(field, value, "is for a network on data; a train function has its own")
    if config.weights is not None:
        if config.model is None:
            raise InputError("weights", config.weights, "is of a network: name it, model = 'package.module:network'")
        _exists(config, "weights", config.weights, "copy the file here that has what of the network is not trained")
    if config.train is not None and config.dataset is None:
        remedy = "name the data that the train function reads, under which its ledger is kept: dataset = 'NAME'"
        raise InputError("dataset", None, remedy)
    if config.data is not None:
        if Path(config.data).suffix not in (".npz", ".csv"):
            raise InputError("data", config.data, "must be an .npz with X and y, or a .csv")
        _exists(config, "data", config.data, "name this client's own samples")
        for field in ("train_config",) if config.model is not None else ("train_config", "train_timeout", "train_log"):
            if field in config.model_fields_set:
                raise InputError(field, getattr(config, field), "is for a train function; this client has none")
    if config.train_timeout is not None:
        _positive("train_timeout", config.train_timeout)
    return config


def load(path: str | Path) -> ServerConfig | ClientConfig:
    """Whichever it is: a client's names the record that a client has."""
    return load_client(path) if "record" in _read(Path(path)) else load_server(path)


def load_keys(config: NodeTable) -> tuple[NodeKeys, Secret | None]:
    """The node's certificate and keys, and their passphrase, for when they are read again."""
    from confide.deploy.keys.node_keys import NodeKeys
    from confide.deploy.keys.passphrase import read_passphrase

    passphrase = None if config.passphrase is None else read_passphrase(config.passphrase, config.folder)
    return NodeKeys.load(config.path(config.node), passphrase), passphrase


def load_plan(config: NodeTable) -> Plan:
    from confide.plans.plan import Plan

    plan = Plan.load(config.path(config.plan))
    if plan.deployment is None:
        raise InputError("plan", str(config.path(config.plan)), "is of a simulation; `confide agree` makes this one")
    return plan


def not_of_before(field: str, plan: Plan) -> None:
    """A plan of an older protocol is read, for its ledger and its bundle; no round of it is run."""
    from confide.plans.plan import PROTOCOL

    if plan.deployed().protocol != PROTOCOL:
        remedy = f"is of protocol {plan.deployed().protocol}: end it with the confide that began it, or agree anew"
        raise InputError("plan", field, remedy)


def not_expired(field: str, node: NodeKeys) -> None:
    """Nobody would let such a node in."""
    if datetime.now(UTC) >= node.not_after:
        remedy = f"its certificate expired on {node.not_after:%Y-%m-%d}; run `confide pki renew {node.org} {node.name}`"
        raise InputError("node", field, f"{remedy} and copy the new .crt and .key here")


def _read(path: Path) -> dict[str, Any]:
    text = canonical.read_text(path, "config", LARGEST)
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as e:
        raise InputError("config", str(path), f"cannot be parsed: {e}; mend the file") from None


def _load(path: Path, kind: type[Config]) -> Config:
    table = _read(path)
    if "folder" in table:
        raise InputError("folder", table["folder"], "unknown key; paths are relative to the config's own folder")
    config = checked(kind, table | {"folder": path.absolute().parent})
    _exists(config, "plan", config.plan, "`confide agree` makes it; all nodes have the same")
    for end in (".crt", ".key", ".identity", *((".exchange",) if kind is ServerConfig else ())):
        _exists(config, "node", config.node + end, KEYS)
    _positive("grace", config.grace, zero=True)
    _positive("reload", config.reload)
    for field, address in (("metrics", config.metrics), ("health", config.health)):
        if address is not None:
            host_port(field, address, listening=True)
    return config


def _exists(config: NodeTable, field: str, name: str, remedy: str) -> None:
    path = config.path(name)
    if not name or not path.is_file():
        raise InputError(field, str(path), f"is no file; {remedy}")


def _peer(field: str, peer: PeerConfig) -> None:
    if not peer.addresses:
        raise InputError(f"{field}.addresses", [], 'must hold at least one HOST:PORT, such as "alpha.example.org:7001"')
    for n, address in enumerate(peer.addresses):
        host_port(f"{field}.addresses[{n}]", address)


def host_port(field: str, address: str, listening: bool = False) -> tuple[str, int]:
    """The two parts, of an IPv6 address without its brackets."""
    host, colon, port = address.rpartition(":")
    least = 0 if listening else 1  # 0: any free port
    if not (colon and host and port.isdecimal() and port.isascii() and least <= int(port) <= 65535):
        raise InputError(field, address, "must be HOST:PORT, such as 0.0.0.0:7001; an IPv6 address in brackets")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise InputError(field, address, "an IPv6 address stands in brackets: [::1]:7001")
    return host.strip("[]"), int(port)


def _positive(field: str, value: float, zero: bool = False) -> None:
    if not (math.isfinite(value) and (value > 0.0 or (zero and value == 0.0))):
        raise InputError(field, value, "must be a number of seconds, " + ("not negative" if zero else "above 0"))
