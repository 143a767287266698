"""The command `cluster`: a whole network of real processes on this machine, for a try-out."""

from __future__ import annotations

import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from confide.base import signals
from confide.base.errors import InputError, RunError
from confide.commands.options import Change, Json, Seed, answer

if TYPE_CHECKING:
    from confide.cluster.layout import Layout
    from confide.cluster.processes import Cluster

app = typer.Typer()
err = Console(stderr=True, highlight=False)
LOOK = 0.5  # seconds between looks


@app.command()
def cluster(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML config as for `simulate`; a small one by default.")
    ] = None,
    units: Annotated[int | None, typer.Option(help="In place of the config's.")] = None,
    clients: Annotated[int | None, typer.Option(help="Of each unit, in place of the config's.")] = None,
    rounds: Annotated[int | None, typer.Option(help="In place of the config's.")] = None,
    release: Annotated[bool, typer.Option("--release", help="At the end release the mean of the models.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for everything, kept; one of an earlier run goes on. Else a temporary one."),
    ] = None,
    adapt: Annotated[float | None, typer.Option(help="Seconds that a round may take with the clients (10).")] = None,
    tick: Annotated[
        float | None, typer.Option(help="Seconds that it takes: publications are at multiples (0.5).")
    ] = None,
    exchange: Annotated[float | None, typer.Option(help="Seconds to wait for neighbours (7).")] = None,
    drain: Annotated[float | None, typer.Option(help="Seconds to settle open flows at the end (30).")] = None,
    change: Change = None,
    test_seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Run a whole network on this machine: certificates, a plan, one process for every server and client."""
    began = time.monotonic()
    given: dict[str, float | None] = {"units": units, "clients": clients, "rounds": rounds}
    given |= {"adapt": adapt, "tick": tick, "exchange": exchange, "drain": drain}
    temporary = out is None
    with signals.interrupted():
        if out is not None and (out / "cluster.json").exists():
            asked = {"CONFIG": config, "--set": change} | {f"--{name}": value for name, value in given.items()}
            layout = _again(out, asked, release)
        else:
            layout = _anew(out, config, change or [], release=release, **given)
        for note in layout.notes:
            _say(f"set {note}")
        found = _run(layout, test_seed, release)
        found["seconds"] = round(time.monotonic() - began, 3)
        sound = all(found[name] is True for name in ("conserved", "balanced", "ledgers")) and not found["failed"]
        keep = not temporary or not sound or found["released"] is not None
        found["folder"] = str(layout.folder) if keep else None
        answer(as_json, found, *_lines(found))
        if not sound:
            raise RunError(f"a check failed; everything is in {layout.folder}")
        if not keep:
            shutil.rmtree(layout.folder, ignore_errors=True)


def _again(folder: Path, asked: dict[str, Any], release: bool) -> Layout:
    """What an earlier run has left."""
    from confide.cluster.layout import Layout
    from confide.deploy.keys.authority import Authority

    for name, value in asked.items():
        if value is not None:
            remedy = f"{folder} has a plan, with which the run goes on; leave it out, or name another folder"
            raise InputError(name, value, remedy)
    found = Layout.load(folder)
    if release and found.price.release is None:
        raise InputError("--release", True, f"the plan in {folder} has none; start anew in another folder")
    for unit in found.units:  # lists of revoked certificates are good for a month
        Authority.open(found.authority(unit)).sign_crl()
    return found


def _anew(folder: Path | None, path: Path | None, changes: list[str], **given: Any) -> Layout:
    from confide.cluster.layout import lay_out
    from confide.cluster.try_out import TRY_OUT
    from confide.plans.config import load, parse

    config = parse(TRY_OUT, changes) if path is None else load(path, changes)
    place = Path(tempfile.mkdtemp(prefix="confide-cluster-")) if folder is None else folder  # made 0700
    try:
        return lay_out(place, config, **{name: value for name, value in given.items() if value is not None})
    except BaseException:
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)
        raise


def _run(layout: Layout, test_seed: int | None, release: bool) -> dict[str, Any]:
    """Start, watch, release, stop; nothing is left running, whatever happens."""
    from confide.cluster import view as view
    from confide.cluster.processes import Cluster

    clocks = layout.plan.deployed().clocks
    longest = 120.0 + layout.plan.rounds * (clocks.adapt + clocks.neighbours) + clocks.drain
    if test_seed is not None:
        _say("TEST SEED: nothing of this run is private")
    _say(f"{len(layout.nodes)} processes, logs in {layout.folder / 'logs'}")
    running = Cluster(layout, test_seed=test_seed)
    made, failed = None, ""
    try:
        running.start_all()
        with _watching(running) as look:
            running.wait("all servers have finished", look, longest)
        if release:
            _say("asking for the release")
            running.release(layout.units[0])
            made = view.released(running, layout.units[0])
        codes = running.stop_all()
        if bad := {node: code for node, code in codes.items() if code}:
            failed = f"did not end in good order: {bad}"
        return view.findings(running) | {"released": made, "failed": failed}
    except KeyboardInterrupt:
        _say("stopping")
        running.stop_all()
        _say(f"everything is in {layout.folder}; to go on: confide cluster --out {shlex.quote(str(layout.folder))}")
        raise
    except RunError as e:
        raise RunError(f"{e}. Logs and stores are in {layout.folder}") from None
    finally:
        running.close()


@contextmanager
def _watching(running: Cluster) -> Iterator[Any]:
    """A function that says whether all have finished, and shows meanwhile where they are: on a terminal as a table."""
    from rich.live import Live

    from confide.cluster import view as view

    troubles, last = view.Troubles(running), ""
    table = view.table(running, dict.fromkeys(running.layout.units))
    with Live(table, console=err, auto_refresh=False) if err.is_terminal else nullcontext() as live:

        def look() -> bool:
            nonlocal last
            found = view.statuses(running)
            now = view.line(found)
            if live is not None:
                live.update(view.table(running, found), refresh=True)
            elif now != last:
                _say(now)
            last = now
            for trouble in troubles.look(now):
                _say(trouble)
            done = all(s is not None and s["phase"] == "finished" for s in found.values())
            if live is not None and not done:
                time.sleep(LOOK)
            return done

        yield look


def _say(line: str) -> None:
    err.print(line, soft_wrap=True, markup=False)


def _lines(found: dict[str, Any]) -> list[str]:
    from confide.privacy.statement import table

    published = ", ".join(f"{unit} {n}" for unit, n in found["published"].items())
    lines = [
        f"rounds         {found['rounds']}; published: {published}",
        f"models         {found['disagreement']:.4g} apart at most from their mean",
        f"sum            {_said(found['conserved'], 'conserved to the last bit')}",
        f"flows          {_said(found['balanced'], 'all settled at both ends')}",
        f"ledgers        {_said(found['ledgers'], 'whole, every round at the price of the plan')}",
    ]
    if (made := found["released"]) is not None:
        test = "" if made["test"] is None else ", test " + ", ".join(f"{k} {v:.4g}" for k, v in made["test"].items())
        lines.append(f"released       {made['file']}, noise sigma {made['sigma']:g}{test}")
    if found["failed"]:
        lines.append(f"FAILED         {found['failed']}")
    if found["folder"] is not None:
        lines.append(f"files          {found['folder']}")
    lines.append(f"seconds        {found['seconds']:.1f}")
    spent = f"What was spent, by the unit that spent most; messages and {found['releases']} releases:"
    return [*lines, "", spent, *table(found["statement"])]


def _said(holds: bool | str, yes: str) -> str:
    return yes if holds is True else f"FAILED: {holds}"
