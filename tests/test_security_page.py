"""What the page on security says a test shows, a test of that name is there to show."""

import ast
import re
from pathlib import Path

import sim

ROOT = Path(sim.__file__).parent
PAGE = ROOT / "docs" / "security.md"
#: A link to a test's file, and the names of tests that follow it.
LINKED = re.compile(r"\]\(\.\./(tests/[\w/]+\.py)\)((?::? (?:and )?`test_\w+`,?)*)")


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def missing(text: str) -> list[str]:
    found = []
    for file, names in LINKED.findall(text):
        if not (ROOT / file).is_file():
            found.append(file)
            continue
        known = functions_of(ROOT / file)
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
        text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        assert "(security.md" in text, name
    assert "docs/security.md" in (ROOT / "README.md").read_text(encoding="utf-8")
