"""The words of a privacy setting: one spelling, one parser, one type each.

    Proof          none, regulariser:RHO, convex-glm:NU, public-point       what is known of the training
    Participation  all, cap:N, random:Q, amplified:Q                        how often a client takes part
    Threat         links, colluders:1,2, neighbours, own-client, own-server who looks
    Release        none, centroid:SIGMA, local, consensus:T                 what is revealed at the end

`parse` and `str` are inverse. The unions are closed: a `match` over one ends in `assert_never`, so that mypy names
every place that a new word has not been taught. So it does where a word lacks what the others say of themselves
(`own_server`, `by_chance`, `shows_models`). No other module compares a word with a string.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Final, TypeVar, assert_never, get_args

from confide.base.errors import InputError
from confide.base.validation import number, one_of

NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")  # "1_0", " 1" and "nan" are numbers to float()


class Level(StrEnum):
    """Whose data may change."""

    UNIT = "unit"
    CLIENT = "client"
    EXAMPLE = "example"


MEANINGS: Final = {
    Level.UNIT.value: "all data of one server's organisation",
    Level.CLIENT.value: "all data of one client",
    Level.EXAMPLE.value: "one row of one client",
}


class Adjacency(StrEnum):
    """How they may change: to any other data, or to no contribution."""

    REPLACE = "replace"
    ZERO_OUT = "zero-out"


@dataclass(frozen=True)
class Word:
    """A name, and at most one value after a colon."""

    name: ClassVar[str]
    value: ClassVar[str] = ""  # what the value is called in a remedy

    def __str__(self) -> str:
        return ":".join([self.name, *(_spelled(getattr(self, f.name)) for f in fields(self))])


@dataclass(frozen=True)
class ClippingAlone(Word):
    """Updates are clipped, and nothing else is known."""

    name = "none"


@dataclass(frozen=True)
class Regulariser(Word):
    """rho |w|^2 outside of the clip."""

    name, value = "regulariser", "RHO"
    ridge: float

    def __post_init__(self) -> None:
        if number("proof", self.ridge) <= 0.0:
            raise InputError("proof", str(self), "RHO must be positive")


@dataclass(frozen=True)
class ConvexGlm(Word):
    """Per-example clipped linear or logistic losses, each NU-strongly convex."""

    name, value = "convex-glm", "NU"
    convexity: float

    def __post_init__(self) -> None:
        number("proof", self.convexity, least=0.0)


@dataclass(frozen=True)
class PublicPoint(Word):
    """Gradients are evaluated at a function of the messages."""

    name = "public-point"


@dataclass(frozen=True)
class Always(Word):
    name, by_chance = "all", False


@dataclass(frozen=True)
class Cap(Word):
    """A client gives data in at most so many rounds."""

    name, value, by_chance = "cap", "N", False
    times: int

    def __post_init__(self) -> None:
        if isinstance(self.times, bool) or not isinstance(self.times, int) or self.times < 1:
            raise InputError("participation", str(self), "N must be a whole number of at least 1")


@dataclass(frozen=True)
class _Rate(Word):
    value = "Q"
    rate: float

    def __post_init__(self) -> None:
        if not 0.0 < number("participation", self.rate) <= 1.0:
            raise InputError("participation", str(self), "the rate must lie in (0, 1]")


@dataclass(frozen=True)
class Random(_Rate):
    """Drawn with this rate in every round; who was drawn may become known."""

    name, by_chance = "random", True


@dataclass(frozen=True)
class Amplified(_Rate):
    """The same, and who was drawn stays secret."""

    name, by_chance = "amplified", True


@dataclass(frozen=True)
class Links(Word):
    """Every message between servers, in all rounds; the graph, the weights, the step, the code."""

    name, own_client, own_server = "links", False, False
    adversary = "an eavesdropper on all links between servers"


@dataclass(frozen=True)
class Colluders(Word):
    """The same, and the data, states and noises of some servers."""

    name, value, own_client, own_server = "colluders", "1,2", False, False
    servers: frozenset[int]

    def __post_init__(self) -> None:
        if not self.servers:
            raise InputError("threat", self.name, "write colluders:1,2 with the servers' numbers")
        for server in self.servers:
            if isinstance(server, bool) or not isinstance(server, int) or server < 0:
                raise InputError("threat", str(self), f"server {server} does not exist; they are numbered from 0")

    @property
    def adversary(self) -> str:
        return f"colluding servers {sorted(self.servers)}, who also see all links"


@dataclass(frozen=True)
class Neighbours(Word):
    """The same, with all neighbours of the target colluding."""

    name, own_client, own_server = "neighbours", False, False
    adversary = "all neighbours of the server, colluding"


@dataclass(frozen=True)
class OwnClient(Word):
    """The links, and w_p in every round in which it is handed out to a client of the target's unit."""

    name, own_client, own_server = "own-client", True, False
    adversary = "a client of the same unit, who is handed its model"


