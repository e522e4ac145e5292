"""fedpca simulate, new-federation, datasets: to try things out, and to start from."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpca.cli.common import AsJson, Force, bars, must_be_free, names, say, some

if TYPE_CHECKING:
    from fedpca.federation.simulate import Simulation


def simulate(
    path: Annotated[list[str] | None, typer.Argument(metavar="PATH...")] = None,
    client: Annotated[str | None, typer.Option(help="The column that says whose a row is.")] = None,
    components: Annotated[
        int | None, typer.Option(min=1, help="Of the model; by default at most 10.")
    ] = None,
    drop: Annotated[str | None, typer.Option(help="Names of columns to leave out.")] = None,
    batches: Annotated[int, typer.Option(min=1, help="In how many batches a client learns and tells.")] = 5,
    fanout: Annotated[int, typer.Option(min=2, help="Clients a region.")] = 8,
    stragglers: Annotated[float, typer.Option(help="Share of clients that are slow.")] = 0.2,
    late: Annotated[float, typer.Option(help="Share of clients that join late.")] = 0.2,
    dropouts: Annotated[float, typer.Option(help="Share of clients that fall silent.")] = 0.0,
    duplicates: Annotated[float, typer.Option(help="Share of messages that come twice.")] = 0.2,
    crashes: Annotated[float, typer.Option(help="Share of messages after which an aggregator dies.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of all that goes wrong.")] = 0,
    report: Annotated[
        Path | None, typer.Option(help="Write a page about it, as in report.html; rows are shown in it.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Run a federation in which things go wrong.

    Its model is compared with that of one in which nothing does. PATH holds rows of all clients, with a
    column that says whose they are; without it, ten clients have one of the handwritten digits each.
    """
    if bool(path) != bool(client):
        raise typer.BadParameter(
            "files of rows and --client, the column that says whose a row is, go together."
        )
    if report is not None:
        must_be_free(report, force)

    from fedpca.federation.simulate import Faults
    from fedpca.federation.simulate import simulate as simulated
    from fedpca.metrics import affinity

    faults = Faults(stragglers, late, dropouts, duplicates, crashes, seed)
    owners = _owners(path, client, names(drop) or [], batches) if path and client else _digits(batches)
    n_features = next(iter(owners.values()))[0].shape[1]
    components = components or min(10, n_features)
    with bars():
        stormy = simulated(owners, components, faults=faults, fanout=fanout)
        calm = simulated(owners, components, fanout=fanout)
    if report is not None:
        _report(report, stormy, owners)
    same = stormy.model == calm.model
    facts = {
        "clients": len(owners),
        "messages": len(stormy.timeline),
        "without_effect": sum(not delivery.changed for delivery in stormy.timeline),
        "crashes": stormy.crashes,
        "dropped_out": list(stormy.dropped_out),
        "rows": stormy.model.count,
        "explained": float(stormy.model.explained_variance_ratio.sum()),
        "same_as_without_faults": same,
        "affinity_with_that": affinity(stormy.model, calm.model),
        "report": None if report is None else str(report),
    }
    text = (
        f"{some(len(owners), 'client')} sent {some(len(stormy.timeline), 'message')}, "
        f"{facts['without_effect']} of them late or twice; {some(stormy.crashes, 'time')} an aggregator was "
        f"killed, {some(len(stormy.dropped_out), 'client')} fell silent.\n"
        f"{stormy.model!r}\nWithout all this the model is "
        + ("the same, bit for bit." if same else f"another: affinity {facts['affinity_with_that']:.4f}.")
        + ("" if report is None else f"\nOpen in a browser: {report}")
    )
    say(facts, as_json, text)


def _report(path: Path, stormy: "Simulation", owners: dict[str, list[Any]]) -> None:
    import numpy as np

    from fedpca.report import write_report

    rows = np.concatenate([batch for batches in owners.values() for batch in batches])
    whose = [name for name, batches in owners.items() for batch in batches for _ in batch]
    write_report(path, stormy.model, rows=rows, color=whose, run=stormy, title="A simulated federation")


def _digits(batches: int) -> dict[str, list[Any]]:
    """Ten owners of handwritten digits, each of one digit only."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    return {f"{digit}": np.array_split(digits.data[digits.target == digit], batches) for digit in range(10)}


def _owners(path: list[str], client: str, drop: list[str], batches: int) -> dict[str, list[Any]]:
    """The rows of each owner, in batches."""
    import numpy as np

    from fedpca.backend import dense
    from fedpca.readers import open_rows

    parts: dict[str, list[Any]] = {}
    for rows, aside in open_rows(path, drop=drop, aside=[client]).batches():
        owner = np.array([str(name) for name in aside[client]])
        for name in np.unique(owner):
            parts.setdefault(str(name), []).append(dense(rows[owner == name]))
    split = {name: np.array_split(np.concatenate(rows), batches) for name, rows in parts.items()}
    return {name: [batch for batch in rows if len(batch)] for name, rows in split.items()}


def new_federation(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
) -> None:
    """Write a folder to start a Flower federation from.

    DIR is new, or empty.
    """
    from fedpca.federation.flower.scaffold import write_template

    write_template(folder)
    typer.echo(f"{folder}: read its README.md")


def datasets(as_json: AsJson = False) -> None:
    """List the datasets that `fedpca.datasets.load` knows."""
    from fedpca.datasets import names as known

    say({"datasets": list(known())}, as_json, "\n".join(known()))
