"""The commands about privacy: account, plan, audit, verify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confide.errors import InputError

if TYPE_CHECKING:
    from confide.graph import Graph
    from confide.privacy.calibrate import Budget
    from confide.privacy.sensitivity import Sensitivity
    from confide.privacy.sum_noise import SumNoise

app = typer.Typer()
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout; logs and progress on stderr.")]
GraphSpec = Annotated[str, typer.Option("--graph", help="ring:10, random:10:0.4, file:PATH ...")]
Weights = Annotated[str, typer.Option(help="lazy, metropolis, uniform, constant or given")]
Noise = Annotated[str, typer.Option(help="gaussian, laplace, discrete-gaussian or discrete-laplace")]
Rounds = Annotated[int, typer.Option(help="T")]
Step = Annotated[float, typer.Option(help="mu")]
Bound = Annotated[float, typer.Option(help="B, of the clip")]
Norm = Annotated[str, typer.Option(help="l1 or l2")]
Level = Annotated[str, typer.Option(help="unit, client or example")]
Adjacency = Annotated[str, typer.Option(help="replace or zero-out")]
Sampled = Annotated[int | None, typer.Option(help="L")]
Clients = Annotated[int | None, typer.Option(help="K, of the smallest unit; random:Q and amplified:Q need it")]
Dim = Annotated[int | None, typer.Option(help="M")]
LocalSteps = Annotated[int, typer.Option(help="E")]
Batch = Annotated[int | None, typer.Option(help="mini-batch size, for level example")]
ProofOption = Annotated[str, typer.Option("--proof", help="none, regulariser:RHO, convex-glm:NU or public-point")]
Smoothness = Annotated[float | None, typer.Option(help="delta of every sampled loss; convex-glm credits more with it")]
ClipKind = Annotated[str, typer.Option("--clip", help="example or update")]
Part = Annotated[str, typer.Option("--participation", help="all, cap:N, random:Q or amplified:Q")]
ThreatOption = Annotated[
    str, typer.Option("--threat", help="links, colluders:1,2, neighbours, own-client or own-server")
]
Delta = Annotated[float, typer.Option(help="of epsilon(delta)")]
Honest = Annotated[
    int | None, typer.Option("--sum-honest", help="honest clients' shares in every secure sum, at least")
]
Corrupted = Annotated[int, typer.Option("--sum-corrupted", help="clients hand in glove with the server, at most")]
FractionBits = Annotated[int, typer.Option(help="of the clients' fixed point, for noise inside the sum")]


@app.command()
def account(
    ledgers: Annotated[list[Path] | None, typer.Argument(help="Ledgers to add up instead.")] = None,
    graph: GraphSpec = "ring:10",
    weights: Weights = "lazy",
    scheme: Annotated[
        str, typer.Option(help="homomorphic, shared, own-clean, per-link, partial:C, pairwise ...")
    ] = "homomorphic",
    noise: Noise = "gaussian",
    sigma: Annotated[float, typer.Option(help="standard deviation per coordinate")] = 1.0,
    sigma_pair: Annotated[float, typer.Option(help="of pairwise")] = 0.0,
    rounds: Rounds = 100,
    step: Step = 0.1,
    bound: Bound = 1.0,
    norm: Norm = "l2",
    level: Level = "unit",
    adjacency: Adjacency = "replace",
    sampled: Sampled = None,
    clients: Clients = None,
    dim: Dim = None,
    local_steps: LocalSteps = 1,
    batch: Batch = None,
    proof: ProofOption = "none",
    smoothness: Smoothness = None,
    clip: ClipKind = "example",
    participation: Part = "all",
    threat: ThreatOption = "links",
    release: Annotated[str, typer.Option(help="none, centroid:SIGMA or local")] = "none",
    delta: Delta = 1e-5,
    sum_sigma: Annotated[float | None, typer.Option(help="on psi, of the noise inside the secure sum")] = None,
    sum_honest: Honest = None,
    sum_corrupted: Corrupted = 0,
    fraction_bits: FractionBits = 24,
    theorem: Annotated[str, typer.Option(help="'paper' prints the paper's Theorem 2, with its gaps")] = "confide",
    as_json: Json = False,
) -> None:
    """epsilon for a named adversary, with the assumptions it rests on."""
    from confide.validation import one_of

    if one_of("theorem", theorem, ("confide", "paper")) == "paper":
        _paper(step, bound, sigma, rounds, as_json)
        return
    if ledgers:
        _ledgers(ledgers, delta, as_json)
        return
    from confide.privacy.accountant import account as spend
    from confide.schemes import scheme as make

    one_of("noise", noise, ("gaussian", "laplace", "discrete-gaussian", "discrete-laplace"))
    s = _sensitivity(locals())
    made = make(scheme, sigma, noise=noise.removeprefix("discrete-"), sigma_pair=sigma_pair)
    inside = _sum_noise(sum_sigma, sum_honest, sum_corrupted, fraction_bits, s)
    a = spend(
        made, _graph(graph, weights), s, rounds=rounds, noise=noise, threat=threat, release=release, delta=delta,
        sum_noise=inside,
    )  # fmt: skip
    if as_json:
        print(json.dumps(a.to_dict(), allow_nan=False))
        return
    from confide.privacy.statement import lines

    for line in lines({"accounts": [a.to_dict()], "refused": [], "unprotected": []}):
        print(line)
    for name in ("rho", "mu_gdp", "epsilon_pure"):
        if getattr(a, name) is not None:
            print(f"{name:14} {getattr(a, name):.6g}")
    print("assumptions")
    for line in a.assumptions:
        print(f"  - {line}")


@app.command()
def plan(
    config: Annotated[Path | None, typer.Argument(help="A config: schemes are then compared by short runs.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="budget at delta")] = None,
    rho: Annotated[float | None, typer.Option(help="budget as zCDP, instead")] = None,
    graph: GraphSpec = "ring:10",
    weights: Weights = "lazy",
    scheme: Annotated[str, typer.Option(help="a scheme's name, or auto")] = "auto",
    noise: Noise = "gaussian",
    rounds: Rounds = 100,
    step: Step = 0.1,
    bound: Bound = 1.0,
    norm: Norm = "l2",
    level: Level = "unit",
    adjacency: Adjacency = "replace",
    sampled: Sampled = None,
    clients: Clients = None,
    dim: Dim = None,
    local_steps: LocalSteps = 1,
    batch: Batch = None,
    proof: ProofOption = "none",
    smoothness: Smoothness = None,
    clip: ClipKind = "example",
    participation: Part = "all",
    threat: ThreatOption = "links",
    release: Annotated[
        str, typer.Option(help="none, centroid (its noise is sized too), centroid:SIGMA or local")
    ] = "centroid",
    delta: Delta = 1e-5,
    hessian: Annotated[float, typer.Option(help="of the quadratic that predicts errors without a config")] = 1.0,
    sum_honest: Honest = None,
    sum_corrupted: Corrupted = 0,
    fraction_bits: FractionBits = 24,
    as_json: Json = False,
) -> None:
    """The noise that a budget asks for; with `auto`, the scheme that leaves the least error, and why.

    With --sum-honest it is the noise inside the secure sum, against the own server.
    """
    from confide.privacy import planner
    from confide.privacy.calibrate import Budget

    budget = Budget(epsilon, rho, delta)
    if sum_honest is not None:
        if config is not None:
            raise InputError("sum_honest", sum_honest, "follows from the config's [secure]; leave the config out")
        s = _sensitivity(locals())
        _plan_sum(budget, s, rounds, sum_honest, sum_corrupted, fraction_bits, threat, as_json)
        return
    names = planner.CANDIDATES if scheme == "auto" else (scheme,)
    if config is not None:
        made, s, measure, rounds, dim = _from_config(config)
        basis = "short runs of the config"
    else:
        made, s = _graph(graph, weights), _sensitivity(locals())
        measure = planner.by_formula(made, step, hessian, rounds, dim or 1)
        basis = f"a quadratic with Hessian {hessian:g} (no clipping, equal data)"
    options = planner.compare(
        names, made, s, budget, measure, rounds=rounds, noise=noise, threat=threat, release=release, dim=dim or 1
    )
    best = options[0]
    if best.calibrated is None:
        raise InputError("scheme", scheme, best.reason)
    answer = {
        "recommended": best.name,
        **best.to_dict(),
        "account": best.calibrated.account.to_dict(),
        "table": [o.to_dict() for o in options],
        "errors_by": basis,
    }
    if as_json:
        print(json.dumps(answer, allow_nan=False))
        return
    _print_plan(answer)


def _plan_sum(
    budget: Budget,
    s: Sensitivity,
    rounds: int,
    honest: int,
    corrupted: int,
    fraction_bits: int,
    threat: str,
    as_json: bool,
) -> None:
    from confide.privacy.calibrate import calibrate_sum
    from confide.privacy.statement import lines

    if threat not in ("links", "own-server"):  # the default, or what is meant
        raise InputError("threat", threat, "noise inside the sum is sized against own-server, and then holds for all")
    noise, spent = calibrate_sum(
        s, budget, rounds=rounds, honest=honest, fraction_bits=fraction_bits, corrupted=corrupted
    )
    if as_json:
        answer = {"sum_sigma": noise.sigma, "share_quanta": noise.share_quanta, "account": spent.to_dict()}
        print(json.dumps(answer, allow_nan=False))
        return
    print(f"noise inside the secure sum: sigma {noise.sigma:.6g} on psi, {noise.share_quanta:.6g} quanta a share")
    for line in lines({"accounts": [spent.to_dict()], "refused": [], "unprotected": []}):
        print(line)


def _sum_noise(
    sigma: float | None, honest: int | None, corrupted: int, fraction_bits: int, s: Sensitivity
) -> SumNoise | None:
    from confide.privacy.sum_noise import SumNoise

    if sigma is None and honest is None:
        return None
    for name, value, what in (
        ("sum_sigma", sigma, "S"),
        ("sum_honest", honest, "N"),
        ("sampled", s.sampled, "L"),
        ("dim", s.dim, "M"),
    ):
        if value is None:
            raise InputError(
                name, None, f"noise inside the secure sum needs it; give --{name.replace('_', '-')} {what}"
            )
    assert sigma is not None and honest is not None  # noqa: S101, PT018 - checked
    assert s.sampled is not None and s.dim is not None  # noqa: S101, PT018 - checked
    return SumNoise.sized(sigma, honest, sampled=s.sampled, fraction_bits=fraction_bits, dim=s.dim, corrupted=corrupted)


def _print_plan(answer: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from confide.privacy.statement import lines

    table = Table(title=f"Errors by {answer['errors_by']}", title_justify="left")
    for name in ("scheme", "sigma", "sigma pair", "release", "released error", "individual error"):
        table.add_column(name)
    for row in answer["table"]:
        if row["reason"]:
            table.add_row(row["scheme"], row["reason"])
            continue
        pair = f"{row['sigma_pair']:.4g}" if row["sigma_pair"] else ""
        numbers = (f"{row['released_error']:.4g}", f"{row['individual_error']:.4g}")
        table.add_row(row["scheme"], f"{row['sigma']:.4g}", pair, row["release"], *numbers)
    Console(highlight=False).print(table)
    print(f"recommended: {answer['recommended']} with sigma {answer['sigma']:.6g}, release {answer['release']}")
    for line in lines({"accounts": [answer["account"]], "refused": [], "unprotected": []}):
        print(line)


def _graph(spec: str, weights: str) -> Graph:
    from confide.graph import Graph

    return Graph.parse(spec, weights=weights)


def _sensitivity(given: dict[str, Any]) -> Sensitivity:
    from confide.privacy.sensitivity import Participation, Proof, Sensitivity

    names = ("step", "bound", "norm", "level", "adjacency", "sampled", "clients", "dim", "local_steps", "batch")
    return Sensitivity(
        **{name: given[name] for name in names},
        proof=Proof.parse(given["proof"]),
        participation=Participation.parse(given["participation"]),
        smoothness=given["smoothness"],
        clip=given["clip"],
    )


def _paper(step: float, bound: float, sigma: float, rounds: int, as_json: bool) -> None:
    from confide.privacy.accountant import paper_theorem
    from confide.validation import positive, positive_int

    epsilon, gaps = paper_theorem(
        positive("step", step), positive("bound", bound), positive("sigma", sigma), positive_int("rounds", rounds)
    )
    if as_json:
        print(json.dumps({"epsilon": epsilon, "theorem": "paper", "valid": False, "warnings": gaps}))
        return
    print(f"Theorem 2 as printed: epsilon {epsilon:.6g}")
    for line in gaps:
        print(f"  warning: {line}")


def _from_config(path: Path) -> tuple[Any, Any, Any, int, int]:
    """Graph, sensitivity and a measure by short runs."""
    from dataclasses import replace

    from confide import config as settings
    from confide.engines.driver import simulate
    from confide.privacy.planner import by_simulation

    parsed = settings.load(path)
    x = parsed.build()
    if x.privacy is None:
        raise InputError("algorithm.clip", "none", "a plan needs a clip; set algorithm.clip and algorithm.bound")
    s = x.privacy.sensitivity(x.problem, x.algorithm, x.seed)

    def run(scheme: Any) -> tuple[float, float]:
        done = simulate(
            x.problem,
            x.graph,
            replace(x.algorithm, scheme=scheme),
            rounds=x.rounds,
            repeats=min(x.repeats, 8),
            seed=x.seed,
        )
        return float(done.levels("centroid_msd").mean()), float(done.levels("individual_msd").mean())

    return x.graph[0], s, by_simulation(run), x.rounds, x.problem.M


def _ledgers(paths: list[Path], delta: float, as_json: bool) -> None:
    """What all these runs cost together, for every data set and unit."""
    from confide.privacy.conversion import rho_epsilon
    from confide.privacy.ledger import all_gaussian, compose, read_all

    books = read_all(paths)
    rows: list[dict[str, Any]] = []
    for (dataset, unit), total in compose(book for found in books.values() for book in found).items():
        spent = [] if total.epsilon is None else [total.epsilon]
        if total.rho is not None:
            spent.append(rho_epsilon(total.rho, delta, all_gaussian(books[dataset])))
        epsilon = min(spent, default=None)  # None: an event has no bound, so the sum has none
        rows.append({"dataset": dataset, "unit": unit, "events": total.events, "rho": total.rho, "epsilon": epsilon})
    unbounded = any(r["epsilon"] is None for r in rows)
    if as_json:
        worst = None if unbounded else max(r["epsilon"] for r in rows)
        answer = {"epsilon": worst, "delta": delta, "leak": unbounded, "units": rows}
        print(json.dumps(answer | {"ledgers": [str(p) for p in paths]}))
        return
    for dataset, found in books.items():
        mine = [r for r in rows if r["dataset"] == dataset]
        open_ended = [r["unit"] for r in mine if r["epsilon"] is None]
        top = max(mine, key=lambda r: r["epsilon"] or 0.0)
        spent_words = (
            f"NO BOUND for unit {open_ended[0]}: some event has none, or runs of different noise laws do not add up"
            if open_ended
            else f"at most epsilon {top['epsilon']:.4g} at delta {delta:g} (unit {top['unit']})"
        )
        print(f"data set {dataset[:12]}: {len(found)} ledgers, {len(mine)} units, {spent_words}")


@app.command()
def audit(
    config: Annotated[Path, typer.Argument(help="A TOML config, or the run.json of an earlier run.")],
    change: Annotated[list[str] | None, typer.Option("--set", help="Change a key: scheme.sigma=1")] = None,
    runs: Annotated[int, typer.Option(help="Of the membership test, each with and without the canary.")] = 10_000,
    as_json: Json = False,
) -> None:
    """Attack the scheme: what leaks, and a measured lower bound beside the accountant's epsilon."""
    from rich.console import Console

    from confide import config as settings
    from confide.privacy.audit import audit as attack
    from confide.validation import whole

    console = Console(stderr=True, highlight=False)
    report = attack(
        settings.load(config, change or []),
        runs=whole("runs", runs, 100),
        announce=lambda what: console.print(f"{what} ...", style="dim", markup=False),
    )
    print(json.dumps(report.to_dict(), allow_nan=False) if as_json else report)
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def verify(
    bundle: Annotated[Path, typer.Argument(help="A signed bundle: plan, ledger, versions, statement.")],
    key: Annotated[str | None, typer.Option(help="The signer's public key (hex), received another way.")] = None,
    as_json: Json = False,
) -> None:
    """Check a signed bundle, offline."""
    from confide.privacy.bundle import verify_bundle
    from confide.privacy.conversion import rho_epsilon
    from confide.privacy.statement import lines

    report = verify_bundle(bundle, key, rho_epsilon)
    if as_json:
        print(json.dumps({"ok": report.ok, **report.to_dict()}))
    else:
        for check in report.checks:
            word = {True: "ok", False: "FAILED", None: "not checked"}[check.ok]
            print(f"{word:12} {check.name:10} {check.reason}")
        if report.statement is not None:
            print("by the plan, computed anew:")
            for line in lines(dict(report.statement)):
                print(f"  {line}")
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def bundle(
    key: Annotated[Path, typer.Option(help="Ed25519 key; made (mode 0600) where there is none.")],
    run: Annotated[Path | None, typer.Argument(help="Folder of an accounted run.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Of a deployment, instead of RUN: plan.json.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="Of a deployment: what `confide ledger` wrote.")] = None,
    out: Annotated[Path | None, typer.Option(help="bundle.json, in RUN or beside the ledger, by default.")] = None,
    as_json: Json = False,
) -> None:
    """Sign plan, ledger and statement of a run or of a deployed unit, for an auditor."""
    from confide.privacy.bundle import generate_key, load_key, make_bundle, public_hex, save_bundle
    from confide.privacy.of_run import LEDGER, PLAN
    from confide.privacy.plan import Plan
    from confide.run import Run, versions

    if run is not None and plan is None and ledger is None:
        loaded = Run.load(run)
        if loaded.privacy is None or loaded.privacy["ledger"] is None:
            raise InputError(
                "run", str(run), "has no ledger; only an accounted run (algorithm.clip set) can be bundled"
            )
        agreed, said, ledger = Plan.load(run / PLAN), loaded.privacy["statement"], run / LEDGER
    elif run is None and plan is not None and ledger is not None:
        from confide.deploy.plan.agreement import price

        agreed = Plan.load(plan)
        said = price(agreed).statement.to_dict()
    else:
        raise InputError("run", None if run is None else str(run), "give the folder of a run, or --plan and --ledger")
    if not key.exists():
        generate_key(key)
    secret = load_key(key)
    text = make_bundle(agreed, ledger, said, versions(), secret)
    path = out or ledger.parent / "bundle.json"
    save_bundle(path, text)
    public = public_hex(secret.public_key())
    if as_json:
        print(json.dumps({"file": str(path), "public_key": public}))
        return
    print(f"{path}\npublic key {public}")
