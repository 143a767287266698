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
        assert (code, err) == (0, "")
        said += out
    entries = Authority.open(tmp_path / "alpha").entries()
    assert all(e.identity in said for e in entries)
    listed = command("pki", "list", "alpha", "--dir", tmp_path)[1]
    assert all(e.serial in listed for e in entries)
    assert "expires soon" in listed
    assert command("pki", "revoke", "alpha", entries[0].serial, "--dir", tmp_path)[0] == 0
    assert "good until" in command("pki", "crl", "alpha", "--dir", tmp_path)[1]
    assert "PRIVATE" not in said


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
