"""What every node counts for Prometheus: the lines of its log, and until when its certificate holds."""

from __future__ import annotations

from collections import Counter as Bag
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics

from confide.deploy.node.metrics_endpoint import Endpoint
from confide.deploy.node.observe import EVENTS, public

disable_created_metrics()  # type: ignore[no-untyped-call] # when each series began: twice the lines


class NodeMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r: Any = {"registry": self.registry}
        self._events = each(Counter("confide_events", "Lines of the log.", ["event"], **r), EVENTS)
        dropped = Counter("confide_log_dropped", "What the log did not show.", ["what"], **r)
        self._dropped = each(dropped, ("event", "field", "line"))
        self._expires = Gauge("confide_certificate_expiry_timestamp_seconds", "Of the node's certificate.", **r)

    def event(self, event: str, fields: Mapping[str, Any]) -> None:
        """For `observing.Observer`, on any thread."""
        event, shown, _ = public(event, fields)
        self._events[event].inc()
        self._happened(event, shown)

    def _happened(self, event: str, shown: Mapping[str, Any]) -> None:
        """What else this node counts of an event."""
        raise NotImplementedError

    def dropped(self, what: Bag[str]) -> None:
        """For `observe.AllowList`."""
        for name, counter in self._dropped.items():
            counter.inc(what[name])

    def expires(self, on: datetime) -> None:
        self._expires.set(on.timestamp())

    def serve(self, address: str) -> Endpoint:
        """Answer HTTP on HOST:PORT; port 0 takes a free one."""
        return Endpoint(self.registry, address)


def each(metric: Any, words: Iterable[str]) -> dict[str, Any]:
    """A series for each word."""
    return {word: metric.labels(word) for word in words}
