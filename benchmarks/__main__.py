"""Run the benchmarks one after the other, each in a process of its own.

python -m benchmarks                    # all of them
python -m benchmarks --quick            # all of them, cut short
python -m benchmarks speed memory       # some of them
python -m benchmarks --record           # ten numbers instead, as a line of benchmarks/history.csv
python -m benchmarks --compare          # the same, compared with its last line
"""

from __future__ import annotations

import subprocess
import sys

from benchmarks import history
from benchmarks.common import options

NAMES = (
    "speed",
    "choosing",
    "accuracy",
    "missing_values",
    "recall",
    "tuning",
    "constants",
    "small_streams",
    "memory",
    "genotypes",
    "merging",
    "liars",
    "federation",
    "dask",
    "flower",
    "signing",
    "readers",
    "fit_file",
    "threads",
    "private_utility",
    "private_defaults",
    "private_samples",
    "private_noise",
    "secure_accuracy",
    "outside",
)


def main() -> None:
    parser = options(__doc__, "cut each of them short")
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"any of {', '.join(NAMES)}; all if none is given"
    )
    numbers = parser.add_mutually_exclusive_group()
    numbers.add_argument("--record", action="store_true", help="add ten numbers to benchmarks/history.csv")
    numbers.add_argument("--compare", action="store_true", help="compare ten numbers with its last line")
    arguments = parser.parse_args()
    if arguments.record:
        return history.record()
    if arguments.compare:
        sys.exit(history.compare())
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"benchmarks are {', '.join(NAMES)}, got {', '.join(sorted(unknown))}.")
    quick = ["--quick"] if arguments.quick else []
    codes = [
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *quick]).returncode
        for name in arguments.names or NAMES
    ]
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
