"""All items of all papers: a small run, and that pages show what is stored."""

import itertools
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import sim
from fedtrellis.app.command_line import flatten
from reproduce.__main__ import PAPERS, folder_of, main
from reproduce.common import load_results
from reproduce.hyfdca import honest_server
from reproduce.pages import page_with, pages_of, shown
from reproduce.provenance import KEYS


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("paper", PAPERS)
def test_a_quick_run_of_all_items(
    paper: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FEDTRELLIS_DATA", raising=False)
    pages = pages_of(folder_of(paper))
    before = [page.read_bytes() for page in pages]
    out = ["--out", str(tmp_path)]
    assert main([paper, "--quick", "--seeds", "1", *out]) == 0
    said, _ = capfd.readouterr()
    # only a full run changes the pages
    assert [page.read_bytes() for page in pages] == before
    # all pictures are drawn once
    monkeypatch.setattr(Figure, "savefig", lambda *rest, **options: None)
    found: dict[str, Any] = {}
    for item, definition in PAPERS[paper].ITEMS.items():
        saved = tmp_path / "results" / f"{item}.json"
        if not saved.is_file():
            # what needs a file that is not there is skipped by name
            assert "skipped: needs " in said
            continue
        found[item] = load_results(saved)
        known = found[item]["provenance"]
        assert known["command"] == f"python -m reproduce {paper} {item}"
        assert known["commit"]
        text = definition.show(found[item], tmp_path)
        assert "Measured in" in text
        assert "nan" not in text
        for name in re.findall(r"^!\[.*\]\((.*)\)", text, re.MULTILINE):
            assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        # every line of a table has its header's columns
        for above, line in itertools.pairwise(text.splitlines()):
            if above.startswith("|") and line.startswith("|"):
                assert line.count("|") == above.count("|"), line
    assert len(found) >= len(PAPERS[paper].ITEMS) // 2
    # saved results are shown again without a run
    assert main([paper, next(iter(found)), "--render", *out]) == 0
    if paper == "hyfdca":
        check_attacks(found)


def check_attacks(found: dict[str, Any]) -> None:
    """They find rows in what was sent once, and nothing in what is sent today."""
    rows = found["honest-server"]["rows"]
    assert {row["source"] for row in rows} == {"run", "dual points", "v_k"}
    for row in rows:
        if row["source"] == "run":
            assert not any(row[attack] for attack in (*honest_server.ATTACKS, "parts"))
        else:
            assert row["parts"] + row.get("differences", 0) > 0


@pytest.mark.parametrize("paper", PAPERS)
def test_pages_show_what_is_stored(paper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(paper)
    # pictures have files of their own, which another machine draws otherwise
    monkeypatch.setattr(Figure, "savefig", lambda *rest, **options: None)
    for item, definition in PAPERS[paper].ITEMS.items():
        page = page_with(folder, item).read_text(encoding="utf-8")
        (part,) = re.findall(rf"<!-- {item} -->\n(.*?)<!-- end {item} -->", page, re.S)
        saved = folder / "results" / f"{item}.json"
        if not saved.is_file():
            assert part.startswith(("Not measured in full yet: ", "Skipped: "))
        elif "figure" not in item:
            short, files = shown(item, definition.show(load_results(saved), folder))
            assert part.strip() == short
            for name, content in files.items():
                assert (folder / "tables" / name).read_text("utf-8") == content


def tuned(results: Any) -> list[dict[str, Any]]:
    parts = results.values() if isinstance(results, dict) else results
    below = [e for e in parts if isinstance(e, dict | list)]
    own = isinstance(results, dict) and isinstance(results.get("tried"), list)
    return sum(map(tuned, below), [results] if own and results.get("chosen") else [])


@pytest.mark.parametrize("paper", PAPERS)
def test_results_have_an_origin_and_what_was_chosen_was_tried(paper: str) -> None:
    for path in sorted((folder_of(paper) / "results").glob("*.json")):
        results = load_results(path)
        known = results["provenance"]
        assert all(known[key] for key in KEYS), path
        for one in tuned(results):
            mine = [t for t in one["tried"] if one["chosen"].items() <= t.items()]
            assert mine, path.stem
            if "score" in one["chosen"] or "score" in one:
                score = one.get("score", one["chosen"].get("score"))
                assert any(trial["score"] == score for trial in mine), path.stem


def test_committed_configs_are_known_settings() -> None:
    for paper in PAPERS:
        for path in folder_of(paper).glob("*.toml"):
            config = flatten(tomllib.loads(path.read_text(encoding="utf-8")))
            assert set(config) <= set(sim.app.default_config()), path
