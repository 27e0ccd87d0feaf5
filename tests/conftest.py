"""Settings that must stand before Flower is imported."""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
