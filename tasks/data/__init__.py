"""Data for the tasks: how settings become a table, and a table the clients' shares.

``settings`` and ``table`` say what a file must hold and what it holds; ``readers`` and
``images`` read one format each; ``datasets`` has the data sets with a name; ``task``,
``regression`` and ``partition`` are the tasks' base classes.
"""
