"""reproduce/README.md: every claim with its verdict, every figure and table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from . import again
from .claims import VERDICTS, Effect, Exhibit, Paper, Results, Verdict, counted, judge
from .common import load_results
from .drawing import table
from .pages import as_csv

__all__ = ["case_table", "files", "page", "short_table", "stored"]

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
- **does not** hold if none does (undecided, not refuted, if no case is *against* it),
- is **not tested** if no experiment had at least three seeds.

A case is *against* the paper if its whole interval breaks what is needed, and *open* if
only a part of it does.
[Figures and tables](exhibits.csv) names the items that reproduce each of a paper's
figures and tables: `python -m reproduce PAPER ITEM --data DIR`, or `--all --quick`.

## Claims

"""

_AGAIN = """
## Run again

`python -m reproduce PAPER ITEM --first-seed 100 --seeds 3` repeats an item with three
other seeds. The stored values predict each new mean by Student's interval, at 95 % for
all cases of an item together.

"""

_CLAIMS = "no. | claim | verdict | our effect | the paper's | size | over | minutes"


def stored(folder: Path) -> Results:
    """All stored results of a paper's folder."""
    paths = sorted((folder / "results").glob("*.json"))
    return {path.stem: load_results(path) for path in paths}


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


def _common_need(verdict: Verdict) -> str | None:
    """What all cases need; None where they differ."""
    needs = {effect.needed() for effect in verdict.effects}
    return needs.pop() if len(needs) == 1 else None


def effect_text(verdict: Verdict, *, needed: bool = False) -> str:
    """The clearest case for the paper, and the clearest against it.

    With ``needed``, each says what the claim needs, unless all need the same.
    """
    several = needed and _common_need(verdict) is None

    def told(effect: Effect) -> str:
        need = f", needed {effect.needed()}" if several else ""
        return f"{effect.written()} ({effect.case}{need})"

    ordered = _ordered(verdict.effects)
    if len(ordered) == 1:
        return told(ordered[0])
    if ordered:
        return f"best {told(ordered[0])}, worst {told(ordered[-1])}"
    return "; ".join(f"{e.written()}, {e.case}" for e in verdict.effects[:2]) or "–"


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
    cases: dict[str, list[str]] = {"": [], "against": [], "open": [], "not tested": []}
    for effect in verdict.effects:
        state = {True: "", None: "not tested"}.get(effect.holds(), "open")
        cases["against" if effect.refuted() else state].append(effect.case)

    def named(some: list[str], before: str) -> str:
        # more of them are on the paper's page
        few = len(some) <= NAMED and len(verdict.effects) > 1
        return f"{before}: {'; '.join(some)}" if few else before

    held, of = cases.pop(""), counted(len(verdict.effects), "cases")
    text = f"**{verdict.word}**, {len(held)} of {of}"
    if verdict.word == "partly":
        text = named(held, text)
    others = "; ".join(
        named(some, f"{len(some)} {state}") for state, some in cases.items() if some
    )
    return f"{text} ({others})" if others else text


def _seeds(verdict: Verdict) -> str:
    counts = {
        (1, "exact") if effect.exact else (len(effect.values), effect.unit)
        for effect in verdict.effects
    }
    words = (k if k == "exact" else counted(n, k) for n, k in sorted(counts))
    return ", ".join(words) or "–"


def _minutes(verdict: Verdict, results: Results) -> str:
    """Processor time; where it was not noted down, the most that it can have been."""
    found = [results[item] for item in verdict.claim.items if item in results]
    if not verdict.effects or not found:
        return "–"
    most = (r.get("processor-minutes", r["minutes"] * r["jobs"]) for r in found)
    return f"{math.ceil(10 * sum(most)) / 10:.1f}"


def numbered(paper: Paper, results: Results) -> list[tuple[str, Verdict]]:
    """A paper's verdicts with the numbers of their claims."""
    judged = (judge(claim, results) for claim in paper.claims)
    return [(f"{paper.letter}{k}", verdict) for k, verdict in enumerate(judged, 1)]


def full_rows(paper: Paper, results: Results) -> Iterator[tuple[str, ...]]:
    """All that is known of a paper's claims."""
    for number, verdict in numbered(paper, results):
        claim = verdict.claim
        words = f"“{claim.words}” ({claim.where})"
        ours = (word(verdict), measured_text(verdict))
        facts = (_seeds(verdict), _minutes(verdict, results))
        yield (number, words, *ours, claim.theirs, claim.size, *facts)


def exhibit_row(exhibit: Exhibit, paper: str, results: Results) -> tuple[str, ...]:
    """A row of the table of figures and tables."""
    missing = [item for item in exhibit.items if item not in results]
    text = ", ".join(f"`{paper} {item}`" for item in exhibit.items if item in results)
    if missing:
        text += ("; " if text else "") + "not run: " + ", ".join(missing)
    if exhibit.note:
        text += (": " if text else "none: ") + exhibit.note
    return exhibit.name, exhibit.shows, text


def case_table(paper: Paper, results: Results) -> str:
    """All cases of all claims, for a paper's page of details."""
    words = {True: "yes", False: "no", None: "not tested"}
    lines = [
        (
            *(f"{number} {verdict.claim.name}", verdict.claim.meaning, effect.case),
            *(effect.written(), effect.needed(), words[effect.holds()]),
        )
        for number, verdict in numbered(paper, results)
        for effect in verdict.effects
    ]
    head = "claim | what is measured | case | effect, 95 % | needed | holds"
    return table(head, lines)


def short_table(paper: Paper, results: Results) -> str:
    """Claims and verdicts, for a paper's own page."""
    lines = [
        (
            f"[{number}](../README.md#{number.lower()}) {verdict.claim.name}",
            *(f"**{verdict.word}**", effect_text(verdict)),
        )
        for number, verdict in numbered(paper, results)
    ]
    return table("claim | verdict | effect, 95 %", lines)


def page(papers: dict[str, tuple[tuple[Paper, ...], Path]]) -> str:
    """The whole page; ``papers`` are papers and folders by name."""
    counts: dict[str, int] = dict.fromkeys(VERDICTS, 0)
    claims = []
    for several, folder in papers.values():
        results = stored(folder)
        for paper in several:
            lines = []
            for number, verdict in numbered(paper, results):
                counts[verdict.word] += 1
                anchor = f'<a id="{number.lower()}"></a>[{number}](#{number.lower()})'
                words = f"“{verdict.claim.words}” ({verdict.claim.where})"
                lines.append((anchor, words, f"**{verdict.word}**"))
            title = f"[{paper.title}]({paper.link})" if paper.link else paper.title
            rows = table("no. | claim | verdict", lines)
            claims.append(f"### {title} ([page]({folder.name}/README.md))\n\n{rows}\n")
    total = (sum(counts.values()), *counts.values())
    head = "claims | hold | hold partly | do not hold | not tested"
    start = _HEAD.format(count=table(head, [total]))
    return start + "\n".join(claims) + _AGAIN + again.page() + "\n"


def files(papers: dict[str, tuple[tuple[Paper, ...], Path]]) -> dict[str, str]:
    """The page's data files by their names."""
    claims: list[tuple[str, ...]] = []
    exhibits: list[tuple[str, ...]] = []
    for name, (several, folder) in papers.items():
        results = stored(folder)
        for paper in several:
            claims += full_rows(paper, results)
            exhibits += [
                (paper.title, *exhibit_row(one, name, results))
                for one in paper.exhibits
            ]
    head = "paper | what | shows | items"
    return {
        "claims.csv": as_csv(table(_CLAIMS, claims)),
        "exhibits.csv": as_csv(table(head, exhibits)),
    }
