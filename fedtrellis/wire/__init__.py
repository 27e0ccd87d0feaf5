"""What travels between server and clients, and the grid in this process."""
