"""Pages: their programs run, their links and tests are there; CI runs commands."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

import sim
from clients import FedAvgGDClient, FedFWClient, FedGiAClient
from fedtrellis.domains import L1Ball
from strategies import FedFW, FedGiA
from tests.harness import Distance, grid_of, run_program

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_program_finds_the_projection_of_the_mean() -> None:
    names = run_program(ROOT / "README.md")
    centres = [names["MyLoss"](index).centre for index in range(10)]
    # min over D of (1/n) Σ ½‖x − c_i‖² is the projection of the mean of the c_i
    expected = L1Ball(2.0).project(np.mean(centres, axis=0))
    assert np.linalg.norm(names["x"] - expected) < 0.25 * np.linalg.norm(expected)


def test_the_module_is_an_objective() -> None:
    pytest.importorskip("torch")
    names = run_program(ROOT / "docs/pytorch.md")
    objective, start = names["objective"], names["start"]
    assert objective.num_examples == 200
    ends = objective.local_steps(np.concatenate([x.ravel() for x in start]), [0.1] * 5)
    assert objective.value(ends) < objective.value(start)


def test_the_readme_is_read_in_five_minutes_and_ci_runs_its_command() -> None:
    assert len(README.split()) <= 1150
    assert "scripts/readme-command.sh test" in (ROOT / ".ci/run").read_text()
    for name in ("run", "test"):
        assert README.count(f"<!-- command: {name} -->\n```bash\n") == 1


def headings(page: Path) -> set[str]:
    """What a link can name after #, as GitHub makes it of the headings."""
    lines = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), flags=re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line).lower() for line in lines)
    return {re.sub(r"[^\w\- ]", "", line).strip().replace(" ", "-") for line in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_it_is_short_and_links_lead_somewhere(page: Path) -> None:
    longest = {"hyfdca.md": 2500, "deploy.md": 2500, "security.md": 3000}
    text = page.read_text(encoding="utf-8")
    assert len(text.split()) <= longest.get(page.name, 1500)
    for link, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]+))?\)", text):
        target = (page.parent / link).resolve() if link else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in headings(target), f"{link}#{anchor}"


def test_every_test_that_the_page_names_is_there() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)(?:\.py)?`", text))
    known = set[str]()
    for path in ROOT.glob("tests/**/test_*.py"):
        known |= {path.stem, *re.findall(r"def (test_\w+)", path.read_text("utf-8"))}
    assert len(named) > 10
    assert named <= known


#: By their order in the cookbook: what ``-c`` is given, or strategy and client.
FAILURES: list[Any] = [
    "task=lasso",
    'method="fedavg" lr=0.1',
    'method="fedgia" fedfw.penalty=0.1',
    'method="hyfdca"',
    'method="fedgia" task="kernel-pca"',
    'fedfw.variant="plain" aggregation="median"',
    'method="fedavg-gd" aggregation="secure-sum"',
    "min-nodes=12",
    'method="fedavg-gd" task="linear-regression" fedavg-gd.step-size=100.0',
    'method="hyfdca" task="hybrid-svm"',
    (FedFW(L1Ball(2.0)), FedAvgGDClient),
    (FedAvg(), FedAvgGDClient),
    (FedFW(L1Ball(2.0)), FedFWClient, L1Ball(3.0)),
    (FedGiA(), FedGiAClient),
]


def test_failures_read_as_in_the_cookbook(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, no_pictures: None
) -> None:
    page = (ROOT / "docs/cookbook.md").read_text(encoding="utf-8")
    runs, _, _ = page.partition("## Deployed")
    lines = re.findall(r"^\| `(.*?)` \| ", runs, re.MULTILINE)
    for line, given in zip(lines, FAILURES, strict=True):
        if isinstance(given, str):
            nodes = "2" if re.search("secure-sum|hybrid", given) else "10"
            options = ["--nodes", nodes, "--out", str(tmp_path), "-c", given]
            assert sim.app.command_line(options) == 1
            said = capsys.readouterr().err.splitlines()[-1]
        else:
            strategy, client, *parts = given
            grid = grid_of(client, [Distance(np.ones(6))] * 4, *parts)
            with pytest.raises((ValueError, RuntimeError, TypeError)) as error:
                strategy.start(grid, ArrayRecord([np.zeros(6)]), num_rounds=2)
            said = str(error.value)
        assert re.search(".*".join(map(re.escape, line.split("..."))), said), said
