"""The commands about privacy: account, plan, audit, bundle, verify."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from confide.base.errors import InputError
from confide.commands.options import Change, Json, answer, with_options

if TYPE_CHECKING:
    from confide.graph.graph import Graph
    from confide.plans.privacy import Budget
    from confide.privacy.calibrate import Calibrated
    from confide.privacy.planner import Measure
    from confide.privacy.sensitivity import Sensitivity
    from confide.privacy.sum_noise import SumNoise
    from confide.rounds.schemes import Scheme

app = typer.Typer()
T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    """What `account` prices and `plan` sizes noise for: every field is an option of both commands."""

    graph: Annotated[str, typer.Option(help="ring:10, random:10:0.4, file:PATH ...")] = "ring:10"
    weights: Annotated[str, typer.Option(help="lazy, metropolis, uniform, constant or given")] = "lazy"
    noise: Annotated[str, typer.Option(help="gaussian, laplace, discrete-gaussian or discrete-laplace")] = "gaussian"
    rounds: Annotated[int, typer.Option(help="T")] = 100
    step: Annotated[float, typer.Option(help="mu")] = 0.1
    bound: Annotated[float, typer.Option(help="B, of the clip")] = 1.0
    norm: Annotated[str, typer.Option(help="l1 or l2")] = "l2"
    level: Annotated[str, typer.Option(help="unit, client or example")] = "unit"
    adjacency: Annotated[str, typer.Option(help="replace or zero-out")] = "replace"
    sampled: Annotated[int | None, typer.Option(help="L")] = None
    clients: Annotated[int | None, typer.Option(help="K, of the smallest unit; random:Q and amplified:Q need it")] = (
        None
    )
    dim: Annotated[int | None, typer.Option(help="M")] = None
    local_steps: Annotated[int, typer.Option(help="E")] = 1
    batch: Annotated[int | None, typer.Option(help="mini-batch size, for level example")] = None
    proof: Annotated[str, typer.Option(help="none, regulariser:RHO, convex-glm:NU or public-point")] = "none"
    smoothness: Annotated[
        float | None, typer.Option(help="delta of every sampled loss; convex-glm credits more with it")
    ] = None
    clip: Annotated[str, typer.Option(help="example or update")] = "example"
    participation: Annotated[str, typer.Option(help="all, cap:N, random:Q or amplified:Q")] = "all"
    threat: Annotated[str, typer.Option(help="links, colluders:1,2, neighbours, own-client or own-server")] = "links"
    delta: Annotated[float, typer.Option(help="of epsilon(delta)")] = 1e-5
    sum_honest: Annotated[int | None, typer.Option(help="honest clients' shares in every secure sum, at least")] = None
    sum_corrupted: Annotated[int, typer.Option(help="clients that may collude with the server, at most")] = 0
    fraction_bits: Annotated[
        int | None,
        typer.Option(help="of the clients' fixed point: discrete noise needs it; 24 for noise inside the sum"),
    ] = None

    @property
    def sum_bits(self) -> int:
        return 24 if self.fraction_bits is None else self.fraction_bits

    def servers(self) -> Graph:
        from confide.graph.graph import Graph

        return Graph.parse(self.graph, weights=self.weights)

    def sensitivity(self) -> Sensitivity:
        """Of the options that are named like its fields."""
        from confide.privacy.sensitivity import Sensitivity

        return Sensitivity(**{f.name: getattr(self, f.name) for f in fields(Sensitivity) if hasattr(self, f.name)})


@app.command()
@with_options(Asked)
def account(
    asked: Asked,
    context: typer.Context,
    x: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="X",
            help="A config, run.json or plan.json to price, or ledgers (run folders, data by name or file) to add up.",
        ),
    ] = None,
    scheme: Annotated[
        str, typer.Option(help="homomorphic, shared, own-clean, per-link, partial:C, pairwise ...")
    ] = "homomorphic",
    sigma: Annotated[float, typer.Option(help="standard deviation per coordinate")] = 200.0,
    sigma_pair: Annotated[float, typer.Option(help="of pairwise")] = 0.0,
    sigma_client: Annotated[
        float, typer.Option(help="of each client's own noise, its update being sent in clear (plain aggregation)")
    ] = 0.0,
    release: Annotated[str, typer.Option(help="none, centroid:SIGMA, local or consensus:T")] = "none",
    sum_sigma: Annotated[float | None, typer.Option(help="on psi, of the noise inside the secure sum")] = None,
    theorem: Annotated[str, typer.Option(help="'paper' prints the paper's Theorem 2, with its gaps")] = "confide",
    epsilon: Annotated[
        float | None, typer.Option(help="of --theorem paper: the sigma that it asks for, instead of --sigma")
    ] = None,
    rows: Annotated[
        str | None, typer.Option(help="N or N:M, rows of a client and of another: a sum about examples for clients")
    ] = None,
    as_json: Json = False,
) -> None:
    """epsilon for a named adversary, with the assumptions it rests on; or of a config, a plan, or ledgers together."""
    from confide.base.validation import one_of

    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    if x:
        _account_of(x, asked, rows, as_json, given)
        return
    if one_of("theorem", theorem, ("confide", "paper")) == "paper":
        if {"sigma", "epsilon"} <= given:
            raise InputError("--epsilon", epsilon, "sigma follows from it; give one of --sigma and --epsilon")
        _paper(asked, sigma, epsilon, as_json)
        return
    if epsilon is not None:
        remedy = "is what `account` answers; `confide plan --epsilon` sizes noise for it, --theorem paper as printed"
        raise InputError("--epsilon", epsilon, remedy)
    from confide.laws.law import Law
    from confide.privacy.accountant import account as spend
    from confide.rounds.schemes import scheme as make

    law, s = Law.parse(asked.noise), asked.sensitivity()
    made = make(scheme, sigma, noise=law.continuous, sigma_pair=sigma_pair, sigma_client=sigma_client)
    inside = _sum_noise(asked, sum_sigma)
    servers = asked.servers()
    if law.on_grid:
        made, servers, s = _on_grid(made, servers, s, inside, asked)
    a = spend(
        made, servers, s, rounds=asked.rounds, noise=law, threat=asked.threat, release=release, delta=asked.delta,
        sum_noise=inside, secure=not sigma_client,
    )  # fmt: skip
    from confide.privacy.statement import assumptions, table

    found = a.to_dict()
    one = _alone(found, asked.rounds)
    bounds = {name: found[name] for name in ("rho", "mu_gdp", "epsilon_pure") if found[name] is not None}
    lines = [*table(one), "", *(f"{name:14} {x:.6g}" for name, x in bounds.items()), *assumptions(one)]
    answer(as_json, found, *lines)


@app.command()
@with_options(Asked)
def plan(
    asked: Asked,
    config: Annotated[
        Path | None, typer.Argument(help="A config, not about private data: schemes are then compared by short runs.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="budget at delta")] = None,
    rho: Annotated[float | None, typer.Option(help="budget as zCDP, instead")] = None,
    scheme: Annotated[str, typer.Option(help="a scheme's name, or auto")] = "auto",
    release: Annotated[
        str, typer.Option(help="none, centroid (its noise is sized too), centroid:SIGMA, local or consensus:T")
    ] = "centroid",
    hessian: Annotated[float, typer.Option(help="of the quadratic that predicts errors without a config")] = 1.0,
    as_json: Json = False,
) -> None:
    """The noise that a budget asks for; with `auto`, the scheme that leaves the least error, and why.

    With --sum-honest it is the noise inside the secure sum, against the own server.
    """
    from confide.plans.privacy import Budget
    from confide.privacy import planner

    budget = Budget(epsilon, rho, asked.delta)
    if asked.sum_honest is not None:
        if config is not None:
            remedy = "follows from the config's [secure]; leave the config out"
            raise InputError("sum_honest", asked.sum_honest, remedy)
        _plan_sum(asked, asked.sum_honest, budget, as_json)
        return
    if config is not None:
        made, s, rounds, measure = _from_config(config)
        basis = "short runs of the config"
    else:
        made, s, rounds, measure = asked.servers(), asked.sensitivity(), asked.rounds, None
        basis = f"a quadratic with Hessian {hessian:g} (no clipping, equal data)"
    options = planner.plan(
        made, s, budget, rounds=rounds, scheme=scheme, noise=asked.noise, threat=asked.threat, release=release,
        hessian=hessian, measure=measure,
    )  # fmt: skip
    best = next((o for o in options if o.name not in planner.BASELINES), options[0])
    if best.calibrated is None:
        raise InputError("scheme", scheme, best.reason)
    found = {
        "recommended": best.name,
        **best.to_dict(),
        "account": best.calibrated.account.to_dict(),
        "table": [o.to_dict() for o in options],
        "errors_by": basis,
    }
    answer(as_json, found, *_planned(found))


def _plan_sum(asked: Asked, honest: int, budget: Budget, as_json: bool) -> None:
    from confide.privacy.calibrate import calibrate_sum
    from confide.privacy.statement import lines

    s = asked.sensitivity()
    if asked.threat not in ("links", "own-server"):  # the default, or what is meant
        remedy = "noise inside the sum is sized against own-server, and then holds for all"
        raise InputError("threat", asked.threat, remedy)
    noise, spent = calibrate_sum(
        s, budget, rounds=asked.rounds, honest=honest, fraction_bits=asked.sum_bits, corrupted=asked.sum_corrupted
    )
    found = {"sum_sigma": noise.sigma, "share_quanta": noise.share_quanta, "account": spent.to_dict()}
    head = f"noise inside the secure sum: sigma {noise.sigma:.6g} on psi, {noise.share_quanta:.6g} quanta a share"
    answer(as_json, found, head, *lines(_alone(spent.to_dict(), asked.rounds)))


def _needed(name: str, value: T | None, remedy: str) -> T:
    if value is None:
        raise InputError(name, None, remedy)
    return value


def _sum_noise(asked: Asked, sigma: float | None) -> SumNoise | None:
    from confide.privacy.sum_noise import SumNoise

    if sigma is None and asked.sum_honest is None:
        return None
    why = "noise inside the secure sum needs it; give"
    return SumNoise.sized(
        _needed("sum_sigma", sigma, f"{why} --sum-sigma S"),
        _needed("sum_honest", asked.sum_honest, f"{why} --sum-honest N"),
        sampled=_needed("sampled", asked.sampled, f"{why} --sampled L"),
        dim=_needed("dim", asked.dim, f"{why} --dim M"),
        fraction_bits=asked.sum_bits,
        corrupted=asked.sum_corrupted,
    )


def _alone(account: dict[str, Any], rounds: int) -> dict[str, Any]:
    """A statement with one row."""
    return {"rounds": rounds, "accounts": [account], "refused": []}


def _planned(found: dict[str, Any]) -> Iterator[str]:
    from confide.privacy.statement import lines

    heads = ["", "sigma", "release", "mean", "single", *PLANNED]
    rows, without = [], []
    for row in found["table"]:
        if row["reason"]:
            without.append(f"{row['scheme']}: no number, {row['reason']}")
            continue
        if row["only_simulated"]:
            without.append(f"{row['scheme']}: not recommended, {row['only_simulated']}")
        kind, _, noise = row["release"].partition(":")
        numbers = [_short(row[key]) for key in ("sigma", "released_error", "individual_error")]
        numbers.insert(1, _short(float(noise)) if noise else kind)
        rows.append([row["scheme"], *numbers, *_epsilons(row["statement"])])
    yield f"squared error of the mean that is released and of single models, by\n{found['errors_by']};"
    yield "then epsilon against each adversary, - where nothing protects, ? where nothing is proven\n"
    for cells in [heads, *rows]:
        yield f"{cells[0]:<12}" + "".join(f"{cell:>8}" for cell in cells[1:]).rstrip()
    yield from ["", *without]
    pair = f" and sigma_pair {found['sigma_pair']:.6g}" if found["sigma_pair"] else ""
    yield f"recommended: {found['recommended']} with sigma {found['sigma']:.6g}{pair}, release {found['release']}\n"
    yield from lines(found["statement"])


def _short(x: float) -> str:
    return f"{x:.2g}" if x >= 1000 else f"{x:.3g}"


PLANNED = {"links": "links", "server": "colluders", "nearby": "neighbours", "client": "own-client"}


def _epsilons(statement: dict[str, Any]) -> list[str]:
    """Of a scheme's statement, a cell for each adversary; the last account of a kind is that with the release."""
    from confide.privacy.statement import rounded_up

    found = {}
    for a in statement["accounts"]:
        found[a["threat"].partition(":")[0]] = "-" if a["epsilon"] is None else rounded_up(a["epsilon"], 3)
    return [found.get(kind, "?") for kind in PLANNED.values()]


