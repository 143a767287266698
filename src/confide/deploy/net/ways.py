"""The way to an address: direct, or through the proxy that the environment names; and why nobody was reached on it.

gRPC takes a proxy for every address, its own machine's too, and tells of a connection that was not made in three layers
of words with the proxy's address in the middle.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Final, NamedTuple

_PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy")  # gRPC asks them in this order, in small letters
_DIRECT: Final = ("no_grpc_proxy", "no_proxy")
_UNREACHED: Final = re.compile(
    r"(?:failed to connect to all addresses; last error: [A-Z_]+: (?:ipv[46]:\S+: )?|errors resolving [^:]+:)"
    r"(?P<last>.*)",
    re.DOTALL,
)
_WORDS: Final = {
    "Connection refused": "nobody listens there",
    "Domain name not found": "there is no such name",
    "lookup failed": "its name cannot be looked up",
    "No route to host": "there is no way to it",
    "Network is unreachable": "there is no way to it",
    "imeout": "it does not answer",
    "timed out": "it does not answer",
    "WRONG_VERSION_NUMBER": "what answers there does not speak TLS",
    "Hostname Verification Check failed": "what answers there has another node's certificate",
    "CERTIFICATE_VERIFY_FAILED": "what answers there has a certificate of another authority",
    "Socket closed": "the connection was closed before it was made",
    "Connection reset": "the connection was closed before it was made",
}


class Way(NamedTuple):
    """Attributes:
    proxy: without its user and password; "" for none.
    variable: of the environment, that names it.
    """

    address: str
    proxy: str = ""
    variable: str = ""

    def __str__(self) -> str:
        return f"{self.address}, through the proxy {self.proxy} ({self.variable})" if self.proxy else self.address

    @property
    def options(self) -> list[tuple[str, int]]:
        return [("grpc.enable_http_proxy", int(bool(self.proxy)))]

    def unreached(self, details: str | None) -> str | None:
        """Why there is no connection, from gRPC's details; None where they tell of something else."""
        if (found := _UNREACHED.match(details or "")) is None:
            return None
        last = "".join(c if c.isprintable() else "?" for c in found["last"][:200])
        return f"{self}: {next((said for part, said in _WORDS.items() if part in last), last)}"


def way(address: str, environ: Mapping[str, str] | None = None) -> Way:
    """To HOST:PORT, as the environment has it; direct to this machine itself.

    >>> str(way("beta:7001", {"https_proxy": "http://user:secret@proxy:3128"}))
    'beta:7001, through the proxy http://proxy:3128 (https_proxy)'
    >>> str(way("127.0.0.1:7001", {"https_proxy": "http://proxy:3128"}))
    '127.0.0.1:7001'
    """
    found = os.environ if environ is None else environ
    host = address.rpartition(":")[0].strip("[]").lower()
    variable = next((name for name in _PROXIES if found.get(name)), "")
    direct = next((found[name] for name in _DIRECT if name in found), "")
    if not variable or _is_here(host) or any(_covers(part.strip().lower(), host) for part in direct.split(",")):
        return Way(address)
    return Way(address, re.sub(r"//.*@", "//", found[variable], count=1), variable)


def _is_here(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost" or host.endswith(".localhost")


def _covers(part: str, host: str) -> bool:
    """Whether an entry of no_proxy, the end of a name or a network, covers this host."""
    with suppress(ValueError):
        return ip_address(host) in ip_network(part)
    return bool(part) and host.endswith(part)
