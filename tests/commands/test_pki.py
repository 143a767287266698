"""The commands about certificates, as programs and as people see them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from confide.commands import pki as cli_pki
from confide.deploy.keys.authority import DAYS, Authority
from confide.deploy.keys.certificates import fingerprint
from confide.deploy.keys.node_keys import NodeKeys
from confide.secure.keys import Secret

Outcome = tuple[int, str, str]


def test_the_command_from_init_to_revoke(tmp_path: Path, command: Callable[..., Outcome]) -> None:
    def pki_json(*arguments: object) -> dict[str, Any]:
        code, out, err = command("pki", *arguments, "--dir", tmp_path, "--json")
        assert (code, err) == (0, "")
        texts.append(out)
        return dict(json.loads(out))

    texts: list[str] = []
    made = pki_json("init", "alpha")
    assert made["authority"] == fingerprint((tmp_path / "alpha/ca.crt").read_bytes())
    server = pki_json("issue", "alpha", "server", "one", "--host", "a.example", "--host", "10.0.0.1")
    assert server["hosts"] == ["a.example", "10.0.0.1"]
    assert all(Path(f).exists() for f in server["files"])
    node = NodeKeys.load(tmp_path / "alpha/server-one")
    assert node.exchange is not None
    assert (server["identity"], server["exchange_key"]) == (node.identity.public.hex(), node.exchange.public.hex())
    client = pki_json("issue", "alpha", "client", "c1", "--days", 20)
    assert client["exchange_key"] is None
    assert [c["state"] for c in pki_json("list", "alpha")["certificates"]] == ["valid", "expires soon"]
    assert pki_json("renew", "alpha", "one")["identity"] == server["identity"]
    assert [e["name"] for e in pki_json("revoke", "alpha", "c1")["revoked"]] == ["c1"]
    assert [c["state"] for c in pki_json("list", "alpha")["certificates"]] == ["revoked", "revoked", "valid"]
    assert pki_json("crl", "alpha")["crl"] == str(tmp_path / "alpha/crl.pem")
    secrets = [node.identity.secret.hex(), node.exchange.secret.hex()]
    assert not any(word in text for text in texts for word in [*secrets, "PRIVATE"])


def test_the_command_for_people(tmp_path: Path, command: Callable[..., Outcome]) -> None:
    said = ""
    for line in ("init alpha", "issue alpha server one", "issue alpha client c1 --days 3", "renew alpha one --keep"):
        code, out, err = command("pki", *line.split(), "--dir", tmp_path)
        assert code == 0
        assert ("this authority knew the node's keys" in err) == line.startswith("issue")
        said += out
    entries = Authority.open(tmp_path / "alpha").entries()
    assert all(e.identity in said for e in entries)
    listed = command("pki", "list", "alpha", "--dir", tmp_path)[1]
    assert all(e.serial in listed for e in entries)
    assert "expires soon" in listed
    assert command("pki", "revoke", "alpha", entries[0].serial, "--dir", tmp_path)[0] == 0
    assert "good until" in command("pki", "crl", "alpha", "--dir", tmp_path)[1]
    assert "PRIVATE" not in said


def test_a_node_makes_its_keys_and_its_authority_signs(tmp_path: Path, command: Callable[..., Outcome]) -> None:
    def pki(line: str, code: int = 0) -> tuple[str, str]:
        found, out, err = command("pki", *line.split())
        assert found == code, err
        return out, err

    place, node = f"--dir {tmp_path}", tmp_path / "node/server"
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("correct horse battery staple\n")
    hidden = f"--passphrase file:{secret}"
    pki(f"init alpha {place} {hidden}")
    asked, _ = pki(f"request alpha server one --host a.example --out {node} {hidden}")
    _, err = pki(f"sign alpha {node}.csr {place} {hidden}", 2)
    assert "say --yes" in err
    assert command("pki", "list", "alpha", *place.split(), "--passphrase", f"file:{secret}")[1].count("\n") == 1
    shown, _ = pki(f"sign alpha {node}.csr {place} {hidden} --yes")
    assert "server one of alpha, a new node" in shown
    assert "reached at   a.example" in shown
    identity = next(line for line in asked.splitlines() if line.startswith("identity"))
    assert identity in shown
    assert sorted(path.name for path in (tmp_path / "alpha").glob("server-*")) == ["server-one.crt"]
    assert [path.stat().st_mode & 0o777 for path in sorted(node.parent.iterdir())] == [0o644, 0o600, 0o600, 0o600]
    copied = tmp_path / "alpha/server-one.crt"
    copied.rename(f"{node}.crt")
    passphrase = Secret(b"correct horse battery staple")
    first = NodeKeys.load(node, passphrase)

    next_one = tmp_path / "next/server"
    pki(f"request alpha server one --host a.example --out {next_one} --renew {node} {hidden}")
    shown, _ = pki(f"sign alpha {next_one}.csr {place} {hidden} --yes")
    assert "renews the one until" in shown
    assert "the old certificate is revoked" in shown
    copied.rename(f"{next_one}.crt")
    renewed = NodeKeys.load(next_one, passphrase)
    assert (renewed.identity.public, renewed.key != first.key) == (first.identity.public, True)
    _, err = pki(f"renew alpha one {place} {hidden}", 2)
    assert "made its keys itself" in err
    _, err = pki(f"request alpha server one --out {node} {hidden}", 2)
    assert "keys are never replaced" in err
    _, err = pki(f"list alpha {place}", 2)
    assert "is encrypted; say where its passphrase is" in err


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """alpha, and beta in a folder of another name; refusals change nothing in them."""
    folder = tmp_path_factory.mktemp("authorities")
    Authority.create(folder / "alpha")
    Authority.create(folder / "beta").folder.rename(folder / "gamma")
    return folder


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("init Alpha", "organisation"),
        ("init ../x", "organisation"),
        ("list nobody", "organisation"),
        ("issue alpha admin x", "role"),
        ("issue alpha client x --host a", "host"),
        ("revoke alpha x", "name"),
        ("renew alpha x", "name"),
        ("list gamma", "organisation"),
        ("list alpha --passphrase stdin", "passphrase"),
        ("sign alpha /dev/null", "request"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(
    authorities: Path, command: Callable[..., Outcome], line: str, field: str
) -> None:
    code, out, err = command("pki", *line.split(), "--dir", authorities)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {field} = ")


def test_the_default_of_the_command_is_the_librarys() -> None:
    assert cli_pki.YEAR == DAYS