def _on_grid(
    made: Scheme, graph: Graph, s: Sensitivity, inside: SumNoise | None, asked: Asked
) -> tuple[Scheme, Graph, Sensitivity]:
    """Discrete noise lies on a grid, and what is computed there is rounded: both enter the price, as when deployed."""
    from dataclasses import replace

    from confide.base.validation import whole
    from confide.plans.words import ConvexGlm
    from confide.privacy.rounding import Rounding
    from confide.rounds.arithmetic import TAIL, FixedArithmetic, check_range, on_grid, scheme_on_grid

    remedy = (
        "discrete noise lies on a grid of 2^-BITS / L, which enters the price; "
        "give --fraction-bits BITS, --sampled L and --dim M"
    )
    bits = _needed("fraction_bits", asked.fraction_bits, remedy)
    sampled, dim = _needed("sampled", asked.sampled, remedy), _needed("dim", asked.dim, remedy)
    arithmetic = FixedArithmetic(sampled, whole("fraction_bits", bits, 1, 52))
    made, graph, update = scheme_on_grid(made), on_grid(graph), s.step * s.bound
    reach = update + (0.0 if inside is None else TAIL * inside.share_quanta * arithmetic.client_quantum)
    largest = check_range(arithmetic, made, graph, reach, asked.rounds)
    error = Rounding.error(s.steps[1], s.batch or 1, dim, isinstance(s.proof, ConvexGlm), largest, update)
    # As few as one client may survive, and the model may have a regulariser: nothing here says otherwise.
    return made, graph, replace(s, rounding=Rounding(arithmetic.quantum, 1, s.clip == "example", error))


