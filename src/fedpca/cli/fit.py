"""fedpca fit: the principal components of files, one pass, stopped and resumed at will."""

import hashlib
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpca.backend.prefetch import prefetch
from fedpca.cli import models
from fedpca.cli.common import AsJson, Force, bars, must_be_free, names, say, some
from fedpca.cli.privacy import settings

if TYPE_CHECKING:
    from fedpca.estimators.streaming import StreamingPCA
    from fedpca.readers import Rows

_CHECKPOINT_SECONDS = 60


def fit(
    path: Annotated[list[str], typer.Argument(metavar="PATH...")],
    out: Annotated[Path, typer.Option(help="Where to write the model, as in model.safetensors.")],
    components: Annotated[
        str | None,
        typer.Option(help="How many, or a share of the variance as 0.95, or all. By default at most 10."),
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Names of columns to read, as in a,b,c.")] = None,
    drop: Annotated[str | None, typer.Option(help="Names of columns to leave out.")] = None,
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether text files start with names.")
    ] = None,
    center: Annotated[bool, typer.Option("--center/--no-center", help="Subtract the mean.")] = True,
    tracker: Annotated[str, typer.Option(help="auto, exact, nystrom or block.")] = "auto",
    oversample: Annotated[
        int | None,
        typer.Option(min=0, help="Directions carried beyond the components; more where these hardly differ."),
    ] = None,
    privacy: Annotated[str | None, typer.Option(help="A promise, as above.")] = None,
    batch_rows: Annotated[
        int | None, typer.Option(min=1, help="Rows of a batch; a few batches are in memory.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Keep what is learned here; the same command goes on from it.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Learn the components of files of any size: a model.

    PATH is a file, a folder or a glob of rows; several are read one after the other.

    With --privacy the model is differentially private. It takes name=value, separated by commas: epsilon,
    delta and bound must be said; center=private, adjacency, mechanism, noise, calibration and ledger=FILE
    can be. By default it shows the components that rise above the noise.
    """
    if privacy is not None and checkpoint is not None:
        raise typer.BadParameter("--checkpoint is not for private fits: it would hold what is not noised.")
    if privacy is not None and not center:
        raise typer.BadParameter("--no-center is not for private fits: --privacy ...,center=private decides.")
    if checkpoint is not None and checkpoint.resolve() == out.resolve():
        raise typer.BadParameter("--checkpoint and --out must be two files: the first is removed at the end.")
    wanted = _components(components)
    promise = None if privacy is None else settings(privacy)
    must_be_free(out, force)

    from fedpca.estimators.streaming import StreamingPCA
    from fedpca.readers import open_rows

    rows = open_rows(
        path, columns=names(columns), drop=names(drop) or (), header=header, batch_rows=batch_rows
    )
    # Unless asked otherwise, few; of a private model those that rise above the noise.
    n_components = min(10, rows.n_features) if components is None and promise is None else wanted
    pca = StreamingPCA(
        n_components,
        center=center,
        tracker=tracker,
        privacy=promise,
        oversample="auto" if oversample is None else oversample,
    )
    progress = None if checkpoint is None else _Checkpoint(checkpoint, pca, rows)
    with bars():
        _learn(pca, rows, progress)
    summary = pca.subspace_ if promise is None else pca.release()
    summary = replace(summary, feature_names=rows.feature_names)
    models.write(out, summary, pca.n_components_)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    facts = models.facts_of(summary, pca.n_components_)
    share = sum(facts["explained_variance_ratio"])
    shown = some(facts["n_components"], "component")
    text = f"{out}: {shown} of {some(summary.count, 'row')}, {share:.1%} of the variance"
    if promise is not None and promise.center == "private":
        spent = pca.n_samples_seen_ - summary.count
        text += f"; {some(spent, 'row')} before them went to the center"
    if promise is not None:
        text += f"; private: epsilon={promise.epsilon:g}, delta={promise.delta:g}"
    say({"out": str(out), **facts}, as_json, text)


def _components(text: str | None) -> int | float | None:
    if text is None or text == "all":
        return None
    try:
        number = int(text) if text.isdecimal() else float(text)
    except ValueError:
        number = 0
    if not (0 < number < 1 or (isinstance(number, int) and number)):
        raise typer.BadParameter(
            "--components must be a whole number from 1, a share of the variance below 1, or all, "
            f"got {text!r}."
        )
    return number


def _learn(pca: "StreamingPCA", rows: "Rows", checkpoint: "_Checkpoint | None") -> None:
    """All rows, from where the checkpoint left off."""
    from fedpca.progress import bar

    done, empty = (0, None) if checkpoint is None else checkpoint.resumed()
    with (
        bar("rows", rows.n_rows, "rows") as moving,
        _stoppable() as stop,
        prefetch(rows.batches(skip=done)) as batches,
    ):
        moving.advance(done)
        for batch in batches:
            pca.partial_fit(batch.rows)
            done += batch.rows.shape[0]
            moving.advance(batch.rows.shape[0])
            empty = rows._empty_in(batch.rows, empty)
            if checkpoint is not None:
                checkpoint.offer(done, empty, at_once=bool(stop))
            if stop:
                if checkpoint is not None:
                    typer.echo(
                        f"fedpca: {done:,} rows are in {checkpoint.path}; run it again to go on.", err=True
                    )
                raise KeyboardInterrupt if stop[0] == signal.SIGINT else typer.Exit(128 + stop[0])
    rows._refuse_empty(empty)


@contextmanager
def _stoppable() -> Iterator[list[int]]:
    """A list that gets the signal when somebody wants an end, so that a batch is not left half learned.

    Whoever asks twice is not kept waiting.
    """
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Checkpoint:
    """What is learned so far, in a model file that also says of which rows and settings it is."""

    def __init__(self, path: Path, pca: "StreamingPCA", rows: "Rows") -> None:
        self.path = path
        self._pca, self._rows = pca, rows
        must_be_free(path, force=True)
        self._due = 0.0  # at once: that it cannot be written should be known before hours of work
        files = [
            [str(part.path.resolve()), size, changed]
            for part, (_, size, changed) in zip(rows._parts, rows._states, strict=True)
        ]
        settings = [pca.n_components, pca.center, pca.tracker, pca.oversample]
        options = [*settings, rows.feature_names, str(rows.dtype)]
        self._of = hashlib.sha256(json.dumps([files, options]).encode()).hexdigest()

    def resumed(self) -> tuple[int, list[int] | None]:
        """Rows done, and columns without a value in them; the estimator knows them now."""
        if not self.path.exists():
            return 0, None
        from fedpca.summaries import model_file
        from fedpca.summaries.summary import from_file

        kind, arrays, facts = model_file.read(self.path)
        kept = facts.get("checkpoint")
        if not isinstance(kept, dict) or kept.get("of") != self._of:
            raise ValueError(
                f"{self.path} must be a checkpoint of these files, as they are now, and these settings, and "
                "is of others; delete it, or name another."
            )
        # Rows come without names, as arrays.
        self._pca.merge(replace(from_file(self.path, kind, arrays, facts), feature_names=None))
        return int(kept["rows"]), list(kept["empty"])

    def offer(self, done: int, empty: list[int], at_once: bool) -> None:
        """Write, if it is time to."""
        if at_once or time.monotonic() >= self._due:
            state = replace(self._pca.summary_, feature_names=self._rows.feature_names)
            kept = {"rows": done, "empty": empty, "of": self._of}
            models.write(self.path, state, self._pca.n_components_, checkpoint=kept)
            self._due = time.monotonic() + _CHECKPOINT_SECONDS
