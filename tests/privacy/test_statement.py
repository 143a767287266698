"""The statement: every adversary by name, in words and in JSON, nothing left out because it is bad news."""

from __future__ import annotations

import json

import pytest

from confide.graph import Graph
from confide.privacy.accountant import Account, account
from confide.privacy.sensitivity import Participation, Proof, Sensitivity
from confide.privacy.statement import lines, statement
from confide.privacy.sum_noise import SumNoise
from confide.schemes import Scheme, scheme

UNIT = Sensitivity(0.5, 1.0, level="unit", norm="l1")
RING = Graph.ring(4)


def threats(s: Scheme, graph: Graph = RING, **given: object) -> list[str]:
    return [a.threat for a in statement(s, graph, UNIT, rounds=3, **given).accounts]  # type: ignore[arg-type]


def test_every_adversary_is_named() -> None:
    named = threats(scheme("shared", 1.0, noise="gaussian"))
    assert named[0] == "links"
    assert named[1].startswith("colluders:")
    assert named[2:] == ["neighbours", "own-client", "own-server"]
    with_release = statement(scheme("homomorphic", 1.0, noise="gaussian"), RING, UNIT, rounds=3, release="centroid:1")
    assert with_release.accounts[-1].adversary.endswith("and the release (centroid:1)")
    assert len(with_release.accounts) == 6
    assert threats(scheme("local-only"), Graph.path(1)) == ["links", "own-client", "own-server"]


@pytest.mark.parametrize("name", ["own-clean", "per-link", "pairwise"])
@pytest.mark.parametrize("graph", [Graph.star(5), Graph.path(4), Graph.path(2), RING], ids=lambda g: g.name)
def test_the_worst_single_colluder_is_the_worst(name: str, graph: Graph) -> None:
    """Over every colluder, also where the worst target is server 0."""
    s = scheme(name, 0.5, noise="gaussian", sigma_pair=2.0 if name == "pairwise" else 0.0)
    said = next(a for a in statement(s, graph, UNIT, rounds=4).accounts if a.threat.startswith("colluders"))
    each = [account(s, graph, UNIT, rounds=4, threat=f"colluders:{m}").epsilon or 0.0 for m in range(graph.P)]
    assert said.epsilon == pytest.approx(max(each), rel=1e-12)
    links = account(s, graph, UNIT, rounds=4).epsilon or 0.0
    assert (said.epsilon or 0.0) >= links * (1 - 1e-9)  # a colluder knows more


def test_words() -> None:
    said = str(statement(scheme("homomorphic", 1.0, noise="gaussian"), RING, UNIT, rounds=3, release="local")).split(
        "\n"
    )
    assert said[0].startswith("epsilon ")
    assert " at delta 1e-05 (unit level, replace); the best test finds " in said[0]
    assert (
        "at 1% false alarms; against an eavesdropper on all links between servers; any one colluding server" in said[0]
    )
    bad = [x for x in said if x.startswith("NOT PROTECTED from ")]
    assert len(bad) == 3
    assert "a client of the same unit" in bad[0]
    assert "the unit's own server" in bad[1]
    assert "a local model and the messages give the exact sum" in bad[2]


def test_noise_inside_the_sum_protects_from_everybody() -> None:
    """What was NOT PROTECTED has a number: own clients, the own server and a local model."""
    noise = SumNoise.sized(2.0, 6, sampled=8, fraction_bits=20, dim=2, corrupted=1)
    s = Sensitivity(0.5, 1.0, level="unit", sampled=8, dim=2)
    made = statement(scheme("homomorphic", 1.0, noise="gaussian"), RING, s, rounds=3, release="local", sum_noise=noise)
    assert not any(a.leak for a in made.accounts)
    assert not made.refused
    said = str(made).split("\n")
    assert not [x for x in said if x.startswith("NOT PROTECTED")]
    assert any("against" in x and "the unit's own server, with up to 1 corrupted client" in x for x in said)
    server = next(a for a in made.accounts if a.threat == "own-server")
    assert all((a.epsilon or 0.0) <= (server.epsilon or 0.0) for a in made.accounts)
    assert lines(json.loads(json.dumps(made.to_dict(), allow_nan=False))) == said


def test_a_leak_in_all_messages_is_said_of_everybody() -> None:
    for s in (scheme("none"), scheme("pairwise", 0.0, noise="gaussian", sigma_pair=1.0)):
        made = statement(s, RING, UNIT, rounds=3)
        assert all(a.leak for a in made.accounts)
        assert all(x.startswith("NOT PROTECTED") for x in str(made).split("\n"))


def test_what_cannot_be_answered_is_refused_with_the_reason() -> None:
    s = Sensitivity(0.5, 1.0, sampled=2, participation=Participation("random", 0.1))
    made = statement(scheme("shared", 1.0, noise="gaussian"), RING, s, rounds=3)
    assert [t for t, _ in made.refused] == ["own-client"]
    assert "learns who takes part" in str(made).split("\n")[-1]
    assert "no statement against own-client" in str(made)
    nothing = statement(scheme("homomorphic", 1.0, noise="gaussian"), RING, s, rounds=3)
    assert all(a.leak for a in nothing.accounts)
    assert len(nothing.refused) == 4  # links, two colluders, neighbours: no proof was given
    assert "needs a proof" in nothing.refused[0][1]


@pytest.mark.parametrize("name", ["none", "homomorphic", "shared", "own-clean", "per-link", "central", "local-only"])
@pytest.mark.parametrize("release", ["none", "centroid:0", "centroid:0.5", "local"])
@pytest.mark.parametrize("noise", ["gaussian", "discrete-laplace"])
def test_json_has_no_infinity_and_says_leak(name: str, release: str, noise: str) -> None:
    quiet = name in ("none", "local-only")
    s = scheme(name, 0.0 if quiet else 1.0, noise=noise.removeprefix("discrete-"))
    made = statement(s, [RING, Graph.star(4)], UNIT, rounds=3, release=release, noise=noise)
    plain = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert plain["rounds"] == 3
    assert plain["noise"] == noise
    for a in plain["accounts"]:
        assert a["leak"] == (a["epsilon"] is None)
        assert 0.0 <= a["success_at_1_percent"] <= 1.0
        assert not a["leak"] or a["assumptions"][0].startswith("leak: ")
    assert lines(plain) == str(made).split("\n")  # a run read back from disk says the same


def test_numbers_are_those_of_account() -> None:
    s = Sensitivity(0.2, 1.0, sampled=4, proof=Proof("convex-glm", 0.1))
    made = statement(scheme("homomorphic", 1.0, noise="gaussian"), RING, s, rounds=7, delta=1e-3)
    one = account(scheme("homomorphic", 1.0, noise="gaussian"), RING, s, rounds=7, delta=1e-3)
    assert made.accounts[0] == one
    assert any("convex-glm" in x for x in one.assumptions)


def test_pairwise_asks_once_for_every_colluder(monkeypatch: pytest.MonkeyPatch) -> None:
    """One account for each of P servers, and four for the other adversaries."""
    asked = []

    def counted(*given: object, **settings: object) -> Account:
        asked.append(settings["threat"])
        return account(*given, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr("confide.privacy.statement.account", counted)
    made = statement(scheme("pairwise", 1.0, noise="gaussian", sigma_pair=10.0), Graph.ring(100), UNIT, rounds=10)
    assert len(made.accounts) == 5
    assert len(asked) == len(set(asked)) == 100 + 4