def _paper(asked: Asked, sigma: float, epsilon: float | None, as_json: bool) -> None:
    from confide.privacy.accountant import paper_sigma, paper_theorem

    if epsilon is None:
        epsilon, gaps = paper_theorem(asked.step, asked.bound, sigma, asked.rounds)
    else:
        sigma, gaps = paper_sigma(asked.step, asked.bound, epsilon, asked.rounds)
    found = {"epsilon": epsilon, "sigma": sigma, "theorem": "paper", "valid": False, "warnings": gaps}
    warnings = [f"  warning: {gap}" for gap in gaps]
    answer(as_json, found, f"Theorem 2 as printed: epsilon {epsilon:.6g} with sigma {sigma:.6g}", *warnings)


def _from_config(path: Path) -> tuple[Any, Any, int, Measure | None]:
    """Graphs that take turns, sensitivity, rounds and a measure by short runs."""
    from dataclasses import replace

    from confide.engines.driver import simulate
    from confide.plans import config as settings
    from confide.privacy.price import price_run

    parsed = settings.load(path)
    x = parsed.build()
    if x.problem.private:
        remedy = (
            "is about somebody's data: trying schemes out on them would tell about them, and nothing pays for that; "
            "leave the config out and give --graph, --rounds, --step ..., or set problem.name = 'regression'"
        )
        raise InputError("config", str(path), remedy)
    if x.privacy is None:
        raise InputError("algorithm.clip", "none", "a plan needs a clip; set algorithm.clip and algorithm.bound")
    if x.algorithm.scheme.sigma_client:
        remedy = "is no noise of servers, which is what a plan sizes; set 0, and `confide account` prices it"
        raise InputError("scheme.sigma_client", x.algorithm.scheme.sigma_client, remedy)
    privacy = x.privacy
    s = price_run(x.problem, x.graph, x.algorithm, x.rounds, x.seed, privacy).sensitivity

    def measure(sized: Calibrated) -> tuple[float, float]:
        algorithm = replace(x.algorithm, scheme=sized.scheme)
        price_run(x.problem, x.graph, algorithm, x.rounds, x.seed, privacy)  # refused where a run has no price
        done = simulate(
            x.problem,
            x.graph,
            algorithm,
            rounds=x.rounds,
            repeats=min(x.repeats, 8),
            seed=x.seed,
        )
        return float(done.levels("centroid_msd").mean()), float(done.levels("individual_msd").mean())

    return x.graph, s, x.rounds, measure


