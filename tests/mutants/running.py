"""Runs of tests in forked processes: all of them with probes, or few with a mistake.

A parent that has loaded the libraries, but nothing of the project, forks a process for
each run. There a file of the project is compiled from other text than it has; files on
the disk stay as they are, so what a test starts as a program of its own is unchanged.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import mmap
import os
import resource
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from tests.mutants.places import ROOT, Place

WORK = ROOT / "build" / "mutants"
CPU_SECONDS = 120
#: Reading a test file and what it imports.
FILE_SECONDS = 0.3
_LIBRARIES = (
    "numpy scipy.linalg scipy.optimize scipy.sparse.linalg scipy.stats torch cvxpy "
    "sklearn.datasets sklearn.linear_model sklearn.metrics matplotlib.pyplot pymanopt "
    "flwr.clientapp flwr.serverapp flwr.simulation rich.live hypothesis tenseal "
    "cryptography.hazmat.primitives.ciphers.aead xdist.scheduler pytest_timeout"
)


def warm() -> None:
    """Load what the project needs, but nothing of it."""
    os.nice(max(0, 10 - os.nice(0)))
    os.chdir(ROOT)
    for folder in ("locks", "logs", "map", "temporary"):
        (WORK / folder).mkdir(parents=True, exist_ok=True)
    for library in _LIBRARIES.split():
        importlib.import_module(library)
    assert "fedtrellis" not in sys.modules


def _seconds() -> float:
    return sum(os.times()[:4])


def _pytest(arguments: list[str], files: dict[str, CodeType], plugin: object) -> int:
    """Run tests, with files compiled from other text."""
    plain = SourceFileLoader.get_code
    paths = {str(ROOT / file): code for file, code in files.items()}

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        return paths.get(os.path.realpath(self.path)) or plain(self, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]
    folder = WORK / "temporary" / str(os.getpid())
    # what stands still fails in the end, but only after half an hour: this process may
    # have been stopped for a while
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-seed", "0"]
    options += ["--timeout", "1800", "--basetemp", str(folder)]
    options += ["-m", "not system and not slow"]
    try:
        return int(pytest.main([*options, *arguments], plugins=[plugin]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fork(work: Callable[[], int], log: Path, cpu: float) -> int:
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

    They may have left what this one uses: a shared fixture, or a cache. For
    the same reason the seconds are those of the slowest so far.
    """

    def __init__(self, places: list[Place]) -> None:
        # processes that a test forks set them too
        self.hits = builtins.__hits__ = mmap.mmap(-1, len(places))  # type: ignore[attr-defined]
        self.names = [place.name for place in places]
        self.tests: dict[str, tuple[float, list[str]]] = {}
        self.unpassed: list[str] = []
        self._slowest = 0.0

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note what fails or is skipped."""
        if report.outcome != "passed":
            self.unpassed.append(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        """Note what a test passes."""
        start = _seconds()
        result = yield
        self._slowest = max(self._slowest, round(_seconds() - start, 3))
        if item.nodeid not in self.unpassed:
            found = [n for n, hit in zip(self.names, self.hits[:], strict=True) if hit]
            self.tests[item.nodeid] = self._slowest, found
        return result


def record(
    tests: str, places: list[Place], code: dict[str, CodeType], into: Path
) -> None:
    """Run a test file with probes, and write down which tests pass them."""

    def work() -> int:
        recorder = Recorder(places)
        _pytest([tests], code, recorder)
        piece = {
            "seconds": round(_seconds(), 1),
            "places": recorder.names,
            "unpassed": recorder.unpassed,
            "tests": recorder.tests,
        }
        into.write_text(json.dumps(piece), encoding="utf-8")
        return 0

    _fork(work, WORK / "logs" / f"{into.stem}.txt", 3600)


class Chosen:
    """Runs some tests, and writes down which one runs."""

    def __init__(self, tests: dict[str, float], into: Path) -> None:
        self.tests, self.into = tests, into

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave out the others."""
        items[:] = [item for item in items if item.nodeid in self.tests]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        """Give a test its time."""
        self.into.write_text(item.nodeid, encoding="utf-8")
        signal.setitimer(signal.ITIMER_PROF, 10 + 10 * self.tests[item.nodeid])
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def judge(place: Place, tests: dict[str, float]) -> dict[str, Any]:
    """A verdict, and the test that failed or ran when the time was up."""
    if not tests:
        return {"verdict": "uncovered"}
    code = compile(place.changed(), str(ROOT / place.file), "exec", dont_inherit=True)
    running, log = (WORK / "logs" / f"{place.name}.{end}" for end in ("test", "txt"))
    start = _seconds()
    verdict: dict[str, Any] = {"verdict": "survived"}
    # the quickest first, then ever more; a file's reading is shared by its tests
    sharing = Counter(test.split("::")[0] for test in tests)
    left = sorted(
        tests, key=lambda t: tests[t] + FILE_SECONDS / sharing[t.split("::")[0]]
    )
    size = 10
    while left and verdict["verdict"] == "survived":
        batch, left, size = left[:size], left[size:], 5 * size

        def work(batch: list[str] = batch) -> int:
            files = dict.fromkeys(test.split("::")[0] for test in batch)
            plugin = Chosen({test: tests[test] for test in batch}, running)
            return _pytest(["-x", *files], {place.file: code}, plugin)

        running.write_text("no test: pytest ended before", encoding="utf-8")
        status = _fork(work, log, CPU_SECONDS - (_seconds() - start))
        if status:
            ended = {-signal.SIGPROF: "timeout", -signal.SIGXCPU: "unfinished"}
            verdict = {"verdict": ended.get(status, "killed")}
            verdict["test"] = running.read_text(encoding="utf-8")
    return {**verdict, "tests": len(tests), "seconds": round(_seconds() - start, 1)}
