"""`confide account`, `plan`, `audit`, `bundle` and `verify`."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

CONFIG = """
rounds = 12
repeats = 2
[graph]
topology = "ring"
[problem]
units = 4
clients = 5
samples = 6
covariance = [0.01, 0.05]
[algorithm]
step = 0.3
sampled = 3
local_steps = 1
batch = 3
clip = "example"
bound = 1.0
[scheme]
noise = "gaussian"
sigma = 3.0
[privacy]
proof = "convex-glm:0.2"
smoothness = 2.0
"""
CLIENT = ("--level", "client", "--sampled", 5)
OF_50 = (*CLIENT, "--clients", 50)
Outcome = tuple[int, str, str]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text(CONFIG)


def test_account_prints_the_contracts_keys(command: Callable[..., Outcome]) -> None:
    code, out, _ = command(
        "account", "--graph", "ring:4", "--rounds", 5, "--step", 1, "--bound", 0.5, "--sigma", 1, "--json"
    )
    answer = json.loads(out)
    assert code == 0
    assert {"epsilon", "delta", "rho", "mu_gdp", "leak", "valid", "exact", "assumptions"} <= set(answer)
    assert answer["rho"] == pytest.approx(55 / 2)
    assert (answer["exact"], answer["valid"], answer["leak"]) == (True, True, False)


def test_a_leak_is_an_answer_and_a_refusal_is_not(command: Callable[..., Outcome]) -> None:
    for leaky in (
        ("--release", "local"),
        ("--release", "centroid:0"),
        ("--threat", "own-client"),
        ("--threat", "own-server"),
        ("--scheme", "none", "--sigma", 0),
        ("--scheme", "pairwise", "--sigma", 0, "--sigma-pair", 1),
    ):
        code, out, _ = command("account", *leaky, "--json")
        answer = json.loads(out)
        assert (code, answer["leak"], answer["epsilon"]) == (0, True, None), leaky
    code, out, _ = command("account", "--scheme", "shared", "--release", "local", "--json")
    assert json.loads(out)["leak"] is False


INSIDE = (*CLIENT, "--dim", 3, "--sum-sigma", 0.1, "--sum-honest", 4)


def test_noise_inside_the_sum_answers_for_the_own_server(command: Callable[..., Outcome]) -> None:
    code, out, _ = command("account", *INSIDE, "--sum-corrupted", 1, "--threat", "own-server", "--json")
    server = json.loads(out)
    assert (code, server["leak"], server["by"]) == (0, False, "sum")
    assert server["rho"] == pytest.approx(100 * (2 * 0.1 / 5) ** 2 / (2 * 0.1**2))
    assert server["adversary"] == "the unit's own server, with up to 1 corrupted client"
    for leaky in (("--release", "local"), ("--threat", "own-client"), ("--scheme", "none", "--sigma", 0)):
        code, out, _ = command("account", *INSIDE, "--sum-corrupted", 1, *leaky, "--json")
        assert json.loads(out)["epsilon"] == server["epsilon"]
    code, out, _ = command("account", *INSIDE, "--threat", "own-server")
    assert "the unit's own" in out
    assert "noise inside the" in out
    assert "at least 4 honest clients" in out


def test_a_plan_for_the_sum(command: Callable[..., Outcome]) -> None:
    asked = (*CLIENT, "--dim", 3, "--sum-honest", 4, "--rounds", 30)
    code, out, _ = command("plan", "--epsilon", 2, *asked, "--json")
    planned = json.loads(out)
    assert code == 0
    _, out, _ = command("account", *asked, "--sum-sigma", planned["sum_sigma"], "--threat", "own-server", "--json")
    assert json.loads(out)["epsilon"] == pytest.approx(2, rel=1e-6)
    code, out, _ = command("plan", "--epsilon", 2, *asked)
    assert code == 0
    assert out.startswith(f"noise inside the secure sum: sigma {planned['sum_sigma']:.6g} on psi")


def test_noise_on_client_links_answers_for_the_own_server(command: Callable[..., Outcome]) -> None:
    """Sums are then in clear."""
    asked = (*CLIENT, "--sigma-client", 4, "--rounds", 50)
    code, out, _ = command("account", *asked, "--threat", "own-server", "--json")
    server = json.loads(out)
    assert (code, server["leak"], server["by"]) == (0, False, "clients")
    assert server["rho"] == pytest.approx(50 * (2 * 0.1 / 4) ** 2 / 2)
    _, out, _ = command("account", *asked, "--json")
    assert json.loads(out)["rho"] == pytest.approx(server["rho"] / 5)
    assert "noise on client" in command("account", *asked)[1]
    code, _, err = command("account", *INSIDE, "--sigma-client", 4)
    assert code == 2
    assert "only inside a secure sum" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--sigma", -1), "sigma = -1"),
        (("--delta", 0), "delta = 0"),
        (("--delta", 1.5), "delta = 1.5"),
        (("--delta", "nan"), "delta = nan"),
        (("--threat", "colluders:99"), "server 99 does not exist"),
        (("--threat", "colluders:0,1,2", "--graph", "ring:3"), "all servers collude"),
        (("--threat", "coluders:1"), "did you mean 'colluders'"),
        (("--scheme", "partial:1.5"), "1.5"),
        (CLIENT, "needs a proof"),
        (("--level", "client"), "sampled = None"),
        ((*OF_50, "--participation", "amplified:0.1"), "carry > 0"),
        ((*OF_50, "--participation", "random:0.2", "--scheme", "shared"), "sampling L = 5 of K = 50 gives 0.1"),
        ((*CLIENT, "--participation", "random:0.1", "--scheme", "shared"), "give --sampled L and --clients K"),
        ((*CLIENT, "--participation", "amplified:0.1", "--scheme", "shared"), "give --sampled L and --clients K"),
        (("--noise", "laplace", "--proof", "convex-glm:0.1"), "sqrt(M)"),
        (("--noise", "laplace", "--scheme", "pairwise", "--sigma-pair", 1), "Gaussian noise only"),
        (("--proof", "regulariser:9", "--step", 1), "2 rho mu/E <= 1"),
        (("--rounds", 0), "rounds = 0"),
        (("--bound", "nan"), "bound = nan"),
        (("--graph", "ring:0"), "graph.P = 0"),
        (("--graph", "file:missing.csv"), "missing.csv"),
        (("--theorem", "ours"), "theorem = 'ours'"),
        (("--theorem", "paper", "--epsilon", 0), "epsilon = 0"),
        (("--theorem", "paper", "--epsilon", 1, "--sigma", 1), "one of --sigma and --epsilon"),
        (("--epsilon", 1), "confide plan --epsilon"),
        (("missing.jsonl",), "missing.jsonl"),
        ((*CLIENT, "--sum-sigma", 1), "give --sum-honest N"),
        ((*CLIENT, "--sum-honest", 3), "give --sum-sigma S"),
        ((*CLIENT, "--sum-sigma", 1, "--sum-honest", 3), "give --dim M"),
        (("--dim", 3, "--sum-sigma", 1, "--sum-honest", 3), "give --sampled L"),
        ((*INSIDE, "--sum-sigma", 0), "sum_noise.sigma = 0.0"),
        ((*INSIDE, "--sum-sigma", 1e-9), "more fraction bits"),
        ((*INSIDE, "--sum-honest", 0), "sum_noise.honest = 0"),
        ((*INSIDE, "--sum-corrupted", -1), "sum_noise.corrupted = -1"),
        ((*INSIDE, "--fraction-bits", 60), "fraction_bits = 60"),
        ((*INSIDE, "--threat", "own-server", "--participation", "random:0.1"), "give --sampled L and --clients K"),
    ],
)
def test_nonsense_is_refused_with_one_line(
    command: Callable[..., Outcome], arguments: tuple[object, ...], words: str
) -> None:
    code, out, err = command("account", *arguments, "--json")
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


def renyi(curve: Callable[[float], float], delta: float = 1e-5) -> float:
    """epsilon of D_a <= curve(a) for every order a (Canonne, Kamath and Steinke 2020)."""
    orders = [1 + 1.01**n / 100 for n in range(1200)]
    return min(curve(a) + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1) for a in orders)


def drawn(q: float, rho: float, rounds: int) -> float:
    """Given who took part a round costs a rho or nothing, independently."""

    def curve(a: float) -> float:
        x = (a - 1) * a * rho
        one = math.log1p(q * math.expm1(x)) if x < 700 else x + math.log(q)
        return rounds * one / (a - 1)

    return renyi(curve)


@pytest.mark.parametrize("threat", ["links", "own-client"])
def test_random_participation_counts_also_where_it_becomes_known(command: Callable[..., Outcome], threat: str) -> None:
    asked = ("--scheme", "shared", "--sigma", 0.1, "--threat", threat, "--rounds", 40, "--json")
    _, out, _ = command("account", *OF_50, "--participation", "random:0.1", *asked)
    found = json.loads(out)
    assert found["epsilon"] == pytest.approx(drawn(0.1, (2 * 0.1 / 5 / 0.1) ** 2 / 2, 40), rel=1e-3)
    assert (found["rho"], found["exact"], found["leak"]) == (None, False, False)
    _, out, _ = command("account", *OF_50, *asked)
    always = json.loads(out)
    assert always["epsilon"] > 1.5 * found["epsilon"]
    named = f"that of 'random'; all would give {always['epsilon']:.4g}"
    assert any(named in assumption for assumption in found["assumptions"])


def test_random_participation_counts_against_the_own_server(command: Callable[..., Outcome]) -> None:
    asked = (*INSIDE, "--sum-corrupted", 1, "--threat", "own-server", "--clients", 50, "--json")
    _, out, _ = command("account", *asked, "--participation", "random:0.1")
    found = json.loads(out)
    assert (found["by"], found["leak"], found["rho"]) == ("sum", False, None)
    assert found["epsilon"] == pytest.approx(drawn(0.1, (2 * 0.1 / 5) ** 2 / (2 * 0.1**2), 100), rel=1e-3)
    # Amplification needs a secret that this adversary knows: the same number, never less.
    _, out, _ = command("account", *asked, "--participation", "amplified:0.1")
    assert json.loads(out)["epsilon"] == found["epsilon"]


def test_where_amplification_has_no_proof_another_bound_answers(command: Callable[..., Outcome]) -> None:
    asked = (*OF_50, "--proof", "public-point", "--sigma", 2, "--rounds", 12, "--json")  # homomorphic: it remembers
    numbers = {}
    for part in ("amplified:0.1", "random:0.1", "all"):
        code, out, _ = command("account", *asked, "--participation", part)
        assert code == 0
        numbers[part] = json.loads(out)
    assert numbers["amplified:0.1"]["epsilon"] == numbers["random:0.1"]["epsilon"] < numbers["all"]["epsilon"]
    note = numbers["amplified:0.1"]["assumptions"][-1]
    assert "that of 'random'" in note
    assert "amplified is refused (the state remembers earlier participations (carry > 0)" in note


def test_an_audit_exits_with_its_verdict(command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = command("audit", "c.toml", "--set", "rounds=4", "--json")
    answer = json.loads(out)
    assert (code, answer["ok"]) == (0, True)
    assert "attacking what is said about links" in err
    assert [r["verdict"] for r in answer["rows"]].count("holds") == 3
    assert all(r["attained"] <= r["printed"] * (1 + 1e-6) for r in answer["rows"] if r["verdict"] == "holds")
    monkeypatch.setattr(
        "confide.privacy.sensitivity.Sensitivity.swap", property(lambda s: s.step * s.bound / s.sampled)
    )
    code, out, _ = command("audit", "c.toml", "--set", "rounds=4")
    assert code == 1
    assert "THE PRINTED ACCOUNT IS CONTRADICTED about links" in out


def test_the_papers_own_theorem(command: Callable[..., Outcome]) -> None:
    for i, epsilon in ((10, 344), (1000, 3.1e6)):
        code, out, _ = command(
            "account",
            "--theorem",
            "paper",
            "--step",
            0.7,
            "--bound",
            1,
            "--sigma",
            math.sqrt(0.1),
            "--rounds",
            i,
            "--json",
        )
        answer = json.loads(out)
        assert code == 0
        assert answer["epsilon"] == pytest.approx(epsilon, rel=0.02)
        assert answer["valid"] is False
        assert len(answer["warnings"]) >= 4


def test_the_papers_own_theorem_sizes_noise(command: Callable[..., Outcome]) -> None:
    given = ("account", "--theorem", "paper", "--step", 0.7, "--rounds", 10, "--json")
    code, out, _ = command(*given, "--epsilon", 2)
    answer = json.loads(out)
    assert code == 0
    assert answer["sigma"] == pytest.approx(math.sqrt(2) * 0.7 * 11 * 10 / 2)
    _, out, _ = command(*given, "--sigma", answer["sigma"])
    assert json.loads(out) == answer | {"epsilon": pytest.approx(2)}


def test_a_matrix_file_is_a_graph(command: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "A.csv").write_text("0.5,0.5,0\n0.5,0.25,0.25\n0,0.25,0.75\n")
    common = ("--scheme", "own-clean", "--rounds", 4, "--json")
    code, out, _ = command("account", "--graph", "file:A.csv", "--weights", "given", *common)
    answer = json.loads(out)
    assert (code, answer["target"]) == (0, 2)  # the largest own weight carries the most


def test_plan_finds_the_noise_of_a_named_scheme(command: Callable[..., Outcome]) -> None:
    code, out, _ = command("plan", "--epsilon", 3, "--scheme", "homomorphic", "--release", "none", "--json")
    planned = json.loads(out)
    assert code == 0
    _, out, _ = command("account", "--sigma", planned["sigma"], "--json")
    assert json.loads(out)["epsilon"] == pytest.approx(3, rel=1e-6)


def test_plan_auto_compares_by_formula_and_by_runs(command: Callable[..., Outcome]) -> None:
    code, out, _ = command("plan", "--epsilon", 3, "--json")
    assert code == 0
    names = [row["scheme"] for row in json.loads(out)["table"]]
    assert {"homomorphic", "shared", "pairwise", "central", "local-only"} <= set(names)
    code, out, _ = command("plan", "c.toml", "--epsilon", 3, "--json")
    answer = json.loads(out)
    assert (code, answer["errors_by"]) == (0, "short runs of the config")
    assert answer["recommended"] == answer["table"][0]["scheme"] != "central"
    code, out, _ = command("plan", "c.toml", "--epsilon", 3)
    assert "recommended:" in out
    assert "  3  moderate " in out


@pytest.mark.parametrize("scheme", ["own-clean", "per-link"])
def test_a_plan_of_graphs_that_take_turns_is_about_all_of_them(
    command: Callable[..., Outcome], tmp_path: Path, scheme: str
) -> None:
    """In a matching of three servers one has no neighbour, keeps all and is told nothing: the first alone is no run."""
    turns = CONFIG.replace("units = 4", "units = 3").replace('"ring"', '"ring"\nmatchings = true')
    (tmp_path / "turns.toml").write_text(turns)
    code, out, _ = command("plan", "turns.toml", "--epsilon", 3, "--scheme", scheme, "--release", "none", "--json")
    planned = json.loads(out)
    assert code == 0
    named = f'[scheme]\nname = "{scheme}"\n'
    (tmp_path / "planned.toml").write_text(
        turns.replace("sigma = 3.0", f"sigma = {planned['sigma']!r}").replace("[scheme]\n", named)
    )
    _, out, _ = command("account", "planned.toml", "--json")
    (links,) = [a for a in json.loads(out)["accounts"] if a["threat"] == "links"]
    assert links["epsilon"] == pytest.approx(3, rel=1e-6)
    (tmp_path / "absent.toml").write_text(turns.replace("matchings = true", "matchings = true\nunit_failure = 0.1"))
    given = ("plan", "absent.toml", "--epsilon", 3, "--scheme", scheme, "--release", "none")
    code, _, err = command(*given)
    assert (code, "what a unit that misses a round keeps has no bound" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "either as epsilon or as rho"),
        (("--epsilon", 1, "--rho", 1), "either as epsilon or as rho"),
        (("--epsilon", -1), "epsilon = -1"),
        (("--epsilon", 1, "--scheme", "homomorphc"), "did you mean 'homomorphic'"),
        (("--epsilon", 1, "--threat", "own-server"), "no noise helps"),
        (("--epsilon", 1, "--hessian", 100), "not stable"),
        (("--epsilon", 1, "--sum-honest", 3), "give L and M"),
        (("--epsilon", 1, "--sum-honest", 3, "--threat", "own-client"), "sized against own-server"),
        (("c.toml", "--epsilon", 1, "--sum-honest", 3), "leave the config out"),
    ],
)
def test_a_plan_without_sense_is_refused(
    command: Callable[..., Outcome], arguments: tuple[object, ...], words: str
) -> None:
    code, out, err = command("plan", *arguments, "--json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_two_runs_on_the_same_data_add_up_and_a_bundle_verifies(
    command: Callable[..., Outcome], tmp_path: Path
) -> None:
    for seed in (0, 1):
        code, out, _ = command(
            "simulate",
            "c.toml",
            "--set",
            f"seed={seed}",
            "--set",
            "privacy.dataset=wards",
            "--out",
            f"r{seed}",
            "--json",
        )
        assert code == 0
        assert any(name.endswith("ledger.jsonl") for name in json.loads(out)["files"])
    _, out, _ = command("account", "r0/ledger.jsonl", "--json")
    one = json.loads(out)
    _, out, _ = command("account", "r0/ledger.jsonl", "r1/ledger.jsonl", "--json")
    both = json.loads(out)
    assert both["rho"] == pytest.approx(2 * one["rho"])
    assert both["epsilon"] > one["epsilon"]
    code, _, err = command("account", "r0/ledger.jsonl", "r0/ledger.jsonl")
    assert (code, "same ledger" in err) == (2, True)

    code, out, _ = command("bundle", "r0", "--key", "k.pem", "--json")
    made = json.loads(out)
    assert code == 0
    assert stat.S_IMODE((tmp_path / "k.pem").stat().st_mode) == 0o600
    code, out, _ = command("verify", made["file"], "--key", made["public_key"], "--json")
    assert (code, json.loads(out)["ok"]) == (0, True)
    tampered = Path(made["file"]).read_text().replace('"level":"client"', '"level":"unit"')
    Path("bad.json").write_text(tampered)
    code, out, _ = command("verify", "bad.json")
    assert code == 1
    assert "FAILED" in out
    assert command("verify", "c.toml")[0] == 2


def test_a_tampered_ledger_is_refused_with_its_line(command: Callable[..., Outcome]) -> None:
    command("simulate", "c.toml", "--out", "r")
    text = Path("r/ledger.jsonl").read_text().splitlines(keepends=True)
    text[3] = text[3].replace('"unit":2', '"unit":3')
    Path("bad.jsonl").write_text("".join(text))
    code, _, err = command("account", "bad.jsonl")
    assert code == 2
    assert "line 4" in err


def test_an_unaccounted_run_has_nothing_to_sign(command: Callable[..., Outcome]) -> None:
    Path("free.toml").write_text(CONFIG.replace('clip = "example"\nbound = 1.0\n', "").partition("[privacy]")[0])
    command("simulate", "free.toml", "--out", "free")
    code, _, err = command("bundle", "free", "--key", "k.pem")
    assert code == 2
    assert "has no ledger" in err
