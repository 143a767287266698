"""What a unit tells the others before there is a plan, and how a plan is made of a config and all announcements.

An announcement has public keys and names, nothing else. The data are at the clients, so the problem of the config
lends only its model: kind, features, regulariser. What depends on data (how smooth a loss is, whether a batch can be
filled) every client checks for itself against the plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confide.base import canonical
from confide.base.errors import InputError
from confide.base.files import write_text
from confide.base.validation import number, positive_int
from confide.plans.build import Announced, of_deployment, of_model, start_of
from confide.plans.config import (
    Config,
    load,
    make_algorithm,
    make_graphs,
    make_privacy,
    named_as_in_config,
    parse,
)
from confide.plans.plan import Model, Plan
from confide.privacy.price import agreed
from confide.problems import models as problems
from confide.problems import start
from confide.problems.models import NAMES, OWN, is_built_in, named
from confide.problems.networks.network import Network
from confide.rounds.algorithm import GFL
from confide.rounds.local import sgd

if TYPE_CHECKING:
    from confide.deploy.keys.authority import Authority, Entry

FORMAT: Final = 1
ISSUED: Final = "issued"  # of a client's keys: by its authority, which knew them
LARGEST: Final = 2**26  # bytes of an announcement
_FIELDS = ("format", "unit", "organisation", "authority", "server", "identity", "exchange_key", "clients")


def announce(
    authority: Authority, unit: str, *, server: str | None = None, clients: Sequence[str] = (), out: Path | None = None
) -> Announced:
    """What the others must know of a unit: public keys and names only, from its organisation's certificates.

    Args:
        authority: the organisation's, `Authority.open(folder)`.
        unit: the unit's name in the plan.
        server, clients: names of its nodes, in order; by default the one server, and all clients.
        out: a file to write, for whoever makes the plan: `agree` takes it as it takes the unit.

    Returns:
        The unit, as `agree` takes it.

    Raises:
        InputError: there is no such node, or it was revoked.
    """
    found = described(authority, unit, server, clients)
    if out is not None:
        write_text(out, json.dumps(found, indent=1) + "\n")
    return _unit(found)


def agree(
    config: str | Path | Mapping[str, Any] | Config,
    units: Sequence[Announced | str | Path],
    *,
    model: str | None = None,
    features: int | None = None,
    rho: float | None = None,
    **clocks: Any,
) -> Plan:
    """Make the plan of a deployment: what every node, and every operator, is to agree on.

        plan = agree("run.toml", ["alpha.json", "beta.json"], window=4, adapt=60.0)
        print(price(plan).statement())
        plan.save("plan.json")

    Args:
        config: as for `confide simulate`: a TOML file, or its tables. Of its problem only the model counts.
        units: as `announce` gives them, or files that it wrote, in the order of the graph's servers.
        model: linear, logistic, softmax:CLASSES or own (a train function of one's own), in place of the problem's.
        features: how many numbers are in the model; needed with `model`.
        rho: the regulariser, in place of the problem's.
        clocks: window (rounds that may be open on an edge), and adapt, tick, exchange, drain and start, in seconds:
            see `confide agree --help`.

    Returns:
        The plan, whose price was checked; `plan.save(path)` writes the file that every node needs.

    Raises:
        InputError: a key of the config, an announcement, or a promise that does not hold.
    """
    config = _config(config)
    announced = [unit if isinstance(unit, Announced) else read(Path(unit)) for unit in units]
    if not announced:
        raise InputError("unit", None, "name one announcement for each unit, with --unit")
    with named_as_in_config():
        algorithm, privacy = make_algorithm(config), make_privacy(config)
        graphs, learned = make_graphs(config, len(announced)), _model(config, algorithm, model, features, rho)
        plan = of_deployment(announced, graphs, algorithm, learned, config.rounds, config.seed, privacy, **clocks)
        agreed(plan)
    return plan


def described(authority: Authority, unit: str, server: str | None, clients: Sequence[str]) -> dict[str, Any]:
    """An announcement as it stands in its file."""
    live: dict[str, Entry] = {}
    for entry in authority.entries():
        if entry.revoked is None:
            live.setdefault(entry.identity, entry)  # a renewed certificate has the same identity, and the same place
    servers = [e for e in live.values() if e.role == "server" and server in (None, e.name)]
    if len(servers) != 1:
        names = ", ".join(e.name for e in servers)
        remedy = (
            f"{authority.org} has several, name one with --server: {names}"
            if servers
            else f"no such server; `confide pki request {authority.org} server NAME` at the node asks for one"
        )
        raise InputError("server", server, remedy)
    known = {e.name: e for e in live.values() if e.role == "client"}
    for name in clients:
        if name not in known:
            remedy = f"no such client, or revoked; known: {', '.join(known) or 'none'}"
            raise InputError("client", name, remedy)
    chosen = [known[name] for name in dict.fromkeys(clients)] if clients else list(known.values())
    if not chosen:
        remedy = f"a unit needs clients; `confide pki request {authority.org} client NAME` at the node asks for one"
        raise InputError("client", None, remedy)
    return {
        "format": FORMAT,
        "unit": unit,
        "organisation": authority.org,
        "authority": authority.fingerprint,
        "server": servers[0].name,
        "identity": servers[0].identity,
        "exchange_key": servers[0].exchange_key,
        "clients": [
            {"name": e.name, "identity": e.identity} | ({} if e.requested else {"keys": ISSUED}) for e in chosen
        ],
    }


def read(path: Path) -> Announced:
    """An announcement as a unit of a plan."""
    return _unit(_table(path))


def known_keys(config: Config, paths: Sequence[Path]) -> str:
    """Whose keys an authority made, by its own words, where a plan counts on clients whose keys nobody knows; or ""."""
    if config.algorithm.aggregation != "secure" or config.secure.server != "active":
        return ""
    found = []
    for table in map(_table, paths):
        names = [client["name"] for client in table["clients"] if client.get("keys") == ISSUED]
        found += [f"{', '.join(names)} of {table['organisation']}"] if names else []
    why = "against a server with which that authority is, the truth is 'curious'; `confide pki request` makes keys anew"
    return f"authorities made the keys of {'; '.join(found)}: {why}" if found else ""


def _table(path: Path) -> Mapping[str, Any]:
    text = canonical.read_text(path, "unit", LARGEST)
    try:
        table: Mapping[str, Any] = canonical.check_keys("unit", json.loads(text), _FIELDS)
        if table["format"] != FORMAT:
            raise InputError("unit", str(path), f"has format {table['format']!r}; this confide reads {FORMAT}")
        keys = [str(c["identity"]) for c in table["clients"]]
        named = {name: str(table[name]) for name in ("identity", "exchange_key", "authority")}
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        why = e.remedy if isinstance(e, InputError) else f"{type(e).__name__}: {e}"
        remedy = f"is no announcement ({why}); `confide pki announce ORG --unit NAME` prints one"
        raise InputError("unit", str(path), remedy) from None
    for name, key in (*named.items(), *(("clients", key) for key in keys)):
        if not canonical.is_digest(key):
            raise InputError(f"unit.{name}", key, f"in {path}: must be 64 small hex digits")
    return table


def _unit(table: Mapping[str, Any]) -> Announced:
    keys = tuple(client["identity"] for client in table["clients"])
    return Announced(str(table["unit"]), table["identity"], table["exchange_key"], keys, table["authority"])


def other_sizes(config: Config, units: Sequence[Announced]) -> str:
    """Where the config simulates another network than the one announced; "" where not."""
    P, K, sizes = config.problem.given("units"), config.problem.given("clients"), [len(u.clients) for u in units]
    if P in (None, len(units)) and all(K in (None, size) for size in sizes):
        return ""
    shown = ", ".join(map(str, sizes[:10])) + (", …" if len(sizes) > 10 else "")
    return f"the config has {P} units of {K} clients; the plan has {len(sizes)}, with {shown} clients"


def write_start(config: str | Path | Mapping[str, Any] | Config, folder: str | Path) -> list[Path]:
    """Write where the model of this config begins, as far as that is not at zero.

    Returns:
        `start.safetensors`, which every server of the plan needs, and `frozen.safetensors`, for its clients, with
        what of a network is not trained.
    """
    with named_as_in_config():
        model, _ = _without_data(_config(config), None)
        return start.write(model, Path(folder)) if start_of(model) is not None else []


def _config(config: str | Path | Mapping[str, Any] | Config) -> Config:
    if isinstance(config, Config):
        return config
    return parse(config) if isinstance(config, Mapping) else load(config)


def _without_data(config: Config, features: int | None) -> tuple[problems.Model, int]:
    return config.problem.without_data() or _of_data(config, features)


def _model(config: Config, algorithm: GFL, kind: str | None, features: int | None, rho: float | None) -> Model:
    if kind is None:
        return _of_problem(config, algorithm, features, rho)
    model = named(kind, number("--rho", config.problem.given("rho") or 0.0 if rho is None else rho, 0.0))
    if model is None and kind != OWN:
        raise InputError("--model", kind, f"known: {', '.join((*NAMES, OWN))}")
    if features is None:
        remedy = "say with --model how many features a row has, or with --model own how many numbers the model has"
        raise InputError("--features", None, remedy)
    positive_int("--features", features)
    if model is not None:
        return Model(model.name, model.dimension(features), model.rho)
    if rho:
        raise InputError("--rho", rho, "a train function of one's own has its regulariser inside")
    return Model(OWN, features, built_in=False)


def _of_problem(config: Config, algorithm: GFL, features: int | None, rho: float | None) -> Model:
    found, M = _without_data(config, features)
    length = found.dimension(M if features is None else positive_int("--features", features))
    if is_built_in(found):
        return Model(found.name, length, float(found.rho) if rho is None else number("--rho", rho, 0.0))
    if rho is not None:
        raise InputError("--rho", rho, "is part of the problem's own model; only a built-in model takes another")
    if isinstance(found, Network):
        return of_model(found, length, algorithm.on(found).local is sgd)
    return Model(OWN, length, built_in=False, start=start_of(found))


def _of_data(config: Config, features: int | None) -> tuple[problems.Model, int]:
    try:
        made = config.problem.make(config.seed)
    except InputError as e:
        remedy = f"{e.remedy}. Where the data are not on this machine, say --model, --features and --rho"
        raise InputError(e.field, e.value, remedy) from None
    if features is None and any(c["computed"] for c in (made.features or {}).get("categorical", ())):
        remedy = "would be counted from private rows; declare problem.categories, or say --features"
        raise InputError("--features", None, remedy)
    return made.model, made.federation.M
