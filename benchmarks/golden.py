"""Golden results: does a change of the code leave the numbers as they were?

python -m benchmarks.golden record FOLDER             # computes the groups of benchmarks/golden_groups.py
python -m benchmarks.golden compare FOLDER            # computes them again, and says what differs
python -m benchmarks.golden compare FOLDER merges cli # some groups

Numbers are compared to 1e-12 of the largest of their array, everything else exactly. The exit status is 0
only if every case ran and is the same; what cannot run, or is on one side only, is named. Private noise is
drawn from fixed keys, the first of a case, the second, and so on: draws that did not change compare exactly.

Two checkouts are compared in folders of their own, each with its copy of this program and of the groups:

    git worktree add ../before COMMIT
    (cd ../before && PYTHONPATH=src python -m benchmarks.golden record /tmp/golden)
    PYTHONPATH=src python -m benchmarks.golden compare /tmp/golden

Results are for one machine and one set of libraries, which round alike. They are not kept in the repository.
Sums in another order change most results by 1e-15, but those of float32 rows by up to 1e-7, and those of rows
with gaps, which are filled in rounds that end at a tolerance, by up to 1e-7 as well.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import secrets
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import golden_groups
from benchmarks.common import table

# Far above what the order of a sum changes (about 1e-15), far below what any approximation does.
TOLERANCE = 1e-12
SHOWN = 8  # differences of a case that are printed
_ALL = "all cases"

Results = dict[str, dict[str, Any]]  # of a group: the values of every case, by case and name


# --- computing ---


@contextmanager
def fixed_keys(name: str) -> Iterator[None]:
    """Keys of noise that depend on their number within a case, as the tests have them."""
    token_bytes, token_hex, serial = secrets.token_bytes, secrets.token_hex, count()

    def key(size: int = 32) -> bytes:
        return hashlib.shake_256(f"{name} {next(serial)}".encode()).digest(size)

    def hexadecimal(size: int = 32) -> str:
        return key(size).hex() if size == 32 else token_hex(size)  # shorter ones are identifiers

    secrets.token_bytes, secrets.token_hex = key, hexadecimal  # type: ignore[assignment]
    try:
        yield
    finally:
        secrets.token_bytes, secrets.token_hex = token_bytes, token_hex


def computed(group: golden_groups.Group) -> Results:
    """The values of every case, or why it cannot run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice; what is computed shows what it is about
        try:
            cases = group()
        except Exception as error:  # such as a name that is not there any more
            return {_ALL: _cannot_run(error)}
        results = {}
        for name, case in cases.items():
            try:
                with fixed_keys(name):
                    results[name] = dict(_values("", case()))
            except Exception as error:
                results[name] = _cannot_run(error)
        return results


def _cannot_run(error: Exception) -> dict[str, Any]:
    return {"cannot run": f"{type(error).__name__}: {error}"}


def _values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Arrays of floats and plain facts, by the names of where they are."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _values(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, list | tuple):
        if value and all(isinstance(entry, float) for entry in value):
            yield from _values(name, np.array(value))
        else:
            yield from _values(name, dict(enumerate(value)) | {"length": len(value)})
    elif isinstance(value, float | np.floating | np.ndarray):
        array = np.asarray(value)
        entries = array.astype(np.float64) if array.dtype.kind == "f" else array
        # A float and an array without dimensions are the same: types of numbers are no promise.
        dtype = str(array.dtype) if array.ndim else array.dtype.kind
        yield name, {"dtype": dtype, "shape": list(array.shape), "values": entries.ravel().tolist()}
    elif value is None or isinstance(value, str | bool | int):
        yield name, value
    elif isinstance(value, np.integer | np.bool_):
        yield name, value.item()
    else:
        raise TypeError(f"{name} is a {type(value).__name__}: a case must give numbers and facts.")


# --- comparing ---


def difference(before: Any, now: Any) -> float:
    """The largest difference of numbers as a share of their size; 0 of equal facts, inf of others."""
    if not (isinstance(before, dict) and isinstance(now, dict)) or before["dtype"] != now["dtype"]:
        return 0.0 if before == now else np.inf
    if before["shape"] != now["shape"]:
        return np.inf
    if before["values"] == now["values"] or not before["dtype"].startswith("f"):
        return 0.0 if before["values"] == now["values"] else np.inf
    old, new = np.array(before["values"]), np.array(now["values"])
    finite = np.isfinite(old)
    if not np.array_equal(old[~finite], new[~finite], equal_nan=True):
        return np.inf
    size = np.abs(old[finite]).max(initial=0.0)
    distance = float(np.abs((old - new)[finite]).max(initial=0.0))
    return distance / size if size else (np.inf if distance else 0.0)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, float]:
    """Of two results of a case: what differs by more than rounding, and by how much."""
    missing = before.keys() ^ now.keys()
    found = dict.fromkeys(sorted(missing), np.inf)
    found |= {name: difference(value, now[name]) for name, value in before.items() if name in now}
    return {name: size for name, size in found.items() if not size <= TOLERANCE}


