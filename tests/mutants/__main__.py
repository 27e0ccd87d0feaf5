"""``python -m tests.mutants``: what the tests find of small mistakes in the library.

::

    python -m tests.mutants draw [--keep FILE]   # 300 mistakes, a seventh in each wing
    python -m tests.mutants map                  # which tests come past each of them
    python -m tests.mutants run                  # those tests, until one fails
    python -m tests.mutants table [--list]

``map`` and ``run`` go on where they were interrupted; started twice, they share the
work. Both leave out the tests marked system and slow. A test is chosen if it comes past
the changed statement in its own process, or in one forked from it. The results are kept
in ``--file``; where the code has changed since, ``draw --keep FILE`` finds the mistakes
in what is left of it again and draws the others anew.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# what one thread adds up has the same last bits every time; read when NumPy is loaded
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from tests.mutants import running
from tests.mutants.places import DESCRIPTION, ROOT, WINGS, Place, draw, find

WORK = running.WORK
VERDICTS = ("killed", "timeout", "survived", "unfinished", "uncovered")
Mutant = dict[str, Any]


def read(file: Path) -> Any:
    """What is kept."""
    return json.loads(file.read_text(encoding="utf-8"))


def write(file: Path, about: dict[str, Any], mutants: list[Mutant]) -> None:
    """Write a mutant on each line."""
    rows = ",\n".join(json.dumps(mutant, ensure_ascii=False) for mutant in mutants)
    text = f'{{"about": {json.dumps(about)},\n"mutants": [\n{rows}\n]}}\n'
    file.write_text(text, encoding="utf-8")


@contextmanager
def claimed(name: str, wait: bool = False) -> Iterator[bool]:
    """Whether a piece of work is this process's alone."""
    with (WORK / "locks" / name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def draw_all(file: Path, count: int, seed: int, keep: Path | None) -> None:
    """Draw places for all wings, or those that a file's lost places leave free."""
    old = read(keep)["mutants"] if keep else []
    found = list(zip(find(old), old, strict=True))
    mutants: list[Mutant] = []
    for number, wing in enumerate(WINGS):
        kept = {p: o.get("verdict") for p, o in found if p and o["wing"] == wing}
        wanted = (count + len(WINGS) - 1 - number) // len(WINGS) - len(kept)
        drawn = draw(wing, wanted, seed, kept)
        print(f"{wing}: {len(kept)} found again, {len(drawn)} drawn")
        for place in [*kept, *drawn]:
            description = {name: getattr(place, name) for name in DESCRIPTION}
            earlier = {"earlier": kept[place]} if place in kept else {}
            mutants.append({"id": place.name, "wing": wing, **description, **earlier})
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.check_output(git, text=True).strip()
    write(file, {"commit": commit, "seed": seed}, mutants)


def places_of(mutants: list[Mutant]) -> list[Place]:
    """The places of drawn mutants."""
    places = [place for place in find(mutants) if place is not None]
    if len(places) < len(mutants):
        raise SystemExit("the code has changed since: draw --keep FILE")
    return places


def map_all(file: Path, only: str) -> None:
    """Run every test file with probes, the wings' tests first."""
    places = places_of(read(file)["mutants"])
    code, names = running.probed(places), {place.name for place in places}
    running.warm()
    files = (str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py"))
    for tests in sorted(files, key=lambda name: ("/strategies/" in name, name)):
        into = WORK / "map" / (tests.replace("/", ".") + ".json")
        if only not in tests or tests.startswith("tests/system/"):
            continue
        with claimed(into.name) as mine:
            known = read(into)["places"] if into.exists() else []
            if mine and not names <= set(known):
                running.record(tests, places, code, into)
                piece = read(into)
                counts = f"{len(piece['tests'])} passed, {len(piece['unpassed'])} not"
                print(f"{piece['seconds']:6.1f} s  {tests}: {counts}", flush=True)


def run_all(file: Path, only: str) -> None:
    """Judge the mutants that have no verdict yet."""
    covering: dict[str, dict[str, float]] = {}
    for piece in sorted((WORK / "map").glob("*.json")):
        for test, (seconds, names) in read(piece)["tests"].items():
            for name in names:
                covering.setdefault(name, {})[test] = seconds
    mutants = read(file)["mutants"]
    places = dict(zip((m["id"] for m in mutants), places_of(mutants), strict=True))
    running.warm()
    # from all wings in turn, so that half of the work says something about each
    for mutant in random.Random(0).sample(mutants, len(mutants)):
        name = mutant["id"]
        if only not in mutant["wing"]:
            continue
        with claimed(name) as mine:
            judged = {m["id"] for m in read(file)["mutants"] if "verdict" in m}
            if not mine or name in judged:
                continue
            verdict = running.judge(places[name], covering.get(name, {}))
            with claimed("file", wait=True):
                kept = read(file)
                all_ = [m | verdict if m["id"] == name else m for m in kept["mutants"]]
                write(file, kept["about"], all_)
        words = (mutant["wing"], verdict["verdict"], verdict.get("test", ""))
        print(f"{verdict.get('seconds', 0.0):6.1f} s ", *words, flush=True)


def table(file: Path, show: bool) -> None:
    """Print the verdicts by wing, and the mutants that no test finds."""
    mutants = read(file)["mutants"]
    print("".join(f"{word:>11}" for word in ("", "mutants", *VERDICTS, "found, %")))
    for wing in (*WINGS, "all"):
        those = [m for m in mutants if wing in (m["wing"], "all") and "verdict" in m]
        counts = Counter(m["verdict"] for m in those)
        share = 100 * (counts["killed"] + counts["timeout"]) / max(len(those), 1)
        numbers = (len(those), *(counts[verdict] for verdict in VERDICTS), round(share))
        print(f"{wing:>11}" + "".join(f"{number:11}" for number in numbers))
    print(f"{sum(m.get('seconds', 0.0) for m in mutants) / 3600:.2f} hours of CPU")
    changes = Counter(
        (m["earlier"], m.get("verdict")) for m in mutants if "earlier" in m
    )
    for (before, now), count in sorted(changes.items(), key=str):
        print(f"{count} were {before}, are {now}")
    for m in mutants if show else ():
        if m.get("verdict") in VERDICTS[2:]:
            print(
                "\n{id} {verdict}\n    {file} {function}, {operator}: {line}".format(
                    **m
                )
            )
            print(f"    {m['before']}\n    -> {m['after']}")


def main() -> None:
    """Run a command."""
    file = Path(__file__).with_name("baseline.json")
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("command", choices=("draw", "map", "run", "table"))
    parser.add_argument("--file", type=Path, default=file)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a file of earlier results")
    parser.add_argument("--only", default="", help="part of a test file or wing")
    parser.add_argument("--list", action="store_true", help="what no test finds, too")
    given = parser.parse_args()
    file = given.file.resolve()
    if given.command == "draw":
        draw_all(file, given.count, given.seed, given.keep)
    elif given.command == "table":
        table(file, given.list)
    else:
        {"map": map_all, "run": run_all}[given.command](file, given.only)


if __name__ == "__main__":
    main()
