"""A whole network of real processes on one machine."""
