"""The commands about certificates: pki init, request, sign, issue, list, revoke, renew, crl, announce."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confide.base.errors import InputError
from confide.commands.options import Json, answer

if TYPE_CHECKING:
    from confide.deploy.keys.authority import Authority, Entry
    from confide.deploy.keys.request import Request
    from confide.secure.keys import Secret

app = typer.Typer(help="Certificates and keys of an organisation's servers and clients.", no_args_is_help=True)
Organisation = Annotated[str, typer.Argument(metavar="ORG", help="The organisation, as `init` named it.")]
Folder = Annotated[Path, typer.Option("--dir", help="Where the organisation's folder is.")]
Source = Annotated[str | None, typer.Option("--passphrase", help="Of encrypted keys: file:PATH, fd:NUMBER or prompt.")]
Days = Annotated[int, typer.Option(help="Until the certificate expires.")]
KNOWN = (
    "this authority knew the node's keys. With secure.server = 'active' a secure sum hides a client only from a server "
    "that never knew them; in earnest: `confide pki request` at the node, `confide pki sign` here"
)
REVOKED = "the old certificate is revoked: give {} to every server, and to this organisation's clients"
YEAR = 365  # `authority.DAYS`, which would load cryptography for every command


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="Of the organisation: small letters, digits, hyphens.")],
    folder: Folder = Path("."),
    passphrase: Source = None,
    as_json: Json = False,
) -> None:
    """Make an organisation's certificate authority; its fingerprint goes into the plan as `authority`."""
    from confide.deploy.keys.authority import Authority
    from confide.deploy.keys.certificates import check_name

    chosen = _passphrase(passphrase, new=True)
    authority = Authority.create(folder / check_name("organisation", name), passphrase=chosen)
    answer(as_json, _authority(authority), str(authority.folder), f"authority {authority.fingerprint}")


@app.command()
def request(
    org: Organisation,
    role: Annotated[str, typer.Argument(help="server or client")],
    name: Annotated[str, typer.Argument(help="Of the node, its own within the organisation.")],
    out: Annotated[
        Path | None, typer.Option(help="Path of the files without their ending, as `node` in its TOML (ROLE-NAME).")
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="DNS name or IP of a server (localhost and 127.0.0.1); repeat for more.")
    ] = None,
    renew: Annotated[
        Path | None, typer.Option(help="Path of the node's keys of before: only the TLS key is made anew.")
    ] = None,
    passphrase: Source = None,
    as_json: Json = False,
) -> None:
    """Make a node's keys, at the node, and a request (.csr) that its authority signs."""
    from confide.deploy.keys.node_keys import NodeKeys
    from confide.deploy.keys.request import CSR
    from confide.deploy.keys.request import request as make

    prefix = Path(f"{role}-{name}") if out is None else out
    chosen = _passphrase(passphrase, new=renew is None)
    before = None if renew is None else NodeKeys.load(renew, chosen)
    made = make(prefix, org, role, name, hosts=host or (), passphrase=chosen, renew=before)
    files = [f"{prefix}{suffix}" for suffix in (".key", ".identity", *((".exchange",) if made.exchange else ()), CSR)]
    answer(as_json, _asked(made) | {"files": files}, *files, *_shown(made))


@app.command()
def sign(
    org: Organisation,
    requests: Annotated[list[Path], typer.Argument(metavar="CSR...", help="What nodes have asked for.")],
    days: Days = YEAR,
    keep: Annotated[bool, typer.Option("--keep", help="Do not revoke the certificates that are renewed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Sign without asking: all was compared before.")] = False,
    folder: Folder = Path("."),
    passphrase: Source = None,
    as_json: Json = False,
) -> None:
    """Show what nodes ask for, and sign it: compare each identity with what the node's operator sees."""
    from confide.deploy.keys.request import read_request

    authority, found = _opened(folder, org, passphrase), [read_request(path) for path in requests]
    revoked = False
    for asked in found:
        before = authority.outlook(asked)
        until = f"renews the one until {before[-1].not_after[:10]}" if before else "a new node"
        lines = [f"{asked.role} {asked.name} of {asked.org}, {until}, for {days} days", *_shown(asked)]
        print("\n".join(lines), file=sys.stderr if as_json else sys.stdout)
        revoked = revoked or bool(before and not keep)
    if not yes:
        _confirmed(len(found))
    signed = [authority.sign(asked, days=days, keep=keep) for asked in found]
    files = [str(authority.folder / f"{entry.prefix}.crt") for entry in signed]
    rows = [_row(entry) | {"file": file} for entry, file in zip(signed, files, strict=True)]
    answer(as_json, {"organisation": org, "signed": rows}, *files)
    if revoked and not as_json:
        print(REVOKED.format(authority.folder / "crl.pem"))


