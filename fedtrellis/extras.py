"""Libraries that come with an extra of this package, for what needs one."""

from __future__ import annotations

from importlib.util import find_spec

from fedtrellis.settings import SettingsError

__all__ = ["need"]


def need(module: str, what: str, extra: str) -> None:
    """Refuse what needs a library that is not installed.

    Parameters
    ----------
    module : str
        What is imported.
    what : str
        What needs it, as the error begins.
    extra : str
        The extra of this package that brings it.

    Raises
    ------
    SettingsError
        In one line, with what installs it.
    """
    if find_spec(module) is None:
        library = {
            "sklearn": "scikit-learn",
            "prometheus_client": "prometheus-client",
            "dp_accounting": "dp-accounting",
        }
        raise SettingsError(
            f"{what} needs {library.get(module, module)}: "
            f'pip install "fedtrellis[{extra}]"'
        )
