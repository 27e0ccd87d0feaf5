"""Commands on pages: each runs here for two rounds, or where commands.toml says."""

import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest

import sim
from fedtrellis.command_line import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("reproduce/**/*.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
]
BY: dict[str, str] = tomllib.loads((ROOT / "tests/commands.toml").read_text("utf-8"))
#: What is quicker in a test, and means the same.
TABLE = (
    'task="logistic-regression" logistic-regression.dataset="file" '
    'data.label-column="outcome"'
)
QUICKER = "rounds=2 checkpoint-every=1"


def commands(page: Path) -> list[str]:
    """The commands of a page's blocks, each in one line, without comments."""
    found = []
    for block in re.findall(r"```bash\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        command = ""
        for line in block.splitlines():
            command += line.removesuffix("\\") + " "
            try:
                words = shlex.split(command, comments=True)
            except ValueError:  # a quotation that goes on in the next line
                continue
            if words and not line.endswith("\\"):
                found.append(re.sub(r"\s+# .*", "", command).strip())
                command = ""
    return found


def by(command: str) -> str | None:
    """The file that runs a command; None: this one does."""
    if "classifier-path" in command:
        return "tests/tasks/test_attack.py"
    return next((BY[start] for start in BY if command.startswith(start)), None)


ALL = [(page, command) for page in PAGES for command in commands(page)]
assert all((ROOT / file).is_file() for file in BY.values())
HERE = sorted({command for _, command in ALL if by(command) is None})


@pytest.fixture
def stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pictures: None
) -> dict[str, str]:
    """A home of its own, and what stands for the names on the pages."""
    monkeypatch.setenv("HOME", str(tmp_path))
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(90, 31))
    rows[:, -1] = rows[:, 0] > 0
    columns = [f"x{i}" for i in range(30)]
    for name in ("part-0", "part-1", "part-2", "patients"):
        last = "outcome" if name == "patients" else "label"
        header = ",".join([*columns, last])
        path = tmp_path / f"{name}.csv"
        np.savetxt(path, rows, delimiter=",", header=header, comments="")
    ratings = [
        f"{u}\t{i}\t{(u * i) % 5 + 1}\t0\n" for u in range(1, 40) for i in range(1, 9)
    ]
    (tmp_path / "u.data").write_text("".join(ratings))
    instance = [[14], *rng.integers(1, 9, size=(28, 14))]
    lines = [" ".join(map(str, row)) + "\n" for row in instance]
    (tmp_path / "nug14.dat").write_text("".join(lines))
    return {
        "/srv/patients.csv": str(tmp_path / "patients.csv"),
        "/srv/parts/": f"{tmp_path}/",
        "/data/ml-100k/u.data": str(tmp_path / "u.data"),
        "new.csv": str(tmp_path / "part-2.csv"),
        "DIRECTORY": str(tmp_path),
    }


@pytest.mark.parametrize("command", HERE)
def test_it_runs(
    command: str, stage: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    if needed := re.findall("DIR|initial-model", command):
        data = f'logistic-regression.path="{tmp_path / "patients.csv"}"'
        config = f"{TABLE} {data}" if needed[0] == "DIR" else 'task="linear-regression"'
        for _ in range(2):
            given = ["--nodes", "4", "-c", f"rounds=2 {config}"]
            assert sim.app.command_line(given) == 0
        runs = sorted(map(str, (tmp_path / ".fedtrellis" / "runs").iterdir()))
        command = re.sub(r'"/home/you/[^"]*"', f'"{runs[0]}"', command)
    for name, stands_for in stage.items():
        command = command.replace(name, stands_for)
    if "DIR DIR ..." in command:
        command = command.replace("DIR DIR ...", " ".join(runs))
    command = re.sub(r"DIR\b", runs[0] if runs else "", command)
    command = re.sub(r"pretrained-steps=\d+", "pretrained-steps=2", command)
    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(command)
    if program == "fedtrellis":
        assert main(words) == 0
    else:
        assert (program, words[0]) == ("python", "sim.py")
        assert sim.app.command_line([*words[1:], "-c", QUICKER]) == 0
