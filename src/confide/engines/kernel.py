"""The compiled round (Numba, float64), draw for draw the round of `confide.rounds.reference`.

True E and batch of every client, no padding; L of K clients by a partial Fisher-Yates shuffle whose swaps are undone,
so a round costs nothing for the clients that were not drawn; edges in lists, never a P x P matrix.

All compiled code is in this one file on purpose: Numba's disk cache notices a change only in the file that a function
stands in, so a helper in another file could leave a stale kernel behind.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.cpython.unsafe.tuple import tuple_setitem
from numba.extending import overload
from numpy.typing import NDArray

from confide.base.arrays import Floats, Ints
from confide.base.randomness import GAMMA, MIX_1, MIX_2, Purpose

LINEAR, LOGISTIC, SOFTMAX = 0, 1, 2
NO_CLIP, CLIP_EXAMPLE, CLIP_UPDATE = 0, 1, 2
LAPLACE, GAUSSIAN = 0, 1
ON_SERVER, ON_LINK, ON_NETWORK = 0, 1, 2
GRAPH, AVERAGE, NOTHING = 0, 1, 2
ONE, TWO, THREE, FOUR = (0.0,), (0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)  # vectors for `put`
SMALL, HUGE = 1e-150, 1e150  # norms beyond these are worked out anew (`clipping`)
LARGE = 1e60  # a squared norm beyond this is a divergence, caught long before infinity


class Data(NamedTuple):
    X: Floats
    d: Floats
    norms: Floats  # of the rows of X in the clip's norm, `clipping.norms`; empty without per-example clipping
    client_offsets: Ints
    unit_offsets: Ints
    E: Ints
    batch: Ints
    optimum: Floats  # NaN where unknown


class Rule(NamedTuple):
    """The algorithm and its scheme as numbers."""

    model: int
    rho: float
    step: float
    sampled: int
    cap: int  # rounds in which a client gives data at most, 0 for all
    replacement: bool
    clip: int
    bound: float
    l1: bool
    dropout: float
    law: int
    noise_on: int
    exchange: int
    own_noise: bool
    sigma: float
    sigma_pair: float
    sigma_client: float


class Network(NamedTuple):
    """Edges of all graphs in a row; round i uses graph (i - 1) mod G."""

    edges: Ints
    weights: Floats
    graph_offsets: Ints
    own_weights: Floats  # (G, P)
    carry: Floats  # (G, P)
    link_failure: float
    unit_failure: float
    down_edges: Ints  # scheduled failures: edges (within their graph) of round i at down_edge_offsets[i-1]...
    down_edge_offsets: Ints
    down_units: Ints
    down_unit_offsets: Ints


class Source(NamedTuple):
    """SplitMix64 keyed by the seed, or ChaCha20 keyed by the run's secret (`confide.secure.secret`)."""

    root: np.uint64  # mix(seed)
    noise: bool  # from the secret
    draws: bool  # from the secret: who takes part, batches, failures
    keys: NDArray[np.uint32]  # a row a purpose
    block: NDArray[np.uint32]  # (2, 16): the cipher's state, scratch
    words: NDArray[np.uint64]  # the stream asked for last, scratch


class Scratch(NamedTuple):
    """Buffers of one thread. `clients` and `rows` are identity permutations between rounds."""

    clients: Ints
    rows: Ints
    swaps: Ints
    chosen: Ints
    row_swaps: Ints
    picked: Ints  # rows of a client's mini-batches
    phi: Floats
    grad: Floats
    phi_by_class: Floats  # (C, F), views of the same numbers
    grad_by_class: Floats
    slopes: Floats  # of a mini-batch, or of a sample's margins
    noise: Floats
    psi: Floats
    sent: Floats
    own: Floats
    present: Ints
    up: Ints


class Out(NamedTuple):
    """One repetition's metrics, a row each, indexed by round - 1; centroids at evaluation rounds."""

    centroid_msd: Floats
    individual_msd: Floats
    disagreement: Floats
    residual: Floats
    uncancelled: Floats
    participants: Floats
    centroids: Floats
    every: int


