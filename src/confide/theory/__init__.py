"""The paper's theory: constants and bounds, exact predictions, stability."""
