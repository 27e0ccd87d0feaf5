"""A process that does the job when it is told to: ``-m benchmarks.engines.worker``.

It takes an engine, as ``MODULE:FUNCTION`` of this package, and the file of the job. It
says ``ready`` once everything that is done once is done; then for each line on its
standard input, a path, it runs the job, writes the model there and answers with a line
of JSON, ``{"cpu": seconds, "wall": seconds}``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

import numpy as np

from .job import Job, Run


def main(engine: str, job: str) -> None:
    """Serve until the standard input ends."""
    # what libraries print is not an answer
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module, _, function = engine.partition(":")
    make = getattr(importlib.import_module(f".{module}", __package__), function)
    play = make(Job.load(job))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        run: Run = play()
        np.save(line.strip(), run.model)
        print(json.dumps({"cpu": run.cpu, "wall": run.wall}), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
