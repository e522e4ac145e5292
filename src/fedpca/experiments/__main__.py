"""python -m fedpca.experiments: reproduce the paper, as one page."""

import argparse
import sys
from pathlib import Path

from fedpca import progress
from fedpca.experiments import EXPERIMENTS, reproduce


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fedpca.experiments",
        description="Reproduce the figures and tables of the paper, as one page. An interrupted run goes on.",
        epilog="names: " + ", ".join(EXPERIMENTS),
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; all by default")
    parser.add_argument("--quick", action="store_true", help="smaller settings: minutes instead of hours")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to; by default build/reproduction")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers; 0 by default")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.names if name not in EXPERIMENTS]:
        parser.error(f"no experiment is called {', '.join(unknown)}; there are {', '.join(EXPERIMENTS)}.")
    folder = chosen.out or Path("build", "reproduction-quick" if chosen.quick else "reproduction")
    with progress.shown():
        page = reproduce(chosen.names or list(EXPERIMENTS), folder, quick=chosen.quick, seed=chosen.seed)
    print(f"Open in a browser: {page}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
