"""``python -m tests.recorded compare``: today's code against runs of an older version.

``runs.json`` has the runs, with all settings of the version that made them, and what
came out: models, bytes, counts, metrics, error texts. It was written by ::

    python -m tests.recorded record --code FOLDER --commit NAME

with the older version's folder. A later version whose settings have other names runs
the cases all the same, through :func:`tests.recorded.run_case.start`. Where a method
has become another on purpose, ::

    python -m tests.recorded anew --only hyfdca/ --commit NAME

writes down what its cases come to with the code around; ``about`` says which.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

# what one thread adds up has the same last bits every time; read when NumPy is loaded
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")


def record(code: Path, commit: str, only: str) -> int:
    """Run every case with the code in a folder, and write the table."""
    sys.path.insert(0, str(code.resolve()))
    import sim
    from tests.recorded.cases import CASES
    from tests.recorded.old_records import interrupt, old_start
    from tests.recorded.run_case import TABLE, machine, run_case

    if not Path(sim.__file__).resolve().is_relative_to(code.resolve()):
        raise SystemExit(f"sim is that of {sim.__file__}, not of {code}")
    old: Any = sim
    defaults = old.default_config()
    cases: list[Any] = []
    for case in CASES:
        if only not in case["name"]:
            continue
        if "resume" in case:
            interrupt(case, defaults)
        began = time.perf_counter()
        result = run_case(case, defaults, old_start)
        seconds = time.perf_counter() - began
        what = result.get("error", f"{len(result.get('up', []))} rounds")
        print(f"{seconds:6.2f} s  {case['name']}: {what}", flush=True)
        cases.append({**case, "result": result})
    table = _text({"commit": commit, **machine()}, defaults, cases)
    if not only:
        TABLE.write_text(table, encoding="utf-8")
        print(f"{len(cases)} cases, {len(table)} bytes")
    return 0


def record_anew(only: str, commit: str) -> int:
    """Run cases of the table with the code around, and put their results in it."""
    from tests.recorded.run_case import TABLE, read_table, run_case

    table = read_table()
    for case in table["cases"]:
        if only in case["name"]:
            case["result"] = run_case(case, table["defaults"])
            print(case["name"], case["result"].get("error", ""), flush=True)
    about = {**table["about"], f"{only}*": commit}
    TABLE.write_text(_text(about, table["defaults"], table["cases"]), encoding="utf-8")
    return 0


def _text(about: Any, defaults: Any, cases: list[Any]) -> str:
    """The table, with a case a line."""
    lines = [json.dumps(case, separators=(",", ":")) for case in cases]
    head = f'{{"about": {json.dumps(about)},\n"defaults": {json.dumps(defaults)},\n'
    return head + '"cases": [\n' + ",\n".join(lines) + "\n]}\n"


def compare_all(only: str, tolerance: float) -> int:
    """Run every case with the code around; 1 if anything differs that should not."""
    from tests.recorded.comparison import compare, reason_to_accept
    from tests.recorded.run_case import machine, read_table, run_case

    table = read_table()
    print("recorded:", ", ".join(f"{k} {v}" for k, v in table["about"].items()))
    print("here:    ", ", ".join(f"{k} {v}" for k, v in machine().items()))
    # by method: cases, the same, accepted, different
    counts: dict[str, Counter[str]] = {}
    largest: dict[str, float] = {}
    differences: list[str] = []
    for case in table["cases"]:
        name = case["name"]
        if only not in name:
            continue
        method = "refused" if "error" in case["result"] else name.split("/")[0]
        now = run_case(case, table["defaults"])
        found = compare(
            case["result"],
            now,
            tolerance=tolerance,
            ciphertexts=case.get("ciphertexts", False),
        )
        reasons = {
            part: reason_to_accept(name, part, now.get(part)) for part in found.parts
        }
        kind = "same"
        if found.parts:
            kind = "accepted" if all(reasons.values()) else "different"
        counts.setdefault(method, Counter())[kind] += 1
        largest[method] = max(largest.get(method, 0.0), found.model)
        for part, text in found.parts.items():
            why = f" (accepted: {reasons[part]})" if reasons[part] else ""
            differences.append(f"{name}: {part}{why}: {text}")
    print(f"{'':18}{'cases':>7}{'same':>7}{'accepted':>10}{'different':>11}  model")
    for method, count in counts.items():
        print(
            f"{method:18}{count.total():7}{count['same']:7}{count['accepted']:10}"
            f"{count['different']:11}  {largest[method]:.1e}"
        )
    print(*differences, sep="\n")
    return int(any(count["different"] for count in counts.values()))


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.recorded")
    parser.add_argument("what", choices=("record", "anew", "compare"))
    parser.add_argument("--only", default="", help="cases with this in their names")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.0,
        help="for models and metrics, as on a machine with another BLAS [0]",
    )
    parser.add_argument("--code", type=Path, default=Path(), help="to record")
    parser.add_argument("--commit", default="", help="what is recorded")
    options = parser.parse_args()
    if options.what == "record":
        return record(options.code, options.commit, options.only)
    if options.what == "anew":
        return record_anew(options.only, options.commit)
    return compare_all(options.only, options.tolerance)


if __name__ == "__main__":
    sys.exit(main())
