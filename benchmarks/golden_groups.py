"""The cases of `benchmarks.golden`: what users compute by public names, on small seeded rows.

A group gives its cases by name, each a function of nothing that gives numbers and facts. Components are given
by the projection on them, independent of signs. Where a public name changes, it is changed here in one place:
`summary_values`, `pca_values`, `private_pca` or the group. Names of fedpca are looked up when a group runs:
one that is not there stops that group alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from scipy import sparse

import fedpca
from benchmarks.common import power_law
from reproduction.exact import Array

Case = Callable[[], Any]
Group = Callable[[], dict[str, Case]]

FEW, MANY = 12, 300  # features: of the exact tracker, and of the others where "auto" chooses


def rows_of(n_rows: int = 400, n_features: int = FEW, seed: int = 0, dtype: str = "float64") -> Array:
    """Rows of decaying variance about a mean, those of each seed about another."""
    return power_law(n_rows, n_features, seed=seed, dtype=dtype)


def with_gaps(rows: Array, share: float = 0.1) -> Array:
    holes = np.random.default_rng(1).uniform(size=rows.shape) < share
    return np.where(holes, np.nan, rows)


def names_of(n_features: int) -> list[str]:
    return [f"sensor {number}" for number in range(n_features)]


# --- what is reported ---


def along(directions: Array) -> Array:
    """Fixed vectors projected on directions, the first of which weigh more: their order shows, no sign."""
    probes = np.random.default_rng(2).normal(size=(4, directions.shape[1]))
    weights = np.arange(len(directions), 0, -1.0)
    return (probes @ directions.T * weights) @ directions


def summary_values(summary: Any, rank: int = 4) -> dict[str, Any]:
    """Everything a summary states."""
    probes = np.random.default_rng(2).normal(size=(4, summary.n_features))
    values = {
        "kind": summary.kind.capitalize(),
        "count": summary.count,
        "total": summary.total,
        "centered": summary.centered,
        "mean": summary.mean,
        "names": summary.feature_names and list(summary.feature_names),
        "scatter": probes @ summary.scatter,
        "observed": summary.observed,
        "scale": summary.scale,
        "parts": [summary_values(part, rank) for part in summary.parts],
    }
    if summary.certificate is not None:
        values["certificate"] = certificate_values(summary.certificate)
    leading = summary.subspace(min(rank, summary.n_features))
    return values | {
        "directions": along(leading.components),
        "singular values": leading.singular_values,
        "dtype": str(leading.components.dtype),
    }


# Different in every run, or with every version.
_IDENTIFIERS = {"time", "fedpca", "release", "stream", "id", "study", "session", "format"}


def without_identifiers(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {key: inner for key, inner in value.items() if key not in _IDENTIFIERS}
        if isinstance(kept.get("ledger"), str):
            del kept["ledger"]
        return {key: without_identifiers(inner) for key, inner in kept.items()}
    if isinstance(value, list | tuple):
        return [without_identifiers(inner) for inner in value]
    return value


def certificate_values(certificate: Any) -> Any:
    return without_identifiers(certificate.to_json())


def pca_values(pca: Any) -> dict[str, Any]:
    """Everything a fitted estimator reports."""
    values = {
        name: getattr(pca, f"{name}_")
        for name in (
            "n_components",
            "n_samples_seen",
            "explained_variance",
            "explained_variance_ratio",
            "singular_values",
            "mean",
            "scale",
            "noise_variance",
        )
    }
    values["var"] = getattr(pca, "var_", None)
    values["directions"] = along(pca.components_)
    values["dtype"] = str(pca.components_.dtype)
    values["subspace"] = summary_values(pca.subspace_)
    if hasattr(pca, "summary_"):
        values["summary"] = summary_values(pca.summary_)
    return values


def influence_values(found: Mapping[str, Any]) -> dict[str, Any]:
    """The influence of every child; of angles the cosine, as angles near zero are rounding (of 1e-8)."""
    values = {name: asdict(each) for name, each in found.items()}
    for each in values.values():
        each["angle"] = None if each["angle"] is None else float(np.cos(each["angle"]))
    return values


# --- groups ---


def streamed(
    rows: Any,
    n_components: Any = 4,
    weights: Array | None = None,
    cuts: Iterable[int] = (1, 60, 250),
    **settings: Any,
) -> fedpca.StreamingPCA:
    """A fit of batches of several sizes."""
    pca, edges = fedpca.StreamingPCA(n_components, **settings), [0, *cuts, rows.shape[0]]
    for start, stop in pairwise(edges):
        pca.partial_fit(rows[start:stop], sample_weight=None if weights is None else weights[start:stop])
    return pca


def streams() -> dict[str, Case]:
    """Every tracker, with every setting of a stream."""
    cases: dict[str, Case] = {}
    weights = np.random.default_rng(3).uniform(0.5, 3.0, 400)
    trackers = {"auto": MANY, "auto, few": FEW, "exact": 40, "nystrom": MANY, "block": 40}
    for name, n_features in trackers.items():
        rows = rows_of(n_features=n_features)
        late = rows.copy()
        late[:250, 3] = np.nan
        units = np.linspace(0.5, 3.0, n_features)
        variants: dict[str, tuple[Any, dict[str, Any]]] = {
            "plain": (rows, {}),
            "float32": (rows.astype("float32"), {}),
            "sparse": (sparse.csr_array(np.where(np.abs(rows) > 0.3, rows, 0.0)), {}),
            "weights": (rows, {"weights": weights}),
            "forget": (rows, {"forget": 0.9}),
            "gaps": (with_gaps(rows), {"cuts": (60, 250)}),
            "late feature": (late, {"cuts": (60, 250)}),
            "scale": (rows * units, {"scale": "std", "cuts": (60, 250)}),
            "numbers": (rows * units, {"scale": units}),
            "uncentered": (rows, {"center": False}),
            "share": (rows, {"n_components": 0.8}),
            "energy": (rows, {"energy": fedpca.EnergyBand(0.02, 0.12)}),
        }
        tracker = name.split(",")[0]
        for variant, (table, settings) in variants.items():
            cases[f"{name}, {variant}"] = partial(_stream, table, tracker=tracker, **settings)
        cases[f"{name}, fit"] = partial(_fit, rows, tracker=tracker)
        cases[f"{name}, fit scaled"] = partial(_fit, rows * units, tracker=tracker, scale="std")
    cases["counts of an allele"] = partial(
        _fit, np.random.default_rng(4).binomial(2, 0.3, (300, 20)).astype(float), scale="binomial"
    )
    cases["row by row"] = _row_by_row
    cases["merged"] = lambda: pca_values(
        streamed(rows_of()).merge(streamed(rows_of(seed=1)), fedpca.Subspace.from_rows(rows_of(seed=2), 6))
    )
    return cases


def _stream(rows: Any, **settings: Any) -> Any:
    return pca_values(streamed(rows, **settings))


def _fit(rows: Any, **settings: Any) -> Any:
    return pca_values(fedpca.StreamingPCA(4, **settings).fit(rows))


def _row_by_row() -> Any:
    pca = fedpca.StreamingPCA(3)
    for row in rows_of(50):
        pca.learn_one(dict(zip(names_of(FEW), row.tolist(), strict=True)))
    return pca_values(pca)


def merges() -> dict[str, Case]:
    """Summaries of owners of different sizes, merged."""
    tables = [rows_of(size, seed=seed) for seed, size in enumerate((200, 90, 40, 300, 7))]
    names, units = names_of(FEW), np.linspace(0.5, 3.0, FEW)
    moments = [fedpca.Moments.from_rows(rows) for rows in tables]
    subspaces = [fedpca.Subspace.from_rows(rows) for rows in tables]
    narrow = [fedpca.Subspace.from_rows(rows, 5) for rows in tables]
    missing = [streamed_with_unknown(rows, column).summary_ for column, rows in enumerate(tables[:4])]
    columns = [list(range(FEW)), [3, 1, 0, 5, 7, 2], [0, 1, 2, 3, 5, 8]]
    named = [
        fedpca.Moments.from_rows(rows[:, chosen]).with_about(names=[names[column] for column in chosen])
        for rows, chosen in zip(tables, columns, strict=False)
    ]

    def merged(summaries: Any, *arguments: Any, **options: Any) -> Case:
        return lambda: summary_values(fedpca.merge(summaries, *arguments, **options))

    cases = {
        "moments": merged(moments),
        "moments, few directions": merged(moments, 4),
        "subspaces": merged(subspaces, 6),
        "truncated": merged(narrow, 4),
        "mixed": merged([*moments[:2], *narrow[2:]], 6),
        "forgetting": merged(narrow, 4, forget=0.8),
        "forgetting moments": merged(moments, forget=0.8),
        "uncentered": merged([fedpca.Moments.from_rows(rows, center=False) for rows in tables]),
        "scaled moments": merged(
            [fedpca.Moments.from_rows(rows * units, scale="std") for rows in tables[:4]]
        ),
        "scaled, directions": merged(
            [fedpca.Moments.from_rows(rows * units, scale="std") for rows in tables[:4]], 4
        ),
        "scaled subspaces": merged([fedpca.Subspace.from_rows(rows, 6, scale=units) for rows in tables], 5),
        "weights": merged(
            [fedpca.Moments.from_rows(rows, sample_weight=np.arange(1.0, 1 + len(rows))) for rows in tables]
        ),
        "intersection": merged(named, features="intersection"),
        "intersection of subspaces": merged([part.subspace() for part in named], 4, features="intersection"),
        "features that some miss": merged(missing),
        "and subspaces": merged([part.subspace() for part in missing], 5),
        "float32": merged([fedpca.Subspace.from_rows(rows.astype("float32"), 6) for rows in tables], 4),
        "tree": lambda: summary_values(fedpca.merge_tree(narrow, 4, fanout=2)),
        "weighted": lambda: summary_values(narrow[0].scaled(0.5)),
        "fewer directions": lambda: summary_values(subspaces[0].truncate(3)),
        "scaling": lambda: _scaling_values(
            fedpca.Scaling.merge([fedpca.Scaling.from_rows(rows) for rows in tables])
        ),
    }
    for robust in ("cap", "median", "trim"):
        cases[f"robust: {robust}"] = partial(
            _robust, robust, [*moments, fedpca.Moments.from_rows(tables[0] * 50)]
        )
        cases[f"robust: {robust}, subspaces"] = partial(_robust, robust, narrow)
    return cases


def streamed_with_unknown(rows: Array, column: int) -> fedpca.StreamingPCA:
    rows = rows.copy()
    rows[:, column] = np.nan
    return fedpca.StreamingPCA(4).fit(rows)


def _robust(robust: Any, summaries: Any) -> Any:
    aggregator = fedpca.Aggregator(4, robust=robust)
    for number, summary in enumerate(summaries):
        aggregator.receive(f"{number}", 1, summary)
    return summary_values(aggregator.model())


def _scaling_values(scaling: fedpca.Scaling) -> Any:
    return {"observed": scaling.observed, "mean": scaling.mean, "variance": scaling.variance}


def windows() -> dict[str, Case]:
    """The latest rows only."""
    rows = rows_of(900)
    start = datetime(2024, 1, 1)
    times = np.array([start + timedelta(minutes=int(minute)) for minute in range(900)], dtype="datetime64[s]")

    def of_rows(rows: Array = rows, **settings: Any) -> Any:
        pca = fedpca.WindowedPCA(4, window=300, **settings)
        for part in np.array_split(rows, 11):
            pca.partial_fit(part)
        return pca_values(pca)

    def of_time() -> Any:
        pca = fedpca.WindowedPCA(4, window=timedelta(hours=4))
        for part in np.array_split(np.arange(900), 7):
            pca.partial_fit(rows[part], timestamps=times[part])
        return pca_values(pca)

    return {
        "rows": of_rows,
        "scaled": partial(of_rows, rows * np.linspace(1, 9, FEW), scale="std"),
        "gaps": partial(of_rows, with_gaps(rows)),
        "many features": partial(of_rows, rows_of(900, MANY)),
        "time": of_time,
    }


def scores() -> dict[str, Case]:
    """What is computed for rows."""
    units = np.linspace(1, 9, FEW)
    new = rows_of(80, seed=5)

    def scored(rows: Array, shown: Array, shrinkage: Any = None, **settings: Any) -> Any:
        pca = fedpca.StreamingPCA(4, **settings).fit(rows)
        found = pca.transform(shown, shrinkage=shrinkage)
        spe, t2 = pca.anomaly_scores(shown)
        probes = np.random.default_rng(2).normal(size=(4, rows.shape[1]))
        return {
            "scores": np.abs(found),
            "rows": pca.inverse_transform(found),
            "spe": spe,
            "t2": t2,
            "limits": list(pca.anomaly_limits()),
            "likelihood": pca.score_samples(shown),
            "covariance": probes @ pca.get_covariance(),
        }

    return {
        "plain": partial(scored, rows_of(), new),
        "float32": partial(scored, rows_of(dtype="float32"), new.astype("float32")),
        "gaps": partial(scored, with_gaps(rows_of()), with_gaps(new)),
        "scaled": partial(scored, rows_of() * units, new * units, scale="std"),
        "whitened": partial(scored, rows_of(), new, whiten=True),
        "shrunk": partial(scored, rows_of(), new, shrinkage="asymptotic"),
        "many features": partial(scored, rows_of(n_features=MANY), rows_of(80, MANY, seed=5)),
        "sparse": partial(scored, rows_of(), sparse.csr_array(np.where(np.abs(new) > 0.3, new, 0.0))),
        "metrics": lambda: {
            "captured": fedpca.metrics.captured_variance(fedpca.Subspace.from_rows(rows_of(), 3), new),
            "angles": fedpca.metrics.principal_angles(
                fedpca.Subspace.from_rows(rows_of(), 3), fedpca.Subspace.from_rows(new, 3)
            ),
        },
    }


def private_pca(n_components: int | None = 3, *, scale: Any = None, **settings: Any) -> Any:
    """The estimator of private releases: the one place that knows its name and settings."""
    return fedpca.PrivatePCA(n_components, scale=scale, **private_settings(**settings).settings)


def private_settings(**settings: Any) -> fedpca.Privacy:
    return fedpca.Privacy(**{"epsilon": 4.0, "delta": 1e-5} | settings)


def private() -> dict[str, Case]:
    """Private releases of one owner."""
    rows, units = rows_of(3000), np.linspace(1, 9, FEW)
    center = np.zeros(FEW)

    def fitted(rows: Array = rows, n_components: int | None = 3, **settings: Any) -> Any:
        pca = private_pca(n_components, **settings).fit(rows)
        return pca_values(pca) | {"spent": pca.ledger_.spent()}

    def released(**settings: Any) -> Any:
        pca, found = private_pca(**settings), []
        for part in np.array_split(rows, 3):
            pca.partial_fit(part)
            found.append(summary_values(pca.release()))
        return [*found, pca.ledger_.spent()]

    return {
        "gram": fitted,
        "gram, float32": partial(fitted, rows.astype("float32")),
        "all components": partial(fitted, n_components=None),
        "public bound": partial(fitted, bound=3.0),
        "public bound and center": partial(fitted, bound=3.0, center=center),
        "no center": partial(fitted, bound=3.0, center=None),
        "pairs": partial(fitted, center="pairs"),
        "sphere": partial(fitted, bound="sphere"),
        "few rows": partial(fitted, rows[:300]),
        "other neighbors": partial(fitted, adjacency="zero-out"),
        "not evaluated": partial(fitted, evaluate=False),
        "private scale": partial(fitted, rows * units, scale="std"),
        "public scale": partial(fitted, rows * units, scale=units),
        "gaps": partial(fitted, with_gaps(rows)),
        "sketch": partial(fitted, mechanism="sketch"),
        "sketch, public bound and center": partial(fitted, mechanism="sketch", bound=3.0, center=center),
        "sketch, private scale": partial(fitted, rows * units, mechanism="sketch", scale="std"),
        "many features": partial(fitted, rows_of(2000, MANY)),
        "sketch, many features": partial(fitted, rows_of(2000, MANY), mechanism="sketch"),
        "releases": partial(released, bound=3.0, center=center, releases=3),
        "releases, private center": partial(released, releases=3),
        "releases, sketch": partial(released, bound=3.0, center=None, releases=3, mechanism="sketch"),
        "merged": lambda: summary_values(
            fedpca.merge(
                [
                    private_pca(bound=3.0, center=center).fit(part).release()
                    for part in np.array_split(rows, 3)
                ]
            )
        ),
    }


def plans() -> dict[str, Case]:
    """What a private release will be like."""

    def planned(n_features: int = 30, *arguments: Any, privacy: Any = (), **options: Any) -> Any:
        plan = fedpca.plan(private_settings(**dict(privacy)), n_features, *arguments, **options)
        names = (
            "mu",
            "sensitivity",
            "sigma",
            "noise_edge",
            "rows_needed",
            "components_found",
            "affinity",
            "captured",
        )
        return {name: getattr(plan, name) for name in names}

    return {
        "default": partial(planned, 30, 5000, n_components=3),
        "no rows": planned,
        "spectrum": partial(planned, 30, 5000, [4.0, 2.0, 1.0], n_components=3, privacy={"bound": 3.0}),
        "typical": partial(planned, 30, 5000, typical=2.0, privacy={"bound": 3.0}),
        "owners": partial(planned, 30, 5000, owners=5),
        "scaled": partial(planned, 30, 5000, scale="std"),
        "sketch": partial(planned, 600, 5000, privacy={"mechanism": "sketch"}),
        "releases": partial(planned, 30, 5000, privacy={"releases": 4}),
        "secure": partial(planned, 30, 5000, owners=6, secure=fedpca.SecureSums()),
    }


def clients_of(count: int = 5, n_rows: int = 300) -> dict[str, Array]:
    return {f"client {seed}": rows_of(n_rows + 20 * seed, seed=seed) for seed in range(count)}


def federated_values(pca: fedpca.FederatedPCA) -> Any:
    return pca_values(pca) | {
        "contributions": {name: asdict(part) for name, part in pca.contributions_.items()},
        "influence": influence_values(pca.influence_),
    }


def federated() -> dict[str, Case]:
    """Many owners in one process; one thread, so that keys are drawn in one order."""
    clients, units = clients_of(), np.linspace(1, 9, FEW)
    wide = {name: rows_of(200, MANY, seed=seed) for seed, name in enumerate(clients)}

    def fitted(clients: Mapping[str, Array] = clients, **settings: Any) -> Any:
        return federated_values(fedpca.FederatedPCA(4, n_jobs=1, **settings).fit_clients(clients))

    def of_frames() -> Any:
        import pandas as pd

        frames = {
            name: pd.DataFrame(rows, columns=names_of(FEW)).iloc[:, number:]
            for number, (name, rows) in enumerate(clients.items())
        }
        return fitted(frames, features="intersection")

    return {
        "plain": fitted,
        "groups": lambda: federated_values(
            fedpca.FederatedPCA(4, n_jobs=1).fit(clients["client 0"], groups=np.arange(300) % 4)
        ),
        "scaled": partial(fitted, {name: rows * units for name, rows in clients.items()}, scale="std"),
        "many features": partial(fitted, wide),
        "many features, scaled": partial(fitted, wide, scale="std"),
        "gaps": partial(fitted, {name: with_gaps(rows) for name, rows in clients.items()}),
        "trim": partial(fitted, clients | {"liar": clients["client 0"] * 40}, robust="trim"),
        "median": partial(fitted, robust="median"),
        "intersection": of_frames,
        "private": partial(fitted, privacy=private_settings()),
        "private, scaled": partial(fitted, privacy=private_settings(), scale="std"),
        "private, public bound": partial(
            fitted, privacy=private_settings(bound=3.0, center=np.zeros(FEW), evaluate=False)
        ),
        "private sketch": partial(fitted, privacy=private_settings(mechanism="sketch")),
    }


def secure() -> dict[str, Case]:
    """Secure sums."""
    clients = clients_of(4)

    def fitted(secure: fedpca.SecureSums, **settings: Any) -> Any:
        return federated_values(
            fedpca.FederatedPCA(3, n_jobs=1, secure=secure, **settings).fit_clients(clients)
        )

    return {
        "plain": partial(fitted, fedpca.SecureSums(largest=16.0)),
        "scaled": partial(fitted, fedpca.SecureSums(largest=16.0), scale="std"),
        "private": partial(fitted, fedpca.SecureSums(), privacy=private_settings()),
        "private, scaled": partial(fitted, fedpca.SecureSums(), privacy=private_settings(), scale="std"),
        "private sketch": partial(fitted, fedpca.SecureSums(), privacy=private_settings(mechanism="sketch")),
    }


def folders() -> dict[str, Case]:
    """Publishing to a folder, collecting from it, and aggregators."""
    from fedpca.federation import Limits, Robust
    from fedpca.federation.folder import collect, collect_scaling, publish

    clients = clients_of()

    def aggregated(summaries: Mapping[str, Any], withdrawn: str = "", **settings: Any) -> Any:
        with tempfile.TemporaryDirectory() as place:
            shared, store = Path(place) / "shared", Path(place) / "store"
            shared.mkdir()
            files = [Path(publish(shared, name, 2, each)).name for name, each in summaries.items()]
            publish(
                shared, "client 0", 1, fedpca.Moments.from_rows(clients["client 1"])
            )  # older: not collected
            with fedpca.Aggregator(4, store=store, **settings) as aggregator:
                skipped = len(collect(shared, aggregator))
                if withdrawn:
                    aggregator.withdraw(withdrawn)
                influence = influence_values(aggregator.influence())
                children = {name: asdict(each) for name, each in aggregator.children.items()}
            restarted = fedpca.Aggregator(4, store=store, **settings)
            return {
                "files": files,
                "skipped": skipped,
                "influence": influence,
                "children": children,
                "model": summary_values(restarted.model()),
                "summary": summary_values(restarted.summary()),
            }

    def scaled() -> Any:
        with tempfile.TemporaryDirectory() as shared:
            for name, rows in clients.items():
                publish(shared, name, 1, fedpca.Scaling.from_rows(rows))
            found = collect_scaling(shared)
            return {"owners": list(found.owners)} | _scaling_values(found.scaling)

    moments = {name: fedpca.Moments.from_rows(rows) for name, rows in clients.items()}
    subspaces = {name: fedpca.Subspace.from_rows(rows, 6) for name, rows in clients.items()}
    many = {f"{seed:02}": fedpca.Subspace.from_rows(rows_of(40, seed=seed), 5) for seed in range(30)}
    expected = fedpca.Subspace.empty(3).with_about(names=["b", "c", "a"])
    named = {
        name: fedpca.Moments.from_rows(rows[:, :4]).with_about(names=["a", "b", "c", "d"])
        for name, rows in clients.items()
    }
    return {
        "moments": partial(aggregated, moments),
        "subspaces": partial(aggregated, subspaces),
        "many": partial(aggregated, many),
        "one left": partial(aggregated, moments, withdrawn="client 2"),
        "trim": partial(aggregated, subspaces, robust="trim"),
        "cap": partial(aggregated, moments, robust=Robust("cap", 0.3)),
        "limits": partial(aggregated, moments, limits=Limits(least_rows=320)),
        "intersection": partial(aggregated, named, expected=expected, features="intersection"),
        "scalings": scaled,
    }


def model_files() -> dict[str, Case]:
    """Model files: their tensors and facts, and what is read from them."""
    rows = rows_of()

    def saved(summary: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            summary.save(path)
            with safe_open(path, "np") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
                facts = json.loads(json.loads(file.metadata()["fedpca"])["facts"])
            loaded = fedpca.load(path)
        shapes = {name: f"{array.dtype} {array.shape}" for name, array in sorted(tensors.items())}
        values = {name: np.abs(array) for name, array in tensors.items()}
        read = _scaling_values(loaded) if isinstance(loaded, fedpca.Scaling) else summary_values(loaded)
        return {"tensors": shapes, "values": values, "facts": without_identifiers(facts), "read": read}

    named = fedpca.Subspace.from_rows(rows, 4).with_about(names=names_of(FEW))
    units = np.linspace(1, 9, FEW)
    unknown = fedpca.merge([streamed_with_unknown(rows, column).summary_ for column in (0, 1)])
    return {
        "subspace": lambda: saved(fedpca.Subspace.from_rows(rows, 4)),
        "float32": lambda: saved(fedpca.Subspace.from_rows(rows.astype("float32"), 4)),
        "names": lambda: saved(named),
        "moments": lambda: saved(fedpca.Moments.from_rows(rows)),
        "scaled by numbers": lambda: saved(fedpca.Subspace.from_rows(rows, 4, scale=units)),
        "scaled moments": lambda: saved(fedpca.Moments.from_rows(rows, scale="std")),
        "parts": lambda: saved(unknown),
        "private": lambda: saved(private_pca().fit(rows_of(3000)).release()),
        "private sketch": lambda: saved(private_pca(mechanism="sketch").fit(rows_of(3000)).release()),
    }


def commands() -> dict[str, Case]:
    """The command line on small CSV files: what it prints and writes. One case per command, in order."""
    place = tempfile.TemporaryDirectory()
    folder = Path(place.name)
    columns = ["id", *(f"x{number}" for number in range(6))]
    for seed, owner in enumerate(("north", "south", "west")):
        rows = rows_of(120, 6, seed=seed) * [1, 2, 3, 4, 5, 6]
        lines = [",".join([f"{owner}-{i}", *map(repr, row.tolist())]) for i, row in enumerate(rows)]
        (folder / f"{owner}.csv").write_text("\n".join([",".join(columns), *lines]) + "\n")
    source = Path(fedpca.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": f"{source}", "NO_COLOR": "1", "COLUMNS": "100"}
    environment.pop("FORCE_COLOR", None)

    def run(line: str, *, out: str = "") -> Any:
        """A command; what it prints, as numbers if it is JSON; and what it writes, if that is named."""
        assert place  # the folder is there as long as the cases are
        command = [sys.executable, "-m", "fedpca", *line.split()]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        printed = without_identifiers(json.loads(done.stdout)) if "--json" in line else done.stdout
        values = {"status": done.returncode, "printed": printed, "errors": done.stderr}
        if out.endswith(".csv"):
            header, *lines = (folder / out).read_text().splitlines()
            numbers = np.array([[float(cell) for cell in each.split(",")[1:]] for each in lines])
            values |= {"header": header, "numbers": np.abs(numbers)}
        elif out:
            values |= {"model": summary_values(fedpca.load(folder / out))}
        return values

    def case(line: str, out: str = "") -> tuple[str, Case]:
        return line, partial(run, line, out=out)

    private = "--epsilon 2 --delta 1e-6 --features 30 --rows 5000 -n 3"
    return dict(
        [
            case("fit north.csv --drop id -n 3 -o north.safetensors", "north.safetensors"),
            case("fit south.csv --drop id -n 3 -o south.safetensors", "south.safetensors"),
            case("fit west.csv --columns x0,x1,x2,x3 -n 0.9 -o west.safetensors", "west.safetensors"),
            case("fit north.csv --drop id --scale std -n 3 -o scaled.safetensors", "scaled.safetensors"),
            case(
                "fit north.csv south.csv --drop id -n 2 --tracker nystrom -o two.safetensors",
                "two.safetensors",
            ),
            case("inspect north.safetensors"),
            case("inspect scaled.safetensors --json"),
            case("merge north.safetensors south.safetensors -o both.safetensors", "both.safetensors"),
            case("merge north.safetensors west.safetensors -o no.safetensors"),
            case(
                "merge north.safetensors west.safetensors --features intersection -o common.safetensors",
                "common.safetensors",
            ),
            case("transform both.safetensors north.csv --keep id -o scores.csv", "scores.csv"),
            case(
                "transform both.safetensors north.csv --keep id --scores spe,t2 -o unusual.csv", "unusual.csv"
            ),
            case(f"plan {private}"),
            case(f"plan {private} --scale std --owners 3 --json"),
            case("check north.safetensors --rows north.csv"),
            case("check both.safetensors --json"),
        ]
    )


GROUPS: dict[str, Group] = {
    "streams": streams,
    "merges": merges,
    "windows": windows,
    "scores": scores,
    "private": private,
    "plans": plans,
    "federated": federated,
    "secure": secure,
    "folders": folders,
    "model_files": model_files,
    "commands": commands,
}
