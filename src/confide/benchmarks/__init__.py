"""Benchmarks: each prints ratios measured in one run, because machines are noisy."""
