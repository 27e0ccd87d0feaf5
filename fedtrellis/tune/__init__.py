"""``fedtrellis tune``: a search for settings, judged by grey relational analysis."""
