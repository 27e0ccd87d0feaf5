"""Data for the tasks: how settings become a table, and a table the clients' shares.

``settings`` and ``table`` say what a file must hold and what it holds; ``readers`` has
the formats of tables, ``datasets`` those of images; ``task`` and ``partition`` are the
tasks' base classes.
"""