@dataclass(frozen=True)
class OwnServer(Word):
    """The target's own server: it sees every update, or with secure aggregation their sum."""

    name, own_client, own_server = "own-server", False, True
    adversary = "the unit's own server"


@dataclass(frozen=True)
class Nothing(Word):
    name, shows_models = "none", False


@dataclass(frozen=True)
class Centroid(Word):
    """The mean of the servers' models, with noise of this standard deviation on every coordinate."""

    name, value, shows_models = "centroid", "SIGMA", False
    sigma: float

    def __post_init__(self) -> None:
        number("release", self.sigma, least=0.0)


@dataclass(frozen=True)
class Local(Word):
    """Every server's own model."""

    name, shows_models = "local", True


@dataclass(frozen=True)
class Consensus(Word):
    """The same after so many combinations without noise, in which every server's model goes over the links in clear."""

    name, value, shows_models = "consensus", "T", True
    combinations: int

    def __post_init__(self) -> None:
        if isinstance(self.combinations, bool) or not isinstance(self.combinations, int) or self.combinations < 1:
            raise InputError("release", str(self), "T must be a whole number of at least 1; none at all is local")


Proof = ClippingAlone | Regulariser | ConvexGlm | PublicPoint
Participation = Always | Cap | Random | Amplified
Threat = Links | Colluders | Neighbours | OwnClient | OwnServer
Release = Nothing | Centroid | Local | Consensus
E = TypeVar("E", bound=StrEnum)


def proof(text: str | Proof) -> Proof:
    found: Proof = parse(Proof, text, "proof")
    return found


def participation(text: str | Participation) -> Participation:
    found: Participation = parse(Participation, text, "participation")
    return found


def threat(text: str | Threat) -> Threat:
    found: Threat = parse(Threat, text, "threat")
    return found


def release(text: str | Release) -> Release:
    found: Release = parse(Release, text, "release")
    return found


def cap(participation: Participation) -> int | None:
    """Rounds in which a client gives data, at most; None for as many as there are."""
    match participation:
        case Cap():
            return participation.times
        case Always() | Random() | Amplified():
            return None
        case _:
            assert_never(participation)


def colluders(threat: Threat, around: Iterable[int] = ()) -> frozenset[int]:
    """The servers that look, where a target has these `around` it."""
    match threat:
        case Colluders():
            return threat.servers
        case Neighbours():
            return frozenset(around)
        case Links() | OwnClient() | OwnServer():
            return frozenset()
        case _:
            assert_never(threat)


def check_servers(threat: Threat, P: int) -> None:
    """Refuse servers that a network of P does not have, and a network without anybody left to protect."""
    for server in sorted(colluders(threat)):
        if server >= P:
            raise InputError("threat", str(threat), f"server {server} does not exist; they are 0 to {P - 1}")
    if len(colluders(threat)) == P:
        raise InputError("threat", str(threat), "all servers collude: nobody is left to protect")


def chosen(kind: type[E], text: str, field: str) -> E:
    """A word of a closed list without values.

    >>> chosen(Level, "client", "level") is Level.CLIENT
    True
    """
    return kind(one_of(field, str(text), MEANINGS if kind is Level else tuple(map(str, kind))))


def parse(union: Any, text: object, field: str) -> Any:
    """The word of this union that the text spells, or that it is already.

    >>> parse(Proof, "convex-glm:0.1", "proof")
    ConvexGlm(convexity=0.1)
    >>> str(parse(Threat, "colluders:2,1", "threat"))
    'colluders:1,2'
    """
    if isinstance(text, get_args(union)):
        return text
    kinds: dict[str, Any] = {kind.name: kind for kind in get_args(union)}
    name, colon, rest = str(text).partition(":")
    kind = kinds[one_of(field, name, tuple(kinds))]
    if not fields(kind):
        if colon:
            raise InputError(field, text, f"{name} takes nothing after it; write {name}")
        return kind()
    return kind(_value(kind, rest, field, str(text)))


def _value(kind: type[Word], rest: str, field: str, text: str) -> Any:
    wanted = fields(kind)[0].type
    remedy = f"write {kind.name}:{kind.value} with a number, e.g. {kind.name}:{'5' if wanted == 'int' else '0.1'}"
    if wanted == "frozenset[int]":
        if not all(re.fullmatch("-?[0-9]+", x) for x in rest.split(",")):
            raise InputError(field, text, f"write {kind.name}:{kind.value} with the servers' numbers")
        return frozenset(map(int, rest.split(",")))
    if not NUMBER.fullmatch(rest):
        raise InputError(field, text, remedy)
    if wanted == "float":
        return float(rest)
    if not float(rest).is_integer():
        raise InputError(field, text, f"{kind.value} must be a whole number of at least 1")
    return int(float(rest))


def _spelled(value: float | int | frozenset[int]) -> str:
    """As short as it can be read back from, to the last bit."""
    if isinstance(value, frozenset):
        return ",".join(map(str, sorted(value)))
    return repr(value + 0).removesuffix(".0")  # -0.0 becomes 0.0
