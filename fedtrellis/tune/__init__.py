"""``fedtrellis tune``: an Optuna study, ranked by grey relational analysis."""
