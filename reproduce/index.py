"""reproduce/README.md: every claim with its verdict, every figure and table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from . import again
from .claims import OUTCOMES, Effect, Exhibit, Paper, Results, Verdict, counted, judge
from .common import load_results
from .drawing import PALETTE, legend_below, new_figure, save, table
from .pages import as_csv

__all__ = ["case_table", "files", "page", "picture", "short_table", "stored"]

_HEAD = """# Five papers, what they claim and what holds

Look up a claim here to see whether it holds, how far, and for whom. `python -m
reproduce --index` computes this page from the stored results.

{count}

![cases of each claim](claims.png)

A claim's *outcome* is about its cases, whose 95 % intervals hold all together: it
**holds** where the whole interval of every case is as the paper has it, in **k of n**
cases where that is so for some; without one it is **contradicted** if a case's whole
interval is against it, and **undecided** if none is. The *protocol* is **the paper's**
(its algorithm, measure and sizes), **reduced** (smaller or fewer), or **other**
(another algorithm, measure or problem). [All claims](claims.csv) has the paper's
words, what is measured and needed, sizes and minutes; a paper's page links every case.
[Figures and tables](exhibits.csv) names the items that reproduce each of them: `python
-m reproduce PAPER ITEM --data DIR`, or `--all --quick`.

"""

_AGAIN = """
## Run again

`python -m reproduce PAPER ITEM --first-seed 100 --seeds 3` repeats an item with three
other seeds. The stored values predict each new mean by Student's interval, at 95 % for
all cases of an item together.

"""

_CLAIMS = "no. | claim | in the paper's words | outcome | protocol | measured"
_CLAIMS += " | level | the paper's | size | over | minutes"
_SHORT = (
    "no. | claim | outcome | protocol | measured: worst to best (needed) | the paper's"
)
#: Colours of the picture: for the paper, open, against it, not tested.
_STATES = {"for": 2, "open": 5, "against": 1, "not tested": 3}


def stored(folder: Path) -> Results:
    """All stored results of a paper's folder."""
    paths = sorted((folder / "results").glob("*.json"))
    return {path.stem: load_results(path) for path in paths}


def state(effect: Effect) -> str:
    """One of :data:`_STATES`."""
    if effect.holds() is None:
        return "not tested"
    return "for" if effect.holds() else "against" if effect.refuted() else "open"


def _kinds(effects: Iterable[Effect]) -> dict[str, list[Effect]]:
    """Effects by what the claim needs of them, each kind from the worst to the best."""
    kinds: dict[str, list[Effect]] = {}
    for effect in effects:
        kinds.setdefault(effect.needed(), []).append(effect)
    return {
        need: sorted(several, key=lambda effect: effect.mean)
        for need, several in kinds.items()
    }


def effect_text(verdict: Verdict) -> str:
    """The measured extremes with intervals and cases, of each kind of number."""
    tested = (effect for effect in verdict.effects if effect.holds() is not None)
    texts = []
    for several in _kinds(tested).values():
        ends = [several[0], several[-1]][: len(several)]
        texts.append(" to ".join(f"{e.written()} ({e.case})" for e in ends))
    return "; ".join(texts) or "–"


def measured_text(verdict: Verdict) -> str:
    """The extremes in short, without intervals and cases."""
    texts = []
    for need, several in _kinds(verdict.effects).items():
        numbers = dict.fromkeys(e.form.format(e.shown(e.mean)) for e in several)
        ends = list(numbers)[:: max(len(numbers) - 1, 1)]
        texts.append(f"{' to '.join(ends)} ({need})")
    return "; ".join(texts) or "–"


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
        measured = f"{claim.meaning}: {effect_text(verdict)}"
        ours = (verdict.word, claim.protocol, measured, verdict.level)
        facts = (_seeds(verdict), _minutes(verdict, results))
        yield (number, claim.short, words, *ours, claim.theirs, claim.size, *facts)


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
    lines = [
        (
            *(f"{number} {verdict.claim.name}", verdict.claim.meaning, effect.case),
            *(effect.written(), effect.needed(), state(effect)),
        )
        for number, verdict in numbered(paper, results)
        for effect in verdict.effects
    ]
    head = "claim | what is measured | case | effect, 95 % for all | needed | it is"
    return table(head, lines)


def short_table(paper: Paper, results: Results, page: str) -> str:
    """A claim a line, with an anchor, and a link to the paper's page."""
    lines = []
    for number, verdict in numbered(paper, results):
        claim, anchor = (
            verdict.claim,
            f'<a id="{number.lower()}"></a>[{number}]({page})',
        )
        measured = measured_text(verdict) + (verdict.level and f"; {verdict.level}")
        row = (f"**{verdict.word}**", claim.protocol, measured, claim.theirs)
        lines.append((anchor, claim.short, *row))
    return table(_SHORT, lines)


def picture(papers: dict[str, tuple[tuple[Paper, ...], Path]], out: Path) -> None:
    """Shares of each claim's cases that are for the paper, open, and against it."""
    bars = []
    for several, folder in papers.values():
        results = stored(folder)
        for paper in several:
            for number, verdict in numbered(paper, results):
                states = [state(effect) for effect in verdict.effects]
                bars.append((number, states or ["not tested"]))
    figure, ((axes,),) = new_figure(1)
    figure.set_size_inches(14.0, 3.4)
    for name, colour in _STATES.items():
        heights = [100.0 * states.count(name) / len(states) for _, states in bars]
        before = list(_STATES)[: list(_STATES).index(name)]
        below = [100.0 * sum(map(s.count, before)) / len(s) for _, s in bars]
        places, style = range(len(bars)), {"color": PALETTE[colour], "label": name}
        axes.bar(places, heights, bottom=below, **style)
    axes.set_xticks(range(len(bars)), [number for number, _ in bars], fontsize="small")
    axes.set_ylabel("cases, %")
    legend_below(figure, axes)
    save(figure, out, "claims")


def page(papers: dict[str, tuple[tuple[Paper, ...], Path]]) -> str:
    """The whole page; ``papers`` are papers and folders by name."""
    counts: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
    claims = []
    for several, folder in papers.values():
        results = stored(folder)
        for paper in several:
            for _, verdict in numbered(paper, results):
                counts[verdict.outcome] += 1
            title = f"[{paper.title}]({paper.link})" if paper.link else paper.title
            link = f"{folder.name}/README.md"
            rows = short_table(paper, results, link)
            claims.append(f"## {title} ([page]({link}))\n\n{rows}\n")
    head = f"claims | {' | '.join(OUTCOMES)}"
    start = _HEAD.format(count=table(head, [(sum(counts.values()), *counts.values())]))
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
