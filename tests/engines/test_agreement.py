"""The compiled engine is the reference: draw for draw on the same streams, in distribution on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import confide
from confide.base import randomness
from confide.base.errors import InputError
from confide.engines.driver import engine_named
from confide.engines.recording import Recording
from confide.engines.run import Run
from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.models import Linear, Softmax
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL, Failures
from confide.rounds.clipping import Clip, norms
from confide.rounds.schemes import Exchange, Scheme, scheme
from exploring import more

Maker = Callable[..., Problem]
GRAPH = Graph.random(4, 0.6, seed=1)
SMALL = {"step": 0.3, "sampled": 3, "local_steps": (1, 3), "batch": (1, 4)}
FIRST, SECOND = GRAPH.edges[0].tolist(), GRAPH.edges[1].tolist()[::-1]  # an edge may be named from either end
BROKEN = Failures(link=0.3, unit=0.2, links=((1, *FIRST), (3, *SECOND)), units=((2, 3), (2, 0)))


def both(problem: Problem, graph: Graph | Sequence[Graph], alg: GFL, rounds: int = 6, seed: int = 3) -> list[Run]:
    return [
        confide.simulate(problem, graph, alg, rounds=rounds, repeats=2, seed=seed, evaluate_every=4, engine=engine)
        for engine in ("compiled", "reference")
    ]


def agree(problem: Problem, graph: Graph | Sequence[Graph], alg: GFL, rounds: int = 6) -> Run:
    """All metrics and models of both engines to 1e-9; returns the compiled run."""
    compiled, reference = both(problem, graph, alg, rounds)
    assert compiled.inputs["engine"] == "compiled"
    assert reference.inputs["engine"] == "reference"
    assert compiled.metrics.keys() == reference.metrics.keys()
    for name, values in compiled.metrics.items():
        np.testing.assert_allclose(values, reference.metrics[name], rtol=1e-9, atol=1e-9, err_msg=name)
        assert np.isfinite(values[:, -1]).all(), name
    np.testing.assert_allclose(compiled.models, reference.models, rtol=1e-9, atol=1e-9)
    assert np.abs(compiled.models).max() > 1e-3
    return compiled


# ---- draw for draw


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("M", [2, 3])  # Box and Muller draw in pairs
def test_every_scheme(ragged: Maker, each_scheme: Scheme, law: str, M: int) -> None:
    agree(ragged(M=M), GRAPH, GFL(replace(each_scheme, law=law), **SMALL))


@pytest.mark.filterwarnings("ignore::confide.engines.run.NoNoiseWarning")  # of one unit
def test_every_scheme_on_every_graph(ragged: Maker, each_scheme: Scheme, each_graph: Graph) -> None:
    agree(ragged(P=each_graph.P), each_graph, GFL(each_scheme, **SMALL), rounds=3)


CLIPS = [None, *(Clip(k, 0.4, n) for k in ("example", "update") for n in ("l1", "l2"))]
STEPS = list(product(("linear", "logistic", "softmax"), (True, False), CLIPS, (1, 2, 3, 4, 12)))


@pytest.mark.parametrize(
    ("model", "replacement", "clip", "M"),
    more([s for s in STEPS if s[3] == 3 or s[:2] in (("logistic", False), ("softmax", True))], STEPS),
    ids=str,
)
def test_every_local_step(ragged: Maker, model: str, replacement: bool, clip: Clip | None, M: int) -> None:
    alg = GFL(scheme("homomorphic", 0.3), **SMALL, replacement=replacement, clip=clip)
    run = agree(ragged(M=M, model=model), GRAPH, alg)
    if clip is not None:  # it does clip
        free = confide.simulate(ragged(M=M, model=model), GRAPH, replace(alg, clip=None), rounds=6, repeats=2, seed=3)
        assert not np.array_equal(free.models, run.models)


@pytest.mark.parametrize("clip", [None, Clip("example", 0.4), Clip("update", 0.4, "l1")])
def test_features_in_single_precision(ragged: Maker, clip: Clip | None) -> None:
    """They are numbers like others: all that is computed from them is in double precision."""
    p = ragged(model="logistic")
    short = replace(p, federation=replace(p.federation, X=p.federation.X.astype(np.float32)))
    same = replace(short, federation=replace(p.federation, X=short.federation.X.astype(np.float64)))
    alg = GFL(scheme("homomorphic", 0.3), **SMALL, clip=clip)
    found, expected = agree(short, GRAPH, alg), agree(same, GRAPH, alg)
    assert np.array_equal(found.models, expected.models)
    assert short.model.smoothness(short.federation.X) == same.model.smoothness(same.federation.X)


@pytest.mark.parametrize("clip", CLIPS, ids=str)
@pytest.mark.parametrize("model", ["linear", "softmax"])
def test_clients_that_vanish_or_were_drawn_too_often(ragged: Maker, model: str, clip: Clip | None) -> None:
    problem, alg = ragged(model=model), GFL(scheme("none"), **SMALL, dropout=0.3, clip=clip)
    found = []
    for name in ("compiled", "reference"):
        engine, out = engine_named(name)(problem, [GRAPH], alg, 12, 3, 2), Recording.empty(1, 12, problem.M, 12)
        w = engine.start()
        assert engine.advance(0, w, 1, 12, out) is None
        found.append((engine.models(w), out.participants))
    (one, took_part), (other, took_part_too) = found
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    assert np.array_equal(took_part, took_part_too)
    assert took_part.sum() < 12 * 12


class Absurd(Problem):
    optimum = None

    @property
    def start(self) -> np.ndarray:
        return np.linspace(-1.0, 1.0, self.M)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the risk
@pytest.mark.parametrize("M", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("model", [Linear(0.1), Softmax(0.1, classes=3)], ids=["linear", "softmax"])
@pytest.mark.parametrize("clip", [c for c in CLIPS if c], ids=str)
def test_clipped_gradients_of_any_size(clip: Clip, model: Linear | Softmax, M: int) -> None:
    """Products that overflow are zero, squares that overflow or vanish are not lost. One step: a second would tell
    apart by 1e300 what rounding did to equal weights.
    """
    rng = np.random.default_rng(M)
    rows = [
        (rng.standard_normal((6, M)) * 10.0 ** rng.integers(low, high, (6, 1)), rng.integers(0, 3, 6).astype(float))
        for low, high in ((-170, 0), (-3, 3), (140, 160), (150, 300), (-170, 300), (300, 308))
    ]
    problem = Absurd(Federation.from_clients([rows[:3], rows[3:]]), model)
    alg = GFL(scheme("none"), step=0.3, sampled=3, local_steps=1, batch=(1, 4), clip=clip)
    compiled, reference = both(problem, Graph.path(2), alg, rounds=1)
    np.testing.assert_allclose(compiled.models, reference.models, rtol=1e-9, atol=1e-12)
    assert np.abs(compiled.models - problem.start).max() > 0.01


class Confident(Problem):
    start = np.array([0.0, 0.0, -390.0, 0.0, -390.0, 0.0])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the risk
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_softmax_that_is_sure_gets_around_no_clip(norm: str) -> None:
    """Squares of p - e_d = (0, 1e-170, 1e-170) vanish, but a feature of 1e175 makes it a large gradient."""
    federation = Federation.from_clients([[(np.array([[1.0, 1e175]]), [0.0])]])
    problem = Confident(federation, Softmax(0.0, classes=3))
    alg = GFL(scheme("none"), step=0.1, sampled=1, local_steps=1, batch=1, clip=Clip("example", 1.0, norm))
    for run in both(problem, Graph.path(1), alg, rounds=1):
        assert float(norms(run.models[0, 0] - problem.start, norm)[0]) == pytest.approx(0.1)


class Begun(Problem):
    start = np.array([5.0, -7.0])


def test_models_begin_where_the_problem_says(ragged: Maker) -> None:
    problem = Begun(ragged().federation, Linear(0.1), ragged().test)
    still = replace(GFL(scheme("none"), **SMALL), step=1e-12)
    np.testing.assert_allclose(agree(problem, GRAPH, still).models, np.tile(Begun.start, (2, 4, 1)))
    agree(problem, GRAPH, GFL(scheme("homomorphic", 0.3), **SMALL))
    clipped = GFL(scheme("none"), **SMALL, clip=Clip("example", 0.4))
    fixed = replace(clipped, arithmetic="fixed", fraction_bits=40)
    runs = [confide.simulate(problem, GRAPH, alg, rounds=4, seed=3) for alg in (clipped, fixed)]
    np.testing.assert_allclose(runs[0].models, runs[1].models, atol=1e-3)


def test_every_scheme_with_failures_dropouts_and_two_graphs(ragged: Maker, each_scheme: Scheme) -> None:
    graphs = [GRAPH, Graph.path(4, weights="metropolis")]
    alg = GFL(each_scheme, **SMALL, dropout=0.4)
    if each_scheme.exchange != Exchange.AVERAGE:
        links = (*BROKEN.links, (2, 1, 0), (2, 2, 3))
        alg = replace(alg, failures=replace(BROKEN, links=links))
    run = agree(ragged(), graphs, alg, rounds=10)
    assert run.metrics["participants"].max() <= 12
    assert run.metrics["participants"].min() < 12


def test_matchings(ragged: Maker, each_scheme: Scheme) -> None:
    agree(ragged(), GRAPH.matchings(), GFL(each_scheme, **SMALL))
    with pytest.raises(InputError, match="must be connected"):
        confide.simulate(ragged(), GRAPH.matchings()[0], GFL(each_scheme, **SMALL), rounds=1)


@pytest.mark.parametrize(
    "failures",
    [
        Failures(link=0.5),
        Failures(unit=0.5),
        replace(BROKEN, link=0.0, unit=0.0),
        Failures(link=1.0),
        Failures(unit=1.0),
    ],
    ids=["link", "unit", "schedule", "no link", "no unit"],
)
@pytest.mark.parametrize("name", ["homomorphic", "per-link"])
def test_each_kind_of_failure(ragged: Maker, name: str, failures: Failures) -> None:
    alg = GFL(scheme(name, 0.5), **SMALL, failures=failures)
    broken, whole = both(ragged(), GRAPH, alg)[0], both(ragged(), GRAPH, replace(alg, failures=Failures()))[0]
    assert not np.array_equal(broken.models, whole.models)
    if failures.unit < 1.0:
        agree(ragged(), GRAPH, alg)
    else:
        for run in both(ragged(), GRAPH, alg):
            assert np.array_equal(run.models, np.zeros_like(run.models))
            assert np.array_equal(run.metrics["participants"], np.zeros((2, 6)))


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_noise_on_client_links(ragged: Maker, each_scheme: Scheme, law: str) -> None:
    quiet = GFL(replace(each_scheme, law=law), **SMALL, dropout=0.3)
    loud = replace(quiet, scheme=quiet.scheme.resized(sigma_client=0.4))
    assert not np.array_equal(agree(ragged(), GRAPH, loud).models, both(ragged(), GRAPH, quiet)[0].models)
    alone = quiet.scheme.resized(sigma_client=0.4, **{"sigma": 0.0} if quiet.scheme.sigma else {})
    agree(ragged(), GRAPH, GFL(alone, **SMALL))


def test_what_is_left_of_the_noise_in_the_sum(ragged: Maker, each_scheme: Scheme) -> None:
    """(46): for homomorphic noise nothing, also when links fail; the clients' noise is in psi and no part of it."""
    s = each_scheme.resized(sigma_client=0.4)
    left = agree(ragged(), GRAPH, GFL(s, **SMALL, failures=BROKEN if s.exchange == Exchange.GRAPH else Failures()))
    nothing = not s.sigma and not s.sigma_pair
    assert (left.metrics["uncancelled"].max() < 1e-13) == (nothing or s.carry == 1.0)
    assert left.metrics["residual"].max() < 1e-13


