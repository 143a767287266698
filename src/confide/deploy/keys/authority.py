"""An organisation's certificate authority: it issues, renews and revokes the certificates of its nodes.

Every organisation has an authority of its own, in a folder that only its owner can enter.

The index says what was issued: a certificate exists once the index holds it. Its files are staged beside it first, and
put in place after; whoever takes the lock next completes or removes what an interruption left.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NoReturn, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from confide.base import canonical
from confide.base.durable_files import create_file, replace_file
from confide.base.errors import InputError, RunError
from confide.base.files import sync_folder
from confide.base.validation import one_of, whole
from confide.deploy.keys.authentication import LARGEST_LIST, Revoked, read_revoked
from confide.deploy.keys.certificates import (
    CA_DAYS,
    LARGEST_PEM,
    ROLES,
    SKEW,
    SOON,
    Peer,
    check_hosts,
    check_name,
    fingerprint,
    issued_by,
    make_authority_certificate,
    make_node_certificate,
    organisation_of,
    read_authority_certificate,
    utc_now,
)
from confide.deploy.keys.node_keys import private_pem, read_private_key
from confide.deploy.keys.request import Request
from confide.secure.keys import Secret

DAYS: Final = 365  # of a node's certificate
CRL_DAYS: Final = 30  # after them servers ask for a new list: an old one cannot be passed off for ever
LOCK_SECONDS: Final = 30.0
FORMAT: Final = 2
CA_CERT, CA_KEY, INDEX, CRL, LOCK, PENDING = "ca.crt", "ca.key", "index.json", "crl.pem", ".lock", ".pending-"
Staged = dict[str, tuple[bytes, int]]  # by the file's name: content and mode


@dataclass(frozen=True)
class Entry:
    """One certificate in the index; keys as 64 hex digits, the serial as 40, times in ISO 8601.

    Attributes:
        requested: the node made its identity and exchange key itself, so that this authority never knew them.
    """

    serial: str
    role: str
    name: str
    hosts: tuple[str, ...]
    not_after: str
    revoked: str | None
    identity: str
    exchange_key: str | None
    requested: bool = False

    def state(self, now: datetime) -> str:
        """revoked, expired, expires soon or valid."""
        left = datetime.fromisoformat(self.not_after) - now
        if self.revoked is not None:
            return "revoked"
        return "expired" if left <= timedelta(0) else "expires soon" if left <= SOON else "valid"

    @property
    def prefix(self) -> str:
        """Of the names of its files."""
        return f"{self.role}-{self.name}"


@dataclass(frozen=True)
class Authority:
    """Issues, renews and revokes the certificates of one organisation. Everything it knows is in its folder.

        authority = Authority.create("pki/alpha")
        authority.sign(read_request("server.csr"))

    Attributes:
        folder: where its key, its certificate, its index and the list of revoked certificates are.
        org: the organisation's name.
        certificate: its own, in PEM: the ca.crt that nodes and other organisations are given.
        clock: what time it is.
    """

    folder: Path
    org: str
    certificate: bytes = field(repr=False)
    _ca: x509.Certificate = field(repr=False)
    _key: ec.EllipticCurvePrivateKey = field(repr=False)
    clock: Callable[[], datetime] = field(repr=False)

    @classmethod
    def create(
        cls, folder: str | Path, clock: Callable[[], datetime] = utc_now, *, passphrase: Secret | None = None
    ) -> Self:
        """A new authority.

        Args:
            folder: a new one; its name is the organisation's.
            clock: what time it is.
            passphrase: encrypts the authority's key.

        Raises:
            InputError: the folder exists or cannot be made, or its name is no organisation's name.
        """
        folder = Path(folder)
        org = check_name("organisation", folder.name)
        if os.path.lexists(folder):
            raise InputError("organisation", str(folder), "exists; an authority is never replaced, choose another name")
        key = ec.generate_private_key(ec.SECP256R1())
        ca = make_authority_certificate(org, key, clock().replace(microsecond=0))
        pem = ca.public_bytes(Encoding.PEM)
        with _disk(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            stage = Path(tempfile.mkdtemp(prefix=f".{org}.", dir=folder.parent))  # made 0700
            try:
                made = cls(stage, org, pem, ca, key, clock)
                create_file(stage / CA_KEY, private_pem(key, passphrase), 0o600)
                create_file(stage / CA_CERT, pem, 0o644)
                made._write_index([])
                made._sign_crl([])
                os.rename(stage, folder)
            except OSError as e:
                if e.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):  # somebody else was faster
                    raise InputError("organisation", str(folder), "exists; choose another name") from None
                raise
            finally:
                shutil.rmtree(stage, ignore_errors=True)
            sync_folder(folder.parent)
        return replace(made, folder=folder)

    @classmethod
    def open(
        cls, folder: str | Path, clock: Callable[[], datetime] = utc_now, *, passphrase: Secret | None = None
    ) -> Self:
        """The authority that `create` made in this folder.

        Args:
            folder: the organisation's.
            clock: what time it is.
            passphrase: of its key, where that is encrypted.

        Raises:
            InputError: there is none, its key needs another passphrase, or key and certificate do not belong together.
        """
        folder = Path(folder)
        if not (folder / CA_CERT).exists():
            remedy = "holds no authority; make one with `confide pki init NAME`, or say where it is with --dir"
            raise InputError("organisation", str(folder), remedy)
        pem = canonical.read_bytes(folder / CA_CERT, "authority", LARGEST_PEM)
        try:
            ca = read_authority_certificate(pem)
        except ValueError as e:
            raise InputError("authority", str(folder / CA_CERT), f"{e}; restore it from a copy") from None
        _, key = read_private_key(folder / CA_KEY, "authority key", "P-256", passphrase)
        org = organisation_of(ca)
        if key.public_key() != ca.public_key() or org is None:
            raise InputError("authority key", str(folder / CA_KEY), f"does not belong to {CA_CERT}; restore both")
        return cls(folder, org, pem, ca, key, clock)

    @property
    def fingerprint(self) -> str:
        """Sha256 of its certificate, as plans have it."""
        return fingerprint(self.certificate)

    @property
    def not_after(self) -> datetime:
        """When its own certificate ends."""
        return self._ca.not_valid_after_utc

    def entries(self) -> tuple[Entry, ...]:
        """Every certificate ever issued, in order."""
        with self._locked() as entries:
            return tuple(entries)

    def issue(self, role: str, name: str, *, hosts: Sequence[str] = (), days: int = DAYS) -> Entry:
        """A certificate and keys for a new node, for a try-out: this authority knows its keys.

        A secure sum holds against an active server only if nobody who is with that server knew its clients' keys. So in
        earnest a node makes its own (`request`), and the authority signs (`sign`).

        Args:
            role: "server" or "client".
            name: of the node, unlike any other of this authority.
            hosts: names and addresses where a server is reached; this machine, if none.
            days: for which the certificate is valid.

        Returns:
            The line of the index; its files are in `folder`, named `prefix` with .crt, .key, .identity and .exchange.

        Raises:
            InputError: the name is taken, or a host is neither a name nor an address.
        """
        one_of("role", role, ROLES)
        check_name("name", name)
        checked = check_hosts(role, hosts)
        with self._locked() as entries:
            self._free(name, entries)
            identity, exchange = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
            own: Staged = {".identity": (private_pem(identity), 0o600)}
            exchange_key = None
            if role == "server":
                own[".exchange"] = (private_pem(exchange), 0o600)
                exchange_key = exchange.public_key().public_bytes_raw().hex()
            public = identity.public_key().public_bytes_raw().hex()
            node = Entry("", role, name, checked, "", None, public, exchange_key)
            entry, made = self._certify(node, days)
            self._commit([*entries, entry], entry, made | own)
        return entry

    def sign(self, asked: Request, *, days: int = DAYS, keep: bool = False) -> Entry:
        """A certificate for a node that made its own keys, new or with a new TLS key.

        Args:
            asked: of the node, by `read_request`; show it to a person first (`outlook`).
            days: for which the certificate is valid.
            keep: where it renews a certificate, the old one is not revoked.

        Returns:
            The line of the index; the certificate is in `folder`, named `prefix` with .crt.

        Raises:
            InputError: it is another organisation's request, or its name or keys are those of another node.
        """
        with self._locked() as entries:
            before = self._of(asked, entries)
            requested = True if not before else before[-1].requested
            exchange = None if asked.exchange is None else asked.exchange.hex()
            node = Entry("", asked.role, asked.name, asked.hosts, "", None, asked.identity.hex(), exchange, requested)
            entry, made = self._certify(node, days, asked.key)
            if not keep:
                entries = self._marked(entries, before)
            self._commit([*entries, entry], entry, made)
        return entry

    def outlook(self, asked: Request) -> tuple[Entry, ...]:
        """The certificates that this request renews, none for a new node; an `InputError` where it is not signed."""
        with self._locked() as entries:
            return tuple(self._of(asked, entries))

    def _of(self, asked: Request, entries: Sequence[Entry]) -> list[Entry]:
        """The live certificates of the node that asks; refuses what this authority must not sign."""
        if asked.org != self.org:
            raise InputError(
                "request", asked.org, f"is the organisation of the request; this is the authority of {self.org}"
            )
        same = [e for e in entries if e.identity == asked.identity.hex()]
        if not same:
            self._free(asked.name, entries)
            return []
        exchange = None if asked.exchange is None else asked.exchange.hex()
        if any((e.role, e.name, e.exchange_key) != (asked.role, asked.name, exchange) for e in same):
            remedy = f"its identity is that of {same[-1].role} {same[-1].name} here; every node makes keys of its own"
            raise InputError("request", asked.name, remedy)
        live = [e for e in same if e.revoked is None]
        if not live:
            raise InputError("request", asked.name, "its identity was revoked; make new keys, without --renew")
        return live

    def _free(self, name: str, entries: Sequence[Entry]) -> None:
        taken = next((e for e in entries if e.name == name and e.revoked is None), None)
        if taken is not None:
            how = "confide pki request --renew" if taken.requested else f"confide pki renew {self.org} {name}"
            remedy = f"is a {taken.role} with a certificate; `{how}`, or revoke it"
            raise InputError("name", name, f"{remedy}, or choose another: servers and clients share their names")

    def renew(self, name: str, *, days: int = DAYS, keep: bool = False) -> Entry:
        """A new certificate and TLS key for the same identity, so that the plan stays valid.

        Args:
            name: of the node, whose keys this authority made.
            days: for which the certificate is valid.
            keep: the old certificate is not revoked: until the node has the new one it needs it.

        Raises:
            InputError: there is no such node, it was revoked, or it made its keys itself.
        """
        with self._locked() as entries:
            live = [e for e in entries if e.name == name and e.revoked is None]
            if not live:
                self._unknown(name, entries)
            if live[-1].requested:
                remedy = "made its keys itself; there, `confide pki request --renew`, and here `confide pki sign`"
                raise InputError("name", name, remedy)
            entry, made = self._certify(live[-1], days)
            if not keep:
                entries = self._marked(entries, live)
            self._commit([*entries, entry], entry, made)
        return entry

    def revoke(self, which: str) -> tuple[Entry, ...]:
        """Revoke the certificates of this name, or the one of this serial; servers learn it from the new CRL."""
        with self._locked() as entries:
            live = [e for e in entries if which in (e.name, e.serial) and e.revoked is None]
            if not live:
                self._unknown(which, entries)
            marked = self._marked(entries, live)
            try:
                self._write_index(marked)
            finally:
                self._settle()
        serials = {e.serial for e in live}
        return tuple(e for e in marked if e.serial in serials)

    def sign_crl(self) -> datetime:
        """The list of revoked certificates, signed anew; returns until when servers take it."""
        with self._locked() as entries:
            return self._sign_crl(entries)

    def _unknown(self, which: str, entries: Sequence[Entry]) -> NoReturn:
        if any(which in (e.name, e.serial) for e in entries):
            remedy = "is revoked; `confide pki request` at the node makes keys anew, with a new identity"
        else:
            remedy = f"was never issued; `confide pki list {self.org}` shows names and serials"
        raise InputError("name", which, remedy)

    def _marked(self, entries: Sequence[Entry], revoked: Sequence[Entry]) -> list[Entry]:
        at = self.clock().replace(microsecond=0).isoformat()
        return [replace(e, revoked=at) if e in revoked else e for e in entries]

    def _certify(self, node: Entry, days: int, public: ec.EllipticCurvePublicKey | None = None) -> tuple[Entry, Staged]:
        """The entry of a new certificate for this node, and its files by suffix: with a TLS key, if it has none."""
        now = self.clock().replace(microsecond=0)
        until = now + timedelta(days=whole("days", days, 1, CA_DAYS))
        if until > self.not_after:
            remedy = f"the authority itself ends on {self.not_after:%Y-%m-%d}; give fewer, or make a new authority"
            raise InputError("days", days, remedy)
        key = None if public is not None else ec.generate_private_key(ec.SECP256R1())
        serial = x509.random_serial_number()
        bound = Peer(self.org, node.role, node.name, bytes.fromhex(node.identity), serial)
        own = public if key is None else key.public_key()
        assert own is not None  # noqa: S101 - one of the two is there
        cert = make_node_certificate(bound, node.hosts, own, (self._ca, self._key), (now - SKEW, until))
        entry = replace(node, serial=f"{serial:040x}", not_after=until.isoformat(), revoked=None)
        made: Staged = {} if key is None else {".key": (private_pem(key), 0o600)}
        return entry, made | {".crt": (cert.public_bytes(Encoding.PEM), 0o644)}

    def _commit(self, entries: Sequence[Entry], entry: Entry, files: Staged) -> None:
        """Stage, then write the index: from then on the certificate exists, and `_settle` has the rest to do."""
        stage = self.folder / f"{PENDING}{entry.serial}"
        try:
            stage.mkdir(mode=0o700)
            for suffix, (data, mode) in files.items():
                create_file(stage / (entry.prefix + suffix), data, mode)
            sync_folder(stage)
            self._write_index(entries)
        finally:
            self._settle()  # by the index as it is on the disk, however far we came

    def _settle(self) -> list[Entry]:
        """The index; what an interruption left is completed if the index knows of it, and removed otherwise."""
        entries = self._read_index()
        known = {PENDING + e.serial for e in entries}
        for stage in self.folder.glob(f"{PENDING}*"):
            if stage.name in known:
                for file in list(stage.iterdir()):
                    os.replace(file, self.folder / file.name)
            shutil.rmtree(stage)
            sync_folder(self.folder)
        revoked = {int(e.serial, 16) for e in entries if e.revoked is not None}
        listed = self._listed()
        if listed is not None and listed.serials - revoked:
            remedy = f"lacks certificates that {CRL} has as revoked: the index is an old copy, restore a newer one"
            raise InputError("index", str(self.folder / INDEX), remedy)
        if listed is None or listed.serials != revoked:
            self._sign_crl(entries)
        return entries

    def _listed(self) -> Revoked | None:
        """Our CRL; None if there is none, or it is damaged: then it is signed anew."""
        path = self.folder / CRL
        try:
            return read_revoked(canonical.read_bytes(path, "crl", LARGEST_LIST), self.certificate, path)
        except InputError:
            return None

    def _sign_crl(self, entries: Sequence[Entry]) -> datetime:
        now = self.clock().replace(microsecond=0)
        until = now + timedelta(days=CRL_DAYS)
        builder = x509.CertificateRevocationListBuilder(self._ca.subject, now, until)
        for e in entries:
            if e.revoked is not None:
                one = x509.RevokedCertificateBuilder(int(e.serial, 16), datetime.fromisoformat(e.revoked))
                builder = builder.add_revoked_certificate(one.build())
        builder = builder.add_extension(issued_by(self._ca), critical=False)
        before = self._listed()  # a node never goes back to a lower number, however the clock was set meanwhile
        number = max(time.time_ns(), 0 if before is None else before.number + 1)
        builder = builder.add_extension(x509.CRLNumber(number), critical=False)
        try:
            replace_file(self.folder / CRL, builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        except RunError as e:
            raise RunError(f"{e}; what is revoked is in the index, run `confide pki crl {self.org}` again") from None
        return until

    def _write_index(self, entries: Sequence[Entry]) -> None:
        table = {"format": FORMAT, "organisation": self.org, "certificates": [asdict(e) for e in entries]}
        replace_file(self.folder / INDEX, (json.dumps(table, indent=1) + "\n").encode())

    def _read_index(self) -> list[Entry]:
        path = self.folder / INDEX
        text = canonical.read_text(path, "index", LARGEST_LIST)
        try:
            table = json.loads(text)
            canonical.check_keys("index", table, ("format", "organisation", "certificates"))
            if table["format"] not in (1, FORMAT) or table["organisation"] != self.org:
                raise ValueError(f"format {table['format']!r} of {table['organisation']!r}")
            return [_entry(row) for row in table["certificates"]]
        except (ValueError, TypeError, KeyError, RecursionError) as e:
            remedy = f"is damaged, or of another authority ({e}); restore it from a copy"
            raise InputError("index", str(path), remedy) from None

    @contextmanager
    def _locked(self) -> Iterator[list[Entry]]:
        """One process at a time; the lock goes with the descriptor, however the process ends."""
        with _disk(self.folder):
            fd = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                _wait_for(fd, self.folder)
                yield self._settle()
            finally:
                os.close(fd)


def _entry(row: object) -> Entry:
    """One row of the index; any error is a ValueError, TypeError or KeyError."""
    if isinstance(row, dict) and "requested" not in row:  # of an index of format 1
        row = row | {"requested": False}
    d = canonical.check_keys("certificates", row, Entry.__dataclass_fields__)
    entry = Entry(**{**d, "hosts": tuple(d["hosts"])})
    one_of("role", entry.role, ROLES)
    check_name("name", entry.name)
    for moment in (entry.not_after, entry.revoked):
        if moment is not None and datetime.fromisoformat(moment).tzinfo is None:
            raise ValueError(f"{moment} has no time zone")
    keys = (entry.identity, entry.exchange_key) if entry.role == "server" else (entry.identity,)
    if (
        type(entry.requested) is not bool
        or not all(canonical.is_digest(key) for key in keys)
        or not re.fullmatch("[0-9a-f]{40}", entry.serial)
    ):
        raise ValueError(f"a key or the serial of {entry.name}")
    return entry


def _wait_for(fd: int, folder: Path) -> None:
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                remedy = f"has been in use by another process for {LOCK_SECONDS:g} s; try again when that has ended"
                raise InputError("organisation", str(folder), remedy) from None
            time.sleep(0.02)


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """The operating system's refusals in our words."""
    try:
        yield
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise RunError(f"{folder}: {e.strerror}; no node is half issued, make room and try again") from None
        raise InputError(
            "organisation", str(folder), f"cannot be used ({e.strerror or e}); --dir names another place"
        ) from None
