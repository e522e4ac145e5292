"""Models as ONNX graphs: scores of rows wherever an ONNX runtime runs, without fedpca."""

import json
import os
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedpca._typing import Array
from fedpca._util.extras import require
from fedpca._util.files import atomic_write, local_path
from fedpca._util.version import __version__
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary
from fedpca.writers.exported import exported

if TYPE_CHECKING:
    from fedpca.estimators.base import BasePCA

_OPSET, _IR = 13, 8  # of 2020 and 2021: old runtimes read them, too
_MAX_BYTES = 2**31 - 2**20  # of a protobuf message, some of it for names

Dtype = Literal["float32", "float64"]


def write_onnx(
    model: "Summary | BasePCA",
    path: str | os.PathLike[str],
    *,
    n_components: int | None = None,
    whiten: bool | None = None,
    dtype: Dtype = "float32",
) -> None:
    """Write a model as an ONNX graph from rows, shape (n, d), to scores, shape (n, n_components).

    The graph is that of `transform`: subtract the mean, divide by the scale if there is one, multiply by the
    components, and whiten if that is wanted. Its input is called `rows` and its output `scores`; any number
    of rows is taken at once. A missing value (NaN) makes all scores of its row NaN: the graph imputes none.
    Metadata of the file are `fedpca_version`, `feature_names` (a JSON list, if the model has names),
    `explained_variance_ratio` (a JSON list) and, of a private model, its `certificate` (JSON).

    Args:
        model: a fitted estimator, or a summary such as `fedpca.load` gives.
        path: the file to write.
        n_components: how many components; None for those that an estimator shows, or all of a summary.
        whiten: divide scores by their standard deviations; None for what an estimator does, else False.
        dtype: of rows, scores and arithmetic.

    >>> import fedpca, onnxruntime, pathlib, tempfile
    >>> rows = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    >>> pca = fedpca.StreamingPCA(2).fit(rows)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.onnx"
    >>> write_onnx(pca, path)
    >>> scores, = onnxruntime.InferenceSession(path).run(None, {"rows": rows})
    >>> bool(np.allclose(scores, pca.transform(rows), atol=1e-5))
    True
    """
    onnx = require("onnx", extra="onnx", purpose="exporting a model")
    path = local_path(path)
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype must be 'float32' or 'float64', got {dtype!r}.")
    kept, deviations = exported(model, n_components, whiten)
    if kept.components.size * np.dtype(dtype).itemsize > _MAX_BYTES:
        raise ValueError(
            f"an ONNX file must be smaller than 2 GB, too small for {kept.rank} components of "
            f"{kept.n_features} features; export fewer components."
        )
    steps: list[tuple[str, str, Array]] = []
    if kept.centered:
        steps.append(("Sub", "mean", kept.mean if kept.scale is None else kept.mean * kept.scale))
    if kept.scale is not None:
        steps.append(("Div", "scale", kept.scale))
    steps.append(("MatMul", "components", kept.components.T))
    if deviations is not None:
        steps.append(("Div", "deviations", deviations))
    graph = _graph(onnx, [(operator, name, _cast(name, values, dtype)) for operator, name, values in steps])
    made = onnx.helper.make_model(
        graph,
        producer_name="fedpca",
        producer_version=__version__,
        ir_version=_IR,
        opset_imports=[onnx.helper.make_opsetid("", _OPSET)],
    )
    onnx.helper.set_model_props(made, _metadata(kept))
    with atomic_write(path) as temporary:
        temporary.write_bytes(made.SerializeToString())


def _graph(onnx: Any, steps: list[tuple[str, str, Array]]) -> Any:
    """A graph that applies operators with constants, one after the other."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(steps[0][2].dtype)
    outputs = [f"after_{name}" for _, name, _ in steps[:-1]] + ["scores"]
    nodes = [
        onnx.helper.make_node(operator, [before, name], [after])
        for (operator, name, _), before, after in zip(steps, ["rows", *outputs], outputs, strict=False)
    ]
    (components,) = (values for _, name, values in steps if name == "components")
    ends = [
        onnx.helper.make_tensor_value_info(name, kind, ["n", size])
        for name, size in zip(("rows", "scores"), components.shape, strict=True)
    ]
    constants = [onnx.numpy_helper.from_array(values, name) for _, name, values in steps]
    return onnx.helper.make_graph(nodes, "pca", ends[:1], ends[1:], constants)


def _cast(name: str, values: Array, dtype: Dtype) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        cast = np.ascontiguousarray(values, dtype)
    divides = name in ("scale", "deviations")
    if not np.isfinite(cast).all() or (divides and not cast.all()):
        raise ValueError(f"the {name} of the model must fit dtype={dtype!r}; export with dtype='float64'.")
    return cast


def _metadata(model: Subspace) -> dict[str, str]:
    facts = {
        "feature_names": None if model.feature_names is None else list(model.feature_names),
        "explained_variance_ratio": model.explained_variance_ratio.tolist(),
        "certificate": None if model.certificate is None else model.certificate.to_json(),
    }
    written = {name: json.dumps(fact) for name, fact in facts.items() if fact is not None}
    return {"fedpca_version": __version__} | written
