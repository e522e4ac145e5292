"""What a federation costs: the paper's experiment on binary trees, and very many clients.

    python -m benchmarks.federation           # 640,000 rows; 1,000,000 small clients; 10,000 with d = 1000
    python -m benchmarks.federation --quick   # 64,000 rows; 20,000 small clients; 1,000 with d = 1000

The paper's federated experiment: d = 1000, r = 10, one stream cut among 2 to 64 nodes, merged up a binary
tree. Rows are generated chunk by chunk and not timed. All nodes run one after the other on one core, so the
time of a node, and not of the whole, is what a federation of that many machines would wait for. (The paper
prints an "amortised" time, wall time divided by the number of nodes once more, and its labels of n are five
times too large.) CPU time, one BLAS thread.
"""

from __future__ import annotations

import resource
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.common import (
    Array,
    heading,
    machine,
    number,
    options,
    random_basis,
    table,
    tiny,
    verdict,
)

if TYPE_CHECKING:
    from fedpca import Aggregator, Subspace
    from fedpca.summaries.summary import Summary

D, RANK, CHUNK = 1000, 10, 1000
SMALL_D, SMALL_RANK, SMALL_ROWS, FANOUT = 64, 5, 20, 100
WIDE_ROWS, REGIONS = 50, 10
CHANGES_D = 100


class Stream:
    """Power-law rows, alpha = 1, about a mean, a chunk at a time; and the exact scatter of all of them."""

    def __init__(self, dtype: str) -> None:
        rng = np.random.default_rng(0)
        self.basis = random_basis(D, D, rng) * (np.arange(1.0, D + 1) ** -1)[:, None]
        self.mean = rng.standard_normal(D) / 10
        self.dtype = dtype

    def chunk(self, number: int) -> Array:
        rng = np.random.default_rng([1, number])
        latent = rng.standard_normal((CHUNK, D), dtype=np.float32)
        return (latent @ self.basis.astype(np.float32) + self.mean.astype(np.float32)).astype(self.dtype)


