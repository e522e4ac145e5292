"""The ServerApp: exchanges with all nodes as they appear, until there is a model, and ends by a deadline."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import Any

from fedpca._typing import JSON
from fedpca._util.extras import require
from fedpca._util.files import atomic_write
from fedpca._util.locks import file_lock
from fedpca._util.text import pluralize, sanitize, utc_timestamp
from fedpca.federation.aggregator.admission import Limits
from fedpca.federation.aggregator.aggregator import Aggregator
from fedpca.federation.aggregator.robust import Robust
from fedpca.federation.flower.logs import show_in_flower
from fedpca.federation.flower.member import (
    check_settings,
    checked_successor,
    is_secure,
    run_settings,
    to_request,
)
from fedpca.federation.flower.request import NOTHING
from fedpca.federation.flower.secure_run import SecureRun
from fedpca.federation.flower.stopping import stoppable
from fedpca.federation.flower.study import Study
from fedpca.privacy import Privacy
from fedpca.secure import Terms
from fedpca.secure.study import fit_of
from fedpca.summaries import validation
from fedpca.summaries.subspace import Subspace
from fedpca.trust import Roster
from fedpca.trust.agreement import require_agreed
from fedpca.trust.roster import ANYONE

require("flwr", extra="flower", purpose="a Flower federation")
from flwr.app import Context  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402

app = ServerApp()
_ROSTER = "roster.toml"
_UNFINISHED = (
    "the run has not ended yet, or it was killed: if it is not running, see the log of the SuperLink, and "
    "run again. A model in this folder is that of an earlier run."
)
_log = logging.getLogger(__name__)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run with the settings of the run config."""
    show_in_flower()
    config = context.run_config
    folder = Path(str(config["folder"]))
    if not folder.is_absolute():
        raise ValueError(f"folder must be an absolute path on the server, got folder={config['folder']!r}.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with stoppable(), file_lock(folder / "lock", wait=False):
            run(grid, config, folder)
    except BlockingIOError as error:
        raise RuntimeError(
            f"another run writes to {folder}; wait for it, or choose another folder."
        ) from error


def run(grid: Grid, config: Mapping[str, object], folder: Path) -> None:
    """Request all releases, and write store/, model.safetensors and summary.json to the folder.

    With a roster its copy, roster.toml, is there, too: later runs must have it, or one that follows it.
    summary.json is written when the run begins, and again when it ends, however it ends: `finished` is null
    as long as it runs, and if it was killed. An old model of a run without one becomes
    model-previous.safetensors.
    """
    summary: JSON = {
        "started": utc_timestamp(),
        "finished": None,
        "model": None,
        "problem": _UNFINISHED,
        "warning": "",
        "rows": 0.0,
        "scale": None,
        "evaluation": None,
        "roster": None,
        "secure": None,
        "robust": _given(config["robust"]),
        "max_share": _given(config["max-share"]),
        "quorum": config["quorum"],
        "least_rows": config["least-rows"],
        "max_rows": _given(config["max-rows"]),
        "max_rms": _given(config["max-rms"]),
        "contributors": {},
        "quarantined": {},
        "replies": [],
        "no_reply": [],
    }
    _write(folder, summary)
    try:
        _run(grid, config, folder, summary)
    except BaseException as error:
        summary["problem"] = _reason(error)
        raise
    finally:
        if summary["model"] is None:
            _set_old_model_aside(folder, summary)
        _write(folder, summary | {"finished": utc_timestamp()})
    _log.info("fedpca: %s, %d rows, in %s", _contributors(summary), summary["rows"], folder)
    if summary["problem"]:
        raise RuntimeError(summary["problem"])


def _contributors(summary: JSON) -> str:
    """How many there are, in words."""
    if summary["secure"] is None:
        return pluralize(len(summary["contributors"]), "client")
    members = {owner for each in summary["secure"]["sums"] for owner in each["owners"]}
    return f"secure sums of {pluralize(len(members), 'member')}"


def _reason(error: BaseException) -> str:
    """Why a run ended before its end."""
    if isinstance(error, Exception):
        return sanitize(f"{type(error).__name__}: {error}", 500)
    return (  # a signal, or Flower's news that the run is no longer running
        f"the run was stopped ({sanitize(str(error) or type(error).__name__, 100)}). What it has accepted is "
        "kept: run again in this folder to go on."
    )


def _write(folder: Path, summary: Mapping[str, object]) -> None:
    with atomic_write(folder / "summary.json", owner_only=True) as temporary:
        temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def _set_old_model_aside(folder: Path, summary: JSON) -> None:
    """Rename the model of an earlier run; if that fails, the summary says so."""
    model = folder / "model.safetensors"
    try:
        if model.exists():
            model.replace(folder / "model-previous.safetensors")
    except OSError as error:
        old = f"{model.name} is that of an earlier run and could not be renamed: {error}"
        summary["problem"] = sanitize(f"{summary['problem']} {old}", 1000)


def _run(grid: Grid, config: Mapping[str, object], folder: Path, summary: JSON) -> None:
    """The run itself; enters what happens in the summary, as it happens."""
    quorum = validation.integer(config["quorum"], "quorum", at_least=1)
    aggregator, roster, request = _set_up(config, folder)
    if roster is None:
        summary["roster"] = ANYONE
        _log.warning("fedpca: %s", ANYONE)
    else:
        summary["roster"] = {"study": roster.study, "hash": roster.hash, "members": len(roster.members)}
        _log.info("fedpca: study %r, %d members, roster %s", roster.study, len(roster.members), roster.hash)
    with aggregator:
        aggregator.record()  # the model before: from then on the angles between models are known
        limits: JSON = {
            "deadline": _deadline(config["deadline"]),
            "expect": validation.integer(config["expect"], "expect", at_least=0),
            "retries": validation.integer(config["retries"], "retries", at_least=0),
            "max_bytes": validation.integer(config["max-bytes"], "max-bytes", at_least=1),
        }
        study: Study | SecureRun
        if roster is not None and is_secure(roster):
            board = folder / f"secure-{_version(roster)}"
            study = SecureRun(grid, roster, request, folder=board, **limits)
        else:
            stable = config.get("simulate", NOTHING) == NOTHING
            study = Study(
                grid, aggregator, request, folder=folder, quorum=quorum, stable_nodes=stable, **limits
            )
        interrupted = ""
        try:
            study.run()
        except Exception as error:  # what was accepted before counts
            _log.exception("fedpca: the run was interrupted")
            interrupted = sanitize(f"interrupted by {type(error).__name__}: {error}", 500)
        finally:  # also of a run that is stopped
            summary.update(_heard(study))
        if isinstance(study, SecureRun):
            problem = (
                _save_sum(aggregator, folder, study, summary)
                if study.has_ended
                else study.problem or interrupted
            )
        else:
            aggregator.record()
            problem = _save_model(aggregator, quorum, folder, study, summary)
        summary.update(_heard(study))
        summary["model"] = None if problem else "model.safetensors"
        summary["problem"] = " ".join(dict.fromkeys(filter(None, (problem, study.problem)))) or interrupted
        summary.update(_contributions(aggregator))
        if isinstance(study, SecureRun):
            summary["roster"] |= {"not_heard_from": study.not_heard_from}
        elif roster is not None:
            summary["roster"] |= {"not_heard_from": list(aggregator.not_heard_from)}


def _heard(study: Study | SecureRun) -> JSON:
    """Who has replied so far, and how far secure sums have come."""
    return {
        "replies": [asdict(reply) | {"node": str(reply.node)} for reply in study.replies.values()],
        "no_reply": [str(node) for node in study.no_reply],
        "secure": study.state if isinstance(study, SecureRun) else None,
    }


def _contributions(aggregator: Aggregator) -> JSON:
    """Who is in the model, how much of it, and what is suspicious about that."""
    children, influence, history = aggregator.children, aggregator.influence(), aggregator.history
    since = {event.child: event.time for event in history if event.what == "accepted"}
    warnings = [event.warning for event in history if event.what == "model"]
    return {
        "warning": warnings[-1] if warnings and children else "",
        "rows": sum(child.count for child in children.values()),
        "contributors": {
            name: {
                "version": child.version,
                "rows": child.count,
                **asdict(influence[name]),
                "since": since.get(name),
            }
            for name, child in children.items()
        },
        "quarantined": dict(aggregator.quarantined),
    }


def _set_up(config: Mapping[str, Any], folder: Path) -> tuple[Aggregator, Roster | None, JSON]:
    """The aggregator of a run, its roster, and the request to every node."""
    roster = _roster(config, folder)
    request = run_settings(config)
    privacy = Privacy.agreed(request)
    if roster is not None:
        check_settings(roster, request)
        if privacy is not None and "mechanism" in roster.settings:
            privacy = replace(privacy, mechanism=roster.settings["mechanism"])
        if is_secure(roster):
            _check_secure(roster, request, config)
        request |= to_request(roster)
        roster.save(folder / _ROSTER)
    features, max_share = _given(config["features"]), _given(config["max-share"])
    expected = None
    if features is not None:
        n_features = validation.integer(features, "features", at_least=1)
        expected = Subspace.empty(n_features, centered=request["center"])
    aggregator = Aggregator(
        request["rank"],
        store=folder / "store",
        expected=expected,
        privacy=privacy,
        limits=Limits(
            validation.integer(config["least-rows"], "least-rows", at_least=0),
            _given(config["max-rows"], Limits.max_rows),
            _given(config["max-rms"], Limits.max_rms),
        ),
        roster=None if is_secure(roster) else roster,  # nobody signs a sum over all
        robust=Robust.of(_given(config["robust"]), None if max_share is None else float(max_share)),
    )
    return aggregator, roster, request


def _given(value: Any, otherwise: Any = None) -> Any:
    return otherwise if value == NOTHING else value


def _check_secure(roster: Roster, request: JSON, config: Mapping[str, object]) -> None:
    """Refuse what cannot be summed securely, before any node is asked."""
    if config["robust"] != NOTHING:
        raise ValueError(
            f"robust={config['robust']!r:.80} compares what members send, and secure sums let nobody see it; "
            "take robust out of the run config, or agree on a roster without colluding."
        )
    summed = {"center": True, "scale": "none", **roster.settings}
    remedy = (
        "correct the run config, or agree on a roster that states it: secure sums are those of the roster"
    )
    require_agreed(summed, request, f"the sums of study {roster.study!r:.80}", remedy)
    Terms.of(roster)
    fit_of(roster)


def _version(roster: Roster) -> int:
    """Of the sums under this roster: later rosters replace earlier ones."""
    return 1 + len(roster.predecessors)


def _roster(config: Mapping[str, object], folder: Path) -> Roster | None:
    """That of the run, which may not be older than that of the run before it, nor missing after one."""
    given, kept = str(config["roster"]), folder / _ROSTER
    if given == NOTHING:
        if kept.exists():
            raise ValueError(f"the runs in {folder} have a roster; set roster, or choose another folder.")
        return None
    if config.get("simulate", NOTHING) != NOTHING:
        raise ValueError("a simulation has no keys, and so no roster; take roster out of the run config.")
    if not Path(given).is_absolute():
        raise ValueError(f"roster must be an absolute path on the server, got roster={given!r:.80}.")
    return checked_successor(Roster.load(given), kept)


def _deadline(value: object) -> float:
    if not validation.is_real(value) or not 0 < value < inf:
        raise ValueError(f"deadline must be a number of seconds above 0, got deadline={value!r}.")
    return float(value)


def _save_model(aggregator: Aggregator, quorum: int, folder: Path, study: Study, summary: JSON) -> str:
    """Write the model, evaluated if it is private, or return why there is none."""
    if (found := len(aggregator.children)) < quorum:
        return f"quorum not reached: {found} of {quorum} clients; run again when more have joined."
    try:
        model = aggregator.model()
        try:
            model = study.evaluated(model)
        except Exception:  # there is a model all the same
            _log.exception("fedpca: no evaluation")
        model.save(folder / "model.safetensors")
    except Exception as error:
        _log.exception("fedpca: no model")
        return sanitize(f"{type(error).__name__}: {error}", 500)
    summary["scale"] = None if model.scale is None else model.scale.tolist()
    summary["evaluation"] = study.evaluation
    return ""


def _save_sum(aggregator: Aggregator, folder: Path, study: SecureRun, summary: JSON) -> str:
    """Write the model of secure sums, or return why that failed.

    What it was made of is the one child of the run: nobody knows the parts of members.
    """
    try:
        aggregator.receive(study.roster.study, _version(study.roster), study.release)
        aggregator.record()
        model = study.model
        model.save(folder / "model.safetensors")
    except Exception as error:
        _log.exception("fedpca: no model")
        return sanitize(f"{type(error).__name__}: {error}", 500)
    summary["scale"] = None if model.scale is None else model.scale.tolist()
    found = None if model.certificate is None else model.certificate.evaluation
    if found is not None:
        explained, low, high = found.explained()
        summary["evaluation"] = {
            "rows": found.records,
            "missing": {},
            "explained": explained,
            "interval": [low, high],
            "beyond": found.beyond,
        }
    return ""