def test_settings_given_for_every_client(ragged: Maker) -> None:
    f = ragged().federation
    agree(ragged(), GRAPH, GFL(scheme("none"), 0.3, 3, local_steps=1 + np.arange(18) % 4, batch=f.N, replacement=False))
    agree(ragged(), GRAPH, GFL(scheme("none"), 0.3, 3, local_steps=2, batch=20))  # more than there are samples


def test_units_of_one_client_with_one_sample() -> None:
    one_client = Federation.from_clients([[(np.ones((1, 2)), [1.0])], [(np.eye(2), [1.0, 2.0])]])
    problem = Problem(one_client, Linear(0.1), test=(np.eye(2), np.ones(2)))
    agree(problem, Graph.path(2), GFL(scheme("shared", 0.1), 0.3, 1, local_steps=1, batch=1))


def test_without_a_known_optimum() -> None:
    """Three features, all samples on a line, no regulariser: the risk has no unique minimum."""
    X = np.outer(np.arange(1.0, 5.0), [1.0, 2.0, 3.0])
    problem = Problem(Federation.from_clients([[(X, X[:, 0])], [(X, X[:, 1])]]), Linear(0.0))
    assert problem.optimum is None
    compiled, reference = both(problem, Graph.path(2), GFL(scheme("none"), 0.01, 1, local_steps=1, batch=2))
    for run in (compiled, reference):
        assert np.isnan(run.metrics["centroid_msd"]).all()
        assert run.steady_state is None
    np.testing.assert_allclose(compiled.models, reference.models, rtol=1e-9, atol=1e-9)


