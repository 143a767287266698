"""One round for two frameworks, JAX and PyTorch, on a CPU or a GPU: all repetitions, units and clients at once.

A user imports nothing here: `confide.simulate(..., engine="jax")` does. Below it:

backend    what the round needs of a framework, and the two that have it
streams    the draws of `confide.base.randomness` and `confide.secure.secret`, many at a time
training   what the sampled clients add to the states of their servers
"""
