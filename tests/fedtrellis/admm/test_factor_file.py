"""What is kept between processes: used when it fits, and never else."""

import logging
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtrellis.admm.hessians import lipschitz_of
from fedtrellis.admm.shifted_systems import make_system
from fedtrellis.admm.systems import (
    CholeskySystem,
    SpectralSystem,
    WideCholeskySystem,
    WideSpectralSystem,
)
from fedtrellis.objectives import (
    LeastSquares,
)
from tests.fedtrellis.admm.systems import (
    OBJECTIVES,
    WEIGHT,
    cached,
    check_system,
    make,
    sparse_squares,
    squares,
)


class Counter:
    """Counts the factorisations made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for cls in (
            CholeskySystem,
            SpectralSystem,
            WideCholeskySystem,
            WideSpectralSystem,
        ):
            original = cls.factorise

            def counting(*args: Any, original: Any = original) -> Any:
                self.count += 1
                return original(*args)

            monkeypatch.setattr(cls, "factorise", staticmethod(counting))

    def made(self) -> int:
        count, self.count = self.count, 0
        return count


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(monkeypatch)


FILE_CASES = {
    "tall": lambda: squares(30, 7),
    "wide": lambda: squares(7, 30),
    "tall, sparse": lambda: sparse_squares(60, 20, 5),
    "wide, sparse": lambda: sparse_squares(20, 60, 5),
    "bound": OBJECTIVES["multinomial"],
}


@pytest.mark.parametrize("steps", [1, 10])
@pytest.mark.parametrize("name", FILE_CASES)
def test_a_factor_is_kept_in_the_file(
    name: str, steps: int, tmp_path: Path, counter: Counter
) -> None:
    path = str(tmp_path / "factor.npz")
    objective = FILE_CASES[name]()
    first = make(objective, steps=steps, factor_file=path)
    assert counter.made() == 1
    assert os.listdir(tmp_path) == ["factor.npz"]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    # a new process has a new objective of the same data
    second = make(FILE_CASES[name](), steps=steps, factor_file=path)
    assert counter.made() == 0
    assert type(second) is type(first)
    size = int(np.prod(objective.shape))
    u = np.random.default_rng(0).standard_normal(size)
    for ours, theirs in zip(
        second.admm_steps(u, 7), first.admm_steps(u, 7), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    check_system(second, np.asarray(objective.hessian_bound()), u)


@pytest.mark.parametrize("columns", [5, 50])
@pytest.mark.parametrize("steps", [1, 10])
def test_a_factor_of_something_else_is_not_used(
    steps: int, columns: int, tmp_path: Path, counter: Counter
) -> None:
    path = str(tmp_path / "factor.npz")
    objective = squares(20, columns)

    def agree(objective: LeastSquares, shift: float = 0.3) -> None:
        u = np.ones(columns)
        system = make_system(
            objective,
            "gram",
            weight=WEIGHT,
            shift=shift,
            steps=steps,
            factor_file=path,
        )
        check_system(system, np.asarray(objective.hessian_bound()), u)

    agree(objective)
    assert counter.made() == 1
    agree(objective)
    assert counter.made() == 0
    # an eigendecomposition holds for every σ
    agree(objective, shift=0.4)
    assert counter.made() == (1 if steps == 1 else 0)
    agree(squares(20, columns, seed=1), shift=0.4)
    assert counter.made() == 1
    changed = np.array(objective.hessian_factor()[0])
    changed[3, 2] = np.nextafter(changed[3, 2], np.inf)
    agree(LeastSquares(changed, np.zeros(20), scale="half-mean", l2=0.1))
    assert counter.made() == 1
    agree(LeastSquares(changed, np.zeros(20), scale="half-mean", l2=0.2))
    assert counter.made() == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"not a file of arrays", b"PK\x03\x04broken", b"truncated", b"flipped"],
)
def test_a_damaged_file_is_written_anew(
    content: bytes, tmp_path: Path, counter: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "factor.npz"
    objective = squares(40, 30)
    make(objective, factor_file=str(path))
    whole = path.read_bytes()
    if content == b"truncated":
        content = whole[: len(whole) // 2]
    elif content == b"flipped":
        content = whole[:2000] + bytes([whole[2000] ^ 255]) + whole[2001:]
    path.write_bytes(content)
    counter.made()
    with caplog.at_level(logging.INFO, logger="flwr"):
        logging.getLogger("flwr").addHandler(caplog.handler)
        try:
            system = make(objective, factor_file=str(path))
        finally:
            logging.getLogger("flwr").removeHandler(caplog.handler)
    assert "cannot be read" in caplog.text
    assert str(path) in caplog.text
    assert counter.made() == 1
    check_system(system, np.asarray(objective.hessian_bound()), np.ones(30))
    make(objective, factor_file=str(path))
    assert counter.made() == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "factor.npz"

    class Bomb:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "exploded"),))

    bomb: Any = np.array([Bomb()], dtype=object)
    np.savez(path, **{"factor/fingerprint": bomb, "factor/factor": bomb})
    make(squares(5, 4), factor_file=str(path))
    assert not (tmp_path / "exploded").exists()


def test_a_file_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = str(tmp_path / "none" / "factor.npz")
    for use in (
        lambda path: make(squares(9, 4), factor_file=path),
        lambda path: make(squares(9, 4), "diagonal", factor_file=path),
        lambda path: lipschitz_of(squares(9, 4), factor_file=path),
        lambda path: cached(squares(9, 4), factor_file=path),
    ):
        with pytest.raises(
            ValueError, match=r"factor-file = '.*none.factor.npz': its folder does not"
        ):
            use(missing)
        with pytest.raises(ValueError, match=r"factor-file = '.*' is a folder"):
            use(str(tmp_path))
        with pytest.raises(ValueError, match="factor-file = 3 must be the path"):
            use(3)

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(
        ValueError, match=r"factor-file = '.*f\.npz' cannot be written: No space left"
    ):
        make(squares(9, 4), factor_file=str(tmp_path / "f.npz"))
    assert not os.listdir(tmp_path)
