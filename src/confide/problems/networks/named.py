"""Models by the words of a config: "softmax", "mlp", "cnn" and others, or "my_module:network", the user's own code."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from confide.base.entry_points import loaded, names_code
from confide.base.errors import InputError
from confide.base.validation import one_of
from confide.problems.models import KEYS, Model, chosen
from confide.problems.networks import constructors
from confide.problems.networks.built_in import described, initial
from confide.problems.networks.network import Network

BUILT_IN: Final = ("mlp", "cnn")
WITH_CLASSES: Final = ("softmax", *BUILT_IN)  # which must be known beforehand
FRAMEWORKS: Final = ("jax", "torch")


def model(
    key: str,
    *,
    features: int,
    classes: int | None,
    rho: float | None = None,
    hidden: Sequence[int] | None = None,
    framework: str | None = None,
    weights: str | Path | None = None,
) -> Model:
    """What a config says in `problem.model`, with the keys beside it; None is what was not said.

    A built-in network begins with weights that follow from its shape alone, so that everybody who reads the config has
    the same; another start is a file.

    Raises:
        InputError: there is no such model, or a key means nothing for it.
    """
    own, network = isinstance(key, str) and names_code(key), key in BUILT_IN
    if not own:
        one_of("problem.model", key, (*KEYS, *BUILT_IN, "my_module:network"))
    for field, value, means in (
        ("hidden", hidden, network),
        ("framework", framework, network),
        ("weights", weights, own or network),
    ):
        if value is not None and not means:
            remedy = "is for mlp and cnn" if field != "weights" else "is for networks"
            raise InputError(f"problem.{field}", value, f"{remedy}; leave it out with {key!r}")
    if own:
        found = from_entry_point(key, weights=weights, rho=rho)
        if classes not in (None, found.classes):
            raise InputError("problem.classes", classes, f"the network says classes = {found.classes}; leave it out")
        return found
    rho = 0.0 if rho is None else rho
    if not network:
        return chosen(key, rho, classes)
    if classes is None:
        raise InputError("problem.classes", None, f"{key!r} needs the number of classes: classes = 10")
    more = {"hidden": hidden, "framework": framework, "weights": weights}
    return built_in(key, features=features, classes=classes, rho=rho, **more)  # type: ignore[arg-type]


def built_in(
    name: str,
    *,
    features: int,
    classes: int,
    hidden: Sequence[int] | None = None,
    framework: str | None = None,
    rho: float = 0.0,
    seed: int = 0,
    weights: str | Path | None = None,
) -> Network:
    """The built-in network of this name.

    Args:
        hidden: widths of the layers between; of "cnn" the channels of its convolutions.
        framework: "jax" or "torch"; by default the first of them that is installed.
        weights: a safetensors file with the initial weights, in place of those of the seed.
    """
    description = described(one_of("problem.model", name, BUILT_IN), features, classes, hidden)
    start, here = initial(description, seed), constructors.home(_framework(framework))
    network: Network = here.built_in(description, start, rho=rho, weights=weights)
    network.description = description
    return network


def from_entry_point(
    name: str,
    *,
    weights: str | Path | None = None,
    rho: float | None = None,
    field: str = "problem.model",
    beside: str = "the config",
) -> Network:
    """The network that "package.module:name" is, or that this function without arguments returns.

    Only for names from the user's own config.

    Args:
        weights: a safetensors file with the initial weights, in place of the network's own.
        rho: in place of the network's own.
        field, beside: the key that names it, and the file in whose folder the module may lie.
    """
    found = loaded(field, name, beside)
    if not isinstance(found, Network) and callable(found):
        try:
            found = found()
        except InputError:
            raise
        except Exception as e:
            raise InputError(field, name, f"raised {type(e).__name__}: {e}") from e
    if not isinstance(found, Network):
        remedy = f"is a {type(found).__name__}; it must be what confide.models.jax or confide.models.torch returns"
        raise InputError(field, name, remedy)
    return found.changed(weights=weights, rho=rho)


def _framework(chosen: str | None) -> str:
    if chosen is not None:
        return one_of("problem.framework", chosen, FRAMEWORKS)
    for name in FRAMEWORKS:
        if find_spec(name) is not None:
            return name
    remedy = "a network needs JAX or PyTorch: pip install 'confide[jax]' or 'confide[torch]'"
    raise InputError("problem.framework", None, remedy)