def test_other_number_types_and_mapped_files_reuse_the_compiled_kernel(ragged: Maker, tmp_path: Path) -> None:
    from confide.engines import kernel

    f, alg = ragged().federation, GFL(scheme("shared", 0.2), **SMALL)
    run = both(ragged(), GRAPH, alg)[0]
    signatures = len(kernel.advance.signatures)
    f.save(tmp_path)
    mapped = Federation.load(tmp_path)
    narrow = Federation(
        np.asfortranarray(f.X),
        f.d.astype(np.float32),
        f.client_offsets.astype(np.int32),
        f.unit_offsets.astype(np.int32),
    )
    for other in (mapped, narrow):
        again = confide.simulate(
            Problem(other, Linear(0.1)), GRAPH, alg, rounds=6, repeats=2, seed=3, engine="compiled"
        )
        if other is mapped:
            assert np.array_equal(run.models, again.models)
        else:
            np.testing.assert_allclose(run.models, again.models, rtol=1e-6)  # float32 labels
    assert len(kernel.advance.signatures) == signatures


def test_uniforms_agree_at_the_ends() -> None:
    """Never 0 and never 1, or a Laplace draw would be infinite."""
    from confide.engines import kernel

    ends = np.array([0, 2**11, 2**63 - 1, 2**63, 2**64 - 2**11, 2**64 - 1], dtype=np.uint64)
    found = [kernel.uniform.py_func(word) for word in ends]
    assert found == randomness.uniform(ends).tolist()
    assert 0 < min(found) < max(found) < 1