def paper(rows: int, dtype: str) -> None:
    from fedpca import StreamingPCA, merge_tree

    stream = Stream(dtype)
    chunks = rows // CHUNK
    lines = []
    worst = 0.0
    variances = np.sort(np.arange(1.0, D + 1) ** -2)[::-1]
    for depth in range(1, 7):
        nodes = 2**depth
        summaries, spent = [], []
        for node in range(nodes):
            pca, seconds = StreamingPCA(RANK), 0.0
            for part in range(node * chunks // nodes, (node + 1) * chunks // nodes):
                block = stream.chunk(part)
                started = time.process_time()
                pca.partial_fit(block)
                seconds += time.process_time() - started
            started = time.process_time()
            summaries.append(pca.subspace_)
            spent.append(seconds + time.process_time() - started)
        started = time.process_time()
        model = merge_tree(summaries, RANK, fanout=2)
        merging = time.process_time() - started
        energies = np.square(model.components.astype(float) @ stream.basis.T).sum()
        share = merging / sum(spent)
        worst = max(worst, share)
        lines.append(
            (
                str(nodes),
                number(sum(spent)),
                number(max(spent)),
                number(1e3 * merging),
                f"{share:.2%}",
                tiny(1 - energies / variances[:RANK].sum()),
            )
        )
    heading(f"The paper's experiment: d = {D}, r = {RANK}, {rows:,} rows, {dtype}")
    table(
        (
            "nodes",
            "PCA s, all nodes",
            "s, slowest node",
            "merging ms",
            "merging / PCA",
            "shortfall (of the law)",
        ),
        lines,
    )
    verdict(worst < 0.05, "aggregation adds less than 5 % to the clients' work", f"{worst:.2%} at most")


def many(clients: int) -> None:
    """Clients, leaves, regions, a root: what a leaf or region has told, it and its children are forgotten."""
    from fedpca import Aggregator, Subspace

    rng = np.random.default_rng(0)
    scale = np.arange(1.0, SMALL_D + 1) ** -1
    root, done, lines = Aggregator(SMALL_RANK), 0, []
    started = time.process_time()
    while done < clients:
        region = Aggregator(SMALL_RANK)
        for leaf_number in range(FANOUT):
            leaf = Aggregator(SMALL_RANK)
            for client in range(FANOUT):
                rows = rng.standard_normal((SMALL_ROWS, SMALL_D)) * scale
                leaf.receive(f"{client}", 0, Subspace.from_rows(rows, 2 * SMALL_RANK))
            region.receive(f"{leaf_number}", 0, leaf.summary())
        done += FANOUT**2
        root.receive(f"{len(root.children)}", 0, region.summary())
        if done * 4 % clients < 4 * FANOUT**2:
            seconds = time.process_time() - started
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            lines.append((f"{done:,}", f"{1e6 * seconds / done:.0f}", f"{memory:.0f}"))
    model = root.model()
    heading(f"{clients:,} clients of {SMALL_ROWS} rows, d = {SMALL_D}, r = {SMALL_RANK}, fanout {FANOUT}")
    table(("clients so far", "us a client", "most memory of the process so far, MB"), lines)
    variances = scale**2
    missing = 1 - float((np.square(model.components) @ variances).sum() / variances[:SMALL_RANK].sum())
    print(f"The model speaks for {model.count:,.0f} rows; shortfall {tiny(missing)}.\n")


def wide(most: int) -> None:
    """Leaves of 100 clients, a region for every few leaves, a root with ten regions: the regions grow."""
    from fedpca import Aggregator, Subspace

    rng = np.random.default_rng(0)
    scale = np.arange(1.0, D + 1) ** -1
    lines = []
    for leaves in sorted({1, most // FANOUT // REGIONS // 3 or 1, most // FANOUT // REGIONS}):
        clients = REGIONS * leaves * FANOUT
        regions, summarizing, merging = [], 0.0, 0.0
        for _ in range(REGIONS):
            region = Aggregator(RANK)
            for leaf_number in range(leaves):
                leaf = Aggregator(RANK)
                for client in range(FANOUT):
                    rows = rng.standard_normal((WIDE_ROWS, D)) * scale
                    started = time.process_time()
                    summary = Subspace.from_rows(rows, 2 * RANK)
                    received = time.process_time()
                    leaf.receive(f"{client}", 0, summary)
                    summarizing += received - started
                    merging += time.process_time() - received
                started = time.process_time()
                region.receive(f"{leaf_number}", 0, leaf.summary())
                merging += time.process_time() - started
            started = time.process_time()
            regions.append(region.summary())
            merging += time.process_time() - started
        tracemalloc.start()
        root = Aggregator(RANK)
        for place, summary in enumerate(regions):
            root.receive(f"{place}", 0, summary)
        model = root.model()
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        variances = scale**2
        missing = 1 - float((np.square(model.components) @ variances).sum() / variances[:RANK].sum())
        lines.append(
            (
                f"{clients:,}",
                number(1e3 * summarizing / clients),
                number(1e3 * merging / clients),
                number(held / 1e6),
                number(peak / 1e6),
                tiny(missing),
            )
        )
    heading(f"Clients of {WIDE_ROWS} rows, d = {D}, r = {RANK}, {FANOUT} a leaf, {REGIONS} regions")
    table(
        (
            "clients",
            "ms per client, its own summary",
            "ms per client, all aggregators",
            "root, MB",
            "root, peak MB",
            "shortfall (of the law)",
        ),
        lines,
    )


def changes(children: int) -> None:
    """What a message and a change cost an aggregator that has few children, and one that has many."""
    from fedpca import Aggregator, Moments, Privacy, PrivatePCA, Subspace

    rng = np.random.default_rng(0)
    tables = [rng.standard_normal((30, CHANGES_D)) * np.arange(1.0, CHANGES_D + 1) ** -1 for _ in range(100)]
    privacy = Privacy(2.0, 1e-5, 3.0, center=None, evaluate=False)
    release = PrivatePCA(SMALL_RANK, **privacy.settings).fit(np.concatenate(tables)).release()

    def summaries(kind: str) -> Callable[[int], Summary]:
        if kind == "subspaces":
            made: list[Summary] = [Subspace.from_rows(rows, 2 * SMALL_RANK) for rows in tables]
        elif kind == "moments":
            made = [Moments.from_rows(rows) for rows in tables]
        else:

            def private(i: int) -> Summary:
                certificate = release.certificate
                assert certificate is not None
                assert certificate.ledger is not None
                ledger = replace(certificate.ledger, id=f"{i}")
                return release.with_about(certificate=replace(certificate, stream=f"{i}", ledger=ledger))

            return private
        return lambda i: made[i % len(made)]

    lines, slower, longest = [], 0.0, 0.0
    for kind in ("subspaces", "moments", "private moments"):
        summary_of = summaries(kind)
        rule = privacy if kind.startswith("private") else None
        few, many = (Aggregator(SMALL_RANK, privacy=rule) for _ in range(2))
        for aggregator, number_of in ((few, 10), (many, children)):
            for child in range(number_of):
                aggregator.receive(f"{child}", 0, summary_of(child))
        receiving: dict[int, list[float]] = {0: [], 1: []}
        for version in range(1, 200):
            for which, aggregator in enumerate((few, many)):  # in turn: both meet the same machine
                summary = summary_of(children + version % 10)
                started = time.process_time()
                aggregator.receive(f"{version % 10}", version, summary)
                receiving[which].append(time.process_time() - started)
        started = time.process_time()
        many.model()
        whole = time.process_time() - started
        changed = []
        for number_of_change in range(10):
            many.receive(f"{number_of_change}", 1000, summary_of(children + number_of_change))
            changed.append(_model_seconds(many))
            many.receive(f"new {number_of_change}", 0, summary_of(2 * children + number_of_change))
            changed.append(_model_seconds(many))
            many.withdraw(f"{10 + number_of_change}")
            changed.append(_model_seconds(many))
        at_few, at_many = (float(np.median(receiving[which])) for which in (0, 1))
        slower, longest = max(slower, at_many / at_few), max(longest, float(np.median(changed)) / whole)
        lines.append(
            (
                kind,
                number(1e6 * at_few),
                number(1e6 * at_many),
                number(1e3 * whole),
                number(1e3 * float(np.median(changed))),
            )
        )
    heading(f"One message, and the model after it: d = {CHANGES_D}, r = {SMALL_RANK}, {children:,} children")
    table(
        (
            "summaries",
            "receive us, 10 children",
            f"receive us, {children:,}",
            "model ms, from scratch",
            "model ms, after one change",
        ),
        lines,
    )
    verdict(slower < 1.2, "receive takes at most 1.2 times as long", f"{slower:.2f} times at most")
    verdict(longest < 1 / 20, "a change costs at most 1/20 of all", f"1/{1 / longest:.0f} at most")


def influences(children: int) -> None:
    """What the influence of every child costs, in merges of all: both are timed in turn."""
    from fedpca import Aggregator, Moments, Subspace, merge_tree
    from fedpca.federation.aggregator.influence import influence, row_shares
    from fedpca.federation.aggregator.tree import MergeTree

    rng = np.random.default_rng(0)
    lines, longest = [], 0.0
    for kind, n_features in (("subspaces", D), ("moments", D // 4)):
        scale = np.arange(1.0, n_features + 1) ** -1
        summaries: dict[str, Summary] = {}
        for child in range(children):
            rows = (rng.standard_normal((WIDE_ROWS, n_features)) + 0.3 * rng.standard_normal()) * scale
            moments = kind == "moments"
            summaries[f"{child}"] = Moments.from_rows(rows) if moments else Subspace.from_rows(rows, 2 * RANK)
        merging, measuring = [], []
        for _ in range(3):
            tree = MergeTree(RANK, Aggregator().fanout)
            started = time.process_time()
            for child, summary in summaries.items():
                tree.set(child, summary)
            model = tree.merged().subspace(RANK)
            merged = time.process_time()
            found = influence(summaries, row_shares(summaries), tree, model)
            merging.append(merged - started)
            measuring.append(time.process_time() - merged)
        differences = []
        for child in list(summaries)[::200]:
            rest = [each for name, each in summaries.items() if name != child]
            differences.append(
                abs(float(found[child].angle or 0.0) / _angle(merge_tree(rest, 5 * RANK), model) - 1)
            )
        longest = max(longest, float(np.median(measuring)))
        lines.append(
            (
                kind,
                f"{n_features:,}",
                number(float(np.median(merging))),
                number(float(np.median(measuring))),
                f"{np.median(measuring) / np.median(merging):.1f}",
                tiny(max(differences)),
            )
        )
    heading(f"The influence of {children:,} children, r = {RANK}")
    table(
        ("summaries", "d", "merge s", "influence s", "in merges", "relative error of an angle, at most"),
        lines,
    )
    verdict(longest < 5, "the influence of all takes less than 5 s", f"{longest:.1f} s at most")


def _angle(others: Summary, model: Subspace) -> float:
    from fedpca.metrics import principal_angles

    return float(principal_angles(model, others.subspace(RANK)).max())


def _model_seconds(aggregator: Aggregator) -> float:
    started = time.process_time()
    aggregator.model()
    return time.process_time() - started


def main() -> None:
    arguments = options(__doc__, "fewer rows and clients").parse_args()
    print(f"# Federation\n\n{machine()}\n")
    changes(2_000 if arguments.quick else 10_000)
    influences(1_000)
    many(20_000 if arguments.quick else 1_000_000)
    wide(1_000 if arguments.quick else 10_000)
    for dtype in ("float32", "float64"):
        paper(64_000 if arguments.quick else 640_000, dtype)


if __name__ == "__main__":
    main()
