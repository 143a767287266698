"""Secure aggregation: a server learns the sum of its clients' updates and nothing else, also when clients drop out.

Specified in docs/design/secure-sum.md.
"""
