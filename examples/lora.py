"""LoRA in JAX: a small transformer learned from public data stays as it is, and two thin matrices beside each of its
projections learn from the clients. Only those travel, are clipped and get noise.

    pip install 'confide[jax]' && python examples/lora.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import confide

TOKENS, LENGTH, WIDTH, HEADS, RANK = 8, 8, 32, 4, 4
PROJECTIONS = ("query", "key", "value", "out")


def transformer(key):
    """One block: the base, and beside each projection the thin matrices a and b, which change nothing at first."""
    keys = iter(jax.random.split(key, 16))

    def matrix(rows, columns):
        return jax.random.normal(next(keys), (rows, columns)) / np.sqrt(rows)

    base = {name: matrix(WIDTH, WIDTH) for name in PROJECTIONS}
    base |= {"tokens": matrix(TOKENS, WIDTH), "places": matrix(LENGTH, WIDTH), "head": matrix(WIDTH, TOKENS)}
    base |= {"up": matrix(WIDTH, 2 * WIDTH), "down": matrix(2 * WIDTH, WIDTH)}
    lora = {name: {"a": matrix(WIDTH, RANK), "b": jnp.zeros((RANK, WIDTH))} for name in PROJECTIONS}
    return {"base": base, "lora": lora}


def outputs(params, X):
    base, lora = params["base"], params["lora"]

    def project(name, x):
        return x @ base[name] + x @ lora[name]["a"] @ lora[name]["b"]

    x = base["tokens"][X.astype(jnp.int32)] + base["places"]
    q, k, v = (project(n, x).reshape(*x.shape[:2], HEADS, -1) for n in PROJECTIONS[:3])
    attention = jax.nn.softmax(jnp.einsum("bqhc,bkhc->bhqk", q, k) / np.sqrt(WIDTH / HEADS))
    x = x + project("out", jnp.einsum("bhqk,bkhc->bqhc", attention, v).reshape(x.shape))
    x = x + jax.nn.relu(x @ base["up"]) @ base["down"]
    return x.mean(axis=1) @ base["head"]


def loss(params, batch):
    return optax.softmax_cross_entropy_with_integer_labels(outputs(params, batch[0]), batch[1]).mean()


def metrics(params, batch):
    return {"error": (outputs(params, batch[0]).argmax(axis=1) != batch[1]).mean()}


def sentences(rng, count):
    return rng.integers(0, TOKENS, (count, LENGTH)).astype(float)


def learned_from_public_data(rng):
    """The base, which names the first token of a sentence."""
    params, adam = transformer(jax.random.key(0)), optax.adam(3e-3)
    state = adam.init(params["base"])

    @jax.jit
    def step(base, state, X, d):
        change, state = adam.update(jax.grad(lambda b: loss(params | {"base": b}, (X, d)))(base), state)
        return optax.apply_updates(base, change), state

    base = params["base"]
    for _ in range(400):
        X = sentences(rng, 64)
        base, state = step(base, state, X, X[:, 0].astype(int))
    return base


rng = np.random.default_rng(0)
base = learned_from_public_data(rng)
network = confide.models.jax(
    lambda key: transformer(key) | {"base": base}, loss, metrics=metrics, trainable=["lora.*"], classes=TOKENS
)

# The clients' task is another one: the last token.
UNITS, CLIENTS, ROWS = 4, 10, 40
texts = sentences(rng, UNITS * CLIENTS * ROWS + 1000)
clients = [[(X, X[:, -1]) for X in unit] for unit in texts[:-1000].reshape(UNITS, CLIENTS, ROWS, LENGTH)]
problem = confide.problems.Problem(
    confide.Federation.from_clients(clients), network, test=(texts[-1000:], texts[-1000:, -1]), spec={"name": "lora"}
)
algorithm = confide.GFL(
    confide.scheme("homomorphic", sigma=0.001),
    step=1.5,
    sampled=5,
    local_steps=5,
    batch=20,
    clip=confide.Clip("update", 1.0),
)
run = confide.simulate(problem, confide.Graph.ring(UNITS), algorithm, rounds=24, evaluate_every=8)

total = sum(a.size for a in (network.initial | network.frozen).values())
print(run)
print(f"{problem.M} of {total} numbers are trained")
before = network.metrics(network.start(), *problem.test)["error"]
print(f"error {before:.2f} before, {run.final['test_error']:.2f} after")
assert run.final["test_error"] < before - 0.3
