"""The statement: every adversary by name, in words and in JSON, nothing left out because it is bad news."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from itertools import takewhile

import pytest
from scipy.stats import norm

from confide.graph.graph import Graph
from confide.laws.conversion import gaussian_epsilon, zcdp_epsilon
from confide.plans import words
from confide.plans.words import Always, Amplified, ConvexGlm, Random
from confide.privacy.accountant import account
from confide.privacy.course import Account
from confide.privacy.sensitivity import Sensitivity
from confide.privacy.statement import lines, rounded_up, statement, strength
from confide.privacy.sum_noise import SumNoise
from confide.rounds.schemes import Scheme, scheme
from exploring import more

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
    assert threats(scheme("local-only"), Graph.path(1)) == ["own-client", "own-server"]


@pytest.mark.parametrize("name", ["homomorphic", "own-clean", "shared"])
def test_one_unit_is_told_why_its_model_leaks(name: str) -> None:
    """a_pp = 1: what is weighed with 1 - a_pp is not there."""
    said = statement(scheme(name, 1.0, noise="gaussian"), Graph.path(1), UNIT, rounds=3)
    own_client = next(a for a in said.accounts if a.threat == "own-client")
    assert own_client.leak
    assert ("one unit alone has a_pp = 1" in own_client.assumptions[0]) == (name != "shared")
    assert [threat for threat, why in said.refused if "there are no links" in why] == ["links"]
    noisy = scheme(name, 1.0, noise="gaussian", sigma_client=4.0)
    client = account(noisy, Graph.path(1), replace(UNIT, sampled=5), rounds=3, threat="own-client", secure=False)
    assert (client.leak, client.by) == (False, "clients")


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


def rows(said: str) -> list[list[str]]:
    """Of the table, a list of cells each; a row without a number has two, who and what is said of all of them."""
    lines_of = said.split("\n")
    rule = next(n for n, line in enumerate(lines_of) if line.startswith("---"))
    ends = [m.span() for m in re.finditer("-+", lines_of[rule])]
    found: list[list[str]] = []
    for line in takewhile(str.strip, lines_of[rule + 1 :]):
        cells = [line[slice(*span)].strip() for span in ends]
        first = not line.startswith(" ")
        if (spans := re.search("NOT PROTECTED|NO NUMBER", line)) or (not first and len(found[-1]) == 2):
            cells = [cells[0], line[ends[1][0] :].strip()]
        elif first and found and len(found[-1]) == 2 and not cells[1].replace(".", "").isdigit():
            cells, first = [cells[0], line[ends[1][0] :].strip()], False  # another who shares the reason
        if first or spans:
            found.append(cells)
        else:
            found[-1] = [f"{x} {y}".strip() for x, y in zip(found[-1], cells, strict=True)]
    return found


def test_words() -> None:
    noisy = scheme("homomorphic", 1.0, noise="gaussian")
    made = statement(noisy, RING, UNIT, rounds=3)
    said = str(made).split("\n")
    assert said[0] == "Level unit, adjacency replace: all data of one unit is replaced by any other."
    assert said[1] == "delta 1e-05, 3 rounds."
    assert said[2] == "Detected: at most so often, by an attacker who accepts 1% false alarms."
    assert said[4].split() == ["against", "epsilon", "protection", "detected", "what", "protects"]
    client, server, *others = rows(str(made))
    assert client[0] == "a client of the same unit, who is handed its model"
    assert client[1].startswith("NOT PROTECTED: the unit's model and the messages give the exact sum")
    assert server[0] == "the unit's own server"
    assert server[1].startswith("NOT PROTECTED: ")
    for row, a in zip(others, made.accounts, strict=False):
        assert row == [a.adversary, "22.3", "practically none", "92.2%", "noise in messages"]
    listed = [line for line in said if line.startswith("  [")]
    assert listed
    assert [line.split()[0] for line in listed] == [f"[{n}]" for n in range(1, len(listed) + 1)]


@pytest.mark.parametrize(
    ("epsilon", "shown", "word"),
    [
        (0.0, "0", "strong"),
        (0.30001, "0.3001", "strong"),  # never less than it is
        (1.0, "1", "strong"),
        (1.0 + 1e-12, "1", "strong"),  # as far as a search goes
        (1.0001, "1.001", "moderate"),
        (4.0, "4", "moderate"),
        (4.0002, "4.001", "weak"),
        (10.0, "10", "weak"),
        (10.001, "10.01", "practically none"),
        (396.0, "396", "practically none"),
        (123456.0, "1.235e+05", "practically none"),
    ],
)
def test_an_epsilon_as_it_is_shown_and_its_word(epsilon: float, shown: str, word: str) -> None:
    assert (rounded_up(epsilon), strength(epsilon)) == (shown, word)


@pytest.mark.parametrize("release", ["none", "centroid:0.5", "local", "consensus:2"])
@pytest.mark.parametrize("name", ["none", "homomorphic", "shared", "pairwise", "per-link", "local-only"])
@pytest.mark.parametrize("participation", more(["all", "random:0.1"], ["all", "random:0.1", "amplified:0.1"]))
def test_tables_fit_80_columns_and_sentences_100(name: str, release: str, participation: str) -> None:
    quiet = name in ("none", "local-only")
    s = Sensitivity(0.5, 1.0, sampled=2, clients=20, participation=words.participation(participation))
    noisy = scheme(name, 0.0 if quiet else 1e-3, noise="gaussian", sigma_pair=2.0 if name == "pairwise" else 0.0)
    made = statement(noisy, Graph.ring(5), s, rounds=2, release=release, threat="colluders:1,2,3")
    plain = made.to_dict() | {"unprotected": ["a reason " * 20]}
    said = lines(plain)
    assert said[0].startswith("NOT PROTECTED: a reason")
    assert max(map(len, said)) <= 100
    begin = next(n for n, line in enumerate(said) if line.startswith("against"))
    assert begin <= 8
    end = next((n for n, line in enumerate(said) if n > begin and not line), len(said))
    assert max(map(len, said[begin:end])) <= 80
    everybody = [a["adversary"] for a in plain["accounts"]]
    body = " ".join(" ".join(line.split()) for line in said[begin:end])
    for who in everybody:
        assert who.split(",")[0].split()[-1] in body
    order = [body.find(word) for word in ("NOT PROTECTED", "noise in messages", "NO NUMBER")]
    assert [x for x in order if x >= 0] == sorted(x for x in order if x >= 0)


def test_a_consensus_shows_every_model_to_who_listens() -> None:
    """A leak wherever a state keeps a clean share; of states that are functions of the messages it tells nothing."""
    for name in ("homomorphic", "own-clean", "partial:0.1", "per-link-clean", "local-only"):
        made = scheme(name, 0.0 if name == "local-only" else 9.0, noise="gaussian")
        found = statement(made, RING, UNIT, rounds=3, release="consensus:2")
        assert all(a.leak for a in found.accounts), name
        assert found.accounts[0].adversary.endswith("on all links between servers, and the release (consensus:2)")
        assert not found.refused
    shared = scheme("shared", 9.0, noise="gaussian")
    told, alone = (statement(shared, RING, UNIT, rounds=3, release=r) for r in ("consensus:2", "none"))
    assert [a.epsilon for a in told.accounts] == [a.epsilon for a in alone.accounts]
    hidden = statement(scheme("per-link", 9.0, noise="gaussian"), RING, UNIT, rounds=3, release="consensus:2")
    assert [a.threat for a in hidden.accounts] == ["own-server"]


def test_an_epsilon_of_0_does_not_say_that_nothing_is_seen() -> None:
    """So much noise that delta alone covers what is learnt; local servers send nothing at all."""
    loud, silent = scheme("shared", 1e6, noise="gaussian"), scheme("local-only")
    shown = ["\n".join(lines(statement(s, RING, UNIT, rounds=3).to_dict())) for s in (loud, silent)]
    assert account(loud, RING, UNIT, rounds=3).epsilon == account(silent, RING, UNIT, rounds=3).epsilon == 0.0
    assert ["nothing of it is" in text for text in shown] == [False, True]
    assert "noise in messages" in shown[0]


def test_rows_name_the_assumptions_that_not_all_share() -> None:
    noisy = scheme("homomorphic", 30.0, noise="gaussian")
    made = statement(noisy, RING, UNIT, rounds=3, release="centroid:0.5")
    said = str(made)
    first, _, rest = said.partition("\nand, where its row says so, on\n")
    assert "l1 clipping bounds the l2 norm too" in first
    common = int(first.rstrip().split("\n")[-1].split("]")[0].strip(" ["))
    for who, shares in (("any one", "3 of 4"), ("an eavesdropper on all links between servers, and", "4 of 4")):
        line = next(x for x in rest.replace("\n      ", " ").split("\n") if f"{shares} shares" in x)
        number = line.split()[0]
        row = next(r for r in rows(said) if r[0].startswith(who) and len(r) > 2)
        assert row[-1] in (
            f"noise in messages and release {number}",
            f"noise in messages and release {number[:-1]},{common + 3}]",
        )
    for one in made.accounts:
        for note in one.assumptions if not one.leak else ():
            once = " ".join(said.split()).count(" ".join(note.split()))
            assert once == (0 if note.startswith("adjacency: ") else 1), note


def test_the_law_and_the_conversion_are_said_where_an_account_has_them() -> None:
    plain = statement(scheme("shared", 1.0, noise="gaussian"), RING, UNIT, rounds=3).to_dict()
    plain["accounts"] = [a | {"law": "gaussian", "conversion": "exact"} for a in plain["accounts"]]
    assert {"law: gaussian", "conversion: exact"} <= {x.split("] ")[-1] for x in lines(plain)}


def test_where_all_is_refused_it_is_still_said_whose_data_it_is_about() -> None:
    made = statement(scheme("shared", 1.0, noise="gaussian"), RING, UNIT, rounds=3)
    said = lines(replace(made, accounts=(), refused=(("links", "no proof"),)).to_dict())
    assert said[:2] == ["Level unit, adjacency replace.", "delta 1e-05, 3 rounds."]


def test_words_about_a_release_that_everybody_receives() -> None:
    """A local model gives the clean updates away: to servers and clients as well, not only to its receiver."""
    made = statement(scheme("homomorphic", 1.0, noise="gaussian"), RING, UNIT, rounds=3, release="local")
    assert [a.leak for a in made.accounts] == [False, True, True, True, True, True]
    said = str(made)
    assert said.count("NOT PROTECTED") == 3  # who has the same reason shares its row
    assert said.count("release local") == 1
    assert " ".join(said.split()).count("(local)") == 0
    assert rows(said)[-1][0] == "an eavesdropper on all links between servers"
    assert rows(said)[-1][-1] == "noise in messages"


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("threat", ["links", "neighbours", "colluders:0,2"])
@pytest.mark.parametrize("graph", [Graph.path(4), Graph.star(4), RING], ids=lambda g: g.name)
def test_servers_receive_the_release_and_know_their_shares(graph: Graph, threat: str, law: str) -> None:
    """The worst server's: its neighbours know as many shares as it has neighbours, whoever comes first in the graph."""
    noisy, T, P, sigma = scheme("homomorphic", 30.0, noise=law), 5, 4, 0.5
    made = statement(noisy, graph, UNIT, rounds=T, threat=threat, release=f"centroid:{sigma}")
    said = {a.threat.partition(":")[0] + "+" * ("release" in a.adversary): a for a in made.accounts}
    assert set(said) == {"links", "colluders+", "neighbours+", "own-client+", "own-server+", "links+"}
    degree = int(graph.degrees.max())
    sized = {"links": 1, "neighbours": degree, "colluders:0,2": 2}[threat]
    share = P**2 * sigma**2 / (P - sized)  # variance on the sum
    deltas = [2 * 0.5 * j for j in range(1, T + 1)]  # all is kept
    pure = [d * math.sqrt(2) / 30 for d in deltas]
    messages = sum((d / 30) ** 2 / 2 for d in deltas) if law == "gaussian" else sum(min(e, e * e / 2) for e in pure)
    assert said["links"].rho == pytest.approx(messages)
    for who, known in (("colluders+", 1), ("neighbours+", degree), ("links+", 0)):
        rho = messages + deltas[-1] ** 2 / ((P - known) * share) / 2
        assert said[who].rho == pytest.approx(rho)
        expected = gaussian_epsilon(math.sqrt(2 * rho), 1e-5)
        if law == "laplace":  # all in rho, or the messages at delta 0 and the release at delta
            expected = min(zcdp_epsilon(rho, 1e-5), sum(pure) + zcdp_epsilon(rho - messages, 1e-5))
        assert said[who].epsilon == pytest.approx(expected)
        assert said[who].epsilon_pure is None
        assert f"{P - known} of {P} shares are not known to this adversary" in " ".join(said[who].assumptions)
    assert said["own-client+"].leak  # carry > 0
    assert said["own-server+"].leak