# The kernel makes no array, so it needs none of Numba's reference counting (`_nrt`), which would cost several times
# the arithmetic: every call that passes a tuple of arrays would touch all their counters. Passing such a tuple at all
# costs more than most bodies, so what a round calls is inlined, by LLVM: in Numba's own code it would take longer to
# compile. Options that are not set are those of the caller.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
_INLINED: dict[str, Any] = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_REORDERING = {"reassoc", "contract", "nsz"}
compiled: Any = njit(**_OPTIONS, cache=True, forceinline=False)
compiled_reordering: Any = njit(**_OPTIONS, cache=True, fastmath=_REORDERING)
inlined: Any = njit(**_OPTIONS, **_INLINED)
inlined_reordering: Any = njit(**_OPTIONS, **_INLINED, fastmath=_REORDERING)

_GAMMA, _MIX_1, _MIX_2 = np.uint64(GAMMA), np.uint64(MIX_1), np.uint64(MIX_2)
_12, _27, _30, _31, _32 = np.uint64(12), np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
# NumPy's numbers: Numba compiles a function anew for every plain number that it is called with.
_CLIENTS, _BATCHES, _DROPOUT = np.int64(Purpose.CLIENTS), np.int64(Purpose.BATCHES), np.int64(Purpose.DROPOUT)
_SERVER_NOISE, _LINK_NOISE = np.int64(Purpose.SERVER_NOISE), np.int64(Purpose.LINK_NOISE)
_PAIR_NOISE, _CLIENT_NOISE = np.int64(Purpose.PAIR_NOISE), np.int64(Purpose.CLIENT_NOISE)
_NETWORK_NOISE = np.int64(Purpose.NETWORK_NOISE)
_LINK_FAILURE, _UNIT_FAILURE = np.int64(Purpose.LINK_FAILURE), np.int64(Purpose.UNIT_FAILURE)
_0, _1 = np.int64(0), np.int64(1)
_ROW = np.array([0x61707865, 0x3320646E, 0x79622D32, 0x6B206574], dtype=np.uint32)  # "expand 32-byte k"


@inlined
def mix(z):
    z = (z ^ (z >> _30)) * _MIX_1
    z = (z ^ (z >> _27)) * _MIX_2
    return z ^ (z >> _31)


@inlined
def fold(key, number):
    return mix((key ^ mix(np.uint64(number) + _GAMMA)) + _GAMMA)


@inlined
def below(word, n):
    return np.int64(((word >> _32) * np.uint64(n)) >> _32)


@inlined
def uniform(word):
    return (np.float64(word >> _12) + 0.5) * 2.0**-52


@inlined
def copy_rows(source, target):
    """target[p] = source[p] for the rows of `source` (an array assignment would allocate)."""
    for p in range(source.shape[0]):
        for m in range(source.shape[1]):
            target[p, m] = source[p, m]


@inlined
def rotated(x, n):
    return np.uint32((x << np.uint32(n)) | (x >> np.uint32(32 - n)))


@inlined
def quarter(a, b, c, d):
    """The quarter round of RFC 8439; Numba would add 32-bit numbers in 64 bits."""
    a = np.uint32(a + b)
    d = rotated(np.uint32(d ^ a), 16)
    c = np.uint32(c + d)
    b = rotated(np.uint32(b ^ c), 12)
    a = np.uint32(a + b)
    d = rotated(np.uint32(d ^ a), 8)
    c = np.uint32(c + d)
    b = rotated(np.uint32(b ^ c), 7)
    return a, b, c, d


