"""The commands, each loaded when it runs, and how their errors and warnings are shown."""

import errno
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from fedpca._util.text import sanitize
from fedpca._util.version import __version__
from fedpca.cli.options import STANDARD_STREAM, Output, WrongUsage, note, plain

_ERRORS = (
    ArithmeticError, ImportError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
_LOG = logging.getLogger("fedpca")
_HELP = """Federated, streaming, private principal component analysis of files of any size.

Fit a model per owner, merge the models, and transform rows:

```
fedpca fit north.parquet --drop id -n 10 -o north.safetensors
fedpca merge north.safetensors south.safetensors -o both.safetensors
fedpca transform both.safetensors north.parquet --keep id -o scores.parquet
```
"""
# By name, the first line of a command's docstring: it is shown without loading the command.
COMMANDS = {
    "fit": "Fit a model to files of any size. With --epsilon and --delta it is differentially private.",
    "merge": "Merge models, as if all their rows had been in one place; or files of fedpca scale.",
    "transform": "Write the scores of rows on a model's components: columns pc1, pc2, ... or, with --scores, "
    "others.",
    "inspect": "Show a model: explained variances, features, signature, and privacy certificate.",
    "scale": "Write the weight, mean and variance of every column, so that owners can share one scale.",
    "export": "Write a model for other programs.",
    "import": "Make a model from published loadings, for transform to project cohorts on.",
    "report": "Write a report about a model: one HTML file.",
    "check": "Check a model against a policy. If a rule is broken, name it and exit with 1.",
    "package": "Write a package for approval: the model, a report, and a page to sign.",
    "plan": "Plan a private model: the noise it needs, and how many components will rise above it.",
    "audit": "Empirically audit a private configuration.",
    "simulate": "Simulate a federation with faults, and compare its model with that of one without.",
    "new-federation": "Write a folder to start a Flower federation from.",
    "check-folder": "Try whether locks, appended lines, renames, hard links and fsync work in a folder. Exit "
    "code 1 if not.",
}
GROUPS = {
    "roster": {
        "key": "Make a signing key, and print its public key, which the roster needs.",
        "new": "Begin the roster of a new study, with the settings that all must share, and no members yet.",
        "add": "Add a member: the file becomes the next roster of the study, which names the one before it.",
        "remove": "Remove a member: what it has signed no longer counts under the new roster.",
        "show": "Show a roster: study, hash, settings and members.",
        "verify": "Check who signed model files and ledgers, or that a roster continues another. Exit code 1 "
        "if not.",
    },
    "sql": {
        "query": "Write the aggregate queries whose results are the summary of a table.",
        "import": "Make a model of what the queries returned. It is checked like the model of a stranger.",
    },
    "ledger": {
        "new": "Make a ledger with the approved budget of all releases. It is fixed from then on.",
        "show": "Show what a ledger allows, what was spent of it, and on what. Nothing is written.",
    },
    "secure": {
        "new": "Open a session in an empty folder, as the coordinator: one attempt at a study, with keys of "
        "its own.",
        "step": "Do whatever is next for you as an owner, and nothing twice. Made for cron.",
        "coordinate": "Do whatever is next for the coordinator. Made for cron.",
        "status": "Show who has sent what, and what the study waits for.",
        "model": "Compute the model of a study that has ended, from its totals.",
        "verify": "Compute all totals again from what owners have signed: the coordinator may lie.",
        "refuse": "Never answer the sum that is open now. If enough members do, nobody can open it.",
        "forget": "Erase your secrets of a session that you have given up. You drop out of it, for good.",
    },
}
_GROUP_HELP = {
    "roster": """Manage who takes part in a study: members, keys and signatures.

Each member makes a key; one of them keeps the roster, and all get it:

```
fedpca roster key north.key
fedpca roster new heart -o roster.toml
fedpca roster add roster.toml north ed25519:dc0q...
```
""",
    "sql": """Summarize rows that stay in a database: it returns sums, and fedpca makes the model.

```
fedpca sql query readings --columns heat,load --dialect duckdb -o readings.sql
fedpca sql import readings.sql readings.csv -o readings.safetensors
```
""",
    "ledger": """Keep the account of private releases: the approved budget, and what was spent of it.

```
fedpca ledger new north.ledger --epsilon 2 --delta 1e-6
fedpca ledger show north.ledger
```
""",
    "secure": """Run a study by secure sums in a shared folder: nobody sees more than sums over owners.

One party opens a session and coordinates; every owner repeats its step until there is a model:

```
fedpca secure new shared --roster roster.toml
fedpca secure step shared north.csv --roster roster.toml --key north.key
fedpca secure coordinate shared --roster roster.toml
fedpca secure model shared --roster roster.toml -o model.safetensors
```
""",
}


def make_app() -> App:
    """All commands."""
    app = App(
        name="fedpca",
        help=_HELP,
        version=f"fedpca {__version__}",
        version_format="plaintext",
        help_format="markdown",  # else lines of a paragraph are not joined
        default_parameter=Parameter(negative=()),  # no --no-force
    )
    for i, (name, text) in enumerate(COMMANDS.items()):
        function = _function(name)
        app.command(f"fedpca.cli.{function}:{function}", name=name, help=text, sort_key=i)
    for i, (group, commands) in enumerate(GROUPS.items(), len(COMMANDS)):
        child = App(name=group, help=_GROUP_HELP[group], sort_key=i)
        for j, (name, text) in enumerate(commands.items()):
            child.command(f"fedpca.cli.{group}:{_function(name)}", name=name, help=text, sort_key=j)
        app.command(child)
    return app


def _function(command: str) -> str:
    return "import_" if command == "import" else command.replace("-", "_")


def run(arguments: Sequence[str]) -> int:
    """Run a command; its exit code.

    An error is one line on stderr and exit code 1, a warning one line; wrong usage is 2, Ctrl-C 130.
    """
    app, output, names = make_app(), Output(), ["fedpca"]
    arguments = [STANDARD_STREAM if each == "-" else each for each in arguments]
    try:
        if arguments[:1] in (["--help"], ["-h"]):
            arguments = [*arguments[1:], arguments[0]]
        found = app.parse_commands(arguments)
        names += found[0]
        for each in found[1][1:]:
            if each.default_command is not None:
                each.help = None  # all of the docstring: the first line has been for the list of commands
        command, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=False)
        output = next((each for each in bound.arguments.values() if isinstance(each, Output)), output)
        with _log_to_stderr(output), warnings.catch_warnings():
            warnings.showwarning = _show_warning
            bound.arguments.update({name: plain(value) for name, value in bound.arguments.items()})
            command(*bound.args, **bound.kwargs)
        sys.stdout.flush()  # so that a full disk is an error
    except (CycloptsError, WrongUsage) as error:
        name = " ".join(name for name in names if not name.startswith("-"))
        note(f"error: {sanitize(_usage(error))} See `{name} --help`.")
        return 2
    except BrokenPipeError:  # who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is flushed at the end
        return 1
    except KeyboardInterrupt:
        note("stopped.")
        return 130
    except _ERRORS as error:
        if output.debug:
            raise
        note(f"error: {_one_line(error)}")
        return 1
    return 0


def _usage(error: Exception) -> str:
    """What is wrong with the arguments, in one line."""
    text = str(error)
    if isinstance(error, UnusedCliTokensError):
        text = f"unexpected argument: {' '.join(error.unused_tokens or ())}."
    return " ".join(text.replace(STANDARD_STREAM, "-").split())


@contextmanager
def _log_to_stderr(output: Output) -> Iterator[None]:
    level = logging.DEBUG if output.debug else logging.INFO if output.verbose else logging.WARNING
    handler = _StderrHandler()
    before = _LOG.level
    _LOG.addHandler(handler)
    _LOG.setLevel(level)
    try:
        yield
    finally:
        _LOG.removeHandler(handler)
        _LOG.setLevel(before)


class _StderrHandler(logging.Handler):
    """Writes to stderr as it is at the time: progress bars replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        note(sanitize(record.getMessage()))


def _show_warning(message: Warning | str, *where: object, **more: object) -> None:
    note(f"warning: {sanitize(' '.join(str(message).split()))}")


def _one_line(error: BaseException) -> str:
    """The message of an error."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text += " Make room, and run the command again."
    if isinstance(error, MemoryError):
        text = "not enough memory; use fewer components or columns."
    return sanitize(" ".join(text.split()) or type(error).__name__)
