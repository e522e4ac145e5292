"""Reproduce the paper's figures and tables as one HTML page.

python -m reproduction                    # all of them, with the paper's settings: about an hour
python -m reproduction --quick            # all of them, with smaller settings: minutes
python -m reproduction utility merging    # some of them

Every measurement is saved when it is done: run an interrupted command again to resume it.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from fedpca import progress
from reproduction.run import EXPERIMENTS, reproduce


def main(arguments: Sequence[str] | None = None) -> None:
    width = max(map(len, EXPERIMENTS))
    listing = [f"  {name:{width}}  {kind.figure}: {kind.title}" for name, kind in EXPERIMENTS.items()]
    parser = argparse.ArgumentParser(
        prog="python -m reproduction",
        description=__doc__,
        epilog="\n".join(["experiments:", *listing]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="name", help="an experiment; all if none is given")
    parser.add_argument("--quick", action="store_true", help="use smaller settings: minutes, not an hour")
    default = "default: build/reproduction, or build/reproduction-quick with --quick"
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help=f"output folder ({default})")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in EXPERIMENTS]:
        parser.error(f"experiments are {', '.join(EXPERIMENTS)}, got {', '.join(unknown)}.")
    folder = options.out or Path("build", "reproduction-quick" if options.quick else "reproduction")
    with progress.enabled() if sys.stderr.isatty() else nullcontext():
        page = reproduce(options.names or list(EXPERIMENTS), folder, quick=options.quick, seed=options.seed)
    print(f"Open in a browser: {page}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nreproduction: stopped; run the same command again to resume.")
