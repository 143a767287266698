"""The command `confide`: thin, with honest exit codes (0 done, 1 failed, 2 bad input) and --json for machines."""

from __future__ import annotations

import json
import os
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from confide.base.errors import InputError, RunError
from confide.base.exits import ended_by, say
from confide.commands import cluster as cli_cluster
from confide.commands import deploy as cli_deploy
from confide.commands import pki as cli_pki
from confide.commands import privacy as cli_privacy
from confide.commands import theory as cli_theory
from confide.commands.options import Change, Json, answer

app = typer.Typer(
    help="Private learning across a graph of federations.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
err = Console(stderr=True, highlight=False)


@app.command()
def reproduce(
    experiment: Annotated[
        list[str] | None,
        typer.Argument(
            help="regression, classification, privacy, equal-privacy, robustness or all; by default the first three."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option(help="4 repetitions of 300 rounds.")] = False,
    repeats: Annotated[int | None, typer.Option(help="Repetitions (20).")] = None,
    seed: Annotated[int, typer.Option(help="Of everything.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for figures, data and claims.")] = Path("results"),
    data: Annotated[Path | None, typer.Option(help="Avazu's train.csv or .gz for the classification.")] = None,
    as_json: Json = False,
) -> None:
    """Make the paper's figures, and check every claim of the paper by number."""
    from confide.experiments.reproduce import DEFAULT
    from confide.experiments.reproduce import reproduce as run
    from confide.experiments.tables import announced, print_claims

    with announced(err) as announce:
        report = run(
            tuple(experiment) if experiment else DEFAULT,
            quick=quick,
            repeats=repeats,
            seed=seed,
            out=out,
            data=data,
            announce=announce,
        )
    if as_json:
        print(json.dumps(report.to_dict(), allow_nan=False))
    else:
        print_claims(report)
    if report.interrupted:
        err.print(f"interrupted: the figures made so far are in {out}", soft_wrap=True, markup=False)
        sys.exit(130)  # not typer.Exit, which comes back from app() like any other result
    if not report.as_expected:
        sys.exit(1)


@app.command()
def simulate(
    config: Annotated[Path | None, typer.Argument(help="A TOML config, or the run.json of an earlier run.")] = None,
    change: Change = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results (results/CONFIG-NAME).")] = None,
    print_default: Annotated[bool, typer.Option("--print-default", help="Print the default config.")] = False,
    print_schema: Annotated[bool, typer.Option("--print-schema", help="Print the config's JSON schema.")] = False,
    as_json: Json = False,
) -> None:
    """Run one config: metrics, models, a figure and the privacy statement."""
    from confide.plans import config as settings

    if print_default or print_schema:
        text = settings.default_text() if print_default else json.dumps(settings.Config.model_json_schema(), indent=1)
        print(text.rstrip())
        return
    if config is None:
        raise InputError("CONFIG", None, "name a config file; `confide simulate --print-default` prints one")
    parsed = settings.load(config, change or [])
    folder = out or Path(parsed.output.folder or Path("results") / config.stem)
    run, files, again = _simulate(parsed, folder)
    from confide.engines.run import LEDGER
    from confide.privacy.asked import add_up, sum_lines

    spent = add_up([folder], parsed.privacy.delta) if (folder / LEDGER).exists() else None
    lines = run.facts()
    if again:
        lines.append("kept           this run was made before: its results are handed out again, nothing is drawn anew")
    if spent is not None and len(spent["runs"]) > 1:
        lines += [f"ledger         {line}" for line in sum_lines(spent)]
    lines += [f"files          {folder}", *([] if run.privacy is None else ["", run.statement])]
    answer(as_json, run.summary() | {"spent": spent, "files": files, "kept": again}, *lines)
    if run.diverged:
        at = "round {round} of repetition {repetition}, with algorithm.step = {step:g}".format(**run.diverged)
        why = f": {run.diverged['why']}" if "why" in run.diverged else ""
        raise RunError(f"the run diverged in {at}; what came before is kept. Use a smaller step{why}")
    if run.interrupted:
        say(f"interrupted after round {run.rounds} of {parsed.rounds}; what was computed is in {folder}")
        sys.exit(130)


def _simulate(parsed: Any, folder: Path) -> tuple[Any, list[str], bool]:
    """The run, its files, and whether the folder had it already."""
    from dataclasses import replace

    from confide.base.files import check_replaceable, no_empty_folders
    from confide.engines.driver import simulate as run_rounds
    from confide.engines.kept import keep, kept
    from confide.engines.run import LEDGER, RECORD, DivergenceWarning, NoNoiseWarning, StabilityWarning
    from confide.plans.config import named_as_in_config

    config = parsed.model_dump(mode="json", exclude_none=True)
    with no_empty_folders(folder), named_as_in_config(), warnings.catch_warnings():
        check_replaceable(folder, RECORD)
        if (folder / LEDGER).exists():
            from confide.plans.config import make_privacy
            from confide.privacy.run_ledger import check_folder

            check_folder(folder, make_privacy(parsed))
        experiment = parsed.build()
        if experiment.problem.private and experiment.privacy is not None:
            found = kept(folder, config, experiment.problem, experiment.graph)
            if found is not None:
                return found, sorted(str(path) for path in folder.iterdir()), True
        warnings.simplefilter("ignore", DivergenceWarning)  # said below, once
        warnings.simplefilter("ignore", NoNoiseWarning)
        if err.is_terminal:  # before the first round, for who is watching; it is in the notes of the run too
            warnings.simplefilter("always", StabilityWarning)
            warnings.simplefilter("always", NoNoiseWarning)
            warnings.showwarning = _show  # of this context, as the filters are
        run = run_rounds(
            **experiment._asdict(),
            evaluate_every=parsed.output.evaluate_every,
            engine=parsed.output.engine,
            device=parsed.output.device,
            ledger=parsed.output.ledger,
        )
    run = replace(run, config=config)
    files = run.save(folder, parsed.output.unreleased_models, curves=True)
    if run.guarded:
        files.append(keep(folder, experiment.problem, experiment.graph))
    return run, files, False


def _show(
    message: Warning | str, category: object, filename: str, lineno: int, file: object = None, line: str | None = None
) -> None:
    """In place of `warnings.showwarning`: what is said, and not where in the code."""
    err.print(f"warning: {message}", style="yellow", soft_wrap=True, markup=False)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a saved run, or model.npz that was released.")],
    table: Annotated[Path, typer.Argument(help="CSV or Parquet with the columns of the training data.")],
    out: Annotated[Path | None, typer.Option(help="Write the predictions to this CSV (stdout by default).")] = None,
    repeat: Annotated[int, typer.Option(help="Which repetition's model.")] = 0,
    server: Annotated[int | None, typer.Option(help="One server's model instead of the centroid.")] = None,
    as_json: Json = False,
) -> None:
    """Apply a learned model to a table."""
    from confide.base.files import atomic_file
    from confide.engines.predict import predict as apply

    frame, metrics = apply(run, table, repeat=repeat, server=server)
    if out is not None:
        with atomic_file(out) as temporary:
            frame.write_csv(temporary)
    if as_json:
        rows = None if out is not None else frame.to_dict(as_series=False)
        found = {"rows": frame.height, "metrics": metrics, "predictions": rows, "file": out and str(out)}
        print(json.dumps(found, allow_nan=False))
        return
    if out is None:
        print(frame.write_csv(), end="")
    for name, value in metrics.items():
        err.print(f"{name} {value:.4g}")


BENCHES: Final[dict[str, tuple[str, dict[str, Any]]]] = {  # what its progress counts; its options and their defaults
    "regression": ("tries", {"seed": 0}),
    "accountant": ("tries", {}),
    "noise": ("tries", {}),
    "secure": ("a session", {"clients": 100, "length": 1_000_000, "dropout": 0.1, "kind": "curious"}),
    "network": ("rounds", {"servers": 10, "length": 10_000, "rounds": 30}),
    "deploy": ("rounds", {"clients": 10, "length": 131_072}),
    "models": ("turns", {}),
}


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help=", ".join(BENCHES))],
    seed: Annotated[int | None, typer.Option(help="of regression: 0")] = None,
    clients: Annotated[int | None, typer.Option(help="of secure: n, 100; of deploy: 10")] = None,
    length: Annotated[
        int | None, typer.Option(help="coordinates of an update; secure: 1,000,000, network: 10,000, deploy: 131,072")
    ] = None,
    servers: Annotated[int | None, typer.Option(help="of network: P, 10")] = None,
    rounds: Annotated[int | None, typer.Option(help="of network: T, 30")] = None,
    dropout: Annotated[float | None, typer.Option(help="of secure: fraction that vanishes in the middle, 0.1")] = None,
    server: Annotated[str | None, typer.Option(help="of secure: curious (the default) or active")] = None,
    as_json: Json = False,
) -> None:
    """Measure speed; every ratio is taken within one run."""
    from rich.progress import Progress

    from confide.base.validation import one_of

    counted, options = BENCHES[one_of("NAME", name, tuple(BENCHES))]
    asked = {
        "seed": seed, "clients": clients, "length": length, "servers": servers, "rounds": rounds, "dropout": dropout,
        "kind": server,
    }  # fmt: skip
    options = options | {option: asked[option] for option in options if asked[option] is not None}
    if name == "accountant":
        # Before NumPy is loaded: with other work on the machine, its threads' waiting would be what is timed.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    module = import_module(f"confide.benchmarks.{name}")
    with Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(counted, total=None)
        numbers = module.bench(**options, watch=lambda: bar.advance(task))
    answer(
        as_json,
        numbers,
        *(f"{key:30} {_measured(x) if isinstance(x, float) else x!s:>12}" for key, x in numbers.items()),
    )


