"""The commands about certificates: pki init, issue, list, revoke, renew, crl, announce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confide.base.errors import InputError
from confide.commands.options import Json, answer

if TYPE_CHECKING:
    from confide.deploy.keys.authority import Authority, Entry

app = typer.Typer(help="Certificates and keys of an organisation's servers and clients.", no_args_is_help=True)
Organisation = Annotated[str, typer.Argument(metavar="ORG", help="The organisation, as `init` named it.")]
Folder = Annotated[Path, typer.Option("--dir", help="Where the organisation's folder is.")]
Days = Annotated[int, typer.Option(help="Until the certificate expires.")]
YEAR = 365  # `authority.DAYS`, which would load cryptography for every command


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="Of the organisation: small letters, digits, hyphens.")],
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """Make an organisation's certificate authority; its fingerprint goes into the plan as `authority`."""
    from confide.deploy.keys.authority import Authority
    from confide.deploy.keys.certificates import check_name

    authority = Authority.create(folder / check_name("organisation", name))
    answer(as_json, _authority(authority), str(authority.folder), f"authority {authority.fingerprint}")


@app.command()
def issue(
    org: Organisation,
    role: Annotated[str, typer.Argument(help="server or client")],
    name: Annotated[str, typer.Argument(help="Of the node, its own within the organisation.")],
    host: Annotated[
        list[str] | None, typer.Option(help="DNS name or IP of a server (localhost and 127.0.0.1); repeat for more.")
    ] = None,
    days: Days = YEAR,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """Make a node's certificate and keys; prints the public keys, as the plan needs them."""
    authority = _opened(folder, org)
    entry = authority.issue(role, name, hosts=host or (), days=days)
    suffixes = (".crt", ".key", ".identity", ".exchange") if role == "server" else (".crt", ".key", ".identity")
    _print_made(authority, entry, suffixes, as_json)


@app.command(name="list")
def show(org: Organisation, folder: Folder = Path("."), as_json: Json = False) -> None:
    """Every certificate of an organisation; what expires soon is marked."""
    authority = _opened(folder, org)
    entries = authority.entries()
    now = authority.clock()
    rows = [_row(e) | {"state": e.state(now)} for e in entries]
    width = max((len(e.name) for e in entries), default=0)
    # plain lines: a serial that a table would cut short cannot be revoked
    lines = [f"{e.name:{width}}  {e.role}  {e.not_after[:10]}  {e.state(now):12}  {e.serial}" for e in entries]
    head = f"authority {authority.fingerprint}, until {authority.not_after:%Y-%m-%d}"
    answer(as_json, _authority(authority) | {"certificates": rows}, head, *lines)


@app.command()
def revoke(
    org: Organisation,
    which: Annotated[str, typer.Argument(metavar="NAME|SERIAL", help="Of a node, or of one certificate.")],
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """Revoke certificates and sign the new list of revoked ones, crl.pem, for every server to load."""
    authority = _opened(folder, org)
    gone = authority.revoke(which)
    path = str(authority.folder / "crl.pem")
    lines = [f"revoked {e.role} {e.name}, serial {e.serial}" for e in gone]
    facts = {"organisation": org, "revoked": [_row(e) for e in gone], "crl": path}
    answer(as_json, facts, *lines, f"give {path} to every server")


@app.command()
def renew(
    org: Organisation,
    name: Annotated[str, typer.Argument(help="Of the node.")],
    days: Days = YEAR,
    keep: Annotated[bool, typer.Option("--keep", help="Do not revoke the old certificate.")] = False,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """A new certificate and TLS key; the identity, and with it the plan, stays."""
    authority = _opened(folder, org)
    entry = authority.renew(name, days=days, keep=keep)
    _print_made(authority, entry, (".crt", ".key"), as_json)
    if not keep and not as_json:
        print(f"the old certificate is revoked: give {authority.folder / 'crl.pem'} to every server")


@app.command()
def crl(org: Organisation, folder: Folder = Path("."), as_json: Json = False) -> None:
    """Sign the list of revoked certificates anew; servers refuse one that is older than a month."""
    authority = _opened(folder, org)
    until, path = authority.sign_crl(), str(authority.folder / "crl.pem")
    facts = {"organisation": org, "crl": path, "next_update": until.isoformat()}
    answer(as_json, facts, path, f"good until {until:%Y-%m-%d %H:%M} UTC")


@app.command()
def announce(
    org: Organisation,
    unit: Annotated[str, typer.Option(help="Name of the unit in the plan.")],
    server: Annotated[str | None, typer.Option(help="Its server, where there are several.")] = None,
    client: Annotated[list[str] | None, typer.Option(help="Its clients, in order (all of them); repeat.")] = None,
    folder: Folder = Path("."),
    as_json: Json = False,
) -> None:
    """Print what the others must know of a unit, public keys and names only: `> alpha.json`, for `confide agree`."""
    from confide.deploy.keys.announcement import described

    found = described(_opened(folder, org), unit, server, client or ())
    print(json.dumps(found, indent=None if as_json else 1))


def _opened(folder: Path, org: str) -> Authority:
    from confide.deploy.keys.authority import Authority
    from confide.deploy.keys.certificates import check_name

    authority = Authority.open(folder / check_name("organisation", org))
    if authority.org != org:
        raise InputError("organisation", org, f"that folder is of {authority.org}; give it back its name")
    return authority


def _print_made(authority: Authority, entry: Entry, suffixes: tuple[str, ...], as_json: bool) -> None:
    files = [str(authority.folder / (entry.prefix + suffix)) for suffix in suffixes]
    lines = [f"until        {entry.not_after[:10]}", f"identity     {entry.identity}"]
    lines += [] if entry.exchange_key is None else [f"exchange_key {entry.exchange_key}"]
    answer(as_json, {"organisation": authority.org, **_row(entry), "files": files}, *files, *lines)


def _authority(authority: Authority) -> dict[str, Any]:
    return {
        "organisation": authority.org,
        "authority": authority.fingerprint,
        "not_after": authority.not_after.isoformat(),
        "folder": str(authority.folder),
    }


def _row(entry: Entry) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(entry)
