"""Figures of a running client for Prometheus: is it there, is it welcome, until when is its certificate good.

Nothing of the rounds: when a client answers tells how long it trained.
"""

from __future__ import annotations

from collections import Counter as Bag
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics

from confide.deploy.node.metrics_endpoint import Endpoint
from confide.deploy.node.observe import EVENTS, public

disable_created_metrics()  # type: ignore[no-untyped-call] # when each series began: twice the lines


class ClientMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r: Any = {"registry": self.registry}
        self._connected = Gauge("confide_connected", "1 while the way to the server is open.", **r)
        self._enrolled = Gauge("confide_enrolled", "1 while the server has welcomed this client.", **r)
        self._finished = Gauge("confide_finished", "1 after the last round.", **r)
        self._expires = Gauge("confide_certificate_expiry_timestamp_seconds", "Of the node's certificate.", **r)
        self._events = Counter("confide_events", "Lines of the log.", ["event"], **r)
        self._dropped = Counter("confide_log_dropped", "What the log did not show.", ["what"], **r)
        for event in EVENTS:
            self._events.labels(event)
        for what in ("event", "field", "line"):
            self._dropped.labels(what)

    def event(self, event: str, fields: Mapping[str, Any]) -> None:
        """For `observing.Observer`."""
        event, _, _ = public(event, fields)
        self._events.labels(event).inc()
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

    def dropped(self, what: Bag[str]) -> None:
        """For `observe.AllowList`."""
        for name in ("event", "field", "line"):
            self._dropped.labels(name).inc(what[name])

    def expires(self, on: datetime) -> None:
        self._expires.set(on.timestamp())

    def serve(self, address: str) -> Endpoint:
        """Answer HTTP on HOST:PORT, or on a port of this machine alone; 0 takes a free one."""
        return Endpoint(self.registry, address)
