"""Low rank (to come)."""
