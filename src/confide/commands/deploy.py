"""The commands of a deployment: agree, check, server, client, status, release, remove, ledger."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from confide.base import signals
from confide.base.errors import InputError, RunError
from confide.commands.options import Change, Json, Seed, answer

app = typer.Typer()
Config = Annotated[Path, typer.Argument(help="The node's TOML, see docs/deploying.md.")]
Log = Annotated[bool, typer.Option("--json", help="The log on stderr as JSON lines, whatever the config says.")]
Finished = Annotated[bool, typer.Option("--until-finished", help="End after the last round instead of answering on.")]


@app.command()
def agree(
    config: Annotated[Path, typer.Argument(help="A TOML config as for `simulate`; of its problem only the model.")],
    unit: Annotated[list[Path], typer.Option(help="A unit's announcement (`confide pki announce`); repeat, in order.")],
    out: Annotated[Path, typer.Option(help="The plan, the same file for every node.")] = Path("plan.json"),
    window: Annotated[int, typer.Option(help="Rounds that may be open on an edge.")] = 4,
    adapt: Annotated[float, typer.Option(help="Seconds of a round with the clients.")] = 60.0,
    tick: Annotated[float | None, typer.Option(help="Publications are at multiples of it; adapt by default.")] = None,
    exchange: Annotated[float, typer.Option(help="Seconds to wait for neighbours.")] = 30.0,
    drain: Annotated[float, typer.Option(help="Seconds to settle open flows at the end.")] = 300.0,
    start: Annotated[
        float | None, typer.Option(help="When round 1 opens, in seconds since 1970; now by default.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="linear, logistic, softmax:CLASSES or own, in place of the problem's.")
    ] = None,
    features: Annotated[int | None, typer.Option(help="Numbers in the model, in place of the problem's.")] = None,
    rho: Annotated[float | None, typer.Option(help="Regulariser, in place of the problem's.")] = None,
    change: Change = None,
    as_json: Json = False,
) -> None:
    """Make the plan of a deployment, and say what it protects whom from."""
    from confide.deploy.keys import announcement
    from confide.deploy.machines.attendance import misfit
    from confide.plans.config import doubt, load
    from confide.privacy.price import price
    from confide.problems import start as begun

    parsed = load(config, change or [])
    units = [announcement.read(path) for path in unit]
    for note in (announcement.other_sizes(parsed, units), doubt(parsed), announcement.known_keys(parsed, unit)):
        if note:
            print(f"note: {note}", file=sys.stderr)
    plan = announcement.agree(
        parsed, units, model=model, features=features, rho=rho,
        window=window, adapt=adapt, tick=tick, exchange=exchange, drain=drain, start=start,
    )  # fmt: skip
    if why := misfit(plan.deployed().clocks, secure=plan.secure is not None):
        print(f"warning: {why}", file=sys.stderr)
    said, length = price(plan).statement(), plan.algorithm.model.length
    if os.path.lexists(out):
        raise InputError("--out", str(out), "exists; a plan that is in use is never replaced, name another")
    if plan.algorithm.model.start is not None and os.path.lexists(begin := out.parent / begun.FILE):
        raise InputError("--out", str(begin), "exists; name a plan in another folder")
    begins = [] if plan.algorithm.model.start is None else announcement.write_start(parsed, out.parent)
    plan.save(out)
    facts = {"plan": str(out), "hash": plan.hash, "units": len(units), "rounds": plan.rounds, "dim": length}
    facts |= {"start": [str(path) for path in begins]}
    lines = [f"plan {out}, {len(units)} units, {plan.rounds} rounds, {length} numbers", f"hash {plan.hash}"]
    for path, who in zip(begins, ("every server", "every client"), strict=False):
        lines.append(f"{path}: {who} needs it, weights = {path.name!r}")
    answer(as_json, facts | {"statement": said.to_dict()}, str(said), *lines)


@app.command()
def check(
    config: Config,
    peers: Annotated[bool, typer.Option("--peers", help="A peer that is not reached is a failure.")] = False,
    as_json: Json = False,
) -> None:
    """Look at plan, budget, keys, store, disk, port, peers and clocks of a node before anything is spent."""
    from dataclasses import asdict

    from confide.deploy.node import checking, checking_client
    from confide.deploy.node.config import ServerConfig, load
    from confide.deploy.node.findings import FAIL

    logging.getLogger("confide").addHandler(logging.NullHandler())  # what a dialer logs is in the findings
    loaded, found = load(config), []
    if isinstance(loaded, ServerConfig):
        findings = checking.check(loaded, strict_peers=peers)
    else:
        findings = checking_client.check(loaded, strict_peers=peers)
    for finding in findings:
        found.append(finding)
        if not as_json:
            print(f"{finding.level:5} {finding.check:12} {finding.said}", flush=True)
    failed = [finding for finding in found if finding.level == FAIL]
    if as_json:
        print(json.dumps({"ok": not failed, "checks": [asdict(finding) for finding in found]}))
    if failed:
        raise RunError(f"{len(failed)} of {len(found)} checks failed")


@app.command()
def server(
    config: Config,
    rejoin: Annotated[
        bool, typer.Option("--rejoin", help="The store was lost or restored: ask the neighbours, pay for the gap.")
    ] = False,
    until_finished: Finished = False,
    test_seed: Seed = None,
    as_json: Log = False,
) -> None:
    """Run a unit's server, until SIGTERM."""
    from confide.deploy.node.server_main import Server

    found = Server(config, rejoin=rejoin, until_finished=until_finished, json=as_json, test_seed=test_seed)
    _warn(test_seed)
    found.run()


