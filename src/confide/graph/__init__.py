"""Who talks to whom: `from confide.graph import Graph`."""

from confide.graph.graph import Graph as Graph
