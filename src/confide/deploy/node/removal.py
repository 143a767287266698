"""How operators remove a server for good: each signs, one collects the signatures and hands them to its own server.

A server passes the epoch on, so that one is enough. Any two valid epochs share a signer (`epoch`), so what an operator
has signed is kept beside the store: never two sets under one number, never a set that lets somebody return.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confide.base import canonical
from confide.base.errors import InputError
from confide.base.files import write_text
from confide.deploy.machines import epoch as epochs
from confide.deploy.node.server_setup import ServerSetup

LARGEST = 2**16  # bytes of a signature file


def sign(setup: ServerSetup, units: Sequence[str], number: int, out: Path) -> dict[str, Any]:
    """This operator's word that these units are gone, all that ever were removed included."""
    removed = _places(setup, units)
    if setup.me in removed:
        raise InputError("unit", setup.plan.units[setup.me].name, "a server does not sign its own removal")
    _remember(setup, number, removed)
    plan = bytes.fromhex(setup.plan.hash)
    server, signature = epochs.sign(setup.node.identity, setup.me, plan, number, removed)
    said = {
        "plan": setup.plan.hash,
        "number": number,
        "removed": removed,
        "server": server,
        "signature": signature.hex(),
    }
    write_text(out, json.dumps(said) + "\n")
    return said


def collect(setup: ServerSetup, files: Sequence[Path]) -> bytes:
    """The epoch that these signatures make, checked as a server will check it."""
    found = [_read(path) for path in files]
    first = found[0]
    for path, said in zip(files, found, strict=True):
        for name in ("plan", "number", "removed"):
            if said[name] != first[name]:
                raise InputError(str(path), said[name], f"is of another {name} than {files[0]}: {first[name]}")
    signatures = tuple(sorted((said["server"], bytes.fromhex(said["signature"])) for said in found))
    try:
        made = epochs.Epoch(bytes.fromhex(first["plan"]), first["number"], tuple(first["removed"]), signatures)
        epochs.check(made, setup.terms, None)
    except (epochs.EpochError, ValueError) as e:
        raise InputError("signatures", [str(path) for path in files], f"remove nobody: {e}") from None
    return epochs.encode(made)


def _places(setup: ServerSetup, units: Sequence[str]) -> list[int]:
    names = [unit.name for unit in setup.plan.units]
    for unit in units:
        if unit not in names:
            raise InputError("unit", unit, f"is not in the plan; its units are {', '.join(names)}")
    return sorted({names.index(unit) for unit in units})


def _remember(setup: ServerSetup, number: int, removed: list[int]) -> None:
    path = setup.config.path(f"{setup.config.store}.signed.json")
    if path.exists():
        last = json.loads(canonical.read_text(path, "signed", LARGEST))
        if (number, removed) == (last["number"], last["removed"]):
            return
        if number <= last["number"] or not set(removed) > set(last["removed"]):
            remedy = f"epoch {last['number']} was signed for {last['removed']}: take a higher number, and add to those"
            raise InputError("number", number, remedy)
    write_text(path, json.dumps({"number": number, "removed": removed}) + "\n")


def _read(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(canonical.read_text(path, "signature", LARGEST))
        table = canonical.check_keys(str(path), said, ("plan", "number", "removed", "server", "signature"))
        bytes.fromhex(table["plan"] + table["signature"])
        if not all(isinstance(p, int) for p in (table["number"], table["server"], *table["removed"])):
            raise TypeError
    except (ValueError, TypeError, RecursionError) as e:
        if isinstance(e, InputError):
            raise
        raise InputError("signature", str(path), "is not what `confide remove --sign` writes") from None
    return dict(table)
