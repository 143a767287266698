"""Servers that run on machines of their own: books that survive crashes, noise that is secret, signed removals."""
