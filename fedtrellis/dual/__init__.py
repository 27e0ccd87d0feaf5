"""HyFDCA's mathematics: samples aligned, dual steps, mixtures of proposals."""
