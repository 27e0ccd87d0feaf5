"""``python -m tests.mutants``: what the tests find of small mistakes in the library.

::

    python -m tests.mutants draw    # 300 mistakes, a seventh in each wing
    python -m tests.mutants map     # which tests come past each of them
    python -m tests.mutants run     # those tests, until one fails
    python -m tests.mutants table [--list]

``map`` and ``run`` go on where they were interrupted; started twice, they share the
work. Both leave out tests that start Flower's processes, and slow ones of programs
(benchmarks, papers, examples). A test is chosen if it comes past the changed statement
in its own process, or in one forked from it. The results are kept in ``--file``; where
a drawn line has changed since, ``draw`` them anew.

A parent that has loaded the libraries forks a process for each run of tests. There a
file is compiled from other text than it has on the disk, where programs find it whole.
"""

from __future__ import annotations

import argparse
import ast
import bisect
import builtins
import fcntl
import importlib
import itertools
import json
import logging
import mmap
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.metadata import distributions
from pathlib import Path
from types import CodeType
from typing import Any

# what one thread adds up has the same last bits every time; read when NumPy is loaded
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import pytest

from tests.mutants.places import DESCRIPTION, ROOT, WINGS, Place, draw, find

VERDICTS = ("killed", "timeout", "survived", "unfinished", "uncovered")
Mutant = dict[str, Any]
#: By test, what it took and what it may take.
Seconds = dict[str, tuple[float, float]]
WORK = ROOT / "build" / "mutants"
CPU_SECONDS = 120
#: Reading a test file and what it imports.
FILE_SECONDS = 0.3
_LIBRARIES = (
    "numpy scipy.linalg scipy.optimize scipy.sparse.linalg scipy.stats torch cvxpy "
    "sklearn.datasets sklearn.linear_model sklearn.metrics matplotlib.pyplot "
    "flwr.clientapp flwr.serverapp flwr.simulation rich.live hypothesis tenseal "
    "cryptography.hazmat.primitives.ciphers.aead xdist.scheduler pytest_timeout"
)


def read(file: Path) -> Any:
    """What is kept."""
    return json.loads(file.read_text(encoding="utf-8"))


def write(file: Path, about: dict[str, Any], mutants: list[Mutant]) -> None:
    """Write a mutant on each line."""
    rows = ",\n".join(json.dumps(mutant, ensure_ascii=False) for mutant in mutants)
    text = f'{{"about": {json.dumps(about)},\n"mutants": [\n{rows}\n]}}\n'
    file.write_text(text, encoding="utf-8")


def claim(name: str) -> bool:
    """Whether a piece of work is this process's alone, until it ends."""
    file = os.open(WORK / "locks" / name, os.O_WRONLY | os.O_CREAT)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def draw_all(file: Path, count: int, seed: int) -> None:
    """Draw places for all wings."""
    mutants: list[Mutant] = []
    for number, wing in enumerate(WINGS):
        wanted = (count + len(WINGS) - 1 - number) // len(WINGS)
        for place in draw(wing, wanted, seed):
            description = {name: getattr(place, name) for name in DESCRIPTION}
            mutants.append({"id": place.name, "wing": wing, **description})
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.check_output(git, text=True).strip()
    write(file, {"commit": commit, "seed": seed}, mutants)


def places_of(mutants: list[Mutant]) -> list[Place]:
    """The places of drawn mutants."""
    places = [place for place in find(mutants) if place is not None]
    if len(places) < len(mutants):
        raise SystemExit("the code has changed since: draw anew")
    return places


def warm() -> None:
    """Load what the project needs, but nothing of it; only where it is installed."""
    # a folder of builds is found, too, and has no address
    known = (d.read_text("direct_url.json") for d in distributions(name="fedtrellis"))
    if not any(json.loads(text or "{}").get("url") == ROOT.as_uri() for text in known):
        raise SystemExit("another checkout is installed: pip install -e .")
    os.nice(max(0, 10 - os.nice(0)))
    os.chdir(ROOT)
    for folder in ("locks", "logs", "map", "temporary"):
        (WORK / folder).mkdir(parents=True, exist_ok=True)
    for library in _LIBRARIES.split():
        importlib.import_module(library)
    logging.getLogger("flwr").handlers.clear()  # made before pytest took over stderr
    assert "fedtrellis" not in sys.modules


