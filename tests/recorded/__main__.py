"""``python -m tests.recorded compare``: today's code against runs of an older version.

``runs.json`` has a run a line: its ``config``, which are the keys that differ from
today's defaults, how many nodes it has and, where there are any, their files, their
configs and faults; and as ``result`` what came out: models, bytes, counts, metrics or
the text of an error. A run is recorded by writing its line without a result, or with an
old one, and then ::

    python -m tests.recorded anew --only PART-OF-ITS-NAME

Not here, as their files are not in the repository: MNIST, EMNIST, CIFAR-10, covtype,
QSAR and Santander. Of LIBSVM's, QAPLIB's and MovieLens's formats there are small files.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter

# what one thread adds up has the same last bits every time; read when NumPy is loaded
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")


def record_anew(only: str) -> int:
    """Run cases of the table with the code around, and put their results in it."""
    from tests.recorded.run_case import TABLE, read_table, run_case

    table = read_table()
    for case in table["cases"]:
        if only in case["name"]:
            case["result"] = run_case(case)
            print(case["name"], case["result"].get("error", ""), flush=True)
    lines = [json.dumps(case, separators=(",", ":")) for case in table["cases"]]
    head = f'{{"about": {json.dumps(table["about"])},\n'
    text = head + '"cases": [\n' + ",\n".join(lines) + "\n]}\n"
    TABLE.write_text(text, encoding="utf-8")
    return 0


def compare_all(only: str, tolerance: float) -> int:
    """Run every case with the code around; 1 if anything differs that should not."""
    from tests.recorded.comparison import differences
    from tests.recorded.run_case import machine, read_table, run_case

    table = read_table()
    print("recorded:", ", ".join(f"{k} {v}" for k, v in table["about"].items()))
    print("here:    ", ", ".join(f"{k} {v}" for k, v in machine().items()))
    kinds = ("same", "accepted", "different")
    counts: dict[str, Counter[str]] = {}
    lines: list[str] = []
    for case in table["cases"]:
        if only in (name := case["name"]):
            method = "refused" if "error" in case["result"] else name.split("/")[0]
            found = differences(case, run_case(case), tolerance)
            kind = "accepted" if all(reason for _, reason in found) else "different"
            counts.setdefault(method, Counter())[kind if found else "same"] += 1
            lines += [f"{text} ({reason or 'DIFFERENT'})" for text, reason in found]
    print(f"{'':18}" + "".join(f"{kind:>11}" for kind in kinds))
    for method, count in counts.items():
        print(f"{method:18}" + "".join(f"{count[kind]:11}" for kind in kinds))
    print(*lines, sep="\n")
    return int(any(count["different"] for count in counts.values()))


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.recorded")
    parser.add_argument("what", choices=("anew", "compare"))
    parser.add_argument("--only", default="", help="cases with this in their names")
    tolerance = "for models and metrics, as on a machine with another BLAS [0]"
    parser.add_argument("--tolerance", type=float, default=0.0, help=tolerance)
    options = parser.parse_args()
    if options.what == "anew":
        return record_anew(options.only)
    return compare_all(options.only, options.tolerance)


if __name__ == "__main__":
    sys.exit(main())
