"""The paper's figures: files, numbers and verdicts, and that each verdict can be no."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

from confide.base.errors import InputError
from confide.commands import main as cli
from confide.engines.driver import simulate
from confide.engines.run import Run
from confide.experiments import classification as c
from confide.experiments import classification_claims as told
from confide.experiments import readings
from confide.experiments import regression as r
from confide.experiments import regression_claims as said
from confide.experiments import regression_figures as drawn
from confide.experiments import reproduce as module
from confide.experiments import small_steps as h
from confide.experiments.claims import Claim
from confide.experiments.predicted import Comparison, agreement, blocks, compare, settled, standard_error, width
from confide.experiments.readings import AROUND, CROSSED, Exact
from confide.experiments.reproduce import Report, reproduce
from confide.figures.page import caption
from confide.problems import click_log
from confide.theory.prediction import predict
from exploring import more

FIGURES = {"a": drawn.figure_a, "b": drawn.figure_b, "c": drawn.figure_c, "e": drawn.figure_e}
CLAIMS = {"a": said.claims_a, "b": said.claims_b, "c": said.claims_c, "e": said.claims_e}
BAND = ("mean", "low", "high")
BANDS = (*BAND, "predicted")
savefig = Figure.savefig


@pytest.fixture(scope="module", autouse=True)
def few_samples() -> Iterator[None]:
    """The paper's problem with a fifth of its data, for what is said here about shapes and verdicts."""
    with pytest.MonkeyPatch.context() as small:
        small.setattr(r, "regression", partial(r.regression, clients=40, samples=50))
        yield


@pytest.fixture(scope="module")
def tiny() -> r.Regression:
    """A few rounds: nothing that it says matters here, only its shape."""
    return r.Regression(12, 2, 0)


def one_drawing(figure: Figure, path: Path, **options: Any) -> None:
    """As SVG; the others, which show the same, stay the empty files that they are."""
    if path.suffix == ".svg":
        savefig(figure, path, **options)


def shorten(runs: pytest.MonkeyPatch) -> None:
    """Those with small steps."""
    runs.setattr(h, "SETTLE", 1)
    runs.setattr(h, "WATCH", 5)


