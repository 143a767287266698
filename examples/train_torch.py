"""A client that trains with PyTorch (extra `torch`): a small network that separates a ring from what is inside it.

In the client's TOML, with this file beside it (or in a package that is installed):

    train = "train_torch:train"
    dataset = "scans 2026"
    [train_config]
    data = "/srv/clinic/scans.npz"

`python examples/train_torch.py` rehearses, and prints the size of the model, which the plan needs.
"""

import numpy as np
import torch
from torch import nn

BATCH, RATE = 10, 0.5  # the same at all clients
torch.set_num_threads(1)  # a model this small is slower with more


def network():
    """The same at all clients, who have the same torch. No layers with buffers: BatchNorm's are statistics of data."""
    with torch.random.fork_rng(devices=[]):  # leaves the random numbers of the process as they are
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


def flatten(model):
    """A state_dict as one vector of float64."""
    return np.concatenate([t.double().numpy().ravel() for t in model.state_dict().values()])


def size():
    """Numbers in the model: `confide agree CONFIG --unit ... --model own --features 82`."""
    return len(flatten(network()))


def model_of(weights):
    """The rounds begin at zero, where neurons are alike and stay so: weights count from `network`'s random start."""
    model = network()
    state = model.state_dict()
    parts = torch.from_numpy(flatten(model) + weights).split([t.numel() for t in state.values()])  # refuses other sizes
    model.load_state_dict({name: part.view_as(state[name]) for name, part in zip(state, parts, strict=True)})
    return model


def train(weights, round, config):
    """(weights, round, config) -> update: one epoch on this client's own samples, from the weights given.

    The update is the way from the old weights to the new, as one vector of float64 of the same length. It is clipped to
    the plan's bound afterwards, whatever it is. Nothing is kept from round to round: the process may restart between.
    """
    with np.load(config["data"], allow_pickle=False) as file:  # a pickle could run code
        X, y = torch.from_numpy(file["X"]).float(), torch.from_numpy(file["y"]).long()
    model = model_of(weights)
    old, order = flatten(model), torch.Generator().manual_seed(round)  # old as the model has it, in float32
    optimiser = torch.optim.SGD(model.parameters(), RATE)  # one with memory, such as Adam, begins anew each round
    for rows in torch.randperm(len(y), generator=order).split(BATCH):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(X[rows]), y[rows]).backward()
        optimiser.step()
    return flatten(model) - old


# A rehearsal on synthetic data; leave it out of your copy.
def sample(rng, n):
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.linalg.norm(X, axis=1) > 1.5


def accuracy(weights, X, y):
    with torch.no_grad():
        return (model_of(weights)(torch.from_numpy(X).float()).argmax(1).numpy() == y).mean()


if __name__ == "__main__":
    from rehearse import learn

    before, after = learn("train_torch:train", size(), sample, accuracy, bound=1.0)
    print(f"accuracy {before:.1%} before, {after:.1%} after")
