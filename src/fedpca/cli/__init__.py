"""The command line: `fedpca`, or `python -m fedpca`. Whatever a command needs is imported when it runs."""

import signal
import sys


def main() -> None:
    """Run the command line."""
    try:
        from fedpca.cli.app import app
    except ImportError as error:
        if error.name != "typer":
            raise
        sys.exit("fedpca: error: the command line needs typer: pip install 'fedpca[cli]'.")
    signal.signal(signal.SIGTERM, _end)  # as an exception, so that nothing half-written is left
    app(prog_name="fedpca")


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)