@app.command()
def client(config: Config, until_finished: Finished = False, test_seed: Seed = None, as_json: Log = False) -> None:
    """Run a client, until SIGTERM: it keeps its data, dials its server and answers."""
    options = [] if test_seed is None else ["--test-seed", str(test_seed)]
    options += ["--until-finished"] if until_finished else []
    options += ["--json"] if as_json else []
    _warn(test_seed)
    sys.stderr.flush()
    # The same process without the command line's libraries: a client is to be small.
    line = [sys.executable, "-P", "-X", "no_debug_ranges", "-m", "confide.deploy.node.start", "client", str(config)]
    signals.hold()
    os.execv(sys.executable, [*line, *options])  # noqa: S606


def _warn(test_seed: int | None) -> None:
    if test_seed is not None:
        line = "!" * 78
        print(f"{line}\n!! --test-seed: NOTHING OF THIS RUN IS PRIVATE. For tests only.\n{line}", file=sys.stderr)


@app.command()
def status(config: Config, as_json: Json = False) -> None:
    """Where a server stands: round, peers, clients, open flows, epsilon so far, the last error."""
    from confide.deploy.node import asking

    found = asking.status(config)
    answer(as_json, found, *_lines(found))


def _lines(s: dict[str, Any]) -> list[str]:
    from confide.deploy.node.findings import CLOSE
    from confide.privacy.spent import number, promise
    from confide.privacy.statement import table

    clients, before = s["clients"], s["rho_spent_before"]
    earlier = "" if before == 0.0 else f", earlier ledgers {'without bound' if before is None else f'rho {before:.4g}'}"
    waited = f", the open round waits for {clients['waited']}" if clients.get("waited") else ""
    lines = [
        f"unit      {s['unit']} (server {s['server']}), plan {s['plan'][:16]}",
        f"phase     {s['phase']}" + (f": {why}" if (why := s.get("why")) else ""),
        *([f"waits     {s['waits']}"] if s.get("waits") else []),
        *([f"OLD STORE round {s['overtaken']} has left: start once with --rejoin"] if s["overtaken"] else []),
        f"round     {s['round']} of {s['rounds']}, {s['published']} published of {s['allowed']} allowed",
        f"clients   {clients.get('connected', '-')} connected of {clients['of']}" + waited,
        f"budget    {s['budget']}",
        f"spent     {s['published']} messages, {s['releases']} releases{earlier}",
        f"epsilon   {number(s['epsilon'])} so far, {promise(s)}",
    ]
    if (r := s.get("relaying")) is not None:
        attempt = f", attempt {r['attempt']}" if r["attempt"] else ""
        lines.append(f"release   {r['stage']}{attempt}" + (f": {r['failed']}" if r["failed"] else ""))
    for r in s["results"]:
        told = f"{len(r['told'])} of {r['servers']} were told the same: {', '.join(r['told'])}"
        lines.append(f"released  attempt {r['attempt']}, {r['sha256'][:16]}, {told}")
    for p in s["peers"]:
        way = "" if "dialed" not in p else ", connected" if p["dialed"] else f", not connected ({p['why']})"
        state = "" if "up" not in p else "up" if p["up"] else "down"
        opened = f", open flows {', '.join(map(str, p['open']))}" if p["open"] else ""
        apart = p.get("clock") or 0.0
        clock = f", clock {abs(apart):.0f} s {'ahead' if apart > 0 else 'behind'}" if abs(apart) > CLOSE else ""
        edge = ", suspended after an alarm" if p["edge"] == "suspect" else ""
        lines.append(f"peer      {p['unit']}: {state or p['edge']}, at round {p['round']}{way}{clock}{edge}{opened}")
    if s.get("test_seed"):
        lines.append("WARNING   runs with --test-seed: nothing is private")
    lines += [f"alarm     {what}" for what in s.get("alarms", [])]
    lines += [f"refused   {n} x {what}" for what, n in s.get("refusals", {}).items()]
    lines += [f"last error {s['last_error']}"] if s.get("last_error") else []
    return [
        *lines,
        "",
        "So far. The whole plan, and what its numbers rest on: confide check CONFIG",
        *table(s["statement"]),
    ]