@compiled
def keystream(source, purpose, i, a, b, count):
    """source.words[:count] of the secret stream (i, a, b): `confide.secure.secret.Streams.words`."""
    x, start, words = source.block[0], source.block[1], source.words
    for n in range(4):
        start[n] = _ROW[n]
    for n in range(8):
        start[4 + n] = source.keys[purpose, n]
    start[13], start[14], start[15] = np.uint32(i), np.uint32(a), np.uint32(b)
    for block in range((count + 7) // 8):
        start[12] = np.uint32(block)
        for n in range(16):
            x[n] = start[n]
        for _ in range(10):
            x[0], x[4], x[8], x[12] = quarter(x[0], x[4], x[8], x[12])
            x[1], x[5], x[9], x[13] = quarter(x[1], x[5], x[9], x[13])
            x[2], x[6], x[10], x[14] = quarter(x[2], x[6], x[10], x[14])
            x[3], x[7], x[11], x[15] = quarter(x[3], x[7], x[11], x[15])
            x[0], x[5], x[10], x[15] = quarter(x[0], x[5], x[10], x[15])
            x[1], x[6], x[11], x[12] = quarter(x[1], x[6], x[11], x[12])
            x[2], x[7], x[8], x[13] = quarter(x[2], x[7], x[8], x[13])
            x[3], x[4], x[9], x[14] = quarter(x[3], x[4], x[9], x[14])
        for n in range(8):
            low, high = np.uint32(x[2 * n] + start[2 * n]), np.uint32(x[2 * n + 1] + start[2 * n + 1])
            words[8 * block + n] = np.uint64(low) | (np.uint64(high) << _32)


@compiled
def draw_key(source, key, purpose, i, a, b):
    """The key of a stream of draws: `key`, which is the seed's, or that of the secret where a price rests on draws."""
    if not source.draws:
        return key
    keystream(source, purpose, i, a, b, _1)
    return source.words[0]


@inlined
def word(source, key, n):
    """The n-th word of a noise: of the keystream, or of the seeded stream `key`."""
    return source.words[n] if source.noise else mix(key + np.uint64(n + 1) * _GAMMA)


@compiled
def fill_noise(source, key, purpose, i, a, b, law, sigma, out):
    """`laplace_of` or `gaussian_of` of `base.randomness`, times sigma: of the secret stream (i, a, b), or of `key`."""
    M = out.shape[0]
    if source.noise:
        keystream(source, purpose, i, a, b, M + 1)
    if law == LAPLACE:
        for m in range(M):
            u = uniform(word(source, key, m))
            if u < 0.5:
                out[m] = sigma * (math.log(2.0 * u) * math.sqrt(0.5))
            else:
                out[m] = sigma * (-math.log(2.0 * (1.0 - u)) * math.sqrt(0.5))
    else:
        for m in range(0, M, 2):
            radius = math.sqrt(-2.0 * math.log(uniform(word(source, key, m))))
            angle = 2.0 * math.pi * uniform(word(source, key, m + 1))
            out[m] = sigma * (radius * math.cos(angle))
            if m + 1 < M:
                out[m + 1] = sigma * (radius * math.sin(angle))


@inlined
def slope(model, z, d):
    """l'(z, d) of the models with one margin z, `confide.problems.models`."""
    if model == LINEAR:
        return 2.0 * (z - d)
    t = -d * z
    e = math.exp(-abs(t))
    return -d * ((1.0 if t >= 0 else e) / (1.0 + e))


@compiled
def pick_distinct(key, N, B, rows, swaps, picked):
    """B of N rows without replacement into `picked`: a partial Fisher-Yates shuffle of `rows`, then undone."""
    for b in range(B):
        key += _GAMMA
        j = b + below(mix(key), N - b)
        rows[b], rows[j] = rows[j], rows[b]
        swaps[b] = j
        picked[b] = rows[b]
    for b in range(B - 1, -1, -1):
        j = swaps[b]
        rows[b], rows[j] = rows[j], rows[b]
    return key


def put(v, m, x):
    """v with v[m] = x: the array itself, or a new tuple. The loops over a tuple are unrolled: it stays in registers."""
    if isinstance(v, tuple):
        return (*v[:m], x, *v[m + 1 :])
    v[m] = x
    return v


@overload(put, inline="always")
def _put(v, m, x):
    def in_place(v, m, x):
        v[m] = x
        return v

    return (lambda v, m, x: tuple_setitem(v, m, x)) if isinstance(v, types.UniTuple) else in_place


@inlined_reordering
def dot(X, row, phi):
    """u'w; the order of the sum is the compiler's, so that it can use vector instructions."""
    z = 0.0
    for m in range(len(phi)):
        z += X[row, m] * phi[m]
    return z


@compiled
def slopes_of_classes(w, X, row, d, off):
    """off = p - e_d, the derivatives in the margins W u of `confide.problems.models.Softmax`."""
    highest, total = -math.inf, 0.0
    for c in range(w.shape[0]):
        off[c] = dot(X, row, w[c])
        highest = max(highest, off[c])
    for c in range(w.shape[0]):
        off[c] = math.exp(off[c] - highest)
        total += off[c]
    for c in range(w.shape[0]):
        off[c] /= total
    off[np.int64(d)] -= 1.0


@inlined
def norm(v, l1):
    size = 0.0
    for x in v:
        size += abs(x) if l1 else x * x
    return size if l1 else math.sqrt(size)


@compiled
def scaled_norm(v, l1):
    """(largest, size): the norm of v is their product, however large or small; infinite where v is not finite."""
    largest = 0.0
    for x in v:
        if not abs(x) < math.inf:
            return math.inf, 1.0
        largest = max(largest, abs(x))
    if largest == 0.0:
        return 0.0, 1.0
    size = 0.0
    for x in v:
        size += abs(x / largest) if l1 else (x / largest) * (x / largest)
    return largest, size if l1 else math.sqrt(size)


@compiled
def add_huge(off, u, bound, l1, grad):
    """grad += off u' scaled to norm `bound`, where its norm is huge; nothing where it is not finite."""
    largest, size = scaled_norm(off, l1)
    largest_u, size_u = scaled_norm(u, l1)
    if not 0.0 < largest * largest_u < math.inf:
        return
    for a in range(grad.shape[0]):
        s = bound / (size * size_u) * (off[a] / largest)
        for m in range(grad.shape[1]):
            grad[a, m] += s * (u[m] / largest_u)


@inlined
def draw_batches(key, rule, data, c, scratch):
    """The rows of client c's E mini-batches, one after the other, into scratch.picked."""
    picked, first, E, B = scratch.picked, data.client_offsets[c], data.E[c], data.batch[c]
    N = data.client_offsets[c + 1] - first
    if rule.replacement:
        for n in range(E * B):
            picked[n] = first + below(mix(key + np.uint64(n + 1) * _GAMMA), N)
        return
    for e in range(E):
        key = pick_distinct(key, N, B, scratch.rows, scratch.row_swaps, picked[e * B : e * B + B])
    for n in range(E * B):
        picked[n] += first


@inlined
def steps(rule, data, c, scratch, phi, grad):
    """E steps of size mu/E from scratch.phi, in place, on the mini-batches of client c  (3).

    What phi and grad hold does not matter, only their length M: they are scratch.phi and an array, or tuples.
    """
    w, slopes, picked = scratch.phi, scratch.slopes, scratch.picked
    X, d, E, B = data.X, data.d, data.E[c], data.batch[c]
    M, eta = len(phi), rule.step / E
    bound = rule.bound if rule.clip == CLIP_EXAMPLE else math.inf
    for m in range(M):
        phi = put(phi, m, w[m])
    for e in range(E):
        for b in range(B):  # on its own: around a call of exp nothing would stay in registers
            row = np.uint64(picked[e * B + b])  # or Numba asks whether it counts from the end
            slopes[b] = slope(rule.model, dot(X, row, phi), d[row])
        for m in range(M):
            grad = put(grad, m, 2.0 * rule.rho * B * phi[m])
        for b in range(B):
            row, s = np.uint64(picked[e * B + b]), slopes[b]
            if bound < math.inf:
                size = abs(s) * data.norms[row]
                if not size < HUGE:
                    largest, length = scaled_norm(X[row], rule.l1)
                    if 0.0 < abs(s) * largest < math.inf:  # else it overflows, and is zero
                        s = math.copysign(bound / length, s)
                        for m in range(M):
                            grad = put(grad, m, grad[m] + s * (X[row, m] / largest))
                    continue
                if size > bound:
                    s *= bound / size
            for m in range(M):
                grad = put(grad, m, grad[m] + s * X[row, m])
        for m in range(M):
            phi = put(phi, m, phi[m] - eta / B * grad[m])
    for m in range(M):
        w[m] = phi[m]


@inlined
def softmax_steps(rule, data, c, scratch):
    """The same for a softmax model: the gradient of a sample is p - e_d times u', and so is its norm."""
    phi, grad, off, picked = scratch.phi_by_class, scratch.grad_by_class, scratch.slopes, scratch.picked
    X, d, E, B = data.X, data.d, data.E[c], data.batch[c]
    (C, F), eta = phi.shape, rule.step / E
    bound = rule.bound if rule.clip == CLIP_EXAMPLE else math.inf
    for e in range(E):
        for m in range(C * F):
            scratch.grad[m] = 2.0 * rule.rho * B * scratch.phi[m]
        for b in range(B):
            row = np.uint64(picked[e * B + b])
            slopes_of_classes(phi, X, row, d[row], off[:C])
            scale = 1.0
            if bound < math.inf:
                size = norm(off[:C], rule.l1)
                if not size > SMALL:
                    largest, length = scaled_norm(off[:C], rule.l1)
                    size = largest * length
                size *= data.norms[row]
                if not size < HUGE:
                    add_huge(off[:C], X[row], bound, rule.l1, grad)
                    continue
                if size > bound:
                    scale = bound / size
            for a in range(C):
                s = scale * off[a]
                for m in range(F):
                    grad[a, m] += s * X[row, m]
        for m in range(C * F):
            scratch.phi[m] -= eta / B * scratch.grad[m]


@inlined
def local_sgd(key, rule, data, c, scratch):
    """Client c's local training from scratch.phi, in place; models of a few numbers stay in registers."""
    draw_batches(key, rule, data, c, scratch)
    M = len(scratch.phi)
    if rule.model == SOFTMAX:
        softmax_steps(rule, data, c, scratch)
    elif M == 1:
        steps(rule, data, c, scratch, ONE, ONE)
    elif M == 2:
        steps(rule, data, c, scratch, TWO, TWO)
    elif M == 3:
        steps(rule, data, c, scratch, THREE, THREE)
    elif M == 4:
        steps(rule, data, c, scratch, FOUR, FOUR)
    else:
        steps(rule, data, c, scratch, scratch.phi, scratch.grad)


@inlined
def adapt(source, i, p, rule, data, w, drawn, scratch):
    """scratch.psi[p] = w_p + (1/L) sum of the survivors' updates; returns how many gave data  (6), (7).

    Under a cap `drawn` counts how often each client was drawn; beyond it one gives no data.
    """
    M, phi, total = w.shape[1], scratch.phi, scratch.psi[p]
    start = data.unit_offsets[p]
    K = data.unit_offsets[p + 1] - start
    root = source.root
    key = draw_key(source, fold(fold(fold(root, _CLIENTS), i), p), _CLIENTS, i, p, _0)
    batches = fold(fold(fold(root, _BATCHES), i), p)
    dropouts = fold(fold(fold(root, _DROPOUT), i), p)
    noises = fold(fold(fold(root, _CLIENT_NOISE), i), p)
    total[:] = 0.0
    took_part = 0
    pick_distinct(key, K, rule.sampled, scratch.clients[start : start + K], scratch.swaps, scratch.chosen)
    for n in range(rule.sampled):
        k = scratch.chosen[n]
        c = start + k
        if rule.cap > 0:
            drawn[c] += 1
        if rule.dropout > 0.0:
            lost = draw_key(source, fold(dropouts, k), _DROPOUT, i, p, k)
            if uniform(mix(lost + _GAMMA)) < rule.dropout:
                continue
        for m in range(M):
            phi[m] = w[p, m]
        if rule.cap == 0 or drawn[c] <= rule.cap:
            took_part += 1
            own = draw_key(source, fold(batches, k), _BATCHES, i, p, k)
            local_sgd(own, rule, data, c, scratch)
        elif rule.clip != CLIP_UPDATE:  # no data; nothing bounds its regulariser's part, which stays
            left = (1.0 - 2.0 * rule.rho * rule.step / data.E[c]) ** data.E[c]
            for m in range(M):
                phi[m] *= left
        for m in range(M):
            phi[m] -= w[p, m]
        scale = 1.0
        if rule.clip == CLIP_UPDATE:
            size, bound = norm(phi, rule.l1), rule.step * rule.bound
            if size > bound:
                scale = bound / size
            if not size < HUGE:
                largest, length = scaled_norm(phi, rule.l1)
                scale = bound / length
                for m in range(M):
                    phi[m] = phi[m] / largest if largest < math.inf else 0.0
        for m in range(M):
            total[m] += scale * phi[m]
        if rule.sigma_client > 0.0:
            fill_noise(source, fold(noises, k), _CLIENT_NOISE, i, p, k, rule.law, rule.sigma_client, scratch.noise)
            for m in range(M):
                total[m] += scratch.noise[m]
    for m in range(M):
        total[m] = w[p, m] + total[m] / rule.sampled
    return took_part


@inlined
def fail(source, i, net, first, last, scratch):
    """Which units are present and which edges up in round i."""
    present, up = scratch.present, scratch.up
    present[:] = 1
    for n in range(net.down_unit_offsets[i - 1], net.down_unit_offsets[i]):
        present[net.down_units[n]] = 0
    if net.unit_failure > 0.0:
        key = fold(fold(source.root, _UNIT_FAILURE), i)
        for p in range(present.shape[0]):
            if uniform(mix(draw_key(source, fold(key, p), _UNIT_FAILURE, i, p, _0) + _GAMMA)) < net.unit_failure:
                present[p] = 0
    key = fold(fold(source.root, _LINK_FAILURE), i)
    for e in range(first, last):
        a, b = net.edges[e, 0], net.edges[e, 1]
        up[e - first] = present[a] & present[b]
        if net.link_failure > 0.0:
            failed = draw_key(source, fold(fold(key, a), b), _LINK_FAILURE, i, a, b)
            if uniform(mix(failed + _GAMMA)) < net.link_failure:
                up[e - first] = 0
    for n in range(net.down_edge_offsets[i - 1], net.down_edge_offsets[i]):
        up[net.down_edges[n]] = 0


@compiled
def count(source, first_round, last_round, rule, data, net, drawn, scratch):
    """What rounds first_round..last_round add to `drawn`, as `adapt` counts."""
    order, swaps = scratch.clients, scratch.swaps
    for i in range(first_round, last_round + 1):
        fail(source, i, net, 0, 0, scratch)
        for p in range(scratch.present.shape[0]):
            if not scratch.present[p]:
                continue
            start = data.unit_offsets[p]
            K = data.unit_offsets[p + 1] - start
            key = draw_key(source, fold(fold(fold(source.root, _CLIENTS), i), p), _CLIENTS, i, p, _0)
            pick_distinct(key, K, rule.sampled, order[start : start + K], swaps, scratch.chosen)
            for n in range(rule.sampled):
                drawn[start + scratch.chosen[n]] += 1


@inlined
def publish(source, i, g, rule, net, first, last, scratch):
    """Messages into scratch.sent, own states into scratch.own: `confide.rounds.combine.publish`."""
    psi, sent, own, noise, present = scratch.psi, scratch.sent, scratch.own, scratch.noise, scratch.present
    P, M = psi.shape
    copy_rows(psi, own)
    if rule.noise_on == ON_LINK:
        key = fold(fold(source.root, _LINK_NOISE), i)
        n_edges = last - first
        for e in range(2 * n_edges):
            a, b = net.edges[first + e % n_edges, 0], net.edges[first + e % n_edges, 1]
            p, m = (a, b) if e < n_edges else (b, a)
            for q in range(M):
                sent[e, q] = psi[p, q]
            if present[p] and rule.sigma > 0.0:
                fill_noise(source, fold(fold(key, p), m), _LINK_NOISE, i, p, m, rule.law, rule.sigma, noise)
                weight = net.weights[first + e % n_edges]
                for q in range(M):
                    sent[e, q] += noise[q]
                    own[p, q] += weight * noise[q]
        if rule.own_noise and rule.sigma > 0.0:
            for p in range(P):
                if present[p]:
                    fill_noise(source, fold(fold(key, p), p), _LINK_NOISE, i, p, p, rule.law, rule.sigma, noise)
                    for q in range(M):
                        own[p, q] += net.own_weights[g, p] * noise[q]
        return
    if rule.noise_on == ON_NETWORK:
        if rule.sigma > 0.0:
            key = fold(fold(source.root, _NETWORK_NOISE), i)
            fill_noise(source, key, _NETWORK_NOISE, i, _0, _0, rule.law, rule.sigma, noise)
            for p in range(P):
                for q in range(M):
                    own[p, q] += noise[q]
        copy_rows(own, sent)
        return
    copy_rows(psi, sent)
    if rule.sigma > 0.0:
        key = fold(fold(source.root, _SERVER_NOISE), i)
        for p in range(P):
            if present[p]:
                fill_noise(source, fold(key, p), _SERVER_NOISE, i, p, _0, rule.law, rule.sigma, noise)
                keep = 1.0 - net.carry[g, p]
                for q in range(M):
                    sent[p, q] += noise[q]
                    own[p, q] += keep * noise[q]
    if rule.sigma_pair > 0.0:
        key = fold(fold(source.root, _PAIR_NOISE), i)
        for e in range(first, last):
            a, b = net.edges[e, 0], net.edges[e, 1]
            fill_noise(source, fold(fold(key, a), b), _PAIR_NOISE, i, a, b, rule.law, rule.sigma_pair, noise)
            for q in range(M):
                if present[a]:
                    sent[a, q] += noise[q]
                    own[a, q] += (1.0 - net.carry[g, a]) * noise[q]
                if present[b]:
                    sent[b, q] -= noise[q]
                    own[b, q] -= (1.0 - net.carry[g, b]) * noise[q]


@inlined
def combine(rule, net, first, last, scratch, w):
    """w_p = s_p + sum_m a_pm (o_m - o_p), edge by edge  (8)."""
    own, sent, up = scratch.own, scratch.sent, scratch.up
    P, M = w.shape
    if rule.exchange == AVERAGE:
        for q in range(M):
            mean = 0.0
            for p in range(P):
                mean += own[p, q]
            for p in range(P):
                w[p, q] = mean / P
        return
    copy_rows(own, w)
    if rule.exchange == NOTHING:
        return
    n_edges = last - first
    for e in range(n_edges):
        if up[e]:
            a, b = net.edges[first + e, 0], net.edges[first + e, 1]
            from_a, from_b = (e, n_edges + e) if rule.noise_on == ON_LINK else (a, b)
            weight = net.weights[first + e]
            for q in range(M):
                flow = weight * (sent[from_b, q] - sent[from_a, q])
                w[a, q] += flow
                w[b, q] -= flow


@inlined
def measure(i, rounds, data, w, scratch, took_part, out):
    """Metrics of round i; False when the states blew up."""
    P, M = w.shape
    own, psi = scratch.own, scratch.psi
    centroid_msd = individual = disagreement = residual = uncancelled = size = 0.0
    evaluated = i % out.every == 0 or i == rounds
    for q in range(M):
        total = total_own = total_psi = 0.0
        for p in range(P):
            total += w[p, q]
            total_own += own[p, q]
            total_psi += psi[p, q]
        centroid = total / P
        for p in range(P):
            x = w[p, q]
            individual += (x - data.optimum[q]) ** 2
            disagreement += (x - centroid) ** 2
            size += x * x
        centroid_msd += (centroid - data.optimum[q]) ** 2
        residual += (total - total_own) ** 2
        uncancelled += (total - total_psi) ** 2
        if evaluated:
            out.centroids[(i + out.every - 1) // out.every - 1, q] = centroid
    out.centroid_msd[i - 1] = centroid_msd
    out.individual_msd[i - 1] = individual / P
    out.disagreement[i - 1] = disagreement / P
    out.residual[i - 1] = math.sqrt(residual)
    out.uncancelled[i - 1] = math.sqrt(uncancelled)
    out.participants[i - 1] = took_part
    return size < LARGE


@compiled
def advance(source, first_round, last_round, rounds, rule, data, net, w, drawn, scratch, out):
    """Rounds first_round..last_round on w and `drawn` in place; returns 0, or the round in which the states blew up."""
    P = w.shape[0]
    for i in range(first_round, last_round + 1):
        g = (i - 1) % (net.graph_offsets.shape[0] - 1)
        first, last = net.graph_offsets[g], net.graph_offsets[g + 1]
        fail(source, i, net, first, last, scratch)
        took_part = 0
        for p in range(P):
            if scratch.present[p]:
                took_part += adapt(source, i, p, rule, data, w, drawn, scratch)
            else:
                for m in range(w.shape[1]):
                    scratch.psi[p, m] = w[p, m]
        publish(source, i, g, rule, net, first, last, scratch)
        combine(rule, net, first, last, scratch, w)
        if not measure(i, rounds, data, w, scratch, took_part, out):
            return i
    return 0
