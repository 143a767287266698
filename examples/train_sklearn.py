"""A client that trains with scikit-learn: a linear classifier of three classes (`SGDClassifier`).

In the client's TOML, with this file beside it (or in a package that is installed):

    train = "train_sklearn:train"
    dataset = "visits 2026"
    [train_config]
    data = "/srv/clinic/scans.npz"

`python examples/train_sklearn.py` rehearses, and prints the size of the model, which the plan needs.
"""

import numpy as np
from sklearn.linear_model import SGDClassifier

FEATURES, CLASSES, EPOCHS = 4, np.arange(3), 2  # the same at all clients; a client need not have samples of all classes


def size():
    """Numbers in the model: `confide agree CONFIG --unit ... --model own --features 15`."""
    return len(CLASSES) * (FEATURES + 1)  # with two classes scikit-learn has one row, not two: FEATURES + 1


def flatten(model):
    """A row for each class: its coefficients, then its intercept."""
    return np.column_stack([model.coef_, model.intercept_]).ravel()


def classifier(weights, round=0):
    """A model with these weights. All that training starts from is in them: a constant rate needs no count of steps."""
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.02, random_state=round)
    rows = weights.reshape(len(CLASSES), FEATURES + 1)  # refuses other sizes
    model.coef_, model.intercept_ = rows[:, :-1].copy(), rows[:, -1].copy()  # copies: scikit-learn trains in place
    model.classes_ = CLASSES
    return model


def train(weights, round, config):
    """(weights, round, config) -> update: some epochs on this client's own samples, from the weights given.

    The update is the way from the old weights to the new, as one vector of float64 of the same length. It is clipped to
    the plan's bound afterwards, whatever it is. Nothing is kept from round to round: the process may restart between.
    """
    with np.load(config["data"], allow_pickle=False) as file:  # a pickle could run code
        X, y = file["X"], file["y"]
    model = classifier(weights, round)  # the round: another order of the samples each time
    for _ in range(EPOCHS):
        model.partial_fit(X, y)  # not `fit`, which begins anew, and wants samples of every class
    return flatten(model) - weights


# A rehearsal on synthetic data; leave it out of your copy.

CENTRES = np.array([[1.0, 0.0, 0.5, 0.0], [-1.0, 1.0, 0.0, 0.0], [0.0, -1.0, -0.5, 0.5]])


def sample(rng, n):
    y = rng.choice(CLASSES, n, p=rng.permutation([0.0, 0.3, 0.7]))  # no client has all classes
    return CENTRES[y] + rng.normal(0, 0.5, (n, FEATURES)), y


def accuracy(weights, X, y):
    return classifier(weights).score(X, y)


if __name__ == "__main__":
    from rehearse import learn

    before, after = learn("train_sklearn:train", size(), sample, accuracy, bound=0.5)
    print(f"accuracy {before:.1%} before, {after:.1%} after")
