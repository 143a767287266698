"""Figures of a running client for Prometheus: is it there, is it welcome, how long does it train, what does it take.

How long a training takes may tell of the data, so these figures are for the client's own operator. Whether one failed
is not among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import Gauge, Summary

from confide.deploy.node.memory import resident
from confide.deploy.node.node_metrics import NodeMetrics


class ClientMetrics(NodeMetrics):
    def __init__(self) -> None:
        super().__init__()
        r: Any = {"registry": self.registry}
        self._connected = Gauge("confide_connected", "1 while the way to the server is open.", **r)
        self._enrolled = Gauge("confide_enrolled", "1 while the server has welcomed this client.", **r)
        self._finished = Gauge("confide_finished", "1 after the last round.", **r)
        self._training = Gauge("confide_training", "1 while this client trains.", **r)
        self._trained = Summary("confide_training_seconds", "Of each training, whatever came of it.", **r)
        self._memory = Gauge("confide_resident_bytes", "Memory of the client, and of what trains.", ["process"], **r)

    def memory(self, process: str, pid: Callable[[], int]) -> None:
        self._memory.labels(process).set_function(lambda: resident(pid()))

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
            case "training":
                self._training.set(1)
            case "trained":
                self._training.set(0)
                self._trained.observe(shown["seconds"])