def _confirmed(count: int) -> None:
    if not sys.stdin.isatty():
        raise InputError("--yes", False, "nobody can be asked here; compare the identities, then say --yes")
    if not typer.confirm(f"sign {'it' if count == 1 else f'all {count}'}?"):
        raise InputError("--yes", False, "nothing was signed")


def _shown(asked: Request) -> list[str]:
    lines = [f"reached at   {', '.join(asked.hosts)}"] if asked.hosts else []
    lines += [f"identity     {asked.identity.hex()}", f"TLS key      {asked.fingerprint}"]
    return lines if asked.exchange is None else [*lines, f"exchange_key {asked.exchange.hex()}"]


def _asked(asked: Request) -> dict[str, Any]:
    return {
        "organisation": asked.org,
        "role": asked.role,
        "name": asked.name,
        "hosts": asked.hosts,
        "identity": asked.identity.hex(),
        "exchange_key": None if asked.exchange is None else asked.exchange.hex(),
        "tls_key": asked.fingerprint,
    }


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
    passphrase: Source = None,
    as_json: Json = False,
) -> None:
    """Make a node's certificate and its keys, for a try-out: in earnest a node makes its own, see `request`."""
    authority = _opened(folder, org, passphrase)
    entry = authority.issue(role, name, hosts=host or (), days=days)
    if not as_json:
        print(f"note: {KNOWN}", file=sys.stderr)
    suffixes = (".crt", ".key", ".identity", ".exchange") if role == "server" else (".crt", ".key", ".identity")
    _print_made(authority, entry, suffixes, as_json)


@app.command(name="list")
def show(org: Organisation, folder: Folder = Path("."), passphrase: Source = None, as_json: Json = False) -> None:
    """Every certificate of an organisation; what expires soon is marked."""
    authority = _opened(folder, org, passphrase)
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
    passphrase: Source = None,
    as_json: Json = False,
) -> None:
    """Revoke certificates and sign the new list of revoked ones, crl.pem, for every server and client to load."""
    authority = _opened(folder, org, passphrase)
    gone = authority.revoke(which)
    path = str(authority.folder / "crl.pem")
    lines = [f"revoked {e.role} {e.name}, serial {e.serial}" for e in gone]
    facts = {"organisation": org, "revoked": [_row(e) for e in gone], "crl": path}
    answer(as_json, facts, *lines, f"give {path} to every server, and to this organisation's clients")


@app.command()
def renew(
    org: Organisation,
    name: Annotated[str, typer.Argument(help="Of the node.")],
    days: Days = YEAR,
    keep: Annotated[bool, typer.Option("--keep", help="Do not revoke the old certificate.")] = False,
    folder: Folder = Path("."),
    passphrase: Source = None,
    as_json: Json = False,
) -> None:
    """A new certificate and TLS key; the identity, and with it the plan, stays."""
    authority = _opened(folder, org, passphrase)
    entry = authority.renew(name, days=days, keep=keep)
    _print_made(authority, entry, (".crt", ".key"), as_json)
    if not keep and not as_json:
        print(REVOKED.format(authority.folder / "crl.pem"))


@app.command()
def crl(org: Organisation, folder: Folder = Path("."), passphrase: Source = None, as_json: Json = False) -> None:
    """Sign the list of revoked certificates anew; nodes refuse one that is older than a month."""
    authority = _opened(folder, org, passphrase)
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
    passphrase: Source = None,
    as_json: Json = False,
) -> None:
    """Print what the others must know of a unit, public keys and names only: `> alpha.json`, for `confide agree`."""
    from confide.deploy.keys.announcement import described

    found = described(_opened(folder, org, passphrase), unit, server, client or ())
    print(json.dumps(found, indent=None if as_json else 1))


def _opened(folder: Path, org: str, source: str | None) -> Authority:
    from confide.deploy.keys.authority import Authority
    from confide.deploy.keys.certificates import check_name

    authority = Authority.open(folder / check_name("organisation", org), passphrase=_passphrase(source))
    if authority.org != org:
        raise InputError("organisation", org, f"that folder is of {authority.org}; rename it back")
    return authority


def _passphrase(source: str | None, *, new: bool = False) -> Secret | None:
    from confide.deploy.keys.passphrase import new_passphrase, read_passphrase

    if source is None:
        return None
    return new_passphrase(source) if new else read_passphrase(source)


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