@pytest.fixture(scope="module")
def made(tiny: r.Regression, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("figures")
    with pytest.MonkeyPatch.context() as short:
        shorten(short)
        short.setattr(r.Regression, "exact", property(lambda x: Exact(x.seed, r.VARIANCE, x.rounds)))
        short.setattr(readings, "regression", r.regression)
        short.setattr(Figure, "savefig", more(one_drawing, savefig))
        paper = {name: (figure(tiny, folder), CLAIMS[name](tiny)) for name, figure in FIGURES.items()}
        return folder, paper | {"h": ([], h.claims_h(tiny))}


def test_every_figure_is_a_picture_and_its_data(made: tuple[Path, dict[str, Any]]) -> None:
    folder, results = made
    files = [f for figure, _ in results.values() for f in figure]
    assert sorted(Path(f).name for f in files) == sorted(os.listdir(folder))
    stems = [
        "figure_2_three_algorithms",
        "figure_3a_noise_centroid",
        "figure_3b_noise_individual",
        "figure_4_step_size",
        "figure_4_learning_curves",
        "consensus_step",
    ]
    assert {f"{s}{suffix}" for s in stems for suffix in (".png", ".svg", ".pdf", ".csv")} == set(os.listdir(folder))
    for stem in stems:
        said = caption((folder / f"{stem}.svg").read_text())
        assert "One drawn problem and graph" in said
        assert "95%" in said


def columns(made: tuple[Path, dict[str, Any]], name: str) -> pl.DataFrame:
    return pl.read_csv(made[0] / name)


def test_the_data_of_figure_a(made: tuple[Path, dict[str, Any]], tiny: r.Regression) -> None:
    table = columns(made, "figure_2_three_algorithms.csv")
    shown = ("none", "homomorphic", "per-link", "per-link with client links")
    names = [f"{which}_msd {n} {b}" for which in ("centroid", "individual") for n in shown for b in BANDS]
    assert table.columns == ["round", *names]
    assert table["round"].to_list() == list(range(1, 13))
    for which in ("centroid_msd", "individual_msd"):
        np.testing.assert_allclose(table[f"{which} none mean"], tiny.run("none").metrics[which].mean(axis=0))
        expected = getattr(tiny.prediction("per-link", client_links=True), which)
        np.testing.assert_allclose(table[f"{which} {shown[3]} predicted"], expected)
        assert (table[f"{which} none low"] <= table[f"{which} none high"]).all()


def test_the_data_of_the_sweeps(made: tuple[Path, dict[str, Any]]) -> None:
    for part, which in (("3a", "centroid"), ("3b", "individual")):
        noise = [
            f"{which}_msd {name} {v} {b}"
            for name in ("homomorphic", "per-link")
            for v in ("0.001", "0.01", "0.1", "1", "2", "10")
            for b in BANDS
        ]
        assert columns(made, f"figure_{part}_noise_{which}.csv").columns == ["round", *noise]
    steps = [f"centroid_msd {n} {v} {b}" for n in ("homomorphic", "per-link") for v in ("0.1", "0.5", "1", "5") for b in BANDS]  # fmt: skip # noqa: E501
    assert columns(made, "figure_4_learning_curves.csv").columns == ["round", *steps]


def test_clean_combinations_bring_models_to_the_centroid(made: tuple[Path, dict[str, Any]], tiny: r.Regression) -> None:
    table = columns(made, "consensus_step.csv")
    assert table.columns == ["t", *(f"{name} {part}" for name in r.NAMES for part in BANDS)]
    assert (table["t"][0], table["t"][-1]) == (0, 40)
    for name in r.NAMES:
        run, limit = tiny.run(name), tiny.prediction(name).limit
        assert limit is not None
        assert table[f"{name} mean"][0] == pytest.approx(run.metrics["individual_msd"][:, -1].mean())
        assert table[f"{name} predicted"][0] == pytest.approx(limit.individual.total)
        centroids = run.metrics["centroid_msd"][:, -1].mean(), limit.centroid.total
        for part, centroid in zip(("mean", "predicted"), centroids, strict=True):
            assert (np.diff(table[f"{name} {part}"]) <= 0).all()  # A is symmetric: no combination spreads them
            assert table[f"{name} {part}"][-1] >= centroid * (1 - 1e-9)


def test_figure_4_runs_from_small_steps_to_the_limit_of_stability(
    made: tuple[Path, dict[str, Any]], tiny: r.Regression, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = columns(made, "figure_4_step_size.csv")
    mu = table["mu"].to_numpy()
    assert (mu[0], mu[-1]) == (pytest.approx(0.02), pytest.approx(0.997 * tiny.stable_step))
    assert (np.diff(mu) > 0).all()
    at = np.flatnonzero(mu < 1.0)[-1]
    for name in r.PAIR:
        limit = predict(tiny.problem, tiny.graph("lazy"), r.Setting(name, mu=float(mu[at])).algorithm, seed=0).limit
        assert limit is not None
        assert table[name][int(at)] == pytest.approx(limit.centroid.total)
        np.testing.assert_allclose(table[name] - table[f"{name}, added by noise"], table["none"])
    exact = table["per-link"].to_numpy()
    assert 0 < int(exact.argmin()) < len(mu) - 1  # the U
    assert (np.diff(table["homomorphic"]) > 0).all()
    measured = table["per-link, measured mean"].drop_nulls().to_list()
    assert table["measured at mu"].drop_nulls().to_list() == list(r.STEPS)
    np.testing.assert_allclose(measured, [tiny.run("per-link", mu=m).levels("centroid_msd").mean() for m in r.STEPS])
    shorten(monkeypatch)
    small = table["homomorphic, added by noise, measured mean"].drop_nulls().to_numpy()
    np.testing.assert_allclose(small, h.fits(tiny)["homomorphic"].level / 100)  # measured at 10, drawn at 0.1


def test_claims_are_plain_json_with_numbers(made: tuple[Path, dict[str, Any]]) -> None:
    claims = [claim for _, found in made[1].values() for claim in found]
    ids = ["a1", "a2", "a3", "b1", "b2", "b3", "b4", "b5", "b6", "c1", "c2", "c3", "c4", "c5", "e1", "h1", "h2"]
    assert [claim.id for claim in claims] == ids
    for claim in claims:
        assert claim.holds in (True, False, None)
        assert claim.figure in ("2", "3a", "3b", "4")
        plain = claim.to_dict()
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain
        assert plain["numbers"]
        names = [reading["name"] for reading in plain["readings"]]
        if claim.id in said.SAID:
            assert names[0] == "literal, lazy (measured)"
            assert len(names) == len(CROSSED) + len(AROUND)
        assert plain["readings"][0]["holds"] is claim.holds


def test_a_run_is_made_once_and_the_noiseless_one_for_all_variances(tiny: r.Regression) -> None:
    assert tiny.run("homomorphic") is tiny.run("homomorphic", 0.1, 0.7)
    assert tiny.run("none", 0.1) is tiny.run("none", 10.0)
    assert tiny.run("homomorphic", 1.0) is not tiny.run("homomorphic", 2.0)


WHICH = ("centroid", "individual")


@pytest.mark.filterwarnings(
    "ignore::confide.engines.run.DivergenceWarning", "ignore::confide.engines.run.StabilityWarning"
)
def test_a_diverged_run_counts_as_infinitely_bad(tiny: r.Regression) -> None:
    x = r.Regression(40, 1, 0)
    assert x.run("homomorphic", mu=1000.0).diverged
    assert x.level("centroid", "homomorphic", mu=1000.0) == math.inf
    assert x.compare("too long", "homomorphic", mu=1000.0) == [], "it has no steady state"
    broken = compare(x.run("homomorphic", mu=1000.0), tiny.prediction("homomorphic"), "p")
    assert [c.measured_db for c in broken] == [math.inf, math.inf]


# ---- predicted against measured


def agree(*compared: Comparison, unstable: Sequence[str] = ()) -> Claim:
    return agreement("c4", "4", "all", compared, unstable, 4.2)


def test_the_unstable_is_named_and_not_judged() -> None:
    claim = agree(*(Comparison("p", w, -20.0, -20.3, 0.1) for w in WHICH), unstable=["per-link 5"])
    assert claim.holds is True
    assert claim.numbers["not_compared_as_not_mean_square_stable"] == ["per-link 5"]
    assert claim.numbers["largest_mean_square_stable_step"] == 4.2
    assert agree(unstable=["per-link 5"]).holds is False, "nothing compared is nothing shown"


@pytest.mark.parametrize("measured", [-19.4, -20.7, math.inf, math.nan])
def test_one_point_that_is_off_decides(measured: float) -> None:
    fine = [Comparison("p", w, -20.0, -20.3, 0.05) for w in WHICH]
    assert agree(*fine, Comparison("q", "centroid", -20.0, measured, 0.05)).holds is False


def test_a_rough_point_is_named_and_only_decides_against() -> None:
    """Two comparisons: a 97.5% band each of Student with 19 degrees of freedom, 2.43 errors."""
    assert width(2) == pytest.approx(2.4334, abs=1e-3)
    rough, sure = Comparison("p", "centroid", -20.0, -20.9, 0.4), Comparison("p", "individual", -9.0, -9.1, 0.01)
    claim = agree(rough, sure)
    assert claim.holds is True
    assert claim.numbers["too_few_runs_to_tell_at"] == ["p centroid"]
    assert claim.numbers["monte_carlo_error_db"] == pytest.approx(0.4 * width(2))
    assert claim.numbers["largest_difference_db"] == pytest.approx(0.1)
    assert agree(Comparison("p", "centroid", -20.0, -21.0, 0.4), sure).holds is False
    assert agree(rough, rough, sure).holds is None, "most points tell nothing"
    assert agree(Comparison("p", "centroid", -20.0, -20.9, math.inf)).holds is None


def test_the_error_of_rounds_that_resemble_each_other() -> None:
    """Every block of 50 rounds repeats one number: errors of single rounds would be far too small."""
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.standard_normal((4, 5)), 50, axis=1)
    means = blocks(rows)
    assert len(means) == 20
    assert standard_error(means) == pytest.approx(rows[:, ::50].std(ddof=1) / math.sqrt(20))
    assert len(blocks(np.ones((30, 7)))) == 30
    assert len(blocks(np.ones((1, 3)))) == 3
    assert standard_error(blocks(np.ones((1, 1)))) == math.inf


def test_when_a_predicted_curve_has_settled() -> None:
    curve = np.array([9.0, 3.0, 1.5, 1.01, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert settled(curve, 1.0) == 3
    assert settled(curve[:4], 1.0) == 3
    assert settled(curve, 5.0) == 8, "the last fifth at the latest"


def test_measured_and_predicted_over_the_same_rounds(tiny: r.Regression) -> None:
    from dataclasses import replace

    prediction, run = tiny.prediction("homomorphic"), tiny.run("homomorphic")
    rows = {f"{w}_msd": np.tile(2.0 * getattr(prediction, f"{w}_msd"), (2, 1)) for w in WHICH}
    for found in compare(replace(run, metrics=run.metrics | rows), prediction, "p"):
        assert found.difference_db == pytest.approx(10 * math.log10(2))


def test_a_predicted_curve_that_has_arrived_goes_on_as_it_is(tiny: r.Regression) -> None:
    x = r.Regression(r.ARRIVED + 50, 1, 0)
    for mu, arrives in ((0.7, True), (0.01, False)):
        found, at = x.prediction("per-link", mu=mu), r.Setting("per-link", mu=mu)
        full = predict(x.problem, x.graph("lazy"), at.algorithm, rounds=x.rounds)
        for w in WHICH:
            curve = getattr(found, f"{w}_msd")
            np.testing.assert_allclose(curve, getattr(full, f"{w}_msd"), rtol=1e-6)
            assert (curve[-1] == curve[-50]) is np.bool_(arrives)


# ---- small steps, the left end of figure 4

MU = np.array(h.STEPS) / np.exp(np.mean(np.log(h.STEPS)))


def fit(measured: Any, predicted: Any, tiny_db: float = 0.0, spread: float = 0.01) -> h.Fit:
    rng = np.random.default_rng(1)
    noise = np.exp(spread * rng.standard_normal((20, len(MU))))
    return h.Fit(measured * noise / noise.mean(axis=0), True, predicted, predicted, tiny_db)


def claim_of(made: h.Fit) -> Any:
    return h._claim("h2", made, "homomorphic", "it costs O(mu)")


@pytest.mark.parametrize(
    ("made", "holds"),
    [
        (fit(MU**0.9, MU**0.9), True),
        (fit(MU**0.82, MU**0.9), True),
        (fit(MU**0.78, MU**0.9), False),
        (fit(1.15 * MU**0.9, MU**0.9), False),
        (fit(MU**0.9, MU**0.9, tiny_db=0.1), False),
        (fit(0.0 * MU + 1.0, 0.0 * MU + 1.0), False),
        (fit(-MU, MU), False),
    ],
)
def test_the_claims_of_figure_h_can_fail(made: h.Fit, holds: bool) -> None:
    assert claim_of(made).holds is holds


def test_a_rough_fit_decides_nothing() -> None:
    claim = claim_of(fit(MU**0.72, MU**0.9, spread=0.6))
    assert claim.holds is None
    assert claim.numbers["slope_monte_carlo_error"] > 0.1


def test_blocks_of_rounds_hide_what_steps_share() -> None:
    """One draw in all steps: an error of the level that whole repetitions show and shuffled blocks do not."""
    rng = np.random.default_rng(2)
    shared = np.exp(0.1 * rng.standard_normal(20))
    together = MU * shared[:, None]
    apart = np.column_stack([mu * rng.permutation(shared) for mu in MU])
    true = h.Fit(together, True, MU, MU, 0.0).offset_error
    assert h.Fit(apart, True, MU, MU, 0.0).offset_error < 0.7 * true
    assert h.Fit(apart, False, MU, MU, 0.0).offset_error == pytest.approx(true, rel=0.05)
    assert h.Fit(together, True, MU, MU, 0.0).slope_error < 1e-9 < h.Fit(together, False, MU, MU, 0.0).slope_error


@pytest.mark.parametrize("name", ["homomorphic", "per-link", "shared"])
def test_the_closed_form_is_the_limit_of_the_prediction(tiny: r.Regression, name: str) -> None:
    at, graph = r.Setting(name, 0.3, 1e-4), tiny.graph("metropolis")
    limit = predict(tiny.problem, graph, at.algorithm, seed=5).limit
    assert limit is not None
    expected = h.closed_form(tiny.problem, graph, at.algorithm, 5)
    assert limit.centroid.privacy_noise == pytest.approx(expected, rel=2e-3)


def test_runs_share_their_draws(tiny: r.Regression) -> None:
    """With next to no noise a run is the noiseless one: clients and batches do not depend on the scheme."""
    a, b = (tiny.run(name, 1e-20).metrics["centroid_msd"] for name in ("homomorphic", "none"))
    np.testing.assert_allclose(a, b, rtol=1e-6)


# ---- figure 5


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "train.csv"
    click_log.synthetic_log(2500, 3)[0].write_csv(path)
    return path


def test_figure_d_on_a_log_of_kaggles_format(log: Path, tmp_path: Path) -> None:
    x = c.Classification(6, 2, 0, log)
    files, claims = c.figure_d(x, tmp_path), told.claims_d(x)
    assert sorted(os.listdir(tmp_path)) == [f"figure_5_clicks.{s}" for s in ("csv", "pdf", "png", "svg")]
    assert sorted(Path(f).name for f in files) == sorted(os.listdir(tmp_path))
    table = pl.read_csv(tmp_path / "figure_5_clicks.csv")
    names = [
        f"{n} {m} {b}"
        for m in ("test_error", "test_auc", "test_log_loss")
        for n in ("none", "homomorphic", "per-link")
        for b in BAND
    ]
    assert table.columns == ["round", *names]
    assert [claim.id for claim in claims] == ["d0", "d1", "d2"]
    json.dumps([claim.to_dict() for claim in claims], allow_nan=False)
    assert claims[1].numbers["rows"] == 256, "a file has no others"
    notes = claims[1].numbers["notes"]
    assert any("not private" in n for n in notes)  # categories are counted from a real log
    assert not any("synthetic" in n for n in notes)


# ---- the whole


Figures = Iterator[tuple[str, float, Callable[[], tuple[list[str], list[Claim]]]]]


def given(monkeypatch: pytest.MonkeyPatch, *figures: Callable[[], tuple[list[str], list[Claim]]]) -> None:
    def replacement(*arguments: object) -> Figures:
        for n, figure in enumerate(figures):
            yield f"figure {n}", 1.0 + n, figure

    monkeypatch.setattr(module, "_figures", replacement)


def fine() -> tuple[list[str], list[Claim]]:
    return ["a.png"], [Claim("a1", "yes", True, {"x": 1.0})]


def wrong() -> tuple[list[str], list[Claim]]:
    return ["b.png"], [Claim("b1", "no", False, {"x": math.inf}), Claim("p1", "no", False, privacy=True)]


def known() -> tuple[list[str], list[Claim]]:
    """What never changes the exit code: expected to fail, open, and about privacy."""
    claims = [Claim("c5", "no", False, expected=False), Claim("c6", "?", None), Claim("p1", "no", False, privacy=True)]
    return [], claims


def stopped() -> tuple[list[str], list[Claim]]:
    raise KeyboardInterrupt


def test_a_report_is_written_beside_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, fine, wrong)
    told: list[tuple[str, float]] = []
    report = reproduce(out=tmp_path / "new", announce=lambda what, done: told.append((what, done)))
    assert told == [("figure 0", 0.0), ("figure 1", pytest.approx(1 / 3))]
    assert not report.as_expected
    assert [claim.id for claim in report.claims] == ["a1", "b1"]
    assert [claim.id for claim in report.privacy_claims] == ["p1"]
    assert report.files == ["a.png", "b.png", *(str(tmp_path / "new" / n) for n in ("index.html", "claims.json"))]
    assert json.loads((tmp_path / "new" / "claims.json").read_text()) == report.to_dict()
    assert report.to_dict().keys() >= {"claims", "privacy_claims", "files", "seconds"}


def test_an_interruption_keeps_the_figures_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, fine, stopped, wrong)
    report = reproduce(out=tmp_path)
    assert report.interrupted
    assert [claim.id for claim in report.claims] == ["a1"]
    assert json.loads((tmp_path / "claims.json").read_text())["interrupted"] is True


def test_an_interrupted_run_makes_no_half_figure(log: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from dataclasses import replace

    def interrupted(*arguments: Any, **options: Any) -> Run:
        return replace(simulate(*arguments, **options), interrupted=True)

    monkeypatch.setattr(r, "simulate", interrupted)
    x = r.Regression(2, 1, 0)
    with pytest.raises(KeyboardInterrupt):
        drawn.figure_a(x, tmp_path)
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(c, "simulate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        c.figure_d(c.Classification(2, 1, 0, log), tmp_path)


@pytest.mark.parametrize(("figure", "code"), [(fine, 0), (known, 0), (wrong, 1), (stopped, 130)])
def test_the_exit_code_is_the_verdict(
    figure: Callable[[], Any], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, figure)
    monkeypatch.setattr(sys, "argv", ["confide", "reproduce", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as done:
        cli.main()
    assert (done.value.code or 0) == code


def test_which_figures_a_name_makes() -> None:
    def ids(*names: str) -> str:
        return "".join(what[1] for what, _, _ in module._figures(names, 1, 1, 0, Path("x"), None))

    assert ids("regression") == "abceh"
    assert ids("classification") == "d"
    assert ids("regression", "classification") == "abcehd"
    assert ids("privacy") == "i"
    assert ids("equal-privacy") == "fgk"
    assert ids("robustness") == "j"
    assert ids("all") == "abcehdifgkj"


@pytest.mark.parametrize(("quick", "expected"), [(True, (300, 4)), (False, (1000, 20))])
def test_quick_and_full_sizes(quick: bool, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # fmt: skip # noqa: E501
    sizes: list[tuple[int, int]] = []
    monkeypatch.setattr(module, "_figures", lambda names, rounds, repeats, *rest: sizes.append((rounds, repeats)) or ())
    reproduce(quick=quick, out=tmp_path)
    reproduce(quick=quick, repeats=3, out=tmp_path)
    assert sizes == [expected, (expected[0], 3)]


def test_an_error_leaves_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> Any:
        raise InputError("problem.path", "x", "no column click")

    given(monkeypatch, fine)
    reproduce(out=tmp_path)
    before = (tmp_path / "claims.json").read_bytes()
    given(monkeypatch, refuses)
    with pytest.raises(InputError):
        reproduce(out=tmp_path)
    assert (tmp_path / "claims.json").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["claims.json", "index.html"]


def test_an_empty_report_holds() -> None:
    assert Report().as_expected
