"""A node as a process: its config, its life, what it tells its operator."""
