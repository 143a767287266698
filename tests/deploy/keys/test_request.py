"""Keys that a node makes itself: what its authority signs, what it refuses, and how they are kept."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from confide.base.errors import InputError
from confide.deploy.keys import request as requests
from confide.deploy.keys.authentication import authenticate, load_revoked
from confide.deploy.keys.authority import CRL, Authority
from confide.deploy.keys.node_keys import NodeKeys
from confide.deploy.keys.passphrase import new_passphrase, read_passphrase
from confide.deploy.keys.request import read_request, request
from confide.secure.keys import Secret
from deploy.keys.conftest import NOW

PASSPHRASE = Secret(b"correct horse battery staple")


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return tmp_path / "node" / "server"


def certified(alpha: Authority, prefix: Path, name: str = "one") -> None:
    """As the operators do: the request goes there, the certificate comes back."""
    entry = alpha.sign(read_request(f"{prefix}.csr"))
    assert (entry.name, entry.requested) == (name, True)
    Path(f"{prefix}.crt").write_bytes((alpha.folder / f"{entry.prefix}.crt").read_bytes())


@pytest.mark.parametrize("passphrase", [None, PASSPHRASE])
def test_a_node_with_keys_of_its_own_is_let_in(alpha: Authority, prefix: Path, passphrase: Secret | None) -> None:
    asked = request(prefix, "alpha", "server", "one", hosts=["a.example", "10.0.0.7"], passphrase=passphrase)
    assert read_request(f"{prefix}.csr") == asked
    assert alpha.outlook(asked) == ()
    certified(alpha, prefix)
    node = NodeKeys.load(prefix, passphrase)
    assert node.exchange is not None
    assert (node.identity.public, node.exchange.public) == (asked.identity, asked.exchange)
    revoked = {"alpha": load_revoked(alpha.folder / CRL, alpha.certificate, NOW).serials}
    peer = authenticate(node.certificate, {"alpha": alpha.certificate}, revoked, NOW)
    assert (peer.role, peer.name, peer.identity) == ("server", "one", asked.identity)
    assert [entry.hosts for entry in Authority.open(alpha.folder).entries()] == [("a.example", "10.0.0.7")]
    for suffix in (".key", ".identity", ".exchange"):
        path = Path(f"{prefix}{suffix}")
        assert path.stat().st_mode & 0o777 == 0o600
        assert (b"ENCRYPTED" in path.read_bytes()) == (passphrase is not None)
        assert not (alpha.folder / f"server-one{suffix}").exists()


def test_a_client_has_no_exchange_key(alpha: Authority, prefix: Path) -> None:
    request(prefix, "alpha", "client", "one")
    certified(alpha, prefix)
    assert NodeKeys.load(prefix).exchange is None


def test_a_renewal_keeps_the_identity_and_revokes_the_certificate_of_before(
    alpha: Authority, prefix: Path, tmp_path: Path
) -> None:
    request(prefix, "alpha", "server", "one")
    certified(alpha, prefix)
    old = NodeKeys.load(prefix)
    asked = request(tmp_path / "new", "alpha", "server", "one", renew=old)
    assert [entry.serial for entry in alpha.outlook(asked)] == [f"{old.serial:040x}"]
    certified(alpha, tmp_path / "new")
    new = NodeKeys.load(tmp_path / "new")
    assert (new.identity.public, new.exchange.public) == (old.identity.public, old.exchange.public)  # type: ignore[union-attr]
    assert new.key != old.key
    assert load_revoked(alpha.folder / CRL, alpha.certificate, NOW).serials == {old.serial}
    alpha.revoke("one")
    with pytest.raises(InputError, match="its identity was revoked"):
        alpha.sign(asked)


def test_what_an_authority_does_not_sign(alpha: Authority, prefix: Path, tmp_path: Path) -> None:
    asked = request(prefix, "alpha", "server", "one")
    certified(alpha, prefix)
    with pytest.raises(InputError, match="this is the authority of beta"):
        Authority.create(tmp_path / "beta", lambda: NOW).sign(asked)
    with pytest.raises(InputError, match="is a server with a certificate"):
        alpha.sign(request(tmp_path / "again", "alpha", "client", "one"))
    thief = NodeKeys.load(prefix)
    with pytest.raises(InputError, match="a renewal keeps the name"):
        request(tmp_path / "other", "alpha", "server", "two", renew=thief)
    same = requests.Request("alpha", "server", "two", (), asked.identity, asked.exchange, asked.key)
    with pytest.raises(InputError, match="every node makes keys of its own"):
        alpha.sign(same)
    assert len(alpha.entries()) == 1


def test_nobody_asks_with_the_identity_of_another(prefix: Path, tmp_path: Path) -> None:
    """All of a request that was seen on its way, under a TLS key of one's own."""
    request(prefix, "alpha", "server", "one")
    seen = x509.load_pem_x509_csr(Path(f"{prefix}.csr").read_bytes())
    builder = x509.CertificateSigningRequestBuilder(seen.subject)
    for extension in seen.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    forged = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    (tmp_path / "forged.csr").write_bytes(forged.public_bytes(Encoding.PEM))
    with pytest.raises(InputError, match="its identity key did not sign it"):
        read_request(tmp_path / "forged.csr")


def test_no_flipped_bit_changes_what_is_asked(prefix: Path) -> None:
    asked, path = request(prefix, "alpha", "client", "one"), Path(f"{prefix}.csr")
    text = path.read_bytes()
    for at in range(len(text)):
        path.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
        with suppress(InputError):
            assert read_request(path) == asked  # only what PEM does not care about


def test_keys_are_never_replaced_and_none_is_left_of_a_request_that_failed(prefix: Path) -> None:
    prefix.parent.mkdir()
    Path(f"{prefix}.csr").touch()
    with pytest.raises(InputError, match="keys are never replaced"):
        request(prefix, "alpha", "server", "one")
    assert [path.name for path in prefix.parent.iterdir()] == ["server.csr"]


def test_where_a_passphrase_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(PASSPHRASE + b"\n")
    with pytest.raises(InputError, match="chmod 600"):
        read_passphrase("file:secret", tmp_path)
    path.chmod(0o600)
    assert read_passphrase("file:secret", tmp_path) == PASSPHRASE
    with open(path, "rb") as file:
        given = os.dup(file.fileno())
    assert read_passphrase(f"fd:{given}") == PASSPHRASE
    with pytest.raises(InputError, match="cannot be read"):  # it was read, and closed
        read_passphrase(f"fd:{given}")
    for source in ("prompt ", "fd:x", "file:", "stdin"):
        with pytest.raises(InputError, match="must be file:PATH, fd:NUMBER or prompt"):
            read_passphrase(source)
    path.write_bytes(b"\n")
    with pytest.raises(InputError, match="1 to"):
        read_passphrase("file:secret", tmp_path)
    path.write_bytes(b"short\n")
    with pytest.raises(InputError, match="openssl rand"):
        new_passphrase(f"file:{path}")


def test_a_wrong_passphrase_is_named_and_not_shown(alpha: Authority, prefix: Path) -> None:
    request(prefix, "alpha", "server", "one", passphrase=PASSPHRASE)
    certified(alpha, prefix)
    for wrong, said in ((None, "say where its passphrase is"), (Secret(b"another one, and wrong"), "is another")):
        with pytest.raises(InputError) as e:
            NodeKeys.load(prefix, wrong)
        assert said in e.value.remedy
        assert "another one" not in str(e.value)
