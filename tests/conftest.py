"""What all tests share."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"


@pytest.fixture(autouse=True)
def flower_logger() -> Iterator[None]:
    """Give each test Flower's logger as the first found it, whoever silenced it."""
    logger = logging.getLogger("flwr")
    level = logger.level
    yield
    logger.setLevel(level)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave out the tests that kill processes, unless ``-m`` names them."""
    if "faults" in config.getoption("markexpr"):
        return
    kept = [item for item in items if item.get_closest_marker("faults") is None]
    config.hook.pytest_deselected(items=[i for i in items if i not in kept])
    items[:] = kept
