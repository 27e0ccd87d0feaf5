"""Data for the tasks: how settings become a table, and a table the clients' shares."""
