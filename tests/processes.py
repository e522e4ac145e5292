"""Processes that start in milliseconds: forked from one that has imported what takes long to import.

It is a process of its own: that of the tests has threads, and what has threads must not fork.
"""

import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

# Every request has a process of its own, too, which forks the program and waits for it.
SERVER = """
import json, os, signal, socket, sys, traceback

def run(request, pipes):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make background processes ignore it
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["arguments"]
    try:
        exec(request["program"], {"__name__": "__main__"})
        return 0
    except SystemExit as end:
        if not isinstance(end.code, str):
            return end.code or 0
        print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    return 1

def fork_and_wait(connection):
    request, pipes, _, _ = socket.recv_fds(connection, 2**20, 3)
    if (pid := os.fork()) == 0:
        connection.close()
        status = run(json.loads(request), pipes)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    for pipe in pipes:
        os.close(pipe)
    connection.send(f"{pid}\\n".encode())
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    connection.send(f"{status}\\n".encode())
    os._exit(0)

exec(sys.argv[1])
requests = socket.socket(fileno=int(sys.argv[2]))
waiting = 0
while True:
    connection, _ = requests.accept()
    with connection:
        if os.fork() == 0:
            requests.close()
            fork_and_wait(connection)
    waiting += 1
    while waiting and os.waitpid(-1, os.WNOHANG)[0]:
        waiting -= 1
"""

# What a command for shells runs: quick to start, for it imports next to nothing.
CLIENT = """
import json, os, signal, socket, sys

address, program, *arguments = sys.argv[1:]
connection = socket.socket(socket.AF_UNIX)
connection.connect(address)
request = dict(program=program, arguments=arguments, folder=os.getcwd(), environment=dict(os.environ))
signals = (signal.SIGINT, signal.SIGTERM)
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
answers = connection.makefile()
pid = int(answers.readline())
for number in signals:
    signal.signal(number, lambda number, frame: os.kill(pid, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
status = int(answers.readline())
sys.exit(status if status >= 0 else 128 - status)
"""


class Forks:
    """Runs programs; `with` ends what they are forked from.

    Args:
        imports: a program that is run before any other, to import what they need.
    """

    def __init__(self, imports):
        self._imports = imports

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="forks-")
        self.address = str(Path(self._folder.name) / "socket")
        with socket.socket(socket.AF_UNIX) as requests:
            requests.bind(self.address)
            requests.listen(100)
            arguments = [sys.executable, "-c", SERVER, self._imports, str(requests.fileno())]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}  # so that it has no threads
            self._server = subprocess.Popen(arguments, pass_fds=[requests.fileno()], env=environment)
        return self

    def __exit__(self, *problem):
        self._server.kill()
        self._server.wait()
        self._folder.cleanup()

    def __call__(self, program, *arguments):
        """Run a program in the working folder, with these arguments in `sys.argv[1:]`."""
        return Fork(self.address, program, arguments)

    def command(self, path, program):
        """Write a command for shells that runs a program with its arguments."""
        client = [sys.executable, "-IS", "-c", CLIENT, self.address, program, path.name]
        path.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n')
        path.chmod(0o755)


class Fork:
    """A process, and what it writes to `stdout` and `stderr`."""

    def __init__(self, address, program, arguments):
        request = {
            "program": program,
            "arguments": ["-c", *map(str, arguments)],
            "folder": os.getcwd(),
            "environment": dict(os.environ),
        }
        out, err = os.pipe(), os.pipe()
        self.stdout, self.stderr = (os.fdopen(read, encoding="utf-8") for read, _ in (out, err))
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(address)
        with open(os.devnull) as nothing:
            pipes = [nothing.fileno(), out[1], err[1]]
            socket.send_fds(self._connection, [json.dumps(request).encode()], pipes)
        self._answers = self._connection.makefile()
        self.pid = int(self._answers.readline())
        os.close(out[1])
        os.close(err[1])

    def is_running(self):
        return not select.select([self._connection], [], [], 0)[0]

    def kill(self, how=signal.SIGKILL):
        """Send a signal, unless the process has ended; what it wrote before can still be read."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, how)

    def wait(self):
        """Its exit status, what it printed since it was last read, and its errors."""
        with self.stdout, self.stderr, self._connection, self._answers:
            printed, errors = self.stdout.read(), self.stderr.read()
            return int(self._answers.readline()), printed, errors
