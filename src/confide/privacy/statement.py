"""The privacy statement: one object, printed everywhere, that names who is protected from whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from confide.errors import InputError
from confide.graph import Graph
from confide.privacy.accountant import Account, account
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.sum_noise import SumNoise
from confide.privacy.threat import Release, Threat
from confide.schemes import Scheme


@dataclass(frozen=True)
class Statement:
    """Accounts for every adversary that a careful reader asks for; what cannot be answered is in `refused`."""

    rounds: int
    noise: str
    accounts: tuple[Account, ...]
    refused: tuple[tuple[str, str], ...] = ()  # (threat, reason)
    unprotected: tuple[str, ...] = ()  # what the makers of the plan know to have no price; said first

    def to_dict(self) -> dict[str, Any]:
        return {
            "rounds": self.rounds,
            "noise": self.noise,
            "accounts": [a.to_dict() for a in self.accounts],
            "refused": [{"threat": t, "reason": r} for t, r in self.refused],
            "unprotected": list(self.unprotected),
        }

    def __str__(self) -> str:
        return "\n".join(lines(self.to_dict()))


def statement(
    scheme: Scheme,
    graph: Graph | Sequence[Graph],
    sensitivity: Sensitivity,
    *,
    rounds: int,
    noise: str | None = None,
    threat: Threat | str = "links",
    release: Release | str = "none",
    delta: float = 1e-5,
    sum_noise: SumNoise | None = None,
    secure: bool = True,
) -> Statement:
    """Links, the worst single colluder, all neighbours, own clients, own server, and the receiver of a release.

    Servers and clients receive a release too; only who listens on links may do without it. `threat` is the adversary
    that the plan names: the shares of a release are sized for it.
    """
    graphs = [graph] if isinstance(graph, Graph) else list(graph)
    if isinstance(release, str):
        named = Threat.parse(threat) if isinstance(threat, str) else threat
        release = Release.parse(release).for_threat(named, graphs)
    P = graphs[0].P
    asked: list[tuple[Threat, Release]] = [(Threat(), Release())]
    if P > 1:
        # Only noise that two servers share is weakened by a colluder; elsewhere two stand for all: the worst target
        # is not one of them.
        singles = range(P) if scheme.sigma_pair else range(2)
        asked += [(Threat("colluders", frozenset({m})), release) for m in singles]
        asked.append((Threat("neighbours"), release))
    asked += [(Threat("own-client"), release), (Threat("own-server"), release)]
    if release.kind != "none":
        asked.append((Threat(), release))
    found: list[Account] = []
    refused: list[tuple[str, str]] = []
    for who, released in asked:
        try:
            one = account(
                scheme, graphs, sensitivity, rounds=rounds, noise=noise, threat=who, release=released, delta=delta,
                sum_noise=sum_noise, secure=secure,
            )  # fmt: skip
        except InputError as e:
            refused.append((str(who), str(e)))
            continue
        if who.kind == "colluders":
            one = replace(one, adversary=one.adversary.replace(who.words, "any one colluding server"))
        if who.kind == "colluders" and found and found[-1].threat.startswith("colluders"):
            if _worse(one, found[-1]):
                found[-1] = one
        else:
            found.append(one)
    return Statement(rounds, noise or scheme.law, tuple(found), tuple(refused))


def lines(plain: dict[str, Any]) -> list[str]:
    """A statement in words, from its plain data (a run read back from disk has only that).

    Adversaries with the same number share a line; what is not protected has a line of its own.
    """
    protected: dict[str, list[str]] = {}
    said = []
    for a in plain["accounts"]:
        if a["leak"]:
            reason = next((x for x in a["assumptions"] if x.startswith("leak: ")), "leak")
            said.append(f"NOT PROTECTED from {a['adversary']}: {reason.removeprefix('leak: ')}")
            continue
        number = (
            f"epsilon {a['epsilon']:.4g} at delta {a['delta']:g} ({a['level']} level, {a['adjacency']}); the best test "
            f"finds {100 * a['success_at_1_percent']:.3g}% of those who took part, at 1% false alarms; against "
        )
        protected.setdefault(number, []).append(a["adversary"])
    said = [number + "; ".join(who) for number, who in protected.items()] + said
    said = [f"NOT PROTECTED: {why}" for why in plain.get("unprotected", ())] + said
    return said + [f"no statement against {r['threat']}: {r['reason']}" for r in plain["refused"]]


def _worse(a: Account, b: Account) -> bool:
    if a.leak != b.leak:
        return a.leak
    return (a.epsilon or 0.0) > (b.epsilon or 0.0)
