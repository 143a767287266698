"""The privacy plan: everything a privacy statement rests on, as one frozen object with one hash.

    scheme, noise, clip, threat, budget, proof, facts  ->  canonical JSON  ->  sha256

Two nodes have the same plan if and only if the hashes agree, floats to the last bit. A plan is plain data: it is
checked field by field when made or read, and nothing in it is ever executed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from confide.base import canonical
from confide.base.errors import InputError
from confide.base.files import atomic_file
from confide.base.validation import number, one_of, positive, positive_int, whole
from confide.plans import plan_deployment
from confide.plans.threat import Threat

if TYPE_CHECKING:
    from confide.rounds.schemes import Scheme

VERSION = 2
LAWS = ("gaussian", "laplace", "discrete-gaussian", "discrete-laplace")
NOISE_ON = ("server", "link", "network")
CLIPS = ("none", "example", "update")
NORMS = ("l1", "l2")
LEVELS = ("client", "unit", "example")
ADJACENCIES = ("replace", "zero-out")
RINGS = (32, 64)
SERVERS = ("curious", "active")
LARGEST = 64 * 2**20  # bytes of a plan file: a graph of some hundred thousand edges
_SCHEME = ("name", "law", "carry", "noise_on", "sigma", "sigma_pair", "sigma_client")
_GRAPH = ("name", "weights", "edges", "edge_weights", "own_weights")
_LATER = {  # tables that came after the first plans: not written where there is none, so that those keep their hash
    "aggregation": "must be left out where updates are not summed securely",
    "deployment": "must be left out where nothing is deployed",
    "turns": "must be left out where the graph does not change",
}
_AGGREGATION = ("server", "ring_bits", "fraction_bits", "threshold", "quorum", "corrupted", "sigma")


@dataclass(frozen=True)
class Plan:
    """A privacy plan. Units are those of `architecture.md`: sigma is a standard deviation per coordinate.

    Attributes:
        graph: what `Graph.to_dict` gives.
        scheme: name, law, carry (None: own weight), noise_on, sigma, sigma_pair, sigma_client (the last two 0 if
            left out); see `scheme_fields`.
        rounds: T.  step: mu.  sampled: L.  clients: K, the least over units.  dim: M.  (None: not stated.)
        clip: "example", "update" or "none"; bound: B in `norm`, None without clipping.
        local_steps, batch: one number, or (low, high) over the clients.
        level: whose data may change; adjacency: how.
        proof: "none", "regulariser:RHO", "convex-glm:NU", "public-point".
        participation: "all", "cap:N", "random:Q", "amplified:Q".
        threat: who looks, e.g. "links".  release: "none", "centroid:SIGMA", "local"; releases: how many, at most.
        unprotected: the makers know that some adversary has no price here.
        budget: {"epsilon": at `delta`, "rho": of zCDP}; None is no limit.
        facts: constants that a proof or a price uses: a declared "smoothness", the model's "regulariser", the grid of a
            simulation in fixed point ("rounding.quantum" ...); and "undeclared", a line for each reason why there is no
            price: the problem's rows were prepared from everybody's. Numbers, words, true or false.
        aggregation: of the secure sums: server ("curious", "active"), ring_bits, fraction_bits, threshold, quorum
            (fewest clients in a sum), corrupted (clients, at most), sigma (on psi, of the honest shares of noise).
        deployment: who takes part, the grid and the clocks (`plan_deployment`). Like `aggregation` it is not written
            where it is None, so that plans without it have the text and hash that they always had.
        turns: the graphs of the rounds after the first, where several take turns; likewise not written where empty.
    """

    graph: Mapping[str, Any]
    scheme: Mapping[str, Any]
    rounds: int
    step: float
    bound: float | None
    norm: str
    clip: str
    sampled: int | None
    clients: int | None
    dim: int | None
    local_steps: int | tuple[int, int]
    batch: int | tuple[int, int] | None
    level: str
    adjacency: str
    proof: str
    participation: str
    threat: str
    release: str
    delta: float
    releases: int = 1
    unprotected: bool = False
    budget: Mapping[str, float | None] = field(default_factory=lambda: {"epsilon": None, "rho": None})
    facts: Mapping[str, float | str | bool] = field(default_factory=dict)
    version: int = VERSION
    aggregation: Mapping[str, Any] | None = None
    deployment: Mapping[str, Any] | None = None
    turns: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        for name, value in _checked(self).items():
            object.__setattr__(self, name, canonical.frozen(value))
        if self.deployment is not None:
            plan_deployment.agrees(self)
        _ = self._text  # a plan without a text is no plan

    @property
    def units(self) -> int:
        """P."""
        return len(self.graph["own_weights"])

    def to_dict(self) -> dict[str, Any]:
        table = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in table.items() if name not in _LATER or value not in (None, ())}

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """The plan with exactly these fields; a missing or unknown one is refused by name."""
        given = [name for name in _LATER if isinstance(data, Mapping) and name in data]
        for name in given:
            if data[name] in (None, []):  # type: ignore[index]
                raise InputError(f"plan.{name}", None, _LATER[name])
        known = [f.name for f in fields(cls) if f.name not in _LATER or f.name in given]
        return cls(**canonical.check_keys("plan", data, known))

    def to_json(self) -> str:
        """Canonical text: the same plan has the same text everywhere."""
        return self._text

    @classmethod
    def from_json(cls, text: str) -> Self:
        data = canonical.loads(text, "plan")
        plan = cls.from_dict(data)
        if plan.to_json() != text:  # such as a whole number where a float belongs
            wrong = [n for n in data if canonical.dumps(data[n]) != canonical.dumps(getattr(plan, n))]
            raise InputError(f"plan.{wrong[0]}", data[wrong[0]], "is not spelled as a plan spells it")
        return plan

    def save(self, path: str | Path) -> None:
        with atomic_file(path) as temporary:
            temporary.write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        try:
            return cls.from_json(canonical.read_text(path, "plan", LARGEST))
        except InputError as e:
            if e.field == "plan":
                raise InputError("plan", str(path), e.remedy) from None
            raise

    @property
    def hash(self) -> str:
        """sha256 of the canonical text, in hex."""
        return self._hash

    @cached_property
    def _text(self) -> str:
        return canonical.dumps(self.to_dict(), "plan")

    @cached_property
    def _hash(self) -> str:
        return canonical.digest(self._text)

    def __hash__(self) -> int:
        return hash(self._hash)

    def diff(self, other: Plan) -> list[str]:
        """The fields in which another plan differs, one line each; empty if and only if the hashes agree.

        A list that differs gives its first differing entry.
        """
        return list(_differences("", self.to_dict(), other.to_dict()))


def scheme_fields(scheme: Scheme, law: str | None = None) -> dict[str, Any]:
    """The fields of a `Scheme` that a plan holds; `law` where the deployed noise is the discrete one."""
    from confide.rounds.schemes import Exchange, named

    on = "network" if scheme.exchange == Exchange.AVERAGE else "link" if scheme.by_link else "server"
    found = {name: on if name == "noise_on" else getattr(scheme, name) for name in _SCHEME}
    if not named(scheme):
        rows = [f"{n.at} {n.sigma!r} taps {n.taps!r}" for n in scheme.noises]
        found["rows"] = "; ".join((scheme.exchange, *rows, *(("receivers",) if scheme.receivers else ())))
    return found | ({} if law is None else {"law": law})


def _checked(p: Plan) -> dict[str, Any]:
    """Every field, checked and in the one type in which it is hashed."""
    if isinstance(p.version, bool) or p.version != VERSION or not isinstance(p.version, int):
        remedy = f"this confide reads version {VERSION}; make the plan again from its config (confide agree)"
        raise InputError("plan.version", p.version, remedy)
    graph = _graph(p.graph)
    if one_of("plan.clip", p.clip, CLIPS) == "none":
        if p.bound is not None:
            raise InputError("plan.bound", p.bound, "nothing is clipped, so there is no bound; leave it null")
    elif p.bound is None:
        raise InputError("plan.bound", p.bound, f"clip {p.clip!r} needs a bound")
    proof = _worded("plan.proof", p.proof, ("none", "public-point", "regulariser:RHO", "convex-glm:NU"))
    if p.clip == "update" and proof not in ("none", "public-point"):
        raise InputError("plan.proof", proof, "clip 'update' breaks this proof; clip 'example', or use none")
    counts = {n: _optional(positive_int, f"plan.{n}", getattr(p, n)) for n in ("sampled", "clients", "dim")}
    if counts["sampled"] and counts["clients"] and counts["sampled"] > counts["clients"]:
        raise InputError("plan.sampled", p.sampled, f"a unit has only {p.clients} clients")
    delta = _float("plan.delta", p.delta, 0.0)
    if delta >= 1.0:
        raise InputError("plan.delta", p.delta, "must be below 1")
    return counts | {
        "graph": graph,
        "scheme": _scheme(p.scheme),
        "rounds": positive_int("plan.rounds", p.rounds),
        "step": positive("plan.step", p.step),
        "bound": _optional(positive, "plan.bound", p.bound),
        "norm": one_of("plan.norm", p.norm, NORMS),
        "local_steps": _range("plan.local_steps", p.local_steps),
        "batch": _optional(_range, "plan.batch", p.batch),
        "level": one_of("plan.level", p.level, LEVELS),
        "adjacency": one_of("plan.adjacency", p.adjacency, ADJACENCIES),
        "participation": _worded("plan.participation", p.participation, ("all", "cap:N", "random:Q", "amplified:Q")),
        "threat": _threat(p.threat, len(graph["own_weights"])),
        "release": _worded("plan.release", p.release, ("none", "local", "centroid:SIGMA")),
        "releases": positive_int("plan.releases", p.releases),
        "unprotected": _bool("plan.unprotected", p.unprotected),
        "delta": delta,
        "budget": {
            name: _optional(_nonnegative, f"plan.budget.{name}", value)
            for name, value in canonical.check_keys("plan.budget", p.budget, ("epsilon", "rho")).items()
        },
        "facts": _facts(p.facts),
        "aggregation": _optional(_aggregation, "plan.aggregation", p.aggregation),
        "deployment": _optional(plan_deployment.table, "plan.deployment", p.deployment),
        "turns": _turns(p.turns, len(graph["own_weights"])),
    }


def _graph(value: object) -> dict[str, Any]:
    """Shapes and ranges; `Graph.from_dict` checks that it is connected and that rows sum to 1."""
    graph = canonical.check_keys("plan.graph", value, _GRAPH)
    name, rule, edges, a, own = (graph[key] for key in _GRAPH)
    for key, text in (("name", name), ("weights", rule)):
        if not isinstance(text, str):
            raise InputError(f"plan.graph.{key}", text, "must be a string")
    for key, rows in (("edges", edges), ("edge_weights", a), ("own_weights", own)):
        if not isinstance(rows, list | tuple):
            raise InputError(f"plan.graph.{key}", rows, "must be a list, as Graph.to_dict gives")
    if not own or len(a) != len(edges):
        raise InputError("plan.graph", (len(edges), len(a), len(own)), "needs servers, and a weight for each edge")
    last, pairs = (-1, -1), []
    for n, pair in enumerate(edges):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise InputError(f"plan.graph.edges[{n}]", pair, "must be two servers")
        i, j = (whole(f"plan.graph.edges[{n}]", end, 0, len(own) - 1) for end in pair)
        if not (i < j and last < (i, j)):
            raise InputError(f"plan.graph.edges[{n}]", pair, "edges must be in order, each once, with i < j")
        last = (i, j)
        pairs.append(last)
    weights = {"edge_weights": a, "own_weights": own}
    return {"name": name, "weights": rule, "edges": pairs} | {
        key: [_float(f"plan.graph.{key}[{n}]", x, 0.0) for n, x in enumerate(rows)] for key, rows in weights.items()
    }


def _turns(value: object, P: int) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list | tuple):
        raise InputError("plan.turns", value, "must be a list of graphs")
    found = tuple(_graph(graph) for graph in value)
    if any(len(graph["own_weights"]) != P for graph in found):
        raise InputError("plan.turns", len(found), f"all graphs must have {P} servers")
    return found


def _scheme(value: object) -> dict[str, Any]:
    given = {"sigma_pair": 0.0, "sigma_client": 0.0} | (dict(value) if isinstance(value, Mapping) else {})
    own = ("rows",) if "rows" in given else ()
    s = canonical.check_keys("plan.scheme", given if isinstance(value, Mapping) else value, (*_SCHEME, *own))
    carry = s["carry"]
    return {
        "name": _word("plan.scheme.name", s["name"]),
        "law": one_of("plan.scheme.law", s["law"], LAWS),
        "carry": None if carry is None else _float("plan.scheme.carry", carry, 0.0, 1.0),
        "noise_on": one_of("plan.scheme.noise_on", s["noise_on"], NOISE_ON),
        **{name: _nonnegative(f"plan.scheme.{name}", s[name]) for name in ("sigma", "sigma_pair", "sigma_client")},
        **{name: _line(f"plan.scheme.{name}", s[name]) for name in own},
    }


def _aggregation(name: str, value: object) -> dict[str, Any]:
    a = canonical.check_keys(name, value, _AGGREGATION)
    if a["ring_bits"] not in RINGS:
        raise InputError(f"{name}.ring_bits", a["ring_bits"], "must be 32 or 64")
    corrupted = whole(f"{name}.corrupted", a["corrupted"], 0)
    return {
        "server": one_of(f"{name}.server", a["server"], SERVERS),
        "ring_bits": whole(f"{name}.ring_bits", a["ring_bits"], 32, 64),
        "fraction_bits": whole(f"{name}.fraction_bits", a["fraction_bits"], 1, 52),
        "threshold": positive_int(f"{name}.threshold", a["threshold"]),
        "quorum": whole(f"{name}.quorum", a["quorum"], corrupted + 1),
        "corrupted": corrupted,
        "sigma": _nonnegative(f"{name}.sigma", a["sigma"]),
    }


def _facts(value: object) -> dict[str, float | str | bool]:
    if not isinstance(value, Mapping):
        raise InputError("plan.facts", value, "must be a table of declared constants")
    found: dict[str, float | str | bool] = {}
    for name, x in value.items():
        if not isinstance(name, str):
            raise InputError("plan.facts", name, "the name of a fact must be a string")
        found[name] = x if isinstance(x, bool | str) else _float(f"plan.facts.{name}", x)
    return found


def _worded(name: str, value: object, forms: tuple[str, ...]) -> str:
    """One of the words, with a number after the colon where the form has one."""
    remedy = f"write one of {', '.join(forms)}"
    if not isinstance(value, str):
        raise InputError(name, value, remedy)
    kind, colon, rest = value.partition(":")
    arguments = {form.partition(":")[0]: form.partition(":")[2] for form in forms}
    if kind not in arguments or bool(colon) != bool(arguments[kind]):
        raise InputError(name, value, remedy)
    if not colon:
        return value
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?", rest):  # "1_0", " 1", "nan" are numbers to float()
        raise InputError(name, value, f"{remedy}, {arguments[kind]} a number")
    x = number(name, float(rest), 0.0)
    wrong = {
        "N": not (rest.isdigit() and x >= 1),
        "Q": not 0.0 < x <= 1.0,
        "RHO": x == 0.0,
    }.get(arguments[kind], False)
    if wrong:
        ranges = {"N": "a whole number of at least 1", "Q": "in (0, 1]", "RHO": "positive"}
        raise InputError(name, value, f"{arguments[kind]} must be {ranges[arguments[kind]]}")
    return value


def _threat(value: object, P: int) -> str:
    """In the one spelling that `Threat` gives it."""
    try:
        threat = Threat.parse(_word("plan.threat", value))
        threat.check(P)
    except InputError as e:
        raise InputError("plan.threat", value, e.remedy) from None
    return str(threat)


def _line(name: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 10_000:
        raise InputError(name, value, "must be a line of text")
    return value


def _word(name: str, value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[a-z0-9][a-z0-9:,.+-]{0,199}", value):
        return value
    raise InputError(name, value, "must be a name in small letters and digits, such as 'links' or 'partial:0.5'")


def _range(name: str, value: object) -> int | tuple[int, int]:
    if not isinstance(value, list | tuple):
        return positive_int(name, value)
    if len(value) != 2:
        raise InputError(name, value, "must be one number, or the least and the largest over the clients")
    low, high = positive_int(name, value[0]), positive_int(name, value[1])
    if low > high:
        raise InputError(name, value, "the low end must not exceed the high end")
    return low if low == high else (low, high)


def _float(name: str, value: object, least: float = -math.inf, most: float = math.inf) -> float:
    return number(name, value, least, most) + 0.0  # -0.0 becomes 0.0: equal numbers, equal hashes


def _bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InputError(name, value, "must be true or false")
    return value


def _nonnegative(name: str, value: object) -> float:
    return _float(name, value, 0.0)


def _optional(check: Any, name: str, value: object) -> Any:
    return None if value is None else check(name, value)


def _differences(name: str, a: Any, b: Any) -> Iterator[str]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in sorted(a.keys() | b.keys()):
            inner = f"{name}.{key}" if name else key
            if key not in a or key not in b:
                yield f"{inner}: {_shown(a[key]) if key in a else '(absent)'} != " + (
                    _shown(b[key]) if key in b else "(absent)"
                )
            else:
                yield from _differences(inner, a[key], b[key])
    elif isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        wrong = [n for n, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
        if wrong:
            n, more = wrong[0], f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            if isinstance(a[n], Mapping) and isinstance(b[n], Mapping):  # such as a unit
                *inner, last = _differences(f"{name}[{n}]", a[n], b[n])
                yield from (*inner, last + more)
            else:
                yield f"{name}[{n}]: {_shown(a[n])} != {_shown(b[n])}{more}"
    elif type(a) is not type(b) or a != b:
        yield f"{name}: {_shown(a)} != {_shown(b)}"


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) <= 80:
        return text
    return f"{len(value)} entries" if isinstance(value, tuple) else text[:79] + "…"
