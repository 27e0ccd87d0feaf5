"""Pages: their programs run, their links and tests are there; CI runs commands."""

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from fedtrellis.domains import L1Ball, LInfBall
from fedtrellis.domains.product import enclosing_ball

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def program(page: str) -> str:
    """A page's only Python, as it is written from inside the repository."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    return re.sub(r"from fedtrellis\.(strategies|clients) ", r"from \1 ", block)


def test_the_program_finds_the_projection_of_the_mean() -> None:
    names: dict[str, Any] = {}
    exec(program("README.md"), names)
    centres = [names["MyLoss"](index).centre for index in range(10)]
    # min over D of (1/n) Σ ½‖x − c_i‖² is the projection of the mean of the c_i
    expected = L1Ball(2.0).project(np.mean(centres, axis=0))
    assert np.linalg.norm(names["x"] - expected) < 0.25 * np.linalg.norm(expected)


@pytest.mark.parametrize("seed", range(5))
def test_the_domain_is_an_l1_ball_in_scaled_coordinates(seed: int) -> None:
    names: dict[str, Any] = {}
    exec(program("docs/domains.md"), names)
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.5, 2.0, size=6)
    domain = names["WeightedL1Ball"](weights, 1.5)
    vertices = np.vstack([np.diag(1.5 / weights), -np.diag(1.5 / weights)])
    g, point = rng.normal(size=6), 3 * rng.normal(size=6)
    atom = domain.lmo(g)
    assert atom.dense() @ g == pytest.approx((vertices @ g).min())
    # the oracle alone tells how large the entries are
    ball = enclosing_ball("linf-ball", domain, (6,))
    assert ball == LInfBall(np.abs(vertices).max())
    nearest = domain.project(point)
    assert domain.contains(nearest)
    # the projection of a point onto a convex set: ⟨point − nearest, v − nearest⟩ ≤ 0
    assert ((vertices - nearest) @ (point - nearest)).max() <= 1e-9
    assert domain.diameter((6,)) == pytest.approx(
        max(np.linalg.norm(a - b) for a in vertices for b in vertices)
    )


def test_the_module_is_an_objective() -> None:
    pytest.importorskip("torch")
    names: dict[str, Any] = {}
    exec(program("docs/pytorch.md"), names)
    objective, start = names["objective"], names["start"]
    assert objective.num_examples == 200
    ends = objective.local_steps(np.concatenate([x.ravel() for x in start]), [0.1] * 5)
    assert objective.value(ends) < objective.value(start)


def test_ci_runs_the_readmes_test_command() -> None:
    assert "scripts/readme-command.sh test" in (ROOT / ".ci/run").read_text()
    for name in ("run", "test"):
        assert README.count(f"<!-- command: {name} -->\n```bash\n") == 1


def test_it_is_read_in_five_minutes() -> None:
    assert len(README.split()) <= 900


def headings(page: Path) -> set[str]:
    """What a link can name after #, as GitHub makes it of the headings."""
    lines = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), flags=re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line).lower() for line in lines)
    return {re.sub(r"[^\w\- ]", "", line).strip().replace(" ", "-") for line in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link, anchor in re.findall(
        r"\]\(([^)#:\s]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")
    ):
        target = (page.parent / link).resolve() if link else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in headings(target), f"{link}#{anchor}"


SECURITY_ROOT = Path(sim.__file__).parent
PAGE = SECURITY_ROOT / "docs" / "security.md"
#: A link to a test's file, and the names of tests that follow it.
LINKED = re.compile(r"\]\(\.\./(tests/[\w/]+\.py)\)((?::? (?:and )?`test_\w+`,?)*)")


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def missing(text: str) -> list[str]:
    found = []
    for file, names in LINKED.findall(text):
        if not (SECURITY_ROOT / file).is_file():
            found.append(file)
            continue
        known = functions_of(SECURITY_ROOT / file)
        found += [
            f"{file}::{name}"
            for name in re.findall(r"test_\w+", names)
            if name not in known
        ]
    return found


def test_every_test_that_the_page_names_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert missing(text) == []
    # none is named where no link says in which file it is
    named = set(re.findall(r"`(test_\w+)`(?!\]\()", text))
    linked = {n for _, names in LINKED.findall(text) for n in names.split("`")}
    assert named <= linked
    assert len(LINKED.findall(text)) > 10


def test_pages_that_speak_of_privacy_link_it() -> None:
    for name in ("hyfdca", "fedfw", "fedgia", "riemannian", "deploy", "data"):
        text = (SECURITY_ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        assert "(security.md" in text, name
    assert "docs/security.md" in (SECURITY_ROOT / "README.md").read_text(
        encoding="utf-8"
    )
