"""A Flower app with a constraint set and a loss that fedtrellis does not have."""
