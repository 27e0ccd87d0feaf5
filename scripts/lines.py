"""Lines of Python by wing, at each of some revisions: ``python -m scripts.lines A B``.

Comments and docstrings count. The first pattern that a path matches is its wing.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from collections import Counter

WINGS = {
    "tests": r"tests/|fedtrellis/testing",
    "reproduce, benchmarks": r"reproduce/|benchmarks/",
    "HyFDCA, what it alone uses": r"(strategies|clients)/(hyfdca|hybrid|hyfem|_split)"
    r"|fedtrellis/(dual|encryption)|tasks/hybrid",
    "the other strategies and clients": r"(strategies|clients)/",
    "tasks": r"tasks/",
    "objectives": r"fedtrellis/objectives/",
    "wire": r"fedtrellis/wire/",
    "domains": r"fedtrellis/domains/",
    "server": r"fedtrellis/server/",
    "app, settings": r"sim\.py|fedtrellis/(app/|settings|declared|builtin|command_line)"
    r"|fedtrellis/(extras|_)",
    "runs, tune, trackers": r"fedtrellis/(runs|tune|trackers)",
    "admm, corrective": r"fedtrellis/(admm|corrective)/",
    "the rest of the library": r"fedtrellis/",
    "scripts, deploy, examples": r"",
}


def lines(revision: str) -> Counter[str]:
    """Count a revision's lines of Python by wing."""
    command = ["git", "archive", "--format=tar", revision]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    found: Counter[str] = Counter()
    with tarfile.open(fileobj=io.BytesIO(packed)) as tree:
        for member in tree:
            file = tree.extractfile(member)
            if file is None or not member.name.endswith(".py"):
                continue
            wing = next(w for w, there in WINGS.items() if re.match(there, member.name))
            found[wing] += file.read().count(b"\n")
    return found


def table(revisions: list[str]) -> str:
    """Return a Markdown table, a column a revision."""
    counts = [lines(revision) for revision in revisions]
    rows = [
        ["wing", *revisions],
        ["---"] * (1 + len(revisions)),
        *(
            [wing, *(f"{c[wing]:,}".replace(",", " ") for c in counts)]
            for wing in WINGS
        ),
        ["together", *(f"{c.total():,}".replace(",", " ") for c in counts)],
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(table(sys.argv[1:] or ["HEAD"]))
