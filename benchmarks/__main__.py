"""Run the benchmarks one after the other, each in a process of its own.

python -m benchmarks                    # all of them
python -m benchmarks --quick            # all of them, cut short
python -m benchmarks speed memory       # some of them
"""

from __future__ import annotations

import subprocess
import sys

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
)


def main() -> None:
    parser = options(__doc__, "cut each of them short")
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"any of {', '.join(NAMES)}; all if none is given"
    )
    arguments = parser.parse_args()
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
