"""fedpca fit: the principal components of files; it can be stopped and resumed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, cast

import numpy as np
from cyclopts import Parameter

import fedpca
from fedpca._typing import JSON
from fedpca._util.text import pluralize, sanitize
from fedpca.cli import model_files
from fedpca.cli.options import (
    INTEGER,
    DataPaths,
    File,
    Force,
    Out,
    Output,
    PolicyPath,
    Text,
    WrongUsage,
    at_least,
    check_model_path,
    check_output_path,
    note,
    option,
)
from fedpca.cli.policy_text import policy_json, policy_line
from fedpca.cli.privacy_options import NO_LEDGER, Mechanism, Private
from fedpca.cli.reading import (
    PrivateTable,
    Reading,
    Variants,
    columns_of,
    matched_variants,
    variants_json,
)
from fedpca.cli.signed_fit import check_fit, check_rows, signed_privacy
from fedpca.cli.signing import Signing
from fedpca.disclosure.policy import Policy
from fedpca.privacy import Privacy
from fedpca.readers import RowReader
from fedpca.summaries import validation
from fedpca.summaries.loading import load
from fedpca.summaries.rank import Oversample
from fedpca.summaries.scaling import ScaleLike, ScaleRule, Scaling
from fedpca.summaries.summary import Summary
from fedpca.trackers import TrackerName

_MAX_FEATURES_OF_MOMENTS = 1024  # 8 MB


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Estimator:
    """What is fitted, and how."""

    components: Annotated[str | None, option("--components", "-n", metavar="N")] = None
    """A number, a share of the variance such as 0.95, or all. By default at most 10 or, for a private model,
    those above the noise."""
    center: Literal["mean", "none", "private", "pairs"] | None = None
    """What to subtract: mean or none. For a private model: private, the mean found privately; pairs,
    differences of random pairs of rows, which show no mean; or none. By default mean or private."""
    scale: Annotated[str | None, Parameter(metavar="SCALE")] = None
    """What to divide every column by: std, its standard deviation; binomial, sqrt(2p(1-p)) of allele counts;
    std:FILE or binomial:FILE, the same from a file that fedpca scale wrote; or a file with one number per
    column: .npy, or another model. By default nothing."""
    tracker: Text = "auto"
    """The algorithm: auto, exact, nystrom or block."""
    oversample: Annotated[int | None, at_least(0)] = None
    """Directions carried beyond the components. More are better where variances hardly differ."""
    jobs: Annotated[int | None, INTEGER] = None
    """Threads for files of many rows; -1 for all cores. By default as many as NumPy would use. The model does
    not depend on it."""
    checkpoint: File | None = None
    """Checkpoint file; rerun the same command to resume."""
    alarms: Annotated[float | None, Parameter(metavar="SHARE")] = None
    """Learn the limit of the score, which this share of the rows exceeds, such as 0.01: for transform
    --scores score,alarm. The files are read once more. It stays in your file."""

    def check(self, path: list[str], out: Path) -> None:
        """Refuse what cannot be combined."""
        if self.checkpoint is not None and self.checkpoint.resolve() == out.resolve():
            raise WrongUsage(
                "--checkpoint and --out must be two files: the checkpoint is removed at the end."
            )
        if self.checkpoint is not None and "-" in path:
            raise WrongUsage("--checkpoint needs files that can be read again, not standard input.")
        if self.jobs == 0:
            raise WrongUsage("--jobs must be at least 1, or -1 for all cores, got 0.")

    def pca(
        self, rows: RowReader, scale: ScaleLike, privacy: Privacy | None
    ) -> "fedpca.StreamingPCA | fedpca.PrivatePCA":
        """The estimator of these rows."""
        wanted = _parse_components(self.components)
        carried: Oversample = "auto" if self.oversample is None else self.oversample
        if privacy is not None:  # by default the components that rise above the noise
            return fedpca.PrivatePCA(wanted, scale=scale, oversample=carried, **privacy.settings)
        n_components = min(10, rows.n_features) if self.components is None else wanted
        if isinstance(n_components, int):
            n_components = min(n_components, rows.n_features)  # a warning says so
        return fedpca.StreamingPCA(
            n_components,
            center=self.center != "none",
            scale=scale,
            tracker=cast(TrackerName, self.tracker),
            oversample=carried,
            n_jobs=self.jobs,
        )


def fit(
    path: DataPaths,
    /,
    *,
    out: Out = Path("model.safetensors"),
    estimator: Estimator = Estimator(),
    table: PrivateTable = PrivateTable(),
    variants: Variants = Variants(),
    signing: Signing = Signing(),
    policy: PolicyPath = None,
    force: Force = False,
    output: Output = Output(),
    private: Private = Private(),
    mechanism: Mechanism = Mechanism(),
    reading: Reading = Reading(),
) -> None:
    """Fit a model to files of any size. With --epsilon and --delta it is differentially private.

    With --policy, a model that breaks a rule is not written. Without privacy, the files are then read once
    more.

    For example:

    ```
    fedpca fit 'year-*.parquet' --drop id,site -n 10 -o model.safetensors
    fedpca fit lab.csv --scale std -o model.safetensors
    fedpca fit north.pgen --variants panel.pvar --scale binomial:all-scale.safetensors -o north.safetensors
    fedpca fit rows.csv --epsilon 1 --delta 1e-6 -o private.safetensors
    fedpca fit rows.csv --roster roster.toml --key north.key -o north.safetensors
    ```

    Args:
        out: The model file to write.
    """
    estimator.check(path, out)
    wanted = _parse_components(estimator.components)
    privacy = _privacy(private, mechanism, estimator)
    _check_alarms(estimator.alarms, path, private=privacy is not None, is_signed=signing.key is not None)
    check_model_path(out, force)
    signer = signing.signer()
    privacy = privacy if signer is None else signed_privacy(signer, privacy)
    if privacy is not None and private.ledger is None:
        note(f"warning: no ledger. {NO_LEDGER}")
    rules = None if policy is None else Policy.load(policy)
    listed = variants.listed(table, path)
    rows = table.open(path, reading, private=privacy is not None, **columns_of(listed))
    scale = None if estimator.scale is None else _scale(estimator.scale, rows, private=privacy is not None)
    if signer is not None:
        check_fit(signer, rows, estimator.center != "none", scale, privacy)
    pca = estimator.pca(rows, scale, privacy)
    with output.progress():
        counts = None if rules is None else rules.check_rows(rows, privacy=privacy)
        done = _fit(pca, rows, estimator.checkpoint)
    if signer is not None:
        check_rows(signer, done)
    summary = _to_write(pca)
    if rules is not None:
        rules.check(summary, counts)
    with output.progress():
        limits = _limits(summary, pca.n_components_, estimator.alarms, rows)
    # of a private model, too, those asked for: merged with others, more may rise above the noise
    asked = wanted if privacy is not None and isinstance(wanted, int) else 0
    shown = max(pca.n_components_, asked)
    model_files.write(out, summary, shown, counts, signer, reading.given(), limits)
    if estimator.components is not None and privacy is None:
        _warn_if_fewer(wanted, pca.n_components_)
    if estimator.checkpoint is not None:
        estimator.checkpoint.unlink(missing_ok=True)
    description = model_files.describe(summary, pca.n_components_)
    text = model_files.headline(out, summary, description)
    if signer is not None:
        description["signed_by"] = signer.member.id
        text += f"; signed by {sanitize(signer.member.id, 100)}"
    empty = done - round(summary.count) if privacy is None else 0  # private models count every row
    text += f"; {pluralize(empty, 'more row')} without any value skipped" if empty else ""
    lines = [text, *matched_variants(rows, listed), *([] if policy is None else [policy_line(policy)])]
    data = {"out": str(out), **description, "rows_without_values": empty}
    data |= variants_json(rows, listed) | {"policy": policy_json(rules)}
    output.result(data, "\n".join(lines))


def _privacy(private: Private, mechanism: Mechanism, estimator: Estimator) -> Privacy | None:
    privacy = private.privacy(estimator.center, mechanism)
    if privacy is not None and estimator.checkpoint is not None:
        raise WrongUsage("--checkpoint cannot be combined with --epsilon: it stores un-noised sums.")
    if estimator.checkpoint is not None:
        check_output_path(estimator.checkpoint, force=True)
    return privacy


def _fit(pca: "fedpca.StreamingPCA | fedpca.PrivatePCA", rows: RowReader, checkpoint: Path | None) -> int:
    """The number of rows that are learned; stopped by a signal, the command ends."""
    with _graceful_interrupt() as signals:
        done = fedpca.fit_files(pca, rows, checkpoint=checkpoint, should_stop=lambda: bool(signals))
    if not signals:
        return done
    if checkpoint is not None:
        note(f"{pluralize(done, 'row')} saved in {checkpoint}; rerun the same command to resume.")
    raise KeyboardInterrupt if signals[0] == signal.SIGINT else SystemExit(128 + signals[0])


def _warn_if_fewer(wanted: int | float | None, n_components: int) -> None:
    from fedpca.estimators.base import warn_if_fewer

    warn_if_fewer(wanted, n_components, stacklevel=3)


def _to_write(pca: "fedpca.StreamingPCA | fedpca.PrivatePCA") -> Summary:
    """Sums of few features, which lose nothing in merges; else the directions."""
    summary = pca.summary_
    if isinstance(pca, fedpca.PrivatePCA):
        return summary
    small = summary.kind == "moments" and summary.n_features <= _MAX_FEATURES_OF_MOMENTS
    return summary if small else pca.subspace_


def _check_alarms(alarms: float | None, paths: list[str], *, private: bool, is_signed: bool) -> None:
    """Refuse a limit that cannot be learned, or that would leave with the model."""
    if alarms is None:
        return
    if not 0 < alarms < 1:
        raise WrongUsage(f"--alarms must be a share of the rows between 0 and 1, got {alarms:g}.")
    if "-" in paths:
        raise WrongUsage("--alarms needs files that can be read again, not standard input.")
    if private or is_signed:
        other = "--epsilon" if private else "--key"
        raise WrongUsage(f"--alarms cannot be combined with {other}: limits stay with their owner.")


def _limits(summary: Summary, n_components: int, alarms: float | None, rows: RowReader) -> JSON | None:
    """The limit of the score, learned from the rows; None if it is not wanted."""
    if alarms is None:
        return None
    from fedpca.estimators.detector import PCADetector
    from fedpca.estimators.files import calibrate_files

    return calibrate_files(PCADetector.of_model(summary, n_components, alarms=alarms), rows).limits_


def _scale(text: str, rows: RowReader, *, private: bool) -> ScaleLike:
    """A rule, the numbers that a rule makes of a Scaling in a file, or the numbers in a file.

    Args:
        private: only numbers that are public, or were released, will do.
    """
    if text in ("std", "binomial"):
        return cast("ScaleLike", text)
    rule, _, file = text.partition(":")
    rule, file = (rule, file) if rule in ("std", "binomial") and file else ("std", text)
    path = Path(file)
    if not path.exists():
        raise WrongUsage(f"--scale must be std, binomial or a file, got {file!r}.")
    if path.suffix == ".npy" and file == text:
        try:
            numbers: ScaleLike = np.load(path, allow_pickle=False)
        except (ValueError, EOFError):  # whose message advises to unpickle it
            raise ValueError(
                f"{path} must be a .npy file with one number per column, and is not, or is damaged; write it "
                "with numpy.save."
            ) from None
        return numbers
    loaded = load(path)
    if rows.matches and loaded.feature_names not in (None, rows.feature_names):
        raise ValueError(f"variants must be those of {path}, in its order; pass --variants {path}.")
    validation.same_names(rows.feature_names, loaded.feature_names)
    if private and getattr(loaded, "certificate", None) is None:
        raise ValueError(
            f"--scale with --epsilon must be numbers that are public, and {path} was computed from rows "
            "without privacy; pass --scale std, which finds the scale privately, or public numbers in a .npy "
            "file."
        )
    if isinstance(loaded, Scaling):
        return loaded.scale(cast("ScaleRule", rule))
    if file != text:
        raise ValueError(
            f"{path} must be a file that fedpca scale wrote, but is a model; pass --scale {path}."
        )
    if not isinstance(loaded.scale, np.ndarray):
        raise ValueError(f"{path} has no numbers to divide by; pass --scale std, or a file that has.")
    return loaded.scale


def _parse_components(text: str | None) -> int | float | None:
    if text is None or text == "all":
        return None
    try:
        number = int(text) if text.isdecimal() else float(text)
    except ValueError:
        number = 0
    if not (0 < number < 1 or (isinstance(number, int) and number)):
        raise WrongUsage(
            f"--components must be an integer from 1, a share of the variance below 1, or all, got {text!r}."
        )
    return number


@contextmanager
def _graceful_interrupt() -> Iterator[list[int]]:
    """A list that receives SIGINT or SIGTERM, so that no batch is left half learned.

    A second signal interrupts at once.
    """
    signals: list[int] = []

    def receive(number: int, frame: object) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
