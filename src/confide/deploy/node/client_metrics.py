"""Figures of a running client for Prometheus: is it there, is it welcome, until when is its certificate good.

Nothing of the rounds: when a client answers tells how long it trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import Gauge

from confide.deploy.node.node_metrics import NodeMetrics


class ClientMetrics(NodeMetrics):
    def __init__(self) -> None:
        super().__init__()
        r: Any = {"registry": self.registry}
        self._connected = Gauge("confide_connected", "1 while the way to the server is open.", **r)
        self._enrolled = Gauge("confide_enrolled", "1 while the server has welcomed this client.", **r)
        self._finished = Gauge("confide_finished", "1 after the last round.", **r)

    def _happened(self, event: str, shown: Mapping[str, Any]) -> None:
        match event:
            case "connected":
                self._connected.set(1)
            case "disconnected":
                self._connected.set(0)
                self._enrolled.set(0)
            case "enrolled":
                self._enrolled.set(1)
            case "finished":
                self._finished.set(1)
