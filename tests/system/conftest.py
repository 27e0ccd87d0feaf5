"""Fixtures that start Flower's processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flower_process import Flower


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    command = Flower(tmp_path_factory.mktemp("flower"))
    yield command
    command.stop()
