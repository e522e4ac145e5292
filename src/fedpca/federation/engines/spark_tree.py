"""A tree of Spark tasks: every partition gives a result, and results merge on the executors.

Results travel as rows: the bytes of a model file, or the error of rows that cannot be fitted. Of our own,
Spark pickles functions by name and plain values only.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from fedpca.federation.engines.partitions import NO_ROWS, Failure, Model
from fedpca.federation.engines.private_parts import PartSum
from fedpca.parallel import single_threaded_blas
from fedpca.summaries import model_file
from fedpca.summaries.loading import from_file, scaling_from_file
from fedpca.summaries.scaling import Scaling

_SCHEMA = "node long, contents binary, error string, text string"
_MANY = 4096  # partitions that there are levels enough for: how many there are is not known
_LACKING = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_ERRORS = {error.__name__: error for error in (TypeError, ValueError)}

Leaf = Callable[[Iterator[Any], int], Any]
"""Arrow batches of a partition and its number in, its result out."""

Merge = Callable[[Sequence[Any]], Any]
"""Results of several in, that of all out."""


def reduced(frame: Any, leaf: Leaf, inner: Merge, root: Merge, fanout: int) -> tuple[Any, str]:
    """The result of all partitions of a DataFrame, merged `fanout` at a time, and the text of a `Model`.

    Raises:
        ValueError, TypeError: what a task gave as a `Failure`; there were no rows.
    """
    from pyspark.sql import functions

    nodes, left = frame.mapInArrow(partial(_leaf_task, leaf=leaf), _SCHEMA), _MANY
    while left > fanout:
        parent = functions.expr(f"node div {fanout}").alias("parent")
        nodes = nodes.groupBy(parent).applyInArrow(_node(inner, fanout), _SCHEMA)
        left = -(-left // fanout)
    found = _collected(nodes.groupBy().applyInArrow(_node(root, None), _SCHEMA))
    if not found:
        raise ValueError(NO_ROWS)
    result = _decoded(found[0].contents, found[0].error)
    if isinstance(result, Failure):
        raise result.error
    return result, found[0].text


def _collected(frame: Any) -> list[Any]:
    from pyspark.errors import PySparkException

    try:
        rows: list[Any] = frame.collect()
        return rows
    except PySparkException as error:
        if (lacking := _LACKING.search(str(error))) is None:
            raise
        module = lacking[1]
    raise ModuleNotFoundError(
        f"Spark's executors must have fedpca and what it imports, and one has no {module!r}: set "
        "PYSPARK_PYTHON to a Python with 'fedpca[spark]', or ship an environment with spark.archives.",
        name=module,
    )


def _leaf_task(batches: Iterator[Any], *, leaf: Leaf) -> Iterator[Any]:
    """The task of a partition."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    with single_threaded_blas():
        result = leaf(batches, context.partitionId())
    yield from _encoded(context.partitionId(), result).to_batches()


def _node(merge: Merge, fanout: int | None) -> Callable[[Any], Any]:
    """The function of a node, without annotations: Spark 4.3 fails at those of a partial function."""
    return lambda table: _merge_task(table, merge, fanout)


def _merge_task(table: Any, merge: Merge, fanout: int | None) -> Any:
    """The task of a node: results in the order of their numbers, so that every run rounds alike."""
    rows = table.select(["node", "contents", "error"]).sort_by("node").to_pylist()
    with single_threaded_blas():
        result = merge([_decoded(row["contents"], row["error"]) for row in rows])
    return _encoded(0 if fanout is None else rows[0]["node"] // fanout, result)


def _encoded(node: int, result: Any) -> Any:
    """A table of one row, or none for no result."""
    import pyarrow as pa

    text, error, contents = "", None, None
    if isinstance(result, Model):
        result, text = result
    if isinstance(result, Failure):
        error = f"{type(result.error).__name__}: {result.error}"
    elif result is not None:
        contents = model_file.encode(result.kind, result.arrays, result.metadata)
    fields = {"node": pa.int64(), "contents": pa.binary(), "error": pa.string(), "text": pa.string()}
    row = {"node": node, "contents": contents, "error": error, "text": text}
    return pa.Table.from_pylist([] if result is None else [row], pa.schema(list(fields.items())))


def _decoded(contents: bytes | None, error: str | None) -> Any:
    if error is not None:
        name, _, message = error.partition(": ")
        return Failure(_ERRORS.get(name, ValueError)(message))
    assert contents is not None
    name = "the result of a task"
    kind, arrays, metadata = model_file.decode(bytes(contents), name)
    if kind == PartSum.kind:
        return PartSum(arrays["values"], metadata["n_rows"])
    if kind == Scaling.kind:
        return scaling_from_file(name, arrays, metadata)
    return from_file(name, kind, arrays, metadata)