def test_neighbours_in_any_of_the_graphs_that_take_turns_know_their_shares() -> None:
    """Two neighbours in each graph, three in all."""
    turns = [RING, Graph.from_edges(4, [(0, 2), (0, 1), (1, 3), (2, 3)])]
    assert [int(g.degrees[0]) for g in turns] == [2, 2]
    noisy = scheme("homomorphic", 30.0, noise="gaussian")
    made = statement(noisy, turns, UNIT, rounds=5, release="centroid:0.5")
    rho = sum((j / 30) ** 2 / 2 for j in range(1, 6)) + 5**2 / (16 * 0.5**2 / 3) / 2
    assert next(a for a in made.accounts if a.threat == "neighbours").rho == pytest.approx(rho)


def test_noise_inside_the_sum_protects_from_everybody() -> None:
    """What was NOT PROTECTED has a number: own clients, the own server and a local model."""
    noise = SumNoise.sized(2.0, 6, sampled=8, fraction_bits=20, dim=2, corrupted=1)
    s = Sensitivity(0.5, 1.0, level="unit", sampled=8, dim=2)
    made = statement(scheme("homomorphic", 1.0, noise="gaussian"), RING, s, rounds=3, release="local", sum_noise=noise)
    assert not any(a.leak for a in made.accounts)
    assert not made.refused
    said = str(made).split("\n")
    assert "NOT PROTECTED" not in str(made)
    assert len(rows(str(made))) == len(made.accounts)
    assert all(row[-1].startswith("noise inside the secure sum") for row in rows(str(made)))
    assert "the unit's own server, with up to 1 corrupted client, and the release" in [r[0] for r in rows(str(made))]
    server = next(a for a in made.accounts if a.threat == "own-server")
    assert all((a.epsilon or 0.0) <= (server.epsilon or 0.0) for a in made.accounts)
    assert lines(json.loads(json.dumps(made.to_dict(), allow_nan=False))) == said


