"""reproduce/README.md: every claim with its verdict, every figure and table."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from . import again
from .claims import Effect, Exhibit, Paper, Results, Verdict, counted, judge, tally
from .common import load_results
from .drawing import PALETTE, legend_below, new_figure, save, table
from .pages import as_csv

__all__ = ["case_table", "files", "page", "picture", "short_table", "stored"]

_HEAD = """# Five papers, what they claim and what holds

Look up a claim here to see whether it holds, how far, and for whom. `python -m
reproduce --index` computes this page from the stored results.

- claims: {claims}
- cases: {cases}

![cases of each claim](claims.png)

A claim has *cases*, whose 95 % intervals hold all together: a case is **for** the paper
where its whole interval is as the paper has it, **against** it where the whole interval
is on the other side, **open** otherwise (also a tie), and **not tested** where fewer
than three values (of seeds, mostly) give no interval; exact numbers need none. A claim
**holds** where every case is for it, **in part** where some are; without one it is
**contradicted** if a case is against it, and else **undecided**. What is measured are
the tested cases' means from the worst, with its interval, to the best, and in brackets
what is needed; a bound that the paper does not give is marked as ours. The *protocol*
is **the paper's** (its algorithm, measure and sizes), **reduced** (smaller or fewer),
or **other** (another algorithm, measure or problem).

`python -m reproduce PAPER ITEM --data DIR` measures an item again, and `python -m
reproduce --all --quick --data DIR` all of them, small. [All claims](claims.csv) has the
paper's words, what is measured and needed, sizes, minutes and items; a paper's page
links every case; [figures and tables](exhibits.csv) names what reproduces each. The
tables below a paper's claims split the cases of what does not hold by set, data,
measure or problem (–: no such case), if it has more than one of these.

"""

_AGAIN = """
## Run again

`python -m reproduce PAPER ITEM --data DIR --first-seed 1000 --seeds 3` repeats an item
with three other seeds. The stored values predict each new mean by Student's interval,
at 95 % for all cases of an item together; the table counts the means inside.

"""

_CLAIMS = "no. | claim | in the paper's words | outcome | cases | protocol | measured"
_CLAIMS += " | level | the paper's | size | over | minutes | item"
_SHORT = (
    "no. | claim | outcome | cases | protocol"
    " | measured: worst case to best (needed) | the paper's"
)
#: Against each of which a claim's extremes are shown.
_BASELINES = ("HybridFedAvg", "HyFEM")
#: What a claim's measure has of us: "×2 is ours".
_OURS = re.compile(r"[^(;,]*\bours\b")
#: Colours of the picture: for the paper, open, against it, not tested.
_STATES = {"for": 2, "open": 5, "against": 1, "not tested": 3}


def stored(folder: Path) -> Results:
    """All stored results of a paper's folder."""
    paths = sorted((folder / "results").glob("*.json"))
    return {path.stem: load_results(path) for path in paths}


def _kinds(effects: Iterable[Effect]) -> dict[str, list[Effect]]:
    """Tested cases by need and baseline, each kind from the worst to the best."""
    kinds: dict[str, list[Effect]] = {}
    for effect in effects:
        if effect.state() != "not tested":
            other = effect.case.rpartition(", ")[2]
            baseline = f", {other}" if other in _BASELINES else ""
            kinds.setdefault(effect.needed() + baseline, []).append(effect)
    return {
        need: sorted(several, key=lambda effect: effect.mean)
        for need, several in kinds.items()
    }


def measured_text(verdict: Verdict, *, short: bool) -> str:
    """The extremes of each kind of number; if long, with both intervals and cases."""
    texts = []
    kinds = _kinds(verdict.effects)
    for need, several in kinds.items():
        ends = [several[0], several[-1]][: len(several)]
        long = " to ".join(f"{e.written()} ({e.case})" for e in ends)
        best = (e.form.format(e.shown(e.mean)) for e in ends[1:])
        brief = " to ".join((ends[0].written(), *best))
        if len(kinds) > 1:
            need += f": {tally([effect.state() for effect in several])}"
        texts.append(f"{brief} ({need})" if short else long)
    ours = _OURS.findall(verdict.claim.meaning) if short else ()
    return ("<br>" if short else "; ").join((*texts, *ours)) or "–"


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
        measured = f"{claim.meaning}: {measured_text(verdict, short=False)}"
        ours = (verdict.outcome, verdict.cases, claim.protocol, measured, verdict.level)
        facts = (claim.theirs, claim.size, _seeds(verdict), _minutes(verdict, results))
        yield (number, claim.short, words, *ours, *facts, " ".join(claim.items))


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
            *(effect.written(), effect.needed(), effect.state()),
        )
        for number, verdict in numbered(paper, results)
        for effect in verdict.effects
    ]
    head = "claim | what is measured | case | effect, 95 % for all | needed | it is"
    return table(head, lines)


def short_table(paper: Paper, results: Results, page: str) -> str:
    """A claim a line, with an anchor, and a link to the paper's page; cases apart."""
    lines = []
    apart: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for number, verdict in numbered(paper, results):
        claim = verdict.claim
        anchor = f'<a id="{number.lower()}"></a>[{number}]({page})'
        measured = measured_text(verdict, short=True)
        measured += verdict.level and f"<br>{verdict.level}"
        row = (f"**{verdict.outcome}**", verdict.cases, claim.protocol, measured)
        lines.append((anchor, claim.short, *row, claim.theirs))
        for counts in verdict.apart:
            named = {"no.": number} | counts
            apart.setdefault(tuple(named), []).append(named)
    tables = [table(_SHORT, lines)]
    for names, rows in apart.items():
        used = [name for name in names if {row[name] for row in rows} != {"–"}]
        body = ([row[name] for name in used] for row in rows)
        tables.append(table(" | ".join(used), body))
    return "\n\n".join(tables)


def picture(papers: dict[str, tuple[tuple[Paper, ...], Path]], out: Path) -> None:
    """Shares of each claim's cases that are for the paper, open, and against it."""
    bars = []
    for several, folder in papers.values():
        results = stored(folder)
        for paper in several:
            for number, verdict in numbered(paper, results):
                states = [effect.state() for effect in verdict.effects]
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
    outcomes, states, claims = [], [], []
    for several, folder in papers.values():
        results = stored(folder)
        for paper in several:
            judged = numbered(paper, results)
            outcomes += judged
            found = [one.state() for _, verdict in judged for one in verdict.effects]
            states += found
            own = f"{tally([v.outcome for _, v in judged])}; cases: {tally(found)}"
            title = f"[{paper.title}]({paper.link})" if paper.link else paper.title
            link = f"{folder.name}/README.md"
            rows = short_table(paper, results, link)
            claims.append(f"## {title} ([page]({link}))\n\nClaims: {own}\n\n{rows}\n")
    against = ", ".join(n for n, v in outcomes if v.outcome == "contradicted")
    judgements = f"{tally([v.outcome for _, v in outcomes])}; contradicted: {against}"
    start = _HEAD.format(claims=judgements, cases=tally(states))
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
