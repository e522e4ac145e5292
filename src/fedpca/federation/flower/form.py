"""Form: what a release must be like, so that those of others go with it.

The first release that an aggregator accepts decides on the form of all, so only one of the form that the run
requests may be the first.
"""

from collections.abc import Mapping
from typing import Any

from fedpca._typing import Array
from fedpca.errors import NodeError
from fedpca.federation.flower.exchanges import needs_scaling
from fedpca.privacy.clipping import Clipping
from fedpca.privacy.model import PrivateModel
from fedpca.summaries.agreement import check_same_center
from fedpca.summaries.scaling import same_scale
from fedpca.summaries.summary import Summary
from fedpca.trust.agreement import of_summary, require_agreed


def check_form(request: Mapping[str, Any], summary: Summary) -> None:
    """Raise a NodeError for a summary that is not centered or scaled as a run requests."""
    wanted = {name: request[name] for name in ("center", "scale")}
    remedy = "fit it as the run requests, or run for what it is"
    require_agreed(wanted, of_summary(summary), "the run", remedy, error=NodeError)


def check_common(
    request: Mapping[str, Any],
    summary: Summary,
    scale: Array | None,
    machine: PrivateModel | None,
    *,
    is_first: bool,
) -> None:
    """Raise for a release without what nodes of the run have in common: scale, and how rows are clipped.

    Args:
        request: see `Node.reply`.
        summary: of the form of the run.
        scale: what was found of rows without privacy, if anything was.
        machine: of the private steps so far, if there are any.
        is_first: whether there is no release yet; others that have a scale of their own decide.
    """
    is_private = "epsilon" in request
    if is_private and machine is not None:
        if machine.found is not None:
            _check_clipping(machine.clipping, summary)
            scale = machine.clipping.public_scale
        elif is_first:
            raise ValueError("a release must be made with what nodes find privately, which is not found yet.")
    if request["scale"] == "none":
        return
    if scale is not None:
        if not same_scale(scale, summary.scale):
            raise ValueError("a release must have the scale that was found by all nodes, got another one.")
        return
    has_own = not is_private and not needs_scaling(summary.n_features, request["rank"])
    if is_first and not (has_own and isinstance(summary.scale, str)):
        rule = "the scale of its own rows" if has_own else "the scale of all nodes, which is not found yet"
        raise ValueError(f"a release of {summary.n_features} features must have {rule}.")


def _check_clipping(found: Clipping, summary: Summary) -> None:
    """Refuse rows that were clipped in another way than was found, or to length one about another center."""
    kind = summary.certificate and (summary.certificate.clipping or "ball")
    if kind != found.kind:
        raise ValueError(f"its rows must be clipped as was found by all nodes, {found.kind}, got {kind}.")
    if kind == "sphere" and found.center_of_rows is not None:
        check_same_center(found.center_of_rows, summary.mean)
