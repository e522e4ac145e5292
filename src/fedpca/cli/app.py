"""The commands, with the options that all of them have, and how their errors and warnings are shown."""

import errno
import inspect as introspection
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from fedpca._util.files import local_path
from fedpca._util.text import sanitize
from fedpca._util.version import __version__
from fedpca.cli import ledger, roster, secure
from fedpca.cli.audit import audit
from fedpca.cli.check import check
from fedpca.cli.check_folder import check_folder
from fedpca.cli.common import quiet_output
from fedpca.cli.export import export
from fedpca.cli.fit import fit
from fedpca.cli.import_model import import_
from fedpca.cli.inspect import inspect
from fedpca.cli.merge import merge
from fedpca.cli.new_federation import new_federation
from fedpca.cli.package import package
from fedpca.cli.plan import plan
from fedpca.cli.report import report
from fedpca.cli.scale import scale
from fedpca.cli.simulate import simulate
from fedpca.cli.transform import transform

_ERRORS = (
    ArithmeticError, ImportError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
_LOG = logging.getLogger("fedpca")

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings and errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log each step to stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Log details, and show tracebacks of errors.")]


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        return _as_declared(super().get_params(ctx), self.callback)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The options and arguments of the line "Usage:", which some versions of typer put in braces."""
        arguments = [item for item in self.get_params(ctx) if isinstance(item, TyperArgument)]
        return ["[OPTIONS]", *(str(argument.metavar) for argument in arguments)]


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> Any:
        return _as_declared(super().get_params(ctx), self.callback)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            vars(error)["possibilities"] = None  # typer suggests a command; some versions of click do, too
            raise


def _as_declared(parameters: list[Any], function: Any) -> list[Any]:
    """Parameters with their help and without <bool>, which some versions of typer change."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        if isinstance(parameter, TyperArgument):
            parameter.help = function.__annotations__[parameter.name].__metadata__[0].help
    return parameters


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # else lines of a paragraph are not joined
)


def _version(on: bool) -> None:
    if on:
        typer.echo(f"fedpca {__version__}")
        raise typer.Exit


@app.callback()
def fedpca(
    shown: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_version),
    ] = False,
) -> None:
    """Federated, streaming, private principal component analysis of files of any size.

    Fit a model per owner, merge the models, and transform rows:

    ```
    fedpca fit north.parquet --drop id -n 10 -o north.safetensors
    fedpca merge north.safetensors south.safetensors -o both.safetensors
    fedpca transform both.safetensors north.parquet --keep id -o scores.parquet
    ```
    """


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """A command with --quiet, --verbose and --debug.

    An error is one line on stderr and exit code 1, a warning one line; wrong usage is 2, Ctrl-C 130.
    """
    own = introspection.signature(function)

    @wraps(function)
    def run(*, quiet: bool, verbose: bool, debug: bool, **arguments: object) -> None:
        level = logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING
        try:
            with quiet_output(quiet), _log_to_stderr(level), warnings.catch_warnings():
                warnings.showwarning = _show_warning
                _require_local(arguments.values())
                function(**arguments)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            typer.echo("fedpca: stopped.", err=True)
            raise typer.Exit(130) from None
        except _ERRORS as error:
            if debug:
                raise
            typer.echo(f"fedpca: error: {_one_line(error)}", err=True)
            raise typer.Exit(1) from None

    shared = {"quiet": Quiet, "verbose": Verbose, "debug": Debug}
    keyword = introspection.Parameter.KEYWORD_ONLY
    parameters = [
        *own.parameters.values(),
        *(
            introspection.Parameter(name, keyword, default=False, annotation=kind)
            for name, kind in shared.items()
        ),
    ]
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = function.__annotations__ | shared
    return run


def _require_local(values: Iterable[object]) -> None:
    """Raise ValueError if a path was given as a URL, which has lost one of its slashes since."""
    for value in values:
        for path in value if isinstance(value, list | tuple) else [value]:
            if isinstance(path, Path) and not (path.is_absolute() or Path(*path.parts[:1]).exists()):
                local_path(str(path).replace(":/", "://", 1))


@contextmanager
def _log_to_stderr(level: int) -> Iterator[None]:
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
        typer.echo(f"fedpca: {sanitize(record.getMessage())}", err=True)


def _show_warning(message: Warning | str, *where: object, **more: object) -> None:
    typer.echo(f"fedpca: warning: {sanitize(' '.join(str(message).split()))}", err=True)


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


_COMMANDS = (
    fit, merge, transform, inspect, scale, export, import_, report, check, package, plan, audit, simulate,
    new_federation, check_folder,
)  # fmt: skip

for command in _COMMANDS:
    app.command(command.__name__.strip("_").replace("_", "-"), cls=_Command)(_command(command))

roster_app = typer.Typer(cls=_Group, no_args_is_help=True, rich_markup_mode="markdown")


@roster_app.callback()
def roster_commands() -> None:
    """Manage who takes part in a study: members, keys and signatures.

    Each member makes a key; one of them keeps the roster, and all get it:

    ```
    fedpca roster key north.key
    fedpca roster new heart -o roster.toml
    fedpca roster add roster.toml north ed25519:dc0q...
    ```
    """


for command in (roster.key, roster.new, roster.add, roster.remove, roster.show, roster.verify):
    roster_app.command(command.__name__, cls=_Command)(_command(command))
app.add_typer(roster_app, name="roster")

ledger_app = typer.Typer(cls=_Group, no_args_is_help=True, rich_markup_mode="markdown")


@ledger_app.callback()
def ledger_commands() -> None:
    """Keep the account of private releases: the approved budget, and what was spent of it.

    ```
    fedpca ledger new north.ledger --epsilon 2 --delta 1e-6
    fedpca ledger show north.ledger
    ```
    """


for command in (ledger.new, ledger.show):
    ledger_app.command(command.__name__, cls=_Command)(_command(command))
app.add_typer(ledger_app, name="ledger")

secure_app = typer.Typer(cls=_Group, no_args_is_help=True, rich_markup_mode="markdown")


@secure_app.callback()
def secure_commands() -> None:
    """Run a study by secure sums in a shared folder: nobody sees more than sums over owners.

    One party opens a session and coordinates; every owner repeats its step until there is a model:

    ```
    fedpca secure new shared --roster roster.toml
    fedpca secure step shared north.csv --roster roster.toml --key north.key
    fedpca secure coordinate shared --roster roster.toml
    fedpca secure model shared --roster roster.toml -o model.safetensors
    ```
    """


for command in (
    secure.new,
    secure.step,
    secure.coordinate,
    secure.status,
    secure.model,
    secure.verify,
    secure.refuse,
    secure.forget,
):
    secure_app.command(command.__name__, cls=_Command)(_command(command))
app.add_typer(secure_app, name="secure")
