"""fedpca simulate: a federation with faults, compared with one without."""

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from cyclopts import Parameter

from fedpca._typing import JSON, RowsLike
from fedpca._util.text import pluralize
from fedpca.backend import dense
from fedpca.cli.options import (
    INTEGER,
    Components,
    File,
    Force,
    Output,
    Text,
    WrongUsage,
    at_least,
    check_output_path,
)
from fedpca.cli.reading import Reading, Table
from fedpca.cli.robust import RobustMerging
from fedpca.metrics import affinity
from fedpca.readers import RowReader

if TYPE_CHECKING:
    from fedpca.federation.one_process.simulate import Simulation

Share = Annotated[float, Parameter(metavar="SHARE")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Faulty:
    """What goes wrong."""

    stragglers: Share = 0.2
    """Share of slow clients."""
    late: Share = 0.2
    """Share of clients that join late."""
    dropouts: Share = 0.0
    """Share of clients that drop out."""
    duplicates: Share = 0.2
    """Share of messages that arrive twice."""
    crashes: Share = 0.1
    """Share of messages after which an aggregator crashes."""
    seed: Annotated[int, INTEGER] = 0
    """Random seed."""


def simulate(
    path: Annotated[list[str] | None, Parameter(name="PATH")] = None,
    /,
    *,
    client: Text | None = None,
    components: Components | None = None,
    table: Table = Table(),
    scale: Literal["std", "binomial"] | None = None,
    batches: Annotated[int, at_least(1)] = 5,
    fanout: Annotated[int, at_least(2)] = 8,
    faulty: Faulty = Faulty(),
    robust: RobustMerging = RobustMerging(),
    report: File | None = None,
    force: Force = False,
    output: Output = Output(),
    reading: Reading = Reading(),
) -> None:
    """Simulate a federation with faults, and compare its model with that of one without.

    For example:

    ```
    fedpca simulate 'year-*.parquet' --client site --drop id --stragglers 0.3 --dropouts 0.1
    ```

    Args:
        path: Files, folders or glob patterns with the rows of all clients. By default ten clients have one of
            the handwritten digits each.
        client: The client id column; required with PATH.
        components: Components; by default at most 10.
        scale: What to divide every column by: std, its standard deviation over all clients, or binomial,
            sqrt(2p(1-p)) of counts of an allele. By default nothing.
        batches: Batches per client.
        fanout: Clients per region.
        report: A report to write, as in report.html; it shows rows.
    """
    if bool(path) != bool(client):
        raise WrongUsage("PATH and --client, the client id column, must be given together.")

    from fedpca.federation.one_process.simulate import Faults
    from fedpca.federation.one_process.simulate import simulate as run_simulation

    settings: dict[str, Any] = {"fanout": fanout, "scale": scale, "robust": robust.rule()}
    if report is not None:
        check_output_path(report, force)
    rows = table.open(path, reading, passthrough=[client]) if path and client else None
    owners = _digits(batches) if rows is None else _owners(rows, batches)
    components = components or min(10, next(iter(owners.values()))[0].shape[1])
    with output.progress(), nullcontext() if rows is None else rows.naming_infinity():
        found = run_simulation(owners, components, faults=Faults(**asdict(faulty)), **settings)
        reference = run_simulation(owners, components, **settings)
    if report is not None:
        _report(report, found, owners)
    data, text = _described(found, reference, len(owners))
    data["report"] = None if report is None else str(report)
    output.result(data, text + ("" if report is None else f"\nOpen in a browser: {report}"))


def _described(found: "Simulation", reference: "Simulation", n_clients: int) -> tuple[JSON, str]:
    """What happened, as JSON and as text."""
    same = found.model == reference.model
    data = {
        "clients": n_clients,
        "messages": len(found.timeline),
        "without_effect": sum(not delivery.changed for delivery in found.timeline),
        "crashes": found.crashes,
        "dropped_out": list(found.dropped_out),
        "rows": found.model.count,
        "explained": float(found.model.explained_variance_ratio.sum()),
        "same_as_without_faults": same,
        "affinity_with_that": affinity(found.model, reference.model),
    }
    text = (
        f"{pluralize(n_clients, 'client')} sent {pluralize(len(found.timeline), 'message')}, "
        f"{data['without_effect']} of them late or duplicate; aggregators crashed "
        f"{pluralize(found.crashes, 'time')}, {pluralize(len(found.dropped_out), 'client')} dropped out.\n"
        f"{found.model!r}\nWithout faults the model is "
        + ("the same, bit for bit." if same else f"different: affinity {data['affinity_with_that']:.4f}.")
    )
    return data, text


def _report(path: Path, faulty: "Simulation", owners: dict[str, list[RowsLike]]) -> None:

    from fedpca.report import write_report  # the extra "report", which other simulations do not need

    rows = np.concatenate([batch for batches in owners.values() for batch in batches])
    clients = [name for name, batches in owners.items() for batch in batches for _ in batch]
    write_report(path, faulty.model, rows=rows, color=clients, run=faulty, title="A simulated federation")


def _digits(batches: int) -> dict[str, list[RowsLike]]:
    """Ten owners of handwritten digits, each of one digit only."""
    from sklearn.datasets import load_digits  # half a second, which rows in files do not take

    digits = load_digits()
    return {f"{digit}": np.array_split(digits.data[digits.target == digit], batches) for digit in range(10)}


def _owners(rows: RowReader, batches: int) -> dict[str, list[RowsLike]]:
    """The rows of each owner, whose ids are the passthrough column, in batches."""
    [client] = rows.passthrough
    parts: dict[str, list[RowsLike]] = {}
    for batch in rows.batches():
        owner = np.array([str(name) for name in batch.passthrough[client]])
        for name in np.unique(owner):
            parts.setdefault(str(name), []).append(dense(batch.rows[owner == name]))
    split = {name: np.array_split(np.concatenate(own), batches) for name, own in parts.items()}
    return {name: [batch for batch in own if len(batch)] for name, own in split.items()}
