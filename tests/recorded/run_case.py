"""One recorded run: how it is started, and what is written down of it.

:func:`start` is the only place that knows how the app is called. Everything else reads
the record that a run leaves: ``history.jsonl``, ``summary.json`` and ``model.npz``.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import logging
import secrets
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from matplotlib.figure import Figure
from threadpoolctl import threadpool_info, threadpool_limits

__all__ = ["machine", "read_table", "run_case"]

HERE = Path(__file__).parent
TABLE = HERE / "runs.json"
PROBES = 2


def read_table() -> dict[str, Any]:
    """The recorded runs: ``about`` and ``cases``."""
    table: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def start(
    config: Mapping[str, Any],
    nodes: int,
    node_configs: Sequence[Mapping[str, Any]] | None = None,
    **faults: Any,
) -> Path:
    """Run a run config; the faults are those of ``LocalGrid``, and ``encode``."""
    from fedtrellis import LocalGrid
    from sim import app

    grid = LocalGrid(
        app.client_app,
        nodes,
        seed=config.get("seed", 0),
        run_config=config,
        node_configs=node_configs,
        **faults,
    )
    return app.run(grid, config)


def run_case(case: Mapping[str, Any]) -> dict[str, Any]:
    """Run a case and return what is recorded of it.

    Parameters
    ----------
    case : mapping
        ``name``; ``config``, the keys that differ from the defaults; ``nodes``; and if
        there are any, ``node_configs``, ``faults`` and ``files`` (texts by names,
        written before the run; ``{files}`` in a setting stands for their folder).

    Returns
    -------
    dict
        Either ``error``, its type and its text, and whether it left a ``record``; or
        ``model`` (see :func:`fingerprint`),
        ``metrics`` (the last of each), and lists with an entry a round: ``up`` and
        ``down`` in bytes, ``sampled``, ``used``, ``trips``; ``rejected`` has reasons
        and how often.
    """
    with quiet(case["name"]), tempfile.TemporaryDirectory() as scratch:
        config, node_configs = prepared(case, Path(scratch))
        # keys of a simulation's clients lie among the temporary files
        with mock.patch.object(tempfile, "tempdir", scratch):
            try:
                record = start(
                    config, case["nodes"], node_configs, **case.get("faults", {})
                )
            except Exception as error:
                text = f"{type(error).__name__}: {error}".replace(scratch, "{scratch}")
                return {"error": text, "record": any(Path(scratch).glob("runs/*"))}
        return read_record(record)


def prepared(
    case: Mapping[str, Any], scratch: Path
) -> tuple[dict[str, Any], list[dict[str, Any]] | None]:
    """Lay out a case's files in a folder; return its run config and node configs."""
    folder = scratch / "files"
    folder.mkdir()
    for name, text in case.get("files", {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    config = _placed(case["config"], folder)
    config["results-dir"] = str(scratch / "runs")
    if "classification.model" in config:
        import torch

        torch.set_num_threads(1)
    node_configs = [_placed(node, folder) for node in case.get("node_configs", [])]
    return config, node_configs or None


def read_record(record: Path) -> dict[str, Any]:
    """What is recorded of a run that ended by itself; see :func:`run_case`."""
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

    Returns
    -------
    dict
        96 bits of the ``sha256`` of its bytes, dtype and ``shape``, its Euclidean
        ``norm``, the ``first`` entry, and ``probes``: inner products with cosines of
        unit norm at most, so that two arrays differ by about as much as their probes.
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

    class keys:  # noqa: N801
        """X25519PrivateKey, whose new keys come from the name, too."""

        from_private_bytes = X25519PrivateKey.from_private_bytes

        @staticmethod
        def generate() -> X25519PrivateKey:
            return X25519PrivateKey.from_private_bytes(not_secret(32))

    def no_picture(*args: Any, **kwargs: Any) -> None:
        pass

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
    import flwr
    import scipy
    import sklearn

    pools = (p for p in threadpool_info() if p["user_api"] == "blas")
    kernels = {f"{p['internal_api']} {p.get('architecture')}" for p in pools}
    return {
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
        "flwr": flwr.__version__,
        "blas": ", ".join(sorted(kernels)),
    }


def _placed(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    return {
        key: value.replace("{files}", str(folder)) if isinstance(value, str) else value
        for key, value in config.items()
    }