def _account_of(paths: list[Path], options: Asked, rows: str | None, as_json: bool, given: set[str]) -> None:
    from confide.privacy import asked, data_index
    from confide.privacy.paid import Terms
    from confide.privacy.statement import lines

    paths = [data_index.known(path) or path for path in paths]
    kind = asked.kind_of_all(paths)
    allowed = {"x", "as_json"} | ({"delta", "level", "adjacency", "rows"} if kind == "ledger" else set())
    if wrong := sorted(given - allowed):
        name = f"--{wrong[0].replace('_', '-')}"
        raise InputError(name, str(paths[0]), f"is a {kind}, which says all of this itself; leave {name} out")
    to = None
    if given & {"level", "adjacency"}:
        _needed("level", options.level if "level" in given else None, "say whose data may change: give --level too")
        to = Terms.parse(options.level, options.adjacency)
    if kind == "ledger":
        found = asked.add_up(paths, options.delta, to, None if rows is None else _rows(rows))
        said = asked.sum_lines(found)
    else:
        found = asked.price_plan(paths[0]) if kind == "plan" else asked.price_config(paths[0])
        about = f"{found['level']} level, {found['adjacency']}; its adversary is {found['threat']}"
        said = [f"{paths[0]}: a {kind} of {found['rounds']} rounds, {about}", *lines(found)]
    answer(as_json, found | {"files": [str(path) for path in paths]}, *said)


