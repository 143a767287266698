"""The engines behind one function, `confide.simulate`."""
