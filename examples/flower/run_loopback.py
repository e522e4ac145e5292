"""A complete federation on this machine: a SuperLink with TLS, five authenticated SuperNodes, a private run.

    python examples/flower/run_loopback.py

Five hospitals have tables in raw units, and nobody knows anything about them: scale, center and length of
rows are found privately, by all of them together. Every process listens on 127.0.0.1 only and makes no other
connections.
"""

import datetime
import ipaddress
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import fedpca
from fedpca import Privacy
from fedpca.federation.flower.scaffold import write_template

TOOLS = Path(sys.executable).parent
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
SHOWN = slice(-3000, None)


class Deployment:
    """A SuperLink and its SuperNodes, as processes; `with` ends them all.

    Args:
        folder: a new one, for the app, keys, certificates, logs and Flower's own files.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        write_template(self.folder / "app")
        self.address = f"127.0.0.1:{free_port()}"
        path = f"{TOOLS}{os.pathsep}{os.environ.get('PATH', '')}"  # Flower's commands start one another
        self.environment = os.environ | QUIET | {"FLWR_HOME": str(self.folder), "PATH": path}
        self.processes = {}
        self.commands = []
        make_certificates(self.folder)
        connection = f'address = "{self.address}"\nroot-certificates = "{self.folder / "ca.pem"}"\n'
        (self.folder / "config.toml").write_text(
            f'[superlink]\ndefault = "loopback"\n\n[superlink.loopback]\n{connection}'
        )

    def __enter__(self):
        try:
            self.start_link()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *problem):
        self.close()

    def start_link(self):
        host, port = self.address.split(":")
        self._start(
            "superlink",
            *("flower-superlink", "--host", host, "--port", port, "--enable-supernode-auth"),
            *("--ssl-ca-certfile", "ca.pem", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"),
            *("--database", "superlink.db", "--disable-runtime-dependency-installation"),
        )
        context = ssl.create_default_context(cafile=self.folder / "ca.pem")
        while self.processes["superlink"].poll() is None:
            try:
                urllib.request.urlopen(f"https://{self.address}/health", context=context, timeout=5).close()
                return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError(f"the SuperLink did not start:\n{self.log('superlink')[SHOWN]}")

    def register(self, *names):
        """Create keys of nodes, and register them."""
        commands = []
        for name in names:
            make_key(self.folder / name)
            commands.append(self._flwr("supernode", "register", f"{self.folder / name}.pub", "loopback"))
        for command in commands:
            finished(command, 120)

    def start_node(self, name, config, *, ca="ca.pem", **environment):
        """Start a SuperNode with the key of this name, and a node config."""
        lines = (f"{key} = {json.dumps(value)}\n" for key, value in config.items())
        (self.folder / f"{name}.toml").write_text("".join(lines))
        self._start(
            name,
            *("flower-supernode", "--superlink", self.address, "--root-certificates", ca),
            *("--auth-supernode-private-key", name, "--node-config", f"{name}.toml"),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            **environment,
        )

    def stop(self, name):
        """Stop a SuperNode gracefully, so that it can be restarted immediately."""
        self.processes[name].terminate()
        with suppress(subprocess.TimeoutExpired):
            self.processes[name].wait(60)
        self.kill(name)

    def start_run(self, **config):
        """Start a run, as a process that ends with it; settings have _ where their names have -."""
        items = ((key.replace("_", "-"), json.dumps(value)) for key, value in config.items())
        settings = " ".join(f"{key}={value}" for key, value in items)
        return self._flwr("run", "app", "loopback", "--stream", "--run-config", settings)

    def run(self, deadline=600.0, **config):
        """Run to the end, and return the output."""
        return finished(self.start_run(deadline=deadline, **config), deadline + 120)

    def kill(self, name):
        """Kill a process and all its descendants."""
        process = self.processes.pop(name)
        for pid in family(process.pid) if process.poll() is None else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and descendants of a process that has already ended
        process.wait()

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def close(self):
        for name in list(self.processes):
            self.kill(name)
        for command in self.commands:
            command.kill()
            command.communicate()

    def _start(self, name, command, *arguments, **environment):
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [TOOLS / command, *arguments],
                cwd=self.folder,
                env=self.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # as on a machine of its own
            )

    def _flwr(self, *arguments):
        command = subprocess.Popen(
            [TOOLS / "flwr", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.commands.append(command)
        return command


def finished(process, timeout):
    """Wait for a process, and return its output."""
    output, _ = process.communicate(timeout=timeout)
    if process.returncode:
        raise RuntimeError(f"{' '.join(map(str, process.args[1:]))} failed:\n{output[SHOWN]}")
    return output


def family(pid):
    """A process and all its descendants."""
    listing = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = [tuple(map(int, line.split())) for line in listing.stdout.splitlines()]
    found = [pid]
    for parent in found:  # grows as it goes
        found += [child for child, its_parent in pairs if its_parent == parent]
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def make_certificates(folder):
    """A local certificate authority, ca.pem, and the server's certificate, valid for two days."""
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedpca loopback authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    for path, owner, holder, extensions in (
        ("ca.pem", issuer, authority, [(x509.BasicConstraints(ca=True, path_length=0), True), (signs, True)]),
        ("server.pem", subject, server, [(x509.SubjectAlternativeName(names), False)]),
    ):
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder(issuer, owner, holder.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(holder.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
            )
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        certificate = builder.sign(authority, hashes.SHA384())
        (folder / path).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    write_private(folder / "server.key", server, serialization.PrivateFormat.PKCS8)


def make_key(path):
    """A node's private key and, next to it, the public key to register with the SuperLink."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public + b"\n")


def write_private(path, key, form):
    contents = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(contents)


HOSPITALS = {"north": 4000, "south": 2500, "east": 3500, "west": 1800, "center": 5200}
NAMES = ("age", "weight", "systolic", "glucose", "creatinine", "platelets", "crp", "albumin")
TYPICAL = np.array([55.0, 75.0, 130.0, 6.0, 0.09, 250e9, 8.0, 42.0])
SPREAD = np.array([17.0, 15.0, 18.0, 1.8, 0.03, 70e9, 9.0, 5.0])
PROMISE = {"epsilon": 2.0, "delta": 1e-6}


def write_tables(home):
    """A table per hospital, in the units of its laboratory."""
    shared = np.random.default_rng(0).normal(size=(2, 8)) * [[0.9], [0.6]]
    for number, (name, people) in enumerate(HOSPITALS.items()):
        rng = np.random.default_rng([1, number])
        rows = rng.normal(size=(people, 2)) @ shared + 0.5 * rng.normal(size=(people, 8))
        lines = [",".join(NAMES), *(",".join(f"{x:.6g}" for x in row) for row in TYPICAL + SPREAD * rows)]
        (home / f"{name}.csv").write_text("\n".join(lines) + "\n")


def main():
    people = sum(HOSPITALS.values())
    print(fedpca.plan(Privacy(**PROMISE), len(NAMES), people, n_components=2, owners=5, scale="std"))
    with tempfile.TemporaryDirectory(prefix="fedpca-flower-") as home:
        home = Path(home)
        write_tables(home)
        with Deployment(home / "deployment") as deployment:
            print(f"SuperLink at {deployment.address}, with TLS and node authentication")
            deployment.register(*HOSPITALS)
            for name in HOSPITALS:
                config = {"client-id": name, "source": str(home / f"{name}.csv")} | PROMISE
                deployment.start_node(name, config)
            folder = home / "federation"
            settings = {"rank": 2, "scale": "std", "expect": 5, "quorum": 5, "deadline": 900.0} | PROMISE
            deployment.run(folder=str(folder), **settings)
        print((folder / "summary.json").read_text())
        model = fedpca.load(folder / "model.safetensors")
        print(model)
        print(json.dumps(model.certificate.to_json(), indent=2))


if __name__ == "__main__":
    main()
