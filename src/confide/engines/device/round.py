"""The round of `confide.rounds.reference`, draw for draw, for all repetitions at once.

Arrays have the axes (repetition, unit, client, ...). Where a choice is the run's and not a round's, Python makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from confide.base.randomness import Purpose
from confide.engines.device.backend import Array, Backend
from confide.engines.device.streams import Streams, below, choose, happens, word
from confide.engines.device.tables import Rule, Tables
from confide.engines.device.training.cohort import Cohort, Train
from confide.rounds.schemes import Exchange, Place

FEW = 8  # neighbours whose terms are written out one by one; those of more are a loop
MEASURES = ("centroid_msd", "individual_msd", "disagreement", "residual", "uncancelled", "participants", "size")
"""Of a round and a repetition, as in `Recording`; `size` is the states' squared norm."""


class Carried(NamedTuple):
    """From round to round."""

    w: Array  # (R, P, M)
    drawn: Array  # under a cap how often each client was drawn, (R, clients) int32; else no clients


class Rounds(NamedTuple):
    """The program: what it does, and with what."""

    b: Backend
    rule: Rule
    train: Train

    def one(self, t: Tables, s: Streams, i: Array, before: Carried) -> tuple[Carried, Array]:
        """Round i = 1, 2, ... and its measures, (MEASURES, R)."""
        g = (i - 1) % t.flow.shape[0]
        present = self.units_present(t, s, i)
        psi, drawn, participants = self.adapt(t, s, i, before, present)
        own, w = self.exchange(t, s, i, g, psi, present)
        return Carried(w, drawn), self.measure(t, psi, own, w, participants)

    # ---- who takes part

    def units_present(self, t: Tables, s: Streams, i: Array) -> Array | None:
        """(R, P), or None where no unit ever fails."""
        b, failures = self.b, self.rule.failures
        if not failures.unit and not failures.units:
            return None
        p = b.arange(self.rule.P)[None]
        absent = b.xp.any((t.down_units[:, :1] == i) & (t.down_units[:, 1:] == p), axis=0)[None]
        if failures.unit:
            absent = absent | self.chance(s, failures.unit, Purpose.UNIT_FAILURE, i, p)
        return b.xp.broadcast_to(~absent, (s.roots.shape[0], self.rule.P))

    def links_up(self, t: Tables, s: Streams, i: Array, g: Array, present: Array | None) -> Array | None:
        """(R, edges), or None where no edge ever fails."""
        b, failures = self.b, self.rule.failures
        if not failures:
            return None
        first, second = t.edges[g][None, :, 0], t.edges[g][None, :, 1]
        e = b.arange(t.edges.shape[1])[None]
        down = b.xp.any((t.down_edges[:, :1] == i) & (t.down_edges[:, 1:] == e), axis=0)[None]
        if failures.link:
            down = down | self.chance(s, failures.link, Purpose.LINK_FAILURE, i, first, second)
        up = b.xp.broadcast_to(~down, (s.roots.shape[0], t.edges.shape[1]))
        return up if present is None else up & present[:, first[0]] & present[:, second[0]]

    def chance(self, s: Streams, probability: float, purpose: Purpose, *ids: Array) -> Array:
        return happens(self.b, word(self.b, s.key(self.b, purpose, *ids), 0), probability)

    # ---- the servers' own clients

    def adapt(
        self, t: Tables, s: Streams, i: Array, before: Carried, present: Array | None
    ) -> tuple[Array, Array, Array]:
        """psi_p = w_p + (1/L) sum of the survivors' updates, (R, P, M); `drawn`; and how many gave data  (6), (7)."""
        b, rule, (w, drawn) = self.b, self.rule, before
        R, p = w.shape[0], b.arange(rule.P)[None]
        chosen, c = self.chosen(t, s, i)
        here = survives = c >= 0 if present is None else b.xp.broadcast_to(present[..., None], c.shape)
        if rule.dropout:
            survives = survives & ~self.chance(s, rule.dropout, Purpose.DROPOUT, i, p[..., None], chosen)
        gives = survives
        if rule.cap is not None:
            flat = b.xp.reshape(c, (R, -1))
            gives = survives & (b.xp.reshape(b.along(drawn, flat, -1), c.shape) < rule.cap)
            drawn = b.added(drawn, flat, b.xp.reshape(b.cast(here, drawn.dtype), flat.shape))
        cohort = self.cohort(t, s, i, p, chosen, c, gives)
        with b.training():
            total = self.train(b.xp.reshape(w, (-1, rule.M)), t.X, t.d, cohort, rule.clip)
        total = b.xp.reshape(total, w.shape)
        if rule.cap is not None and (rule.clip is None or rule.clip.kind != "update"):
            gone = b.xp.where(survives & ~gives, 1.0 - t.left[c], 0.0)  # no clip bounds what a regulariser takes away
            total = total - b.xp.sum(gone, axis=-1)[..., None] * w
        if sigma := rule.sigma(Place.CLIENT):
            noise = self.noise(s, i, Purpose.CLIENT_NOISE, p[..., None], chosen)
            total = total + b.xp.sum(b.xp.where(survives[..., None], sigma * noise, 0.0), axis=2)
        psi = w + total / rule.sampled
        if present is not None:
            psi = b.xp.where(present[..., None], psi, w)
        return psi, drawn, b.xp.sum(b.cast(gives, b.float), axis=(1, 2))

    def chosen(self, t: Tables, s: Streams, i: Array) -> tuple[Array, Array]:
        """L of the K clients of each unit, (R, P, L), by their numbers in it and in the federation."""
        b = self.b
        key = s.key(b, Purpose.CLIENTS, i, b.arange(self.rule.P)[None])
        found = choose(b, word(b, key[..., None], b.arange(self.rule.sampled)), t.K[None, :, None])
        return found, t.unit[None, :, None] + found

    def first(self, t: Tables, s: Streams) -> Cohort:
        """That of a first round in which nobody fails, to try a way of training on."""
        chosen, c = self.chosen(t, s, self.b.zeros((), self.b.xp.int64) + 1)
        return self.cohort(t, s, 1, self.b.arange(self.rule.P)[None], chosen, c, c >= 0)

    def cohort(self, t: Tables, s: Streams, i: Array, p: Array, chosen: Array, c: Array, gives: Array) -> Cohort:
        """Which rows the chosen clients draw in which step."""
        b, rule = self.b, self.rule
        key = s.key(b, Purpose.BATCHES, i, p[..., None], chosen)
        e, n = b.arange(rule.steps)[:, None], b.arange(rule.batch)
        E, batch, size = (x[c][..., None, None] for x in (t.E, t.batch, t.size))
        drawn = word(b, key[..., None, None], e * batch + n)
        picks = below(b, drawn, size) if rule.replacement else choose(b, drawn, size)
        picks = b.xp.minimum(picks, size - 1)  # what fills up a batch without replacement may lie beyond
        exists = (e < E) & (n < batch)
        weights = b.xp.where(exists, 1.0 / b.cast(batch, b.float), 0.0)
        slots = b.xp.minimum(b.arange(rule.slots), size[..., 0] - 1)
        rows = t.first[c][..., None] + b.cast(slots, b.xp.int32)
        eta = rule.step / b.cast(E[..., 0, 0], b.float)
        found = Cohort(
            rows, b.cast(picks, b.xp.int32), weights, eta, b.cast(gives, b.float),
            *(key, t.first[c], t.size[c], t.E[c], t.batch[c]),
        )  # fmt: skip
        return found.each(lambda x: b.xp.reshape(x, (-1, *x.shape[2:])))

    def noise(self, s: Streams, i: Array, purpose: Purpose, *ids: Array) -> Array:
        """With standard deviation 1."""
        law = self.rule.scheme.law.kernel
        assert law is not None  # noqa: S101 - `unable` refuses other laws
        return s.noise(self.b, law, purpose, (i, *ids), self.rule.M)

    # ---- among servers

    def exchange(
        self, t: Tables, s: Streams, i: Array, g: Array, psi: Array, present: Array | None
    ) -> tuple[Array, Array]:
        """The servers' own terms s_p and their models w_p = s_p + sum_m a_pm (o_mp - o_pm)  (8), `rounds.combine`."""
        b, rule = self.b, self.rule
        if rule.scheme.exchange == Exchange.NOTHING:
            return psi, psi
        if rule.scheme.exchange == Exchange.AVERAGE:
            own = psi
            if sigma := rule.sigma(Place.NETWORK):
                own = psi + sigma * self.noise(s, i, Purpose.NETWORK_NOISE)[:, None]
            return own, b.xp.broadcast_to(b.xp.mean(own, axis=1, keepdims=True), own.shape)
        up = self.links_up(t, s, i, g, present)
        sent, kept, left = (self.noise_of_links if rule.scheme.by_link else self.noise_of_servers)(t, s, i, g, up)
        if present is not None:
            sent, kept = (None if n is None else b.xp.where(present[..., None], n, 0.0) for n in (sent, kept))
        own, message = plus(psi, kept), plus(psi, sent)
        near = t.near[g]
        moved = self.over_neighbours(self.flows(t, g, up), lambda d: message[:, near[:, d]] - message, message.shape)
        return own, plus(own + moved, left)

    def noise_of_servers(self, t: Tables, s: Streams, i: Array, g: Array, up: Array | None) -> Noises:
        """The same in all messages, of which a server keeps the share 1 - c_p."""
        b, rule, sent = self.b, self.rule, None
        if sigma := rule.sigma(Place.SERVER):
            sent = sigma * self.noise(s, i, Purpose.SERVER_NOISE, b.arange(rule.P)[None])
        if (sigma := rule.sigma(Place.EDGE)) and t.edges.shape[1]:
            shared = self.noise(s, i, Purpose.PAIR_NOISE, t.edges[g][None, :, 0], t.edges[g][None, :, 1])
            edge = t.edge[g]
            shape = (s.roots.shape[0], rule.P, rule.M)
            sent = plus(self.over_neighbours(sigma * t.side[g], lambda d: shared[:, edge[:, d]], shape), sent)
        return sent, None if sent is None or rule.scheme.carry == 1.0 else t.share[g][:, None] * sent, None

    def noise_of_links(self, t: Tables, s: Streams, i: Array, g: Array, up: Array | None) -> Noises:
        """Kept is sum_m a_pm n_pm + (a_pp - c_p) n_pp; no two messages have the same."""
        b, rule, kept, left = self.b, self.rule, None, None
        if sigma := rule.sigma(Place.OWN):
            p = b.arange(rule.P)[None]
            kept = t.share[g][:, None] * sigma * self.noise(s, i, Purpose.LINK_NOISE, p, p)
        if (sigma := rule.sigma(Place.LINK)) and t.edges.shape[1]:
            noise = sigma * self.noise(s, i, Purpose.LINK_NOISE, t.sender[g][None], t.receiver[g][None])
            first, edge, shape = t.side[g] > 0.0, t.edge[g], (s.roots.shape[0], rule.P, rule.M)
            back = edge + t.edges.shape[1]
            out, into = b.xp.where(first, edge, back), b.xp.where(first, back, edge)
            kept = plus(self.over_neighbours(t.flow[g], lambda d: noise[:, out[:, d]], shape), kept)
            left = self.over_neighbours(
                self.flows(t, g, up), lambda d: noise[:, into[:, d]] - noise[:, out[:, d]], shape
            )
        return None, kept, left

    def flows(self, t: Tables, g: Array, up: Array | None) -> Array:
        """a_pm of the edges that are up, (P, neighbours), or of all repetitions, (R, P, neighbours)."""
        return t.flow[g] if up is None else t.flow[g] * self.b.cast(up[:, t.edge[g]], self.b.float)

    def over_neighbours(self, weights: Array, term: Callable[[Any], Array], shape: tuple[int, ...]) -> Array:
        """sum_d weights_pd term(d) over the d-th neighbours of all servers, (R, P, M), in the order of their edges.

        No product of matrices: those may be cut into blocks by how many repetitions there are, which changes bits.
        """
        most = weights.shape[-1]
        return self.b.fold(
            most, lambda d, total: total + weights[..., d, None] * term(d), self.b.zeros(shape), unroll=most <= FEW
        )

    # ---- what is recorded

    def measure(self, t: Tables, psi: Array, own: Array, w: Array, participants: Array) -> Array:
        """With as few passes over the states as there can be: sums of squares about the centroid give all others."""
        b = self.b

        def squares(x: Array) -> Array:
            return b.xp.sum(x * x, axis=-1)

        total = b.xp.sum(w, axis=1)
        centroid = total / self.rule.P
        disagreement = b.xp.mean(squares(w - centroid[:, None]), axis=1)
        distance = squares(centroid - t.optimum)
        found = (
            distance,
            disagreement + distance,
            disagreement,
            b.xp.sqrt(squares(total - b.xp.sum(own, axis=1))),
            b.xp.sqrt(squares(total - b.xp.sum(psi, axis=1))),
            participants,
            self.rule.P * (disagreement + squares(centroid)),
        )
        return b.xp.stack(found)


Noises = tuple[Array | None, Array | None, Array | None]
"""Of all servers, (R, P, M): in each of a server's messages; in its own term; and what the flows leave of links'."""


def plus(x: Array, noise: Array | None) -> Array:
    return x if noise is None else x + noise