def test_a_leak_in_all_messages_is_said_of_everybody() -> None:
    for s in (scheme("none"), scheme("pairwise", 0.0, noise="gaussian", sigma_pair=1.0)):
        made = statement(s, RING, UNIT, rounds=3)
        assert all(a.leak for a in made.accounts)
        assert "NO NUMBER" not in str(made)
        assert "rests on" not in str(made)


def test_random_participation_is_answered_against_own_clients_too() -> None:
    """Against who learns afterwards who took part: the exact mixture over the rounds in which it did."""
    q, T, mu = 0.1, 3, 2 * 0.5 / 2
    s = Sensitivity(0.5, 1.0, sampled=2, clients=20, participation=Random(q))
    made = statement(scheme("shared", 1.0, noise="gaussian"), RING, s, rounds=T)
    assert not made.refused
    said = {a.threat.partition(":")[0]: a for a in made.accounts}
    assert said["own-server"].leak

    def delta(epsilon: float) -> float:
        """Of T rounds, each of which the client joined with probability q, known to the adversary."""
        found = 0.0
        for n in range(1, T + 1):
            m = math.sqrt(n) * mu
            one = norm.cdf(m / 2 - epsilon / m) - math.exp(epsilon) * norm.cdf(-m / 2 - epsilon / m)
            found += math.comb(T, n) * q**n * (1 - q) ** (T - n) * one
        return found

    for who in ("links", "colluders", "neighbours", "own-client"):
        epsilon = said[who].epsilon
        assert epsilon is not None
        assert epsilon == said["links"].epsilon
        assert delta(epsilon) <= 1e-5  # true ...
        assert delta(0.75 * epsilon) > 1e-5  # ... and not by much too large
        assert any("the smallest of the bounds that hold is that of 'random'" in x for x in said[who].assumptions)
        assert any("who took part may become known afterwards" in x for x in said[who].assumptions)
    everywhere = account(scheme("shared", 1.0, noise="gaussian"), RING, replace(s, participation=Always()), rounds=T)
    assert (said["links"].epsilon or 0.0) < (everywhere.epsilon or 0.0)


