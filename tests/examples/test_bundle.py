"""The examples stay out of the bundle of the app in the checkout."""

import tomllib
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab_format_version import normalize_and_validate_fab_format

from scripts.hub_bundle import bundle

ROOT = Path(__file__).resolve().parents[2]
# own-method is a plug-in, and no app
EXAMPLES = sorted(
    path.parent
    for path in ROOT.glob("examples/*/pyproject.toml")
    if "[tool.flwr.app]" in path.read_text(encoding="utf-8")
    # an app of Flower's alone, before its patches
    and path.parent.name != "swap-fedavg"
)


def test_the_bundle_for_flower_hub_has_its_format(tmp_path: Path) -> None:
    made = bundle(tmp_path)
    with ZipFile(BytesIO(made)) as archive:
        names = archive.namelist()
        assert {"LICENSE", "README.md", "sim.py"} <= set(names)
        assert not [name for name in names if name.startswith("examples")]
        project = tomllib.loads(archive.read("pyproject.toml").decode())
    # as Flower checks it where the bundle is taken in
    assert normalize_and_validate_fab_format(project).fab_format_version == 1


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda path: str(path.name))
def test_each_example_is_a_bundle_of_its_own(folder: Path) -> None:
    names = ZipFile(BytesIO(build_fab_from_disk(folder))).namelist()
    (package,) = (path.parent.name for path in folder.glob("*/client_app.py"))
    assert {f"{package}/client_app.py", f"{package}/server_app.py"} <= set(names)
    # all that its dependencies name is this package
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    (needed,) = project["project"]["dependencies"]
    assert needed.startswith("fedtrellis")