def _measured(x: float) -> str:
    return f"{x:,.{1 if x >= 10 else 2 if x >= 1 else 4}f}"


for part in (cli_privacy, cli_theory, cli_deploy, cli_cluster):
    app.registered_commands += part.app.registered_commands
app.add_typer(cli_pki.app, name="pki")


def main() -> None:
    """Entry point: a user's mistake is one line, never a traceback."""
    try:
        code = app(standalone_mode=False)
        if code == 130:  # how typer tells of a Ctrl-C that no command dealt with
            raise KeyboardInterrupt
        sys.stdout.flush()  # while a closed pipe or a full disk can still be told from success
        sys.exit(code)
    except BrokenPipeError:
        _close_stdout()  # the reader (head, say) has gone
        sys.exit(0)
    except (Exception, KeyboardInterrupt) as e:
        usage = getattr(e, "format_message", None)  # click's usage errors
        found = ended_by(KeyboardInterrupt() if isinstance(e, typer.Abort) else e)
        if usage is not None:
            found = f"error: {usage() or 'name a command'}", 2
        if found is None:
            raise
        if isinstance(e, OSError):
            _close_stdout()  # the disk is full
        line, code = found
        say(line)
        sys.exit(code)


def _close_stdout() -> None:
    """Python must not complain at exit about what it could not write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