def test_amplification_is_not_credited_against_own_clients() -> None:
    """They learn who takes part; `random` answers in its place, and the note says which refused."""
    s = Sensitivity(0.5, 1.0, sampled=1, clients=100, participation=Amplified(0.01))
    made = statement(scheme("shared", 2.0, noise="gaussian"), RING, s, rounds=3)
    said = {a.threat.partition(":")[0]: a for a in made.accounts}
    assert "is that of 'amplified'" in said["links"].assumptions[-1]
    assert "is that of 'random'" in said["own-client"].assumptions[-1]
    assert "amplified is refused (own-client learns who takes part" in said["own-client"].assumptions[-1]
    other = account(scheme("shared", 2.0, noise="gaussian"), RING, replace(s, participation=Random(0.01)), rounds=3)
    assert (said["links"].epsilon or 0.0) < (said["own-client"].epsilon or 0.0) == other.epsilon


def test_what_cannot_be_answered_is_refused_with_the_reason() -> None:
    s = Sensitivity(0.5, 1.0, sampled=2, clients=20, participation=Random(0.1))
    nothing = statement(scheme("homomorphic", 1.0, noise="gaussian"), RING, s, rounds=3)
    assert all(a.leak for a in nothing.accounts)
    assert [t for t, _ in nothing.refused] == [
        "links",
        "colluders:0",
        "colluders:1",
        "neighbours",
    ]  # no proof was given
    assert all("needs a proof" in why for _, why in nothing.refused)
    assert str(nothing).count("NO NUMBER") == 1  # the same reason for all of them
    for who in ("an eavesdropper on all links", "any one colluding server", "all neighbours of the server"):
        assert str(nothing).count(who) == 1
    assert str(nothing).index("NOT PROTECTED") < str(nothing).index("NO NUMBER")


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
    s = Sensitivity(0.2, 1.0, sampled=4, proof=ConvexGlm(0.1))
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
