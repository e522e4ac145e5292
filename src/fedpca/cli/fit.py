"""fedpca fit: the principal components of files; it can be stopped and resumed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from fedpca._util.text import pluralize, sanitize
from fedpca.cli import model_files
from fedpca.cli.common import (
    AsJson,
    BatchRows,
    Columns,
    DataPaths,
    Drop,
    Force,
    NumericOnly,
    PolicyPath,
    Reading,
    RowsStated,
    Width,
    check_model_path,
    check_output_path,
    parse_names,
    print_result,
    progress_bars,
    reading_options,
)
from fedpca.cli.policy_text import policy_json, policy_line
from fedpca.cli.privacy_options import (
    BOUND,
    DELTA,
    EPSILON,
    NO_LEDGER,
    Adjacency,
    Center,
    Evaluate,
    Ledger,
    Mechanism,
    privacy_settings,
)
from fedpca.cli.roster_options import (
    KeyOption,
    RosterOption,
    check_fit,
    check_rows,
    load_signer,
    signed_privacy,
)
from fedpca.cli.variant_options import Variants, matched_variants, variant_list, variants_json

if TYPE_CHECKING:
    from fedpca.readers import RowReader
    from fedpca.summaries.rank import Oversample
    from fedpca.summaries.scaling import ScaleLike, ScaleRule
    from fedpca.trackers import TrackerName

_MAX_FEATURES_OF_MOMENTS = 1024  # 8 MB


@reading_options
def fit(
    path: DataPaths,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The model file to write.")] = Path(
        "model.safetensors"
    ),
    components: Annotated[
        str | None,
        typer.Option(
            "--components",
            "-n",
            metavar="N",
            help="A number, a share of the variance such as 0.95, or all. By default at most 10 or, "
            "for a private model, those above the noise.",
        ),
    ] = None,
    columns: Columns = None,
    drop: Drop = None,
    numeric_only: NumericOnly = False,
    width: Width = None,
    n_rows: RowsStated = None,
    variants: Variants = None,
    center: Annotated[
        Center | None,
        typer.Option(
            help="What to subtract: mean or none. For a private model: private, the mean found privately; "
            "pairs, differences of random pairs of rows, which show no mean; or none. By default mean or "
            "private."
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="SCALE",
            help="What to divide every column by: std, its standard deviation; binomial, sqrt(2p(1-p)) of "
            "allele counts; std:FILE or binomial:FILE, the same from a file that fedpca scale wrote; or a "
            "file with one number per column: .npy, or another model. By default nothing.",
        ),
    ] = None,
    tracker: Annotated[
        str, typer.Option(metavar="NAME", help="The algorithm: auto, exact, nystrom or block.")
    ] = "auto",
    oversample: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Directions carried beyond the components. More are better where variances hardly differ.",
        ),
    ] = None,
    batch_rows: BatchRows = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Threads for files of many rows; -1 for all cores. By default as many as NumPy would use. "
            "The model does not depend on it.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Checkpoint file; rerun the same command to resume.")
    ] = None,
    alarms: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Learn the limit of the score, which this share of the rows exceeds, such as 0.01: for "
            "transform --scores score,alarm. The files are read once more. It stays in your file.",
        ),
    ] = None,
    epsilon: Annotated[float | None, EPSILON] = None,
    delta: Annotated[float | None, DELTA] = None,
    bound: Annotated[str | None, BOUND] = None,
    evaluate: Evaluate = None,
    mechanism: Mechanism = None,
    adjacency: Adjacency = None,
    ledger: Ledger = None,
    roster: RosterOption = None,
    key: KeyOption = None,
    policy: PolicyPath = None,
    force: Force = False,
    as_json: AsJson = False,
    *,
    reading: Reading,
) -> None:
    """Fit a model to files of any size. With --epsilon and --delta it is differentially private.

    With --policy, a model that breaks a rule is not written. Without privacy, the files are then read once
    more.

    Examples:

    ```
    fedpca fit 'year-*.parquet' --drop id,site -n 10 -o model.safetensors
    fedpca fit lab.csv --scale std -o model.safetensors
    fedpca fit north.pgen --variants panel.pvar --scale binomial:all-scale.safetensors -o north.safetensors
    fedpca fit rows.csv --epsilon 1 --delta 1e-6 -o private.safetensors
    fedpca fit rows.csv --roster roster.toml --key north.key -o north.safetensors
    ```
    """
    if checkpoint is not None and checkpoint.resolve() == out.resolve():
        raise typer.BadParameter(
            "--checkpoint and --out must be two files: the checkpoint is removed at the end."
        )
    if checkpoint is not None and "-" in path:
        raise typer.BadParameter("--checkpoint needs files that can be read again, not standard input.")
    if jobs == 0:
        raise typer.BadParameter("--jobs must be at least 1, or -1 for all cores, got 0.")
    wanted = _parse_components(components)
    privacy = privacy_settings(
        center,
        epsilon=epsilon,
        delta=delta,
        bound=bound,
        evaluate=evaluate,
        mechanism=mechanism,
        adjacency=adjacency,
        ledger=ledger,
    )
    if privacy is not None and checkpoint is not None:
        raise typer.BadParameter("--checkpoint cannot be combined with --epsilon: it stores un-noised sums.")
    if alarms is not None:
        _check_alarms(alarms, path, private=privacy is not None, is_signed=key is not None)
    check_model_path(out, force)
    if checkpoint is not None:
        check_output_path(checkpoint, force=True)
    signer = load_signer(roster, key)
    if signer is not None:
        privacy = signed_privacy(signer, privacy)
    if privacy is not None and ledger is None:
        typer.echo(f"fedpca: warning: no ledger. {NO_LEDGER}", err=True)

    from fedpca.disclosure.policy import Policy
    from fedpca.estimators.base import warn_if_fewer
    from fedpca.estimators.detector import PCADetector
    from fedpca.estimators.files import calibrate_files, fit_files
    from fedpca.estimators.private import PrivatePCA
    from fedpca.estimators.streaming import StreamingPCA
    from fedpca.readers import open_rows

    rules = None if policy is None else Policy.load(policy)
    listed = variant_list(variants, columns, path)
    rows = open_rows(
        path,
        columns=parse_names(columns) if listed is None else listed.names,
        drop=parse_names(drop) or (),
        numeric_only=numeric_only,
        private=privacy is not None,
        width=width,
        n_rows=n_rows,
        batch_rows=batch_rows,
        **reading,
    )
    factor = None if scale is None else _scale(scale, rows, private=privacy is not None)
    if signer is not None:
        check_fit(signer, rows, center is not Center.none, factor, privacy)
    # By default few; of a private model those that rise above the noise.
    n_components = min(10, rows.n_features) if components is None and privacy is None else wanted
    if isinstance(n_components, int) and privacy is None:
        n_components = min(n_components, rows.n_features)  # a warning says so
    carried: Oversample = "auto" if oversample is None else oversample
    pca: StreamingPCA | PrivatePCA
    if privacy is not None:
        pca = PrivatePCA(n_components, scale=factor, oversample=carried, **privacy.settings)
    else:
        pca = StreamingPCA(
            n_components,
            center=center is not Center.none,
            scale=factor,
            tracker=cast("TrackerName", tracker),
            oversample=carried,
            n_jobs=jobs,
        )
    with progress_bars():
        counts = None if rules is None else rules.check_rows(rows, privacy=privacy)
    with progress_bars(), _graceful_interrupt() as signals:
        done = fit_files(pca, rows, checkpoint=checkpoint, should_stop=lambda: bool(signals))
    if signals:
        if checkpoint is not None:
            message = f"{pluralize(done, 'row')} saved in {checkpoint}; rerun the same command to resume."
            typer.echo(f"fedpca: {message}", err=True)
        raise KeyboardInterrupt if signals[0] == signal.SIGINT else typer.Exit(128 + signals[0])
    if signer is not None:
        check_rows(signer, done)
    summary = pca.summary_
    if privacy is None and (summary.kind != "moments" or summary.n_features > _MAX_FEATURES_OF_MOMENTS):
        summary = pca.subspace_
    asked = wanted if privacy is not None and isinstance(wanted, int) else 0
    if rules is not None:
        rules.check(summary, counts)
    limits = None
    if alarms is not None:
        with progress_bars():
            detector = PCADetector.of_model(summary, pca.n_components_, alarms=alarms)
            limits = calibrate_files(detector, rows).limits_
    model_files.write(out, summary, max(pca.n_components_, asked), counts, signer, reading, limits)
    if components is not None and privacy is None:
        warn_if_fewer(wanted, pca.n_components_, stacklevel=2)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    description = model_files.describe(summary, pca.n_components_)
    text = model_files.headline(out, summary, description)
    if signer is not None:
        description["signed_by"] = signer.member.id
        text += f"; signed by {sanitize(signer.member.id, 100)}"
    empty = done - round(summary.count) if privacy is None else 0  # private models count every row
    if empty:
        text += f"; {pluralize(empty, 'more row')} without any value skipped"
    text += "".join(f"\n{line}" for line in matched_variants(rows, listed))
    text += "" if policy is None else f"\n{policy_line(policy)}"
    data = {"out": str(out), **description, "rows_without_values": empty}
    data |= variants_json(rows, listed) | {"policy": policy_json(rules)}
    print_result(data, as_json, text)


def _check_alarms(alarms: float, paths: list[str], *, private: bool, is_signed: bool) -> None:
    """Refuse a limit that cannot be learned, or that would leave with the model."""
    if not 0 < alarms < 1:
        raise typer.BadParameter(f"--alarms must be a share of the rows between 0 and 1, got {alarms:g}.")
    if "-" in paths:
        raise typer.BadParameter("--alarms needs files that can be read again, not standard input.")
    if private or is_signed:
        other = "--epsilon" if private else "--key"
        raise typer.BadParameter(f"--alarms cannot be combined with {other}: limits stay with their owner.")


def _scale(text: str, rows: "RowReader", *, private: bool) -> "ScaleLike":
    """A rule, the numbers that a rule makes of a Scaling in a file, or the numbers in a file.

    Args:
        private: only numbers that are public, or were released, will do.
    """
    if text in ("std", "binomial"):
        return cast("ScaleLike", text)
    rule, _, file = text.partition(":")
    rule, file = (rule, file) if rule in ("std", "binomial") and file else ("std", text)
    import numpy as np

    from fedpca.summaries import validation
    from fedpca.summaries.loading import load
    from fedpca.summaries.scaling import Scaling

    path = Path(file)
    if not path.exists():
        raise typer.BadParameter(f"--scale must be std, binomial or a file, got {file!r}.")
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
        raise typer.BadParameter(
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
