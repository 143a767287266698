"""Whom a node believes: the authorities that its config names, and the newest list of revoked certificates of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

from confide.base import canonical
from confide.base.errors import InputError
from confide.deploy.keys.authentication import Revoked
from confide.deploy.keys.certificates import LARGEST_PEM, utc_now
from confide.deploy.keys.lists import Lists


class Source(NamedTuple):
    """Where a config has the files of an organisation, and what it calls them."""

    org: str
    certificate: Path
    crl: Path
    fields: tuple[str, str]


@dataclass(frozen=True, repr=False)
class Trust:
    """Attributes:
    authorities: CA certificates in PEM by organisation.
    lists: the newest list of each, where one is known.
    troubles: why the list in an organisation's file does not count.
    """

    sources: Sequence[Source]
    authorities: dict[str, bytes]
    lists: dict[str, Revoked]
    troubles: dict[str, InputError]
    known: Lists

    @classmethod
    def load(cls, sources: Sequence[Source], known: Lists) -> Self:
        """At a start; an organisation without a list that counts is refused."""
        authorities = {s.org: canonical.read_bytes(s.certificate, s.fields[0], LARGEST_PEM) for s in sources}
        found = cls(sources, authorities, {}, {}, known).look()
        for org, trouble in found.troubles.items():
            if org not in found.lists:
                raise trouble
        return found

    def look(self) -> Self:
        """As the files say now."""
        lists, troubles = {}, {}
        for source in self.sources:
            held, trouble = self.known.look(source.org, source.crl, self.authorities[source.org])
            if held is not None:
                lists[source.org] = held
            if trouble is not None:
                troubles[source.org] = InputError(source.fields[1], trouble.value, trouble.remedy)
        return replace(self, lists=lists, troubles=troubles)

    @property
    def revoked(self) -> dict[str, frozenset[int]]:
        """Serials by organisation, at this moment: a list that is out of date is none."""
        now = utc_now()
        return {org: held.serials for org, held in self.lists.items() if now < held.until}
