"""Networks by the words of a config: "mlp" and "cnn", or "my_module:network" from the user's own code."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from confide.base.entry_points import loaded
from confide.base.errors import InputError
from confide.base.validation import one_of
from confide.problems.networks import constructors
from confide.problems.networks.built_in import described, initial
from confide.problems.networks.network import Network

BUILT_IN: Final = {"mlp": "layers of relu", "cnn": "convolutions of square images"}
FRAMEWORKS: Final = ("jax", "torch")


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
