"""PyTorch networks of the tasks; imported where they are used, as that takes long."""
