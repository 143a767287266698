"""A client that trains with plain NumPy: Poisson regression, for counts such as visits or claims.

In the client's TOML, with this file beside it (or in a package that is installed):

    train = "train_numpy:train"
    dataset = "visits 2026"
    [train_config]
    data = "/srv/clinic/visits.npz"

`python examples/train_numpy.py` rehearses, and prints the size of the model, which the plan needs.
"""

import numpy as np

FEATURES, STEPS, RATE = 5, 10, 0.1  # the same at all clients


def size():
    """Numbers in the model: `confide agree CONFIG --unit ... --model own --features 6`."""
    return FEATURES + 1


def predict(weights, X):
    """Expected counts. The order of the numbers in `weights` is ours: slopes, then intercept."""
    return np.exp(np.clip(X @ weights[:-1] + weights[-1], -10, 10))  # noisy weights must not overflow


def train(weights, round, config):
    """(weights, round, config) -> update: a few steps on this client's own samples, from the weights given.

    The update is the way from the old weights to the new, as one vector of float64 of the same length. It is clipped to
    the plan's bound afterwards, whatever it is. Nothing is kept from round to round: the process may restart between.
    """
    with np.load(config["data"], allow_pickle=False) as file:  # a pickle could run code
        X, y = file["X"], file["y"]
    new = weights.copy()
    for _ in range(STEPS):
        residual = predict(new, X) - y
        new[:-1] -= RATE * X.T @ residual / len(y)
        new[-1] -= RATE * residual.mean()
    return new - weights


# A rehearsal on synthetic data; leave it out of your copy.
def sample(rng, n):
    X = rng.uniform(-1, 1, (n, FEATURES))
    return X, rng.poisson(np.exp(X @ [1.0, -0.8, 0.6, 0.0, 0.4] + 0.5))


def error(weights, X, y):
    return np.abs(predict(weights, X) - y).mean()


if __name__ == "__main__":
    from rehearse import learn

    before, after = learn("train_numpy:train", size(), sample, error, bound=0.5)
    print(f"mean error {before:.3f} before, {after:.3f} after")
