"""The newest list of revoked certificates of each authority that a node has ever seen.

Every list of an authority has a higher number than the one before. An older list in the place of a newer one, put there
by mistake or by somebody who wants a revoked node back, is therefore not taken. What was seen outlives the process, in
a small file beside the node's other state.
"""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Final

from confide.base import canonical
from confide.base.durable_files import replace_file
from confide.base.errors import InputError
from confide.deploy.keys.authentication import FRESH, LARGEST_LIST, Revoked, load_revoked, read_revoked
from confide.deploy.keys.certificates import fingerprint, utc_now

FORMAT: Final = 1


class Lists:
    """Args:
    path: of the node's own file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest = _read(path) if os.path.lexists(path) else {}  # by organisation and its authority's fingerprint
        self._kept = dict(self._newest)

    def look(
        self, org: str, path: Path, ca: bytes, now: datetime | None = None
    ) -> tuple[Revoked | None, InputError | None]:
        """An organisation's list that counts now, if there is one, and why the one in the file does not.

        Args:
            org: the organisation.
            path: where its newest list should be.
            ca: the authority's certificate in PEM.
        """
        now, who = now or utc_now(), f"{org} {fingerprint(ca)}"
        known = self._known(who, ca)
        try:
            found = load_revoked(path, ca, now)
            if known is not None and found.number < known.number:
                raise InputError("crl", str(path), f"is older than a list that this node has seen; {FRESH}")
        except InputError as e:
            return (known if known is not None and now < known.until else None), e
        if known is None or found.number > known.number:
            self._newest[who] = found.pem
            known = found
        return known, None

    def _known(self, who: str, ca: bytes) -> Revoked | None:
        if who not in self._newest:
            return None
        try:
            return read_revoked(self._newest[who], ca, self._path)
        except InputError:
            raise _damaged(self._path, f"no list of {who.partition(' ')[0]}") from None

    def keep(self) -> None:
        """The next start knows what was seen; raises an `InputError` or `RunError` where it cannot be written."""
        if self._newest != self._kept:
            table = {"format": FORMAT, "lists": {name: pem.decode() for name, pem in self._newest.items()}}
            replace_file(self._path, (json.dumps(table, indent=1) + "\n").encode(), 0o600)
            self._kept = dict(self._newest)


def _read(path: Path) -> dict[str, bytes]:
    text = canonical.read_text(path, "lists", LARGEST_LIST)
    try:
        table = canonical.check_keys("lists", json.loads(text), ("format", "lists"))
        if table["format"] != FORMAT:
            raise ValueError(f"format {table['format']!r}")
        return {who: pem.encode() for who, pem in table["lists"].items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as e:
        raise _damaged(path, str(e)) from None


def _damaged(path: Path, why: str) -> InputError:
    remedy = f"is damaged ({why}); put the newest crl.pem of every organisation in place, and then remove this file"
    return InputError("lists", str(path), remedy)