# ---- in distribution


def levels(engine: str, seed: int, sigma: float, name: str = "shared", repeats: int = 60) -> dict[str, np.ndarray]:
    """The steady-state MSD of every repetition, in dB."""
    problem = confide.problems.regression(units=3, clients=4, samples=6, covariance=(0.3, 0.5), seed=1)
    alg = GFL(scheme(name, sigma), step=0.5, sampled=2, local_steps=2, batch=2)
    run = confide.simulate(
        problem, Graph.path(3), alg, rounds=20, repeats=repeats, seed=seed, evaluate_every=20, engine=engine
    )
    return {m: 10 * np.log10(run.metrics[m][:, 10:].mean(axis=1)) for m in ("centroid_msd", "individual_msd")}


def p_values(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> list[float]:
    """Equal means (Welch) and equal variances (Brown and Forsythe) of each metric."""
    tests = [(stats.ttest_ind(a[m], b[m], equal_var=False), stats.levene(a[m], b[m])) for m in a]
    return [float(test.pvalue) for pair in tests for test in pair]


@pytest.mark.parametrize("name", ["shared", "homomorphic", "per-link"])
def test_other_seeds_give_the_same_steady_state_and_other_noise_does_not(name: str) -> None:
    reference = levels("reference", 10, 0.3, name)
    assert min(p_values(reference, levels("compiled", 20, 0.3, name, repeats=400))) > 0.002
    for wrong in (0.2, 0.45):  # 2/3 and 3/2 of it
        assert min(p_values(reference, levels("compiled", 20, wrong, name, repeats=400))) < 1e-6


def identity_clients(K: int) -> Problem:
    """One unit; client k has one sample, the k-th unit vector, so that the model shows who took part."""
    return Problem(Federation.from_clients([[(row[None], [1.0]) for row in np.eye(K)]]), Linear(0.0))


def test_every_subset_of_clients_is_equally_likely() -> None:
    K, L, repeats = 5, 2, 2000
    alg = GFL(scheme("none"), step=0.1, sampled=L, local_steps=1, batch=1)
    run = confide.simulate(
        identity_clients(K), Graph.path(1), alg, rounds=1, repeats=repeats, seed=5, engine="compiled"
    )
    took_part = run.models[:, 0] != 0.0
    assert np.array_equal(took_part.sum(axis=1), np.full(repeats, L))
    counts = [int((took_part[:, i] & took_part[:, j]).sum()) for i, j in combinations(range(K), L)]
    assert sum(counts) == repeats
    assert stats.chisquare(counts).pvalue > 0.001


def test_every_client_is_drawn_equally_often_over_the_rounds() -> None:
    """A turn of client k multiplies 1 - w_k by 1 - 2 mu / L: the logarithm counts the turns."""
    K, L, rounds = 30, 7, 3000
    alg = GFL(scheme("none"), step=0.001 * L / 2, sampled=L, local_steps=1, batch=1)
    run = confide.simulate(identity_clients(K), Graph.path(1), alg, rounds=rounds, seed=6, engine="compiled")
    turns = np.log1p(-run.models[0, 0]) / np.log1p(-0.001)
    np.testing.assert_allclose(turns, np.rint(turns), atol=1e-6)
    assert np.rint(turns).sum() == rounds * L
    q = L / K
    statistic = np.sum((turns - rounds * q) ** 2) / (rounds * q * (1 - q)) * (K - 1) / K
    assert 0.001 < stats.chi2.sf(statistic, K - 1) < 0.999


def test_dropouts_are_binomial(ragged: Maker) -> None:
    rounds, repeats, stay = 400, 3, 0.7
    alg = GFL(scheme("none"), **SMALL, dropout=1 - stay)
    run = confide.simulate(ragged(), GRAPH, alg, rounds=rounds, repeats=repeats, seed=8, engine="compiled")
    took_part = run.metrics["participants"]
    n = 4 * 3
    total = int(took_part.sum())
    assert stats.binomtest(total, n * rounds * repeats, stay).pvalue > 0.001
    seen = np.bincount(took_part.astype(int).ravel(), minlength=n + 1)
    expected = stats.binom.pmf(np.arange(n + 1), n, stay) * rounds * repeats
    common = expected > 5
    observed, hoped = np.append(seen[common], seen[~common].sum()), np.append(expected[common], expected[~common].sum())
    assert stats.chisquare(observed, hoped).pvalue > 0.001


def test_absent_units_are_binomial(ragged: Maker) -> None:
    alg = GFL(scheme("none"), **SMALL, failures=Failures(unit=0.25))
    run = confide.simulate(ragged(), GRAPH, alg, rounds=600, seed=9, engine="compiled")
    units = run.metrics["participants"] / 3
    assert set(np.unique(units)) <= {0, 1, 2, 3, 4}
    assert stats.binomtest(int(units.sum()), 4 * 600, 0.75).pvalue > 0.001
