"""Bytes between machines: gRPC streams under mutual TLS; begin with `streams`."""
