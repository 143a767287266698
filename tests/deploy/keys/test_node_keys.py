"""A node loads its own keys, which nobody else can read, and takes no other node's for its own."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from cryptography import x509

from confide.base.errors import InputError
from confide.deploy.keys.authority import Authority
from confide.deploy.keys.node_keys import NodeKeys
from confide.secure.keys import signed_by


def test_a_node_loads_what_was_issued(alpha: Authority) -> None:
    entry = alpha.issue("server", "one", hosts=["Node.Example.org", "10.0.0.7", "::1"])
    node = NodeKeys.load(alpha.folder / "server-one")
    assert (node.org, node.role, node.name) == ("alpha", "server", "one")
    assert node.identity.public.hex() == entry.identity
    assert node.exchange is not None
    assert node.exchange.public.hex() == entry.exchange_key
    assert signed_by(node.identity.public, node.identity.sign(b"x"), b"x")
    assert f"{node.serial:040x}" == entry.serial
    names = x509.load_pem_x509_certificate(node.certificate).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert names.value.get_values_for_type(x509.DNSName) == [
        "node.example.org",
        "one.server.alpha.confide.internal",  # that only this node has, for who dials it
    ]
    assert list(map(str, names.value.get_values_for_type(x509.IPAddress))) == ["10.0.0.7", "::1"]
    alpha.issue("client", "c1")
    assert NodeKeys.load(alpha.folder / "client-c1").exchange is None


@pytest.mark.parametrize("name", ["server-one.key", "server-one.identity", "server-one.exchange", "ca.key"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_can_read_is_refused_with_the_remedy(alpha: Authority, name: str, mode: int) -> None:
    alpha.issue("server", "one")
    path = alpha.folder / name
    path.chmod(mode)
    with pytest.raises(InputError, match=f"chmod 600 {path}"):
        Authority.open(alpha.folder) if name == "ca.key" else NodeKeys.load(alpha.folder / "server-one")


@pytest.mark.parametrize(
    "name", ["one.crt", "one.key", "one.identity", "one.exchange", "ca.key", "ca.crt", "index.json"]
)
@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"{}", b"cut", b"another", None])
def test_a_damaged_or_missing_file_is_named(alpha: Authority, name: str, content: bytes | None) -> None:
    alpha.issue("server", "one")
    alpha.issue("server", "two")
    path = alpha.folder / (f"server-{name}" if name.startswith("one") else name)
    if content is None:
        path.unlink()
    else:
        cut = path.read_bytes()[: path.stat().st_size // 2]
        other = (alpha.folder / "server-two.identity").read_bytes()
        path.write_bytes({b"cut": cut, b"another": other}.get(content, content))
    with pytest.raises(InputError) as e:
        (Authority.open(alpha.folder).entries(), NodeKeys.load(alpha.folder / "server-one"))
    assert str(alpha.folder) in str(e.value.value)
    assert "PRIVATE" not in str(e.value)


def test_keys_of_another_node_are_not_taken_for_ones_own(alpha: Authority) -> None:
    for name in ("one", "two"):
        alpha.issue("server", name)
    for suffix in ("key", "identity"):
        path = alpha.folder / f"server-one.{suffix}"
        mine = path.read_bytes()
        path.write_bytes((alpha.folder / f"server-two.{suffix}").read_bytes())
        with pytest.raises(InputError, match=r"does not belong to server-one\.crt"):
            NodeKeys.load(alpha.folder / "server-one")
        path.write_bytes(mine)
    NodeKeys.load(alpha.folder / "server-one")


def test_secrets_do_not_print(alpha: Authority) -> None:
    alpha.issue("server", "one")
    node = NodeKeys.load(alpha.folder / "server-one")
    for thing in (node, alpha, node.identity, node.exchange, node.key):
        for text in (repr(thing), str(thing), f"{thing}"):
            assert "PRIVATE" not in text
            assert "BEGIN" not in text
    with pytest.raises(TypeError):
        pickle.dumps(node)


def test_a_node_loads_no_heavy_library_for_its_keys() -> None:
    heavy = ("numpy", "scipy", "numba", "networkx", "polars", "dp_accounting", "pydantic")
    ours = "authentication, authority, node_keys"
    program = f"import sys; from confide.deploy.keys import {ours}; print(*(m for m in {heavy} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