def _rows(text: str) -> tuple[int, int]:
    first, _, second = text.partition(":")
    if not all(n.isdecimal() and int(n) > 0 for n in (first, second or first)):
        raise InputError("--rows", text, "write N, or N:M for clients of N and of M rows")
    return int(first), int(second or first)


@app.command()
def audit(
    config: Annotated[Path, typer.Argument(help="A TOML config, or the run.json of an earlier run.")],
    change: Change = None,
    as_json: Json = False,
) -> None:
    """Attack what a run prints: an attained lower bound beside every epsilon; exits 1 when one is contradicted."""
    from rich.console import Console

    from confide.attacks.audit import audit as attack
    from confide.plans import config as settings

    console = Console(stderr=True, highlight=False)
    report = attack(
        settings.load(config, change or []),
        announce=lambda what: console.print(f"{what} ...", style="dim", markup=False),
    )
    answer(as_json, report.to_dict(), str(report))
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
    from confide.privacy.statement import lines, rounded_up

    report = verify_bundle(bundle, key)
    words = {True: "ok", False: "FAILED", None: "not checked"}
    found = [f"{words[check.ok]:12} {check.name:10} {check.reason}" for check in report.checks]
    if report.statement is not None:
        found += ["", "By the plan, computed anew:", *lines(dict(report.statement))]
    if report.spent is not None and report.spent["runs"] > 1:
        s, epsilon = report.spent, report.spent["epsilon"]
        number = "NO BOUND" if epsilon is None else f"at most epsilon {rounded_up(epsilon)} at delta {s['delta']:g}"
        about = f"{s['level']} level, {s['adjacency']}; against {s['threat']}"
        found.append(f"all {s['runs']} runs together: {number} ({about})")
    answer(as_json, report.to_dict(), *found)
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def bundle(
    key: Annotated[Path, typer.Option(help="Ed25519 key; made (mode 0600) where there is none.")],
    run: Annotated[Path | None, typer.Argument(help="Folder of an accounted run.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Of a deployment, instead of RUN: plan.json.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="Of a deployment: what `confide ledger` wrote.")] = None,
    receipts: Annotated[
        Path | None, typer.Option(help="Of a deployment: what `confide ledger --receipts` wrote.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="bundle.json, in RUN or beside the ledger, by default.")] = None,
    as_json: Json = False,
) -> None:
    """Sign plan, ledger and statement of a run or of a deployed unit, for an auditor."""
    from confide.base import canonical
    from confide.engines.run import Run, versions
    from confide.plans.plan import Plan
    from confide.privacy.bundle import LARGEST, generate_key, load_key, make_bundle, public_hex, save_bundle
    from confide.privacy.ledger import read
    from confide.privacy.run_ledger import LEDGER, plans_in

    if run is not None and plan is None and ledger is None and receipts is None:
        loaded = Run.load(run)
        if loaded.privacy is None or loaded.privacy["ledger"] is None:
            raise InputError(
                "run", str(run), "has no ledger; only an accounted run (algorithm.clip set) can be bundled"
            )
        said, ledger = loaded.privacy["statement"], run / LEDGER
        agreed, *others = plans_in(run, read(ledger))
    elif run is None and plan is not None and ledger is not None:
        from confide.privacy.price import price

        agreed, others = Plan.load(plan), []
        said = price(agreed).statement().to_dict()
    else:
        raise InputError("run", None if run is None else str(run), "give the folder of a run, or --plan and --ledger")
    if not key.exists():
        generate_key(key)
    secret = load_key(key)
    told = []
    if receipts is not None:
        told = canonical.loads(canonical.read_text(receipts, "--receipts", LARGEST), "--receipts")
    text = make_bundle(agreed, ledger, said, versions(), secret, others, told)
    path = out or ledger.parent / "bundle.json"
    save_bundle(path, text)
    public = public_hex(secret.public_key())
    answer(as_json, {"file": str(path), "public_key": public}, str(path), f"public key {public}")