def compared(before: Results, now: Results) -> list[str]:
    """One line for everything of a group that is not the same."""
    lines = []
    for case in [_ALL] if _ALL in now else sorted(before.keys() | now.keys()):
        if _ALL in now:
            lines.append(f"{case}: cannot run here: {now[case]['cannot run']}")
        elif case not in now or case not in before:
            lines.append(f"{case}: only {'recorded' if case in before else 'here'}")
        elif "cannot run" in now[case] or "cannot run" in before[case]:
            where = "here" if "cannot run" in now[case] else "when recorded"
            reason = now[case].get("cannot run") or before[case]["cannot run"]
            lines.append(f"{case}: cannot run {where}: {reason}")
        else:
            found = differences(before[case], now[case])
            lines += [
                f"{case}: {name} {_in_words(size, before[case], now[case], name)}"
                for name, size in list(found.items())[:SHOWN]
            ]
            if len(found) > SHOWN:
                lines.append(f"{case}: and {len(found) - SHOWN} more values differ")
    return lines


def _in_words(size: float, before: Mapping[str, Any], now: Mapping[str, Any], name: str) -> str:
    if np.isfinite(size):
        return f"differs by {size:.1e} of its size"
    old, new = (_shown(values[name]) if name in values else "nothing" for values in (before, now))
    return f"was {old}, is {new}"


def _shown(value: Any) -> str:
    if not isinstance(value, dict):
        return f"{value!r:.200}"
    return f"{value['dtype']} of shape {value['shape']}, {value['values']!r:.80}"


# --- the command ---


def record(folder: Path, names: Sequence[str]) -> bool:
    """Write one file per group; whether all of it could run."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, problems = [], []
    for name in names:
        before = os.times()
        results = computed(golden_groups.GROUPS[name])
        (folder / f"{name}.json").write_text(json.dumps(results))
        lacking = [f"{case}: cannot run: {values['cannot run']}"
                   for case, values in results.items() if "cannot run" in values]  # fmt: skip
        rows.append([name, str(len(results)), str(len(lacking)), _seconds(before)])
        problems += [f"{name}: {line}" for line in lacking]
    table(["group", "cases", "cannot run", "CPU s"], rows)
    print("\n".join(problems))
    return not problems


def compare(folder: Path, names: Sequence[str]) -> bool:
    """Compute the groups again; whether all is as it was recorded."""
    rows, problems = [], []
    for name in names:
        before, path = os.times(), folder / f"{name}.json"
        results = computed(golden_groups.GROUPS[name])
        recorded = json.loads(path.read_text()) if path.exists() else {}
        # Through JSON as well, in which facts have fewer types.
        lines = compared(recorded, json.loads(json.dumps(results)))
        changed = len({line.split(":")[0] for line in lines})
        rows.append([name, str(len(results)), str(changed), _seconds(before)])
        problems += [f"{name}: {line}" for line in lines]
    table(["group", "cases", "not the same", "CPU s"], rows)
    print("\n".join(problems) or "All is the same.")
    return not problems


def _seconds(before: os.times_result) -> str:
    """CPU seconds since then, of this process and those it started."""
    return f"{sum(os.times()[:4]) - sum(before[:4]):.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("groups", nargs="*", metavar="group", help="all if none is given")
    given = parser.parse_args(arguments)
    known = golden_groups.GROUPS
    names = given.groups or list(known)
    if unknown := set(names) - set(known):
        parser.error(f"groups are {', '.join(known)}, got {', '.join(sorted(unknown))}.")
    if given.action == "record":
        return 0 if record(given.folder, names) else 1
    if not given.folder.is_dir():
        parser.error(f"{given.folder} is no folder; record results in it first.")
    same = compare(given.folder, names)
    gone = [] if given.groups else sorted({path.stem for path in given.folder.glob("*.json")} - set(known))
    for name in gone:
        print(f"{name}: recorded, and no group here")
    return 0 if same and not gone else 1


if __name__ == "__main__":
    sys.exit(main())
