"""The schemes and graphs that tests run through, and which of their pairs: see `pairs`."""

from __future__ import annotations

from functools import cache

from confide.graph.graph import Graph
from confide.rounds.schemes import FAMILIES, KEYS, Exchange, Scheme, scheme
from exploring import more

TWO_SCHEMES = ("homomorphic", "per-link")  # one noise a server, and one a link
TWO_GRAPHS = ("star:5/metropolis", "random:6:0.5/lazy")  # own weights that differ most, and degrees that are unequal

# What a scheme does on a shape shows with one rule of weights; the other rule gives only other numbers.
SHAPES = {
    "ring:5": "lazy",
    "star:5": "metropolis",
    "random:6:0.5": "lazy",
    "complete:4": "metropolis",
    "path:2": "lazy",
    "path:1": "lazy",
}
GRAPHS = more(
    [f"{shape}/{rule}" for shape, rule in SHAPES.items()],
    [f"{shape}/{rule}" for shape in SHAPES for rule in ("lazy", "metropolis")],
)


def every_scheme() -> list[Scheme]:
    """Each family with its noise on, so that a new row of FAMILIES is tested without being named here.

    What depends on the receiver only the reference engine and the general accountant take: `own_schemes`.
    """
    rows = {name: s for name, s in FAMILIES.items() if s.plain}
    plain = [scheme(name, sigma=0.0 if s.places.isdisjoint(KEYS["sigma"]) else 0.7) for name, s in rows.items()]
    pairwise = [scheme("pairwise", sigma, sigma_pair=0.8) for sigma in (0.0, 0.7)]
    return [*plain, *pairwise, scheme("partial:0.3", 0.7)]


SCHEMES = {  # what a test asks for by the name of its argument
    "each_scheme": every_scheme(),
    "each_fixed_scheme": [
        s for s in every_scheme() if s.exchange != Exchange.AVERAGE
    ],  # in fixed point and with failures
    "each_broadcast": [s for s in every_scheme() if s.exchange == Exchange.GRAPH and not s.by_link],
}


def label(s: Scheme) -> str:
    noises = f"{'-g' if s.sigma else ''}{'-pairs' if s.sigma_pair else ''}" if s.name == "pairwise" else ""
    return s.name + noises


@cache
def graph(spec: str) -> Graph:
    shape, rule = spec.split("/")
    return Graph.parse(shape, weights=rule, seed=1)


def pairs(schemes: list[Scheme]) -> list[tuple[Scheme, str]]:
    """Every scheme on two graphs that differ in kind, every graph with two schemes; `make explore` takes all pairs."""
    return [(s, spec) for s in schemes for spec in GRAPHS if more(s.name in TWO_SCHEMES or spec in TWO_GRAPHS, True)]