def seconds() -> float:
    return sum(os.times()[:4])


def run_tests(arguments: list[str], files: dict[str, CodeType], plugin: object) -> int:
    """Run tests, with files compiled from other text."""
    plain = SourceFileLoader.get_code
    paths = {str(ROOT / file): code for file, code in files.items()}

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        return paths.get(os.path.realpath(self.path)) or plain(self, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]
    folder = WORK / "temporary" / str(os.getpid())
    # what stands still has failed, too
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-seed", "0"]
    options += ["--timeout", "300", "--basetemp", str(folder)]
    options += ["-m", "not system and (slow or not slow)"]
    try:
        return int(pytest.main([*options, *arguments], plugins=[plugin]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fork(work: Callable[[], int], log: Path, cpu: float) -> int:
    """The exit status of a forked process; where a signal ended it, minus its number.

    It may use so many seconds of CPU; then comes SIGXCPU.
    """
    child = os.fork()
    if child == 0:
        status = 70
        try:
            text = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(text, 1)
            os.dup2(text, 2)
            limit = max(1, int(cpu))
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
            status = work()
        finally:
            sys.stdout.flush()
            os._exit(status)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 70:
        raise RuntimeError(f"no result; see {log}")
    return code


class _Probes(ast.NodeTransformer):
    """Puts a probe before the statement of each place of a file."""

    def __init__(self, file: str, places: list[Place]) -> None:
        self.at: dict[tuple[int, int], str] = {}
        for number, place in enumerate(places):
            if place.file == file:
                before = self.at.get(place.statement, "")
                self.at[place.statement] = f"{before}__hits__[{number}] = 1\n"

    def visit(self, node: ast.AST) -> Any:
        self.generic_visit(node)
        if isinstance(node, ast.stmt):
            probe = self.at.get((node.lineno, node.col_offset), "")
            return [*ast.parse(probe).body, node]
        return node


def probed(places: list[Place]) -> dict[str, CodeType]:
    """The files of places, with a probe before the statement of each."""
    code = {}
    for file in {place.file for place in places}:
        tree = _Probes(file, places).visit(ast.parse((ROOT / file).read_bytes()))
        code[file] = compile(tree, str(ROOT / file), "exec", dont_inherit=True)
    return code


class Recorder:
    """Notes which probes each test passes, with what the file's earlier ones passed.

    They may have left what this one uses: a shared fixture, or a cache. So
    beside its own seconds stand those of the slowest so far, which it may take alone.
    """

    def __init__(self, places: list[Place]) -> None:
        # processes that a test forks set them too
        self.hits = builtins.__hits__ = mmap.mmap(-1, len(places))  # type: ignore[attr-defined]
        self.names = [place.name for place in places]
        self.tests: dict[str, tuple[float, float, list[str]]] = {}
        self.unpassed: list[str] = []
        self._slowest = 0.0

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note what fails or is skipped."""
        if report.outcome != "passed":
            self.unpassed.append(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        """Note what a test passes."""
        start = seconds()
        result = yield
        took = round(seconds() - start, 3)
        self._slowest = max(self._slowest, took)
        if item.nodeid not in self.unpassed:
            found = [n for n, hit in zip(self.names, self.hits[:], strict=True) if hit]
            self.tests[item.nodeid] = took, self._slowest, found
        return result


def map_all(file: Path, only: str) -> None:
    """Run every test file with probes, the wings' tests first."""
    places = places_of(read(file)["mutants"])
    code = probed(places)
    warm()
    files = (str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py"))
    for tests in sorted(files, key=lambda name: ("/strategies/" in name, name)):
        into = WORK / "map" / (tests.replace("/", ".") + ".json")

        inside = tests.split("/")[1] in ("fedtrellis", "strategies", "tasks")
        more = [] if inside else ["-m", "not system and not slow"]

        def work(tests: str = tests, into: Path = into, more: Any = more) -> int:
            recorder = Recorder(places)
            run_tests([tests, *more], code, recorder)
            found = {"places": recorder.names, "tests": recorder.tests}
            into.write_text(json.dumps(found), encoding="utf-8")
            return 0

        if only not in tests or tests.startswith("tests/system/"):
            continue
        known = read(into)["places"] if into.exists() else []
        if not {place.name for place in places} <= set(known) and claim(into.name):
            start = seconds()
            fork(work, WORK / "logs" / f"{into.stem}.txt", 3600)
            counts = f"{len(read(into)['tests'])} passed"
            print(f"{seconds() - start:6.1f} s  {tests}: {counts}", flush=True)


class Chosen:
    """Runs some tests, and writes down which one runs."""

    def __init__(self, tests: Seconds, into: Path) -> None:
        self.tests, self.into = tests, into

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave out the others."""
        items[:] = [item for item in items if item.nodeid in self.tests]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        """Give a test its time."""
        self.into.write_text(item.nodeid, encoding="utf-8")
        signal.setitimer(signal.ITIMER_PROF, 10 + 10 * self.tests[item.nodeid][1])
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def judge(place: Place, tests: Seconds) -> dict[str, Any]:
    """A verdict, and the test that failed or ran when the time was up."""
    if not tests:
        return {"verdict": "uncovered"}
    code = compile(place.changed(), str(ROOT / place.file), "exec", dont_inherit=True)
    running, log = (WORK / "logs" / f"{place.name}.{end}" for end in ("test", "txt"))
    start = seconds()
    verdict: dict[str, Any] = {"verdict": "survived"}
    # the quickest first, then those that take ever more in all, which run file by file;
    # a file's reading is shared by its tests
    sharing = Counter(test.split("::")[0] for test in tests)
    left = sorted(
        tests, key=lambda t: tests[t][0] + FILE_SECONDS / sharing[t.split("::")[0]]
    )
    budget = 4.0
    while left and verdict["verdict"] == "survived":
        costs = [*itertools.accumulate(tests[test][0] for test in left)]
        size = max(1, bisect.bisect(costs, budget))
        batch, left, budget = left[:size], left[size:], 3 * budget

        def work(batch: list[str] = batch) -> int:
            files = dict.fromkeys(test.split("::")[0] for test in batch)
            plugin = Chosen({test: tests[test] for test in batch}, running)
            return run_tests(["-x", *files], {place.file: code}, plugin)

        running.write_text("no test: pytest ended before", encoding="utf-8")
        status = fork(work, log, CPU_SECONDS - (seconds() - start))
        if status:
            ended = {-signal.SIGPROF: "timeout", -signal.SIGXCPU: "unfinished"}
            verdict = {"verdict": ended.get(status, "killed")}
            verdict["test"] = running.read_text(encoding="utf-8")
    return {**verdict, "tests": len(tests), "seconds": round(seconds() - start, 1)}


def run_all(file: Path, only: str) -> None:
    """Judge the mutants that have no verdict yet."""
    covering: dict[str, Seconds] = {}
    for piece in sorted((WORK / "map").glob("*.json")):
        for test, (took, most, names) in read(piece)["tests"].items():
            for name in names:
                covering.setdefault(name, {})[test] = took, most
    mutants = read(file)["mutants"]
    places = dict(zip((m["id"] for m in mutants), places_of(mutants), strict=True))
    warm()
    # from all wings in turn, so that half of the work says something about each
    for mutant in random.Random(0).sample(mutants, len(mutants)):
        name = mutant["id"]
        judged = {m["id"] for m in read(file)["mutants"] if "verdict" in m}
        if only not in mutant["wing"] or name in judged or not claim(name):
            continue
        verdict = judge(places[name], covering.get(name, {}))
        with (WORK / "locks" / "file").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
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
    for m in mutants if show else ():
        if m.get("verdict") in VERDICTS[2:]:
            print("\n{id} {verdict}\n    {file} {function}".format(**m))
            print("    {operator}: {before}\n    -> {after}".format(**m))


def main() -> None:
    """Run a command."""
    file = Path(__file__).with_name("baseline.json")
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("command", choices=("draw", "map", "run", "table"))
    parser.add_argument("--file", type=Path, default=file)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="part of a test file or wing")
    parser.add_argument("--list", action="store_true", help="what no test finds, too")
    given = parser.parse_args()
    file = given.file.resolve()
    if given.command == "draw":
        draw_all(file, given.count, given.seed)
    elif given.command == "table":
        table(file, given.list)
    else:
        {"map": map_all, "run": run_all}[given.command](file, given.only)


if __name__ == "__main__":
    main()
