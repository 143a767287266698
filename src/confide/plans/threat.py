"""Who is looking: an adversary is named before a number is given.

links        every message between servers, in all rounds; the graph, the weights, the step, the code.
colluders    the same, and the data, states and noises of some servers.
neighbours   the same, with all neighbours of the target colluding.
own-client   the same, and w_p in every round in which it is handed out to a client of the target's unit.
own-server   the target's own server. With plain aggregation it sees every client's update; with secure aggregation
             their sum: in clear, unless the clients put noise inside it (`sum_noise`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from confide.base.errors import InputError
from confide.base.validation import number, one_of, whole

if TYPE_CHECKING:
    from confide.graph.graph import Graph

KINDS = ("links", "colluders", "neighbours", "own-client", "own-server")
RELEASES = ("none", "centroid", "local")


@dataclass(frozen=True)
class Threat:
    kind: str = "links"
    colluders: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        one_of("threat", self.kind, KINDS)
        if bool(self.colluders) != (self.kind == "colluders"):
            raise InputError("threat", self.kind, "only the threat 'colluders' takes servers, e.g. colluders:1,2")
        for server in self.colluders:
            whole("threat", server, 0)

    @classmethod
    def parse(cls, text: str) -> Threat:
        """`links`, `colluders:1,2`, `neighbours`, `own-client` or `own-server`."""
        kind, colon, rest = str(text).partition(":")
        one_of("threat", kind, KINDS)
        if kind != "colluders":
            if colon:
                raise InputError("threat", text, f"{kind} takes no servers")
            return cls(kind)
        try:
            servers = [int(x) for x in rest.split(",")]
        except ValueError:
            raise InputError("threat", text, "write colluders:1,2 with the servers' numbers") from None
        if min(servers) < 0:
            raise InputError("threat", text, f"server {min(servers)} does not exist; they are numbered from 0")
        return cls(kind, frozenset(servers))

    def __str__(self) -> str:
        return f"colluders:{','.join(map(str, sorted(self.colluders)))}" if self.kind == "colluders" else self.kind

    def check(self, P: int) -> None:
        for server in sorted(self.colluders):
            if not 0 <= server < P:
                raise InputError("threat", str(self), f"server {server} does not exist; they are 0 to {P - 1}")
        if len(self.colluders) == P:
            raise InputError("threat", str(self), "all servers collude: nobody is left to protect")

    def against(self, graph: Graph, target: int) -> frozenset[int]:
        """The servers that collude against this target."""
        if self.kind == "neighbours":
            return frozenset(int(m) for m in graph.neighbours(target))
        return self.colluders

    def shares(self, graphs: Sequence[Graph], target: int) -> int:
        """How many servers' shares of a release's noise this adversary knows."""
        if self.kind == "neighbours":
            return _neighbours(graphs, target)
        return 1 if self.kind == "own-server" else len(self.colluders)

    @property
    def words(self) -> str:
        return {
            "links": "an eavesdropper on all links between servers",
            "colluders": f"colluding servers {sorted(self.colluders)}, who also see all links",
            "neighbours": "all neighbours of the server, colluding",
            "own-client": "a client of the same unit, who is handed its model",
            "own-server": "the unit's own server",
        }[self.kind]


def _neighbours(graphs: Sequence[Graph], target: int) -> int:
    """All that a server has in graphs that take turns."""
    return len({int(m) for g in graphs for m in g.neighbours(target)})


@dataclass(frozen=True)
class Release:
    """What is revealed at the end: `none`, `centroid:SIGMA` (honest noise on the mean) or `local`.

    Every server adds a Gaussian share of the noise, and knows it. Shares are so wide that those of all but `colluders`
    servers put sigma on the mean; `colluders` is the larger of one server and those of the plan's own threat.

    `count` is how many times it may be made: each draws fresh noise about the same state, and their costs add up. A
    local model is the same at every time.
    """

    kind: str = "none"
    sigma: float = 0.0
    colluders: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        one_of("release", self.kind, RELEASES)
        whole("releases", self.count, 1)
        number("release", self.sigma, least=0.0)
        whole("release.colluders", self.colluders, 1)

    @classmethod
    def planned(cls, text: str, threat: str, graphs: Sequence[Graph], count: int) -> Release:
        """As a plan has it: shares sized for its adversary, made so many times."""
        return replace(cls.parse(text).for_threat(Threat.parse(threat), graphs), count=count)

    def for_threat(self, threat: Threat, graphs: Sequence[Graph]) -> Release:
        """The same release with its shares sized for this adversary."""
        most = len(threat.colluders)
        if threat.kind == "neighbours":
            most = max(_neighbours(graphs, p) for p in range(graphs[0].P))
        return replace(self, colluders=max(1, most))

    def hidden(self, P: int, known: int) -> float:
        """Standard deviation on the mean of the shares that an adversary with `known` of them does not know."""
        return self.sigma * math.sqrt((P - known) / (P - min(self.colluders, P - 1)))

    @property
    def words(self) -> str:
        return f"the release ({self})" if self.count == 1 else f"{self.count} releases ({self} each)"

    def share(self, P: int) -> float:
        """Standard deviation of one server's share on the sum."""
        return P * self.sigma / math.sqrt(P - min(self.colluders, P - 1))

    @classmethod
    def parse(cls, text: str) -> Release:
        kind, _, value = str(text).partition(":")
        one_of("release", kind, RELEASES)
        if kind != "centroid":
            if value:
                raise InputError("release", text, f"{kind} takes no number")
            return cls(kind)
        try:
            sigma = float(value)
        except ValueError:
            raise InputError("release", text, "write centroid:SIGMA, the noise's deviation on the mean") from None
        return cls(kind, sigma)

    def __str__(self) -> str:
        return f"centroid:{self.sigma:g}" if self.kind == "centroid" else self.kind
