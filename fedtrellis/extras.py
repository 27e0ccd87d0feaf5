"""Libraries that come with an extra of this package, for what needs one."""

from __future__ import annotations

from importlib.util import find_spec

from fedtrellis.settings import SettingsError

# where the library is called otherwise than its module
_LIBRARIES = {
    "sklearn": "scikit-learn",
    "prometheus_client": "prometheus-client",
    "dp_accounting": "dp-accounting",
    "flwr_datasets": "flwr-datasets",
}


def need(module: str, what: str, extra: str) -> None:
    """Refuse ``what`` if a module is not installed; name the extra that brings it."""
    if find_spec(module) is None:
        raise SettingsError(
            f"{what} needs {_LIBRARIES.get(module, module)}: "
            f'pip install "fedtrellis[{extra}]"'
        )
