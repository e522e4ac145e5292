"""The command line: `fedpca`, or `python -m fedpca`.

A command is loaded when it is named. What loads scikit-learn or matplotlib, which takes a second, is imported
where it is used, so that --help and wrong usage do without.
"""

import signal
import sys


def main() -> None:
    """Run the command line."""
    try:
        from fedpca.cli.app import run
    except ImportError as error:
        if error.name != "cyclopts":
            raise
        sys.exit("fedpca: error: the command line needs cyclopts: pip install 'fedpca[cli]'.")
    signal.signal(signal.SIGTERM, _end)  # as an exception, so that nothing half-written is left
    sys.exit(run(sys.argv[1:]))


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)
