"""What tasks and readers of data share: files' faults, seeds, shares and splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedtrellis.files import stamp
from fedtrellis.objectives import Objective
from fedtrellis.random import generator
from fedtrellis.settings import SettingsError, need
from fedtrellis.tables import DataFileError as DataFileError

Array = NDArray[np.float64]
Point = Array | Sequence[Array]
P = ParamSpec("P")
R = TypeVar("R")


def once(places: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keep what a function has returned to the last so many different arguments.

    A task is one: of two that are set alike, with the same files, the second finds what
    the first had made.
    """
    return cast(Callable[[Callable[P, R]], Callable[P, R]], lru_cache(maxsize=places))


def once_per_file(places: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keep as :func:`once` what was made of arguments' files, until they change."""

    def keep(method: Callable[P, R]) -> Callable[P, R]:
        @once(places)
        def made(found: tuple[int, ...], *arguments: P.args, **more: P.kwargs) -> R:
            return method(*arguments, **more)

        @wraps(method)
        def kept(*arguments: P.args, **more: P.kwargs) -> R:
            paths = (one for one in arguments if isinstance(one, str | Path))
            return made(stamp(*paths), *arguments, **more)

        return kept

    return keep


@once(16_384)
def in_dtype(objective: Objective, dtype: str) -> Objective:
    """Return f_i as a client of a run computes it; halves are computed in float32."""
    return objective if dtype == "float64" else objective.of_dtype(np.float32)


def held_out(count: int, share: float) -> int:
    """Return how many of some examples a share is, at least one on either side."""
    return min(max(1, round(share * count)), count - 1)


def derived_seed(seed: int, purpose: str) -> int:
    """Return a seed in [0, 2³¹) for libraries that want an integer."""
    return int(generator(seed, purpose).integers(2**31))


def toy(name: str, what: str) -> tuple[Any, Any]:
    """Return features and labels of a set that scikit-learn has, for ``what``."""
    need("sklearn", what, "sklearn")
    # half a second that other tasks' nodes need not spend
    from sklearn import datasets

    found: tuple[Any, Any] = getattr(datasets, f"load_{name}")(return_X_y=True)
    return found


def stratified(labels: NDArray[Any], share: float, seed: int) -> Any:
    """Return which examples are for training and, a share of each label, for tests."""
    from sklearn.model_selection import train_test_split

    rows = np.arange(len(labels))
    return train_test_split(rows, test_size=share, stratify=labels, random_state=seed)


def check_torch(task: str, what: str, device: str) -> None:
    """Find out whether PyTorch is there, for ``what``, and a task's ``device``."""
    need("torch", what, "torch")
    from fedtrellis.objectives.torch_module import choose_device

    try:
        choose_device(device)
    except ValueError as error:
        raise SettingsError(f"{task}.{error}") from None


def data_path(key: str, value: str, *, folder: bool = False) -> Path:
    """Return the file or folder that a setting names; ``~`` is the user's home.

    A SettingsError if the setting is empty; a FileNotFoundError, which names it too,
    where there is none.
    """
    kind = "folder" if folder else "file"
    if not value:
        raise SettingsError(f"{key} is empty; it must name the data's {kind}")
    path = Path(value).expanduser()
    if not (path.is_dir() if folder else path.is_file()):
        raise FileNotFoundError(
            f"{key} = {value!r}: there is no {kind} {path.resolve()}"
        )
    return path
