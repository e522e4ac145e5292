"""Whose rows are whose: the names of clients, and which of them have rows that can be read more than once."""

from collections.abc import Hashable, Iterable, Mapping

import numpy as np
from scipy import sparse

from fedpca._typing import AnyArray, RowsLike
from fedpca._util.text import join_names
from fedpca.federation.aggregator.message import child_name


def named(clients: Iterable[object]) -> dict[str, int]:
    """The names of clients, as text, and their positions."""
    names: dict[str, int] = {}
    for i, client in enumerate(clients):
        name = child_name(str(client), "the name of a client")
        if names.setdefault(name, i) != i:
            raise ValueError(
                f"clients must have different names, and two are called {name!r}; rename one of them."
            )
    return names


def distinct(groups: AnyArray) -> tuple[list[Hashable], AnyArray]:
    """The distinct groups, and the position among them of the group of every row."""
    mixed = groups.dtype.kind == "O"
    missing = np.flatnonzero([_is_missing(group) for group in groups] if mixed else groups != groups)
    if len(missing):
        raise ValueError(
            f"groups must name the client of every row, and {len(missing)} of {len(groups)} have none, the "
            f"first at index {missing[0]}; name their client, or leave these rows out."
        )
    if not mixed:
        found, members = np.unique(groups, return_inverse=True)
        return list(found), members
    positions: dict[Hashable, int] = {}  # groups of several types cannot be sorted
    members = np.array([positions.setdefault(group, len(positions)) for group in groups])
    return list(positions), members


def _is_missing(group: object) -> bool:
    try:
        return group is None or bool(group != group)
    except TypeError:  # pandas.NA has no truth
        return True


def is_table(rows: RowsLike) -> bool:
    """Whether these are rows, and not batches of rows, which are read once."""
    return sparse.issparse(rows) or getattr(rows, "ndim", None) == 2 or hasattr(rows, "columns")


def streams(clients: Mapping[str, RowsLike]) -> str:
    """The names of the clients whose rows are read once, as text; "" if there are none."""
    return join_names([repr(name) for name, rows in clients.items() if not is_table(rows)], 4)
