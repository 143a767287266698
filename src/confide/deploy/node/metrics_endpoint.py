"""Figures over HTTP, for whoever is asked to look at a node, where its config says."""

from __future__ import annotations

import socket
import socketserver
import threading
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from confide.base.closing import Closing
from confide.base.errors import BusyError
from confide.deploy.node.config import host_port

PATIENCE: Final = 10.0  # seconds for whoever asks


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are no events."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Without the parent's question to the name service, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody went away."""


class Endpoint(Closing):
    """Attributes: port."""

    def __init__(self, registry: CollectorRegistry, address: str) -> None:
        host, port = host_port("metrics", address, listening=True)
        try:
            family, _, _, _, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            kind = type("Server", (_Server,), {"address_family": family})
            self._server: WSGIServer = kind(found[:2], _Handler)
        except OSError as e:
            remedy = f"port {port} is in use, or the address is not this machine's ({e.strerror}); choose another"
            raise BusyError("metrics", address, remedy) from None
        self._server.set_app(make_wsgi_app(registry))
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
