"""Whether a simulation's nodes would run the code of the run's own app.

Ray puts the folder in which a process was started first on its workers' search path. A
simulation is started by a SuperLink, and that by the first ``flwr run``, wherever that
was. If this folder has an app of the same packages, such as another copy of this one,
then the clients are its, while the server is the app that was sent.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fedtrellis.settings import SettingsError

# the grid of Flower's simulations
_SIMULATED = "InMemoryGrid"
# the folder in which Flower unpacks what ``flwr run`` sends, each app in one of its own
_APPS = "apps"


def check_same_code(grid: Any) -> None:
    """Raise SettingsError for a simulation whose clients would be of another app."""
    if type(grid).__name__ != _SIMULATED:
        return
    here = Path.cwd()
    for app in [Path(entry) for entry in sys.path]:
        if app.parent.name != _APPS or app == here:
            continue
        for file in app.glob("*/**/*.py"):
            name = file.relative_to(app)
            package, other = here / name.parts[0], here / name
            if not (package / "__init__.py").is_file():
                continue
            if not other.is_file() or other.read_bytes() != file.read_bytes():
                raise SettingsError(
                    f"the nodes would run {package} instead of this app's own "
                    f"{name.parts[0]!r}, and {name} differs: the SuperLink was started "
                    f"in {here}. End it (pgrep -af flower-superlink, kill PID) and run "
                    "again"
                )
