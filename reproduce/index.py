"""reproduce/README.md: every claim with its verdict, every figure and table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .again import AGAIN, FIRST, STORED, table
from .claims import (
    VERDICTS,
    Effect,
    Exhibit,
    Paper,
    Results,
    Verdict,
    counted,
    judge,
)
from .common import load_results
from .pages import as_csv

__all__ = ["case_table", "files", "page", "short_table", "stored", "verdicts"]

#: A verdict names the cases that hold if they are at most so many.
NAMED = 3

_HEAD = """# Five papers, what they claim and what holds

Look up a claim here to see whether it holds. `python -m reproduce --index` computes
this page, verdicts included, from the stored results.

{count}

Each claim is in the paper's words, and has a number to cite and link.
[All claims](claims.csv) says what was measured, what the claim needs and the clearest
cases for and against it, with 95 % intervals, sizes and minutes. A claim

- **holds** if every case's interval keeps what is needed,
- holds **partly** if some do,
- **does not** hold if none does,
- is **not tested** if no experiment had at least three seeds.

A case is *against* the paper if its whole interval breaks what is needed, and *open* if
only a part of it does. A claim with open cases alone is undecided, not refuted.
[Figures and tables](exhibits.csv) names the items that reproduce each of a paper's
figures and tables: `python -m reproduce PAPER ITEM --data DIR`.

## Claims

"""

_AGAIN = """
## Run again

`python -m reproduce --again` repeats two items with three other seeds, from {first} on.
The stored values predict each new mean by Student's interval, at 95 % for all cases of
an item together.

"""

_CLAIMS = "| no. | claim | verdict | our effect | the paper's | size | over | minutes |"


def stored(folder: Path) -> Results:
    """All stored results of a paper's folder."""
    paths = sorted((folder / "results").glob("*.json"))
    return {path.stem: load_results(path) for path in paths}


def verdicts(paper: Paper, results: Results) -> list[Verdict]:
    """Judge every claim of a paper."""
    return [judge(claim, results) for claim in paper.claims]


def _ordered(effects: list[Effect]) -> list[Effect]:
    """The effects that have intervals, the clearest for the paper first."""
    found = [effect for effect in effects if effect.holds() is not None]

    def clear(effect: Effect) -> tuple[int, float]:
        interval = effect.interval()
        assert interval is not None
        # in units of its own size, so that points and ratios can be ranked
        low, high = (end / max(abs(effect.mean), 1e-300) for end in interval)
        # a case that is against the paper comes after every one that is open
        return (-1, high) if effect.refuted() else (int(low > 0.0), low)

    return sorted(found, key=clear, reverse=True)


def effect_text(verdict: Verdict, *, needed: bool = False) -> str:
    """The clearest case for the paper, and the clearest against it.

    With ``needed``, each says what the claim needs, unless all need the same.
    """
    ordered = _ordered(verdict.effects)
    if not ordered:
        return "; ".join(f"{e.written()}, {e.case}" for e in verdict.effects[:2]) or "–"
    several = needed and _common_need(verdict) is None

    def told(effect: Effect) -> str:
        need = f", needed {effect.needed()}" if several else ""
        return f"{effect.written()} ({effect.case}{need})"

    if len(ordered) == 1:
        return told(ordered[0])
    return f"best {told(ordered[0])}, worst {told(ordered[-1])}"


def _common_need(verdict: Verdict) -> str | None:
    """What all cases need; None where they differ."""
    needs = {effect.needed() for effect in verdict.effects}
    return needs.pop() if len(needs) == 1 else None


def measured_text(verdict: Verdict) -> str:
    """What is measured, what the claim needs, and the two ends."""
    if not verdict.effects:
        return "–"
    need = _common_need(verdict)
    head = verdict.claim.meaning + (f", needed {need}" if need else "")
    return f"{head}: {effect_text(verdict, needed=True)}"


def word(verdict: Verdict) -> str:
    """The verdict, where it holds, and how many cases say what."""
    if verdict.word == "not tested":
        return f"**{verdict.word}**"
    held, untested = verdict.cases(True), verdict.cases(None)
    against = [effect.case for effect in verdict.effects if effect.refuted()]
    known = {*held, *untested, *against}
    still = [e.case for e in verdict.effects if e.case not in known]

    def named(cases: list[str], before: str) -> str:
        # more of them are on the paper's page
        some = len(cases) <= NAMED and len(verdict.effects) > 1
        return f"{before}: {'; '.join(cases)}" if some else before

    of = counted(len(verdict.effects), "cases")
    text = f"**{verdict.word}**, {len(held)} of {of}"
    if verdict.word == "partly":
        text = named(held, text)
    rest = ((against, "against"), (still, "open"), (untested, "not tested"))
    others = "; ".join(
        named(cases, f"{len(cases)} {state}") for cases, state in rest if cases
    )
    return f"{text} ({others})" if others else text


def _seeds(verdict: Verdict) -> str:
    counts = {
        (1, "exact") if effect.exact else (len(effect.values), effect.unit)
        for effect in verdict.effects
    }
    words = [
        "exact" if unit == "exact" else counted(count, unit)
        for count, unit in sorted(counts)
    ]
    return ", ".join(words) or "–"


