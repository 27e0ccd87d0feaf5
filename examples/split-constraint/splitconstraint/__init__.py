"""A Flower app whose nodes have different sets, with the model in all of them."""
