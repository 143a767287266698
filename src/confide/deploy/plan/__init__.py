"""What all nodes agreed on: the plan of a deployment, its prices, and what it means for each of them."""
