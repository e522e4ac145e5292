"""Commands in this process, with what they print."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest.mock import patch

import pytest

pytest.importorskip("cyclopts", reason="the cli extra")

from fedpca.cli import app


class Result(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str
    exception: BaseException | None = None

    @property
    def output(self):
        return self.stdout + self.stderr


def invoke(arguments, input=""):
    """What a command prints, its exit code, and the exception that it raises with --debug."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2)]
    given = io.TextIOWrapper(io.BytesIO(input if isinstance(input, bytes) else input.encode()), "utf-8")
    code, raised = 1, None
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]), patch.object(sys, "stdin", given):
        try:
            code = app.run([str(argument) for argument in arguments])
        except SystemExit as error:
            code = error.code
        except Exception as error:
            raised = error
        for stream in streams:
            stream.flush()
    printed = [stream.buffer.getvalue().decode() for stream in streams]
    return Result(code, *printed, raised)
