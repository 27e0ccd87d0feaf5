"""What all tests share."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
# Two workers and Flower's processes share the cores: threads would wait for each other.
for library in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(library, "1")


@pytest.fixture(autouse=True)
def flower_logger() -> Iterator[None]:
    """Give each test Flower's logger as the first found it, whoever silenced it."""
    logger = logging.getLogger("flwr")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture
def logged(flower_logger: None) -> Iterator[list[str]]:
    """The lines of Flower's log."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, logger = Keep(), logging.getLogger("flwr")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records without their pictures, which take longer than small runs."""
    monkeypatch.setattr(
        "fedtrellis.server.records.plot_convergence", lambda *rest, **options: None
    )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave out what is too slow for every day, unless ``-m`` names it.

    What starts Flower's processes comes first, as one worker takes all of it, and the
    short files in this folder come last: the workers end together.
    """
    items.sort(key=lambda item: item.get_closest_marker("system") is None)
    if "slow" in config.getoption("markexpr"):
        return
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        (kept if item.get_closest_marker("slow") is None else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


class OneFlowerAtATime(LoadFileScheduling):  # type: ignore[misc]
    """Each worker takes whole files, and one takes all that start Flower's processes.

    Where several deployments share few cores, heartbeats get lost.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "tests/system" if file.startswith("tests/system/") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Deal out the tests."""
    return OneFlowerAtATime(config, log)
