"""fedpca simulate: a federation with faults, compared with one without."""

from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpca._util.text import pluralize
from fedpca.cli.common import (
    AsJson,
    Columns,
    Drop,
    Force,
    MaxShare,
    NumericOnly,
    Reading,
    Robust,
    check_output_path,
    parse_names,
    print_result,
    progress_bars,
    reading_options,
)

if TYPE_CHECKING:
    from fedpca._typing import RowsLike
    from fedpca.federation.one_process.simulate import Simulation
    from fedpca.readers import RowReader


class Scale(StrEnum):
    """What columns are divided by."""

    STD = "std"
    BINOMIAL = "binomial"


@reading_options
def simulate(
    path: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Files, folders or glob patterns with the rows of all clients. By default ten clients have "
            "one of the handwritten digits each.",
        ),
    ] = None,
    client: Annotated[
        str | None, typer.Option(metavar="NAME", help="The client id column; required with PATH.")
    ] = None,
    components: Annotated[
        int | None,
        typer.Option("--components", "-n", metavar="N", min=1, help="Components; by default at most 10."),
    ] = None,
    columns: Columns = None,
    drop: Drop = None,
    numeric_only: NumericOnly = False,
    scale: Annotated[
        Scale | None,
        typer.Option(
            help="What to divide every column by: std, its standard deviation over all clients, or binomial, "
            "sqrt(2p(1-p)) of counts of an allele. By default nothing."
        ),
    ] = None,
    batches: Annotated[int, typer.Option(metavar="N", min=1, help="Batches per client.")] = 5,
    fanout: Annotated[int, typer.Option(metavar="N", min=2, help="Clients per region.")] = 8,
    stragglers: Annotated[float, typer.Option(metavar="SHARE", help="Share of slow clients.")] = 0.2,
    late: Annotated[float, typer.Option(metavar="SHARE", help="Share of clients that join late.")] = 0.2,
    dropouts: Annotated[float, typer.Option(metavar="SHARE", help="Share of clients that drop out.")] = 0.0,
    duplicates: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of messages that arrive twice.")
    ] = 0.2,
    crashes: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of messages after which an aggregator crashes.")
    ] = 0.1,
    robust: Robust = None,
    max_share: MaxShare = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed.")] = 0,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A report to write, as in report.html; it shows rows.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
    *,
    reading: Reading,
) -> None:
    """Simulate a federation with faults, and compare its model with that of one without.

    Example:

    ```
    fedpca simulate 'year-*.parquet' --client site --drop id --stragglers 0.3 --dropouts 0.1
    ```
    """
    if bool(path) != bool(client):
        raise typer.BadParameter("PATH and --client, the client id column, must be given together.")
    from fedpca.federation.aggregator.robust import Robust as RobustMerging

    rule = RobustMerging.of(robust and robust.value, max_share)
    settings: dict[str, Any] = {"fanout": fanout, "robust": rule}
    if report is not None:
        check_output_path(report, force)

    from fedpca.federation.one_process.simulate import Faults
    from fedpca.federation.one_process.simulate import simulate as run_simulation
    from fedpca.metrics import affinity

    faults = Faults(stragglers, late, dropouts, duplicates, crashes, seed)
    rows: RowReader | None = None
    if path and client:
        from fedpca.readers import open_rows

        rows = open_rows(
            path,
            columns=parse_names(columns),
            drop=parse_names(drop) or (),
            numeric_only=numeric_only,
            passthrough=[client],
            **reading,
        )
        owners = _owners(rows, batches)
    else:
        owners = _digits(batches)
    n_features = next(iter(owners.values()))[0].shape[1]
    components = components or min(10, n_features)
    with progress_bars(), nullcontext() if rows is None else rows.naming_infinity():
        settings["scale"] = None if scale is None else scale.value
        faulty = run_simulation(owners, components, faults=faults, **settings)
        reference = run_simulation(owners, components, **settings)
    if report is not None:
        _report(report, faulty, owners)
    same = faulty.model == reference.model
    data = {
        "clients": len(owners),
        "messages": len(faulty.timeline),
        "without_effect": sum(not delivery.changed for delivery in faulty.timeline),
        "crashes": faulty.crashes,
        "dropped_out": list(faulty.dropped_out),
        "rows": faulty.model.count,
        "explained": float(faulty.model.explained_variance_ratio.sum()),
        "same_as_without_faults": same,
        "affinity_with_that": affinity(faulty.model, reference.model),
        "report": None if report is None else str(report),
    }
    text = (
        f"{pluralize(len(owners), 'client')} sent {pluralize(len(faulty.timeline), 'message')}, "
        f"{data['without_effect']} of them late or duplicate; aggregators crashed "
        f"{pluralize(faulty.crashes, 'time')}, {pluralize(len(faulty.dropped_out), 'client')} dropped out.\n"
        f"{faulty.model!r}\nWithout faults the model is "
        + ("the same, bit for bit." if same else f"different: affinity {data['affinity_with_that']:.4f}.")
        + ("" if report is None else f"\nOpen in a browser: {report}")
    )
    print_result(data, as_json, text)


def _report(path: Path, faulty: "Simulation", owners: "dict[str, list[RowsLike]]") -> None:
    import numpy as np

    from fedpca.report import write_report

    rows = np.concatenate([batch for batches in owners.values() for batch in batches])
    clients = [name for name, batches in owners.items() for batch in batches for _ in batch]
    write_report(path, faulty.model, rows=rows, color=clients, run=faulty, title="A simulated federation")


def _digits(batches: int) -> "dict[str, list[RowsLike]]":
    """Ten owners of handwritten digits, each of one digit only."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    return {f"{digit}": np.array_split(digits.data[digits.target == digit], batches) for digit in range(10)}


def _owners(rows: "RowReader", batches: int) -> "dict[str, list[RowsLike]]":
    """The rows of each owner, whose ids are the passthrough column, in batches."""
    import numpy as np

    from fedpca.backend import dense

    [client] = rows.passthrough
    parts: dict[str, list[RowsLike]] = {}
    for batch in rows.batches():
        owner = np.array([str(name) for name in batch.passthrough[client]])
        for name in np.unique(owner):
            parts.setdefault(str(name), []).append(dense(batch.rows[owner == name]))
    split = {name: np.array_split(np.concatenate(own), batches) for name, own in parts.items()}
    return {name: [batch for batch in own if len(batch)] for name, own in split.items()}
