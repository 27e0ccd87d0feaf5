"""The page of all claims: its rows, its verdicts, and that nothing is left out."""

import re

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from reproduce import index
from reproduce.__main__ import INDEX, PAPERS, all_cases, folder_of, index_files
from reproduce.claims import PROTOCOLS, STATES, Effect, Paper, judge
from reproduce.pages import page_with, pages_of, shown

ALL = [
    (name, paper) for name, package in PAPERS.items() for paper in package.claims.PAPERS
]
#: Figures and tables as the papers count them, by the papers' letters.
SHOWN = {"F": (4, 3), "W": (1, 0), "G": (4, 3), "H": (8, 8), "Z": (9, 1)}


def independent(effects: list[Effect]) -> tuple[str, str]:
    """Outcome and cases by SciPy's t test with Bonferroni's correction."""
    random = [e for e in effects if not e.exact and len(e.values) > 2]
    states = []
    for effect in effects:
        values = np.asarray(effect.values, dtype=float)
        if effect.exact or (len(values) > 2 and np.ptp(values) == 0.0):
            low = high = values[0]
        elif len(values) < 3:
            low = high = np.nan
        else:
            level = 1.0 - 0.05 / len(random)
            low, high = ttest_1samp(values, 0.0).confidence_interval(level)
        side = "for" if low > 0.0 else "against" if high < 0.0 else "open"
        states.append(side if np.isfinite([low, high]).all() else "not tested")
    counts = [f"{states.count(name)} {name}" for name in STATES if name in states]
    outcome = "contradicted" if "against" in states else "undecided"
    if "for" in states:
        outcome = "holds" if set(states) == {"for"} else "in part"
    elif set(states) == {"not tested"}:
        outcome = "not tested"
    return outcome, f"{', '.join(counts)} of {len(states)}"


def test_the_page_is_what_the_stored_results_say() -> None:
    for path, text in index_files().items():  # else: python -m reproduce --index
        assert path.read_text(encoding="utf-8") == text, path.name


@pytest.mark.parametrize("name", PAPERS)
def test_a_papers_page_is_short_and_its_claims_are_todays(name: str) -> None:
    short, details, *ours = pages_of(folder_of(name))
    assert len(short.read_text(encoding="utf-8").split()) <= 1000
    part, files = shown("cases", all_cases(name))
    text = details.read_text(encoding="utf-8")
    assert f"<!-- cases -->\n{part}\n<!-- end cases -->" in text
    if name == "fedfw":  # published levels, measured and why they differ
        levels = PAPERS[name].claims.levels(index.stored(folder_of(name)))
        assert f"<!-- levels -->\n{levels}\n<!-- end levels -->" in text
    for file, content in files.items():
        kept = folder_of(name) / "tables" / file
        assert kept.read_text(encoding="utf-8") == content
    for item in PAPERS[name].ITEMS:
        assert page_with(folder_of(name), item) in (details, *ours)
    # what reproduces a figure or table is not an addition of ours
    for paper in PAPERS[name].claims.PAPERS:
        for exhibit in paper.exhibits:
            for item in exhibit.items:
                assert page_with(folder_of(name), item) == details


@pytest.mark.parametrize(("name", "paper"), ALL, ids=[p.title[:20] for _, p in ALL])
def test_every_verdict_by_another_test(name: str, paper: Paper) -> None:
    results = index.stored(folder_of(name))
    page = INDEX.read_text(encoding="utf-8").split(paper.title)[1]
    for k, claim in enumerate(paper.claims, 1):
        found = judge(claim, results)
        number = f"{paper.letter}{k}"
        outcome, cases = independent(found.effects)
        assert found.outcome == outcome
        start = f'| <a id="{number.lower()}"></a>[{number}]('  # to cite and to link
        starts = (start, f"| {number} | ")
        row, *apart = (line for line in page.splitlines() if line.startswith(starts))
        assert f"| **{outcome}** | {cases}" in row
        assert claim.protocol in PROTOCOLS
        assert row.split(" | ")[1::3] == [claim.short, claim.protocol]
        sums = [sum(map(int, re.findall(r" of (\d+) \|", r))) for r in apart]
        assert set(sums) <= {len(found.effects)}


def test_every_figure_and_table_of_every_paper_has_a_row() -> None:
    assert [paper.letter for _, paper in ALL] == list(SHOWN)
    for name, paper in ALL:
        figures, tables = SHOWN[paper.letter]
        wanted = [f"Figure {k + 1}" for k in range(figures)]
        wanted += [f"Table {k + 1}" for k in range(tables)]
        assert [exhibit.name for exhibit in paper.exhibits] == wanted
        for exhibit in paper.exhibits:
            # something reproduces it, or the row says why nothing does
            assert exhibit.items or exhibit.note
            assert set(exhibit.items) <= set(PAPERS[name].ITEMS)
