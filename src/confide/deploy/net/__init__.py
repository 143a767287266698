"""Bytes between machines: gRPC streams under mutual TLS; begin with `streams`."""

import os

# What gRPC's C core has to say goes to standard error, past our log: whoever can connect could fill a disk with it.
# `GRPC_VERBOSITY=info confide server ...` shows it all the same.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
