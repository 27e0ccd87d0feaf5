"""``python -m benchmarks [--quick] [--only NAME] [--out FILE] [--markdown]``.

``python -m benchmarks matrix`` is :mod:`benchmarks.matrix.command`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console
from threadpoolctl import threadpool_limits

from . import (
    bundle,
    cohorts,
    deployed,
    encryption,
    fedavg,
    fedgia,
    fedgia_safe,
    fine_tuning,
    hyfdca,
    membership,
    messages,
    networks,
    oracles,
    overhead,
    ray_rounds,
    round_trips,
    scalar_memory,
    scale,
    secure_sums,
    startup,
    torch_speed,
    traffic,
    vertical,
)
from .engines import comparison as engines
from .matrix.command import main as matrix
from .report import Comparison, machine, write_json
from .runs import quiet

#: What ``--only`` takes: each makes its measurements, in full or quickly.
COMPARISONS: dict[str, Callable[[bool], Iterable[Comparison]]] = {
    "messages": lambda quick: [
        messages.compare(messages.QUICK if quick else messages.FULL)
    ],
    "overhead": lambda quick: [
        overhead.compare(overhead.QUICK if quick else overhead.FULL)
    ],
    "fedavg": lambda quick: [fedavg.compare(fedavg.QUICK if quick else fedavg.FULL)],
    "oracles": lambda quick: [
        oracles.compare(oracles.QUICK if quick else oracles.FULL)
    ],
    "fedgia": lambda quick: fedgia.compare(fedgia.QUICK if quick else fedgia.FULL),
    "fedgia-safe": lambda quick: [
        fedgia_safe.compare(fedgia_safe.QUICK if quick else fedgia_safe.FULL)
    ],
    "encryption": lambda quick: [
        encryption.compare(encryption.QUICK if quick else encryption.FULL)
    ],
    "engines": lambda quick: [
        engines.compare(engines.QUICK if quick else engines.FULL)
    ],
    "cohorts": lambda quick: cohorts.compare(cohorts.QUICK if quick else cohorts.FULL),
    "deployed": lambda quick: [
        deployed.compare(deployed.QUICK if quick else deployed.FULL)
    ],
    "bundle": lambda quick: [bundle.compare(bundle.QUICK if quick else bundle.FULL)],
    "ray": lambda quick: ray_rounds.measure(
        ray_rounds.QUICK if quick else ray_rounds.FULL, not quick
    ),
    "round-trips": lambda quick: [
        round_trips.compare(round_trips.CASES, 5 if quick else 20)
    ],
    "membership": lambda quick: [
        membership.compare(membership.QUICK if quick else membership.FULL)
    ],
    "scale": lambda quick: [scale.compare(scale.QUICK if quick else scale.FULL)],
    "fine-tuning": lambda quick: fine_tuning.compare(
        fine_tuning.QUICK if quick else fine_tuning.FULL
    ),
    "scalar-memory": lambda quick: [
        scalar_memory.compare(scalar_memory.QUICK if quick else scalar_memory.FULL)
    ],
    "secure-sums": lambda quick: [
        secure_sums.compare(secure_sums.QUICK if quick else secure_sums.FULL)
    ],
    "start-up": lambda quick: [
        startup.compare(startup.QUICK if quick else startup.FULL)
    ],
    "networks": lambda quick: networks.compare(
        networks.QUICK if quick else networks.FULL
    ),
    "traffic": traffic.compare,
    "torch": lambda quick: torch_speed.compare(
        torch_speed.QUICK if quick else torch_speed.FULL
    ),
    "gpu": lambda quick: [
        torch_speed.gpu(torch_speed.QUICK if quick else torch_speed.FULL)
    ],
    "hyfdca": lambda quick: hyfdca.compare(hyfdca.QUICK if quick else hyfdca.FULL),
    "vertical": lambda quick: vertical.compare(
        vertical.QUICK if quick else vertical.FULL
    ),
}


#: Those that are measured only if they are named: minutes each, of SuperNodes, Ray
#: or tuning.
BY_NAME = ("cohorts", "deployed", "engines", "fine-tuning", "networks", "ray", "scale")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write JSON if asked; 0 also where an aim was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a minute or two instead of many"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=list(COMPARISONS),
        metavar="NAME",
        help=f"one of {', '.join(COMPARISONS)}; may be given several times; "
        f"{', '.join(BY_NAME)} only run if they are named",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON goes there")
    parser.add_argument(
        "--markdown",
        action="store_true",
        help="print the tables as the pages have them",
    )
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["matrix"]:  # of runs that take an hour, with options of its own
        return matrix(given[1:])
    options = parser.parse_args(given)
    if options.out is not None and not options.out.absolute().parent.is_dir():
        parser.error(f"--out: there is no folder {options.out.absolute().parent}")
    quiet()
    console, facts = Console(highlight=False), machine()
    if not console.is_terminal:  # a file has room
        console.width = 180
    console.print(", ".join(f"{name}: {value}" for name, value in facts.items()))
    results = []
    with threadpool_limits(1):
        for name in options.only or [n for n in COMPARISONS if n not in BY_NAME]:
            for result in COMPARISONS[name](options.quick):
                if options.markdown:
                    print(f"\n{result.markdown()}", flush=True)
                else:
                    result.show(console)
                results.append(result)
                if options.out is not None:  # after each: the next may take minutes
                    write_json(options.out, facts, options.quick, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
