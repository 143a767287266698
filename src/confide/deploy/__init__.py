"""Servers and clients on machines of their own; each folder imports only those before it.

keys       certificates, keys and the authority of each organisation
store      what must outlive a crash
machines   servers and clients: bytes and time in, bytes out
net        gRPC streams under mutual TLS
node       a node as a process: its config, its life, what it tells its operator
"""
