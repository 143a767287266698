"""What is released, what it costs, and the noise that pays for it."""