def minutes_of(results: dict[str, Any]) -> float:
    """Processor time; where it was not noted down, the most that it can have been."""
    whole = results["minutes"] * results["jobs"]
    return float(results.get("processor-minutes", whole))


def _minutes(verdict: Verdict, results: Results) -> str:
    found = [results[item] for item in verdict.claim.items if item in results]
    if not verdict.effects or not found:
        return "–"
    return f"{math.ceil(10 * sum(map(minutes_of, found))) / 10:.1f}"


def numbered(paper: Paper, results: Results) -> list[tuple[str, Verdict]]:
    """A paper's verdicts with the numbers of their claims."""
    judged = verdicts(paper, results)
    return [(f"{paper.letter}{k}", verdict) for k, verdict in enumerate(judged, 1)]


def claim_rows(paper: Paper, results: Results) -> Iterator[str]:
    """Rows of the table of claims."""
    for number, verdict in numbered(paper, results):
        claim, mark = verdict.claim, number.lower()
        yield (
            f'| <a id="{mark}"></a>[{number}](#{mark}) | “{claim.words}” '
            f"({claim.where}) | **{verdict.word}** |"
        )


def full_rows(paper: Paper, results: Results) -> Iterator[str]:
    """The same with all that is known of a claim."""
    for number, verdict in numbered(paper, results):
        claim = verdict.claim
        yield (
            f"| {number} | “{claim.words}” ({claim.where}) | {word(verdict)} "
            f"| {measured_text(verdict)} | {claim.theirs} | {claim.size} "
            f"| {_seeds(verdict)} | {_minutes(verdict, results)} |"
        )


def exhibit_row(exhibit: Exhibit, paper: str, results: Results) -> str:
    """A row of the table of figures and tables."""
    there = [item for item in exhibit.items if item in results]
    missing = [item for item in exhibit.items if item not in results]
    text = ", ".join(f"`{paper} {item}`" for item in there)
    if missing:
        text += ("; " if text else "") + "not run: " + ", ".join(missing)
    if exhibit.note:
        text += (": " if text else "none: ") + exhibit.note
    return f"| {exhibit.name} | {exhibit.shows} | {text} |"


def case_table(paper: Paper, results: Results) -> str:
    """All cases of all claims, for a paper's page of details."""
    lines = [
        "| claim | what is measured | case | effect, 95 % | needed | holds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    words = {True: "yes", False: "no", None: "not tested"}
    for number, verdict in numbered(paper, results):
        lines += [
            f"| {number} {verdict.claim.name} | {verdict.claim.meaning} "
            f"| {effect.case} | {effect.written()} | {effect.needed()} "
            f"| {words[effect.holds()]} |"
            for effect in verdict.effects
        ]
    return "\n".join(lines)


def short_table(paper: Paper, results: Results) -> str:
    """Claims and verdicts, for a paper's own page."""
    lines = ["| claim | verdict | effect, 95 % |", "| --- | --- | --- |"]
    lines += [
        f"| [{number}](../README.md#{number.lower()}) {verdict.claim.name} "
        f"| **{verdict.word}** | {effect_text(verdict)} |"
        for number, verdict in numbered(paper, results)
    ]
    return "\n".join(lines)


def page(papers: dict[str, tuple[tuple[Paper, ...], Path]]) -> str:
    """The whole page; ``papers`` are papers and folders by name."""
    found = {name: stored(folder) for name, (_, folder) in papers.items()}
    counts: dict[str, int] = {}
    claims = []
    for name, (several, folder) in papers.items():
        link = f"{folder.name}/README.md"
        for paper in several:
            for verdict in verdicts(paper, found[name]):
                counts[verdict.word] = counts.get(verdict.word, 0) + 1
            title = f"[{paper.title}]({paper.link})" if paper.link else paper.title
            claims += [
                f"### {title} ([page]({link}))",
                "",
                "| no. | claim | verdict |",
                "| --- | --- | --- |",
                *claim_rows(paper, found[name]),
                "",
            ]
    total = sum(counts.values())
    told = " | ".join(str(counts.get(word, 0)) for word in VERDICTS)
    head = _HEAD.format(
        count="| claims | hold | hold partly | do not hold | not tested |\n"
        f"| --- | --- | --- | --- | --- |\n| {total} | {told} |"
    )
    repeated = ""
    if STORED.is_file():
        effects = {
            effect.case: effect
            for name, item in AGAIN
            for paper in papers[name][0]
            for claim in paper.claims
            if claim.name == AGAIN[name, item]
            for effect in judge(claim, found[name]).effects
        }
        told = table(load_results(STORED), effects)
        repeated = _AGAIN.format(first=FIRST) + told + "\n"
    return head + "\n".join(claims) + repeated


def files(papers: dict[str, tuple[tuple[Paper, ...], Path]]) -> dict[str, str]:
    """The page's data files by their names."""
    claims = [_CLAIMS, "| --- " * 8 + "|"]
    exhibits = ["| paper | what | shows | items |", "| --- " * 4 + "|"]
    for name, (several, folder) in papers.items():
        results = stored(folder)
        for paper in several:
            claims += full_rows(paper, results)
            exhibits += [
                f"| {paper.title} {exhibit_row(one, name, results)}"
                for one in paper.exhibits
            ]
    return {
        "claims.csv": as_csv("\n".join(claims)),
        "exhibits.csv": as_csv("\n".join(exhibits)),
    }
