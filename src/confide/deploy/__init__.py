"""Servers and clients on machines of their own, and the same in one process.

plan       what all nodes agreed on
machines   servers and clients: bytes and time in, bytes out
durable    what must outlive a crash
box        the machines in one process, with every fault from a seed
keys       certificates, keys and the authority of each organisation
net        gRPC streams under mutual TLS
node       a node as a process: its config, its life, what it tells its operator
cluster    a whole network of processes on one machine
"""
