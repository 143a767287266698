"""Servers and clients as machines: without clock, network or threads; every step is committed before a byte leaves."""
