"""The machines in one process: a network that plays any fault from a seed, and what must hold after every step."""
