"""Networks of the user's own, in JAX or PyTorch; neither is imported before one is used."""
