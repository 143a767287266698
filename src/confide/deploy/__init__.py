"""Servers and clients on machines of their own: what the commands of a deployment do, as functions.

    from confide.deploy import Authority, agree, announce, price

    authority = Authority.create("pki/alpha")      # on a machine of alpha that is not on the network
    request("server", "alpha", "server", "one")    # on the node's own machine: its keys, and server.csr
    authority.sign(read_request("server.csr"))     # the certificate: pki/alpha/server-one.crt
    authority.issue("client", "c1")                # keys and certificate in one step, for a try-out
    unit = announce(authority, "alpha", out=Path("alpha.json"))
    plan = agree("run.toml", ["alpha.json", "beta.json"])
    print(price(plan).statement())
    plan.save("plan.json")
    write_start("run.toml", ".")                   # start.safetensors, of a model that does not begin at zero

On the machines themselves, from a node's TOML: `Server(path).run()` and `Client(path).run()`, each in a process of its
own; `status(path)` and `release(path)` ask a server. docs/deploying.md has the whole way. Names are loaded when they
are first used. Below them:

keys       certificates, keys and the authority of each organisation; units announce themselves
store      what must outlive a crash
machines   servers and clients: bytes and time in, bytes out
net        gRPC streams under mutual TLS
node       a node as a process: its config, its life, what it tells its operator
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confide.base.lazy import lazy

if TYPE_CHECKING:
    from confide.deploy.keys.announcement import agree as agree
    from confide.deploy.keys.announcement import announce as announce
    from confide.deploy.keys.announcement import write_start as write_start
    from confide.deploy.keys.authority import Authority as Authority
    from confide.deploy.keys.request import read_request as read_request
    from confide.deploy.keys.request import request as request
    from confide.deploy.node.asking import release as release
    from confide.deploy.node.asking import status as status
    from confide.deploy.node.client_main import Client as Client
    from confide.deploy.node.server_main import Server as Server
    from confide.plans.build import Announced as Announced
    from confide.plans.plan import Plan as Plan
    from confide.privacy.price import price as price

_HOME = {
    "Announced": "confide.plans.build",
    "Authority": "confide.deploy.keys.authority",
    "Client": "confide.deploy.node.client_main",
    "Plan": "confide.plans.plan",
    "Server": "confide.deploy.node.server_main",
    "agree": "confide.deploy.keys.announcement",
    "announce": "confide.deploy.keys.announcement",
    "price": "confide.privacy.price",
    "read_request": "confide.deploy.keys.request",
    "request": "confide.deploy.keys.request",
    "release": "confide.deploy.node.asking",
    "status": "confide.deploy.node.asking",
    "write_start": "confide.deploy.keys.announcement",
}
__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy(__name__, _HOME)
