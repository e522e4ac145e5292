"""Processes that start in milliseconds: forked from one that has imported fedpca.

It is a process of its own: that of the tests has threads, and what has threads must not fork.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys

SERVER = """
import json, os, socket, sys, traceback
import numpy
import fedpca

for name in fedpca.__all__:
    getattr(fedpca, name)  # imports what it needs
requests = socket.socket(fileno=int(sys.argv[1]))
while True:
    request, pipes, _, _ = socket.recv_fds(requests, 2**16, 2)
    if not request:
        break
    request = json.loads(request)
    if "wait" in request:
        answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
    else:
        answer = os.fork()
    if answer == 0 and "wait" not in request:
        requests.close()
        os.dup2(pipes[0], 1)
        os.dup2(pipes[1], 2)
        os.closerange(3, 256)
        os.chdir(request["folder"])
        sys.argv = ["-c", *request["arguments"]]
        status = 1
        try:
            exec(request["program"], {"__name__": "__main__"})
            status = 0
        except SystemExit as end:
            status = 1 if isinstance(end.code, str) else end.code or 0
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    for pipe in pipes:
        os.close(pipe)
    requests.send(json.dumps(answer).encode())
"""


class Forks:
    """Starts programs; `with` ends what they were forked from."""

    def __enter__(self):
        self._requests, theirs = socket.socketpair()
        with theirs:
            arguments = [sys.executable, "-c", SERVER, str(theirs.fileno())]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}  # so that it has no threads either
            self._server = subprocess.Popen(arguments, pass_fds=[theirs.fileno()], env=environment)
        return self

    def __exit__(self, *problem):
        self._requests.close()
        self._server.wait(60)

    def __call__(self, program, *arguments):
        """Run a program in the working folder, with these arguments in `sys.argv[1:]`."""
        return Fork(self, program, arguments)

    def ask(self, pipes=(), **request):
        socket.send_fds(self._requests, [json.dumps(request).encode()], pipes)
        return json.loads(self._requests.recv(100))


class Fork:
    """A process, and what it writes to `stdout` and `stderr`."""

    def __init__(self, forks, program, arguments):
        self._forks = forks
        ends = [os.pipe(), os.pipe()]
        self.stdout, self.stderr = (os.fdopen(read, encoding="utf-8") for read, _ in ends)
        pipes = [write for _, write in ends]
        arguments = [str(argument) for argument in arguments]
        self.pid = forks.ask(pipes, program=program, arguments=arguments, folder=os.getcwd())
        for pipe in pipes:
            os.close(pipe)

    def is_running(self):
        ended = select.poll()
        ended.register(self.stdout, select.POLLHUP)  # nobody has the other end any more
        return not ended.poll(0)

    def kill(self, how=signal.SIGKILL):
        """Send a signal; what the process wrote before can still be read."""
        os.kill(self.pid, how)

    def wait(self):
        """Its exit status, what it printed since it was last read, and its errors."""
        with self.stdout, self.stderr:
            printed, errors = self.stdout.read(), self.stderr.read()
        return self._forks.ask(wait=self.pid), printed, errors