@app.command()
def ledger(
    config: Config,
    out: Annotated[Path, typer.Option(help="Where to write it.")] = Path("ledger.jsonl"),
    receipts: Annotated[
        Path | None, typer.Option(help="Where to write who was told which released result, signed; for the bundle.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a server's ledger to a file: for an auditor, and as `ledgers` of the next plan on the same data."""
    from confide.base import canonical
    from confide.base.files import write_text
    from confide.deploy.node import asking
    from confide.privacy.ledger import read

    if os.path.lexists(out):
        raise InputError("--out", str(out), "exists; a ledger is never replaced, name another")
    told = asking.export_ledger(config, out)
    book = read(out)
    facts: dict[str, Any] = {"file": str(out), "events": len(book.events), "head": book.head}
    lines = [str(out), f"{len(book.events)} events, the last line is {book.head}"]
    if receipts is not None:
        write_text(receipts, canonical.dumps(told) + "\n")
        facts |= {"receipts_file": str(receipts), "receipts": len(told)}
        lines += [str(receipts), f"{len(told)} receipts of released results"]
    answer(as_json, facts, *lines)


@app.command()
def release(
    config: Config,
    again: Annotated[
        bool, typer.Option("--again", help="A further one, if the plan allows more, with fresh noise.")
    ] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Although no server has published a round: noise alone, and paid for.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Reveal the mean of all servers' models, with noise: the running server asks the others for it."""
    from confide.deploy.node import asking

    began = time.monotonic()

    def told(stage: str, attempt: int) -> None:
        at = f"attempt {attempt}" if attempt else "is everybody ready?"
        print(f"{time.monotonic() - began:6.1f} s  {stage}: {at}", file=sys.stderr)

    with signals.interrupted():
        try:
            found = asking.release(config, again=again, anyway=anyway, told=told)
        except KeyboardInterrupt:
            print(_interrupted(asking.stop_release(config), config), file=sys.stderr)
            raise
    line = f"attempt {found['attempt']}, mean of {found['servers']} servers, noise sigma {found['sigma']:g}"
    answer(as_json, found, found["file"], line)
    if found["unheard"] and not as_json:
        print(f"not heard of: {', '.join(found['unheard'])}", file=sys.stderr)


def _interrupted(left: dict[str, Any], config: Path) -> str:
    if left["stopped"]:
        return "stopped: nothing was begun, and nothing is paid for"
    what = f"attempt {left['attempt']} may be paid for, so the server goes on with it ({left['stage']})"
    return f"{what}; `confide status {config}` says how far it is, and a model comes to its folder"


@app.command()
def remove(
    config: Config,
    unit: Annotated[list[str], typer.Argument(help="The units that are gone for good, earlier ones included.")],
    number: Annotated[int, typer.Option(help="Of this removal: 1, then 2 ...; the same for all who sign.")] = 1,
    sign: Annotated[Path | None, typer.Option(help="Sign it, and write the signature here.")] = None,
    with_: Annotated[
        list[Path] | None, typer.Option("--with", help="Signatures of more than half of all servers: carry it out.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Remove servers that will never return: sign it (--sign), or carry it out with the signatures (--with)."""
    from confide.deploy.node import asking, removal
    from confide.deploy.node.config import load_server
    from confide.deploy.node.server_setup import ServerSetup

    if (sign is None) == (not with_):
        raise InputError("--sign", None, "give either --sign FILE, or --with FILE for each signature")
    if sign is not None:
        said = removal.sign(ServerSetup.load(load_server(config)), unit, number, sign)
        answer(as_json, said, f"{sign}: send it to whoever collects them")
        return
    found = asking.remove(config, with_ or [])
    answer(as_json, found, f"epoch {found['epoch']}: {', '.join(unit)} removed; the others are told")
