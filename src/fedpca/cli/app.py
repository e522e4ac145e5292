"""The commands, and what becomes of their errors and warnings."""

import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedpca._util.version import __version__
from fedpca.cli import fit, models, privacy, report, simulate, transform
from fedpca.cli.common import printable

_ERRORS = (
    ArithmeticError, ImportError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


class _Commands(TyperGroup):
    """An error is one line on stderr and exit code 1, a warning one line; wrong usage is 2, Ctrl-C 130."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _warn
                return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            typer.echo("fedpca: stopped.", err=True)
            raise typer.Exit(130) from None
        except _ERRORS as error:
            if ctx.params["debug"]:
                raise
            typer.echo(f"fedpca: error: {_line(error)}", err=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Commands,
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
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
    shown: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_version),
    ] = False,
) -> None:
    """Federated, streaming, private principal component analysis of files of any size."""


def _warn(message: Warning | str, *where: Any, **more: Any) -> None:
    typer.echo(f"fedpca: warning: {printable(' '.join(str(message).split()))}", err=True)


def _line(error: BaseException) -> str:
    """What an error says, as one line."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    if isinstance(error, MemoryError):
        text = "there is not enough memory; ask for fewer components or columns."
    return printable(" ".join(text.split()) or type(error).__name__)


app.command()(fit.fit)
app.command()(models.merge)
app.command()(transform.transform)
app.command()(models.inspect)
app.command()(report.report)
app.command()(privacy.plan)
app.command()(privacy.audit)
app.command()(simulate.simulate)
app.command("new-federation")(simulate.new_federation)
app.command()(simulate.datasets)
