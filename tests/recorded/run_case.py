"""One recorded run: how it is started, and what is written down of it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import logging
import platform
import secrets
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from matplotlib.figure import Figure
from threadpoolctl import threadpool_info, threadpool_limits

__all__ = ["machine", "read_table", "run_case"]

TABLE = Path(__file__).with_name("runs.json")
PROBES = 2


def read_table() -> dict[str, Any]:
    """The recorded runs: ``about`` and ``cases``."""
    table: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def run_case(case: Mapping[str, Any]) -> dict[str, Any]:
    """Run a case and return what is recorded of it.

    A case has a ``name``; ``config``, the keys that differ from the defaults;
    ``nodes``; and if there are any, ``node_configs``, ``faults`` (those of
    ``LocalGrid``, and ``encode``) and ``files`` (texts by names, written before the
    run; ``{files}`` in a setting stands for their folder). The result is ``error``, and
    whether it left a ``record``; or ``model`` (see :func:`fingerprint`), the last
    ``metrics``, lists with an entry a round, and ``rejected``: reasons, how often.
    """
    from fedtrellis import LocalGrid
    from sim import app

    with quiet(case["name"]), tempfile.TemporaryDirectory() as scratch:
        files = Path(scratch) / "files"
        files.mkdir()
        for name, text in case.get("files", {}).items():
            (files / name).write_text(text, encoding="utf-8")

        def placed(config: Mapping[str, Any]) -> dict[str, Any]:
            texts = {k: v for k, v in config.items() if isinstance(v, str)}
            return {**config} | {
                k: v.replace("{files}", str(files)) for k, v in texts.items()
            }

        config = placed(case["config"]) | {"results-dir": f"{scratch}/runs"}
        if "classification.model" in config:
            import torch

            torch.set_num_threads(1)
        # keys of a simulation's clients lie among the temporary files
        with mock.patch.object(tempfile, "tempdir", scratch):
            try:
                grid = LocalGrid(
                    app.client_app,
                    case["nodes"],
                    seed=config.get("seed", 0),
                    run_config=config,
                    node_configs=[*map(placed, case.get("node_configs", []))] or None,
                    **case.get("faults", {}),
                )
                record = app.run(grid, config)
            except Exception as error:
                text = f"{type(error).__name__}: {error}".replace(scratch, "{scratch}")
                return {"error": text, "record": any(Path(scratch).glob("runs/*"))}
        summary = json.loads((record / "summary.json").read_text(encoding="utf-8"))
        lines = (record / "history.jsonl").read_text(encoding="utf-8").splitlines()
        history = [entry for entry in map(json.loads, lines) if entry["round"]]
        with np.load(record / "model.npz") as model:
            arrays = {name: fingerprint(model[name]) for name in model.files}
    return {
        "model": arrays,
        "metrics": summary["metrics"],
        "up": [entry["bytes_up"] for entry in history],
        "down": [entry["bytes_down"] for entry in history],
        "sampled": [entry["sampled"] for entry in history],
        "used": [entry["used"] for entry in history],
        "trips": [entry["round_trips"] for entry in history],
        "rejected": summary["rejected_by_reason"],
    }


def fingerprint(array: np.ndarray[Any, np.dtype[Any]]) -> dict[str, Any]:
    """What an array can be compared with, to the last bit and in part.

    96 bits of the ``sha256`` of its bytes, dtype and ``shape``, its Euclidean ``norm``,
    the ``first`` entry, and ``probes``: inner products with cosines of unit norm at
    most, so that two arrays differ by about as much as their probes.
    """
    flat = np.asarray(array, dtype=np.float64).ravel()
    size = max(flat.size, 1)
    probes = [
        float(np.cos(frequency * np.arange(flat.size)) @ flat) / size**0.5
        for frequency in np.arange(1, PROBES + 1)
    ]
    return {
        "sha256": hashlib.sha256(array.tobytes()).hexdigest()[:24],
        "shape": f"{array.dtype}{list(array.shape)}",
        "norm": float(np.linalg.norm(flat)),
        "first": flat[:1].tolist(),
        "probes": probes,
    }


@contextlib.contextmanager
def quiet(name: str) -> Iterator[None]:
    """One thread, no pictures, no output, and secrets that come from a name.

    A key's secret decides in which order HyFDCA adds samples up, and together with the
    run's own name, which is drawn at its start, which of them move.
    """
    from fedtrellis.encryption import block_sum

    drawn = itertools.count()

    def not_secret(size: int | None = None) -> bytes:
        # what is to be drawn anew differs from what was drawn before
        text = f"{name}{next(drawn) or ''}"
        return hashlib.shake_256(text.encode()).digest(size or 32)

    def no_picture(*args: Any, **kwargs: Any) -> None:
        pass

    # X25519PrivateKey, whose new keys come from the name, too
    made = X25519PrivateKey.from_private_bytes
    keys = SimpleNamespace(
        from_private_bytes=made, generate=lambda: made(not_secret(32))
    )
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with (
            threadpool_limits(limits=1),
            mock.patch.object(secrets, "token_bytes", not_secret),
            mock.patch.object(block_sum, "X25519PrivateKey", keys),
            mock.patch.object(Figure, "savefig", no_picture),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def machine() -> dict[str, str]:
    """What the last bits of a run may depend on, besides the code."""
    pools = (p for p in threadpool_info() if p["user_api"] == "blas")
    kernels = {f"{p['internal_api']} {p.get('architecture')}" for p in pools}
    packages = ("numpy", "scipy", "scikit-learn", "flwr")
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
        "blas": ", ".join(sorted(kernels)),
    }
