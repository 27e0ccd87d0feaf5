"""Lines of Python, with comments, by wing and revision: ``-m scripts.lines A B``."""

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
    "app, settings": r"sim\.py|fedtrellis/(app/|settings|declared|builtin|command_line)"
    r"|fedtrellis/(extras|_)",
    "runs, tune, trackers": r"fedtrellis/(runs|tune|trackers)",
    "admm, corrective": r"fedtrellis/(admm|corrective)/",
    **{w: f"fedtrellis/{w}/" for w in ("objectives", "wire", "domains", "server")},
    "the rest of the library": r"fedtrellis/",
    "scripts, deploy, examples": r"",
}


def lines(revision: str) -> Counter[str]:
    """Count a revision's lines of Python by wing."""
    command = ["git", "archive", "--format=tar", revision]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    found: Counter[str] = Counter()
    with tarfile.open(fileobj=io.BytesIO(packed)) as tree:
        for one in tree:
            if one.name.endswith(".py") and (file := tree.extractfile(one)):
                fits = (w for w, there in WINGS.items() if re.match(there, one.name))
                wing = next(fits)
                found[wing] += file.read().count(b"\n")
    return found


if __name__ == "__main__":
    counts = [lines(revision) for revision in sys.argv[1:]]
    print("| wing |", " | ".join(sys.argv[1:]), "|\n" + "| --- " * len(sys.argv) + "|")
    for wing in WINGS:
        print(f"| {wing} |", " | ".join(f"{c[wing]:_}" for c in counts), "|")
    print("| together |", " | ".join(f"{c.total():_}" for c in counts), "|")
