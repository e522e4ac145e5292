"""A federation without a server: owners publish summaries in a shared folder, and its readers merge them.

Where rows are to be divided by the scale of all of them, owners publish their scalings first.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from fedpca._typing import RowsLike
from fedpca.disclosure.policy import Policy, check_policy
from fedpca.disclosure.row_counts import RowCounts
from fedpca.errors import ModelFileError, SignatureError, SummaryRejected
from fedpca.federation.aggregator.aggregator import Aggregator
from fedpca.federation.aggregator.membership import check_agreed_rows
from fedpca.federation.aggregator.message import (
    Message,
    file_name,
)
from fedpca.federation.folder.storage import Entry, SkippedFile, Storage, open_storage
from fedpca.summaries import model_file, validation
from fedpca.summaries.scaling import Scaling
from fedpca.summaries.summary import Summary
from fedpca.trust.roster import ANYONE, Roster, Signer, require_roster, require_signer

_log = logging.getLogger("fedpca.federation")

SUMMARY, SCALING, PUBLISHED = "", ".scaling", ".published"
"""How names of files end, before .safetensors; those of sums in ".sum-03"."""
_FILE_NAME = re.compile(
    r"([a-z0-9_%-]+)\.(0|[1-9][0-9]{0,18})(|\.scaling|\.sum-[0-9]{2}|\.published)\.safetensors"
)
_NOT_IN_SCALE = "not in the scale: its rows are divided by that of the owners who published a Scaling."

# Files that count, by aggregator, folder and name, as they were when they were read.
_counted: WeakKeyDictionary[Aggregator, dict[str, dict[str, str]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class CollectedScaling:
    """The scalings in a shared folder, merged.

    Attributes:
        scaling: of all rows of the owners: `scaling.scale("std")` is what all divide their rows by.
        owners: who published one.
        skipped: files of scalings that do not count.
    """

    scaling: Scaling
    owners: tuple[str, ...]
    skipped: tuple[SkippedFile, ...]


def publish(
    folder: str | os.PathLike[str],
    child: str,
    version: int,
    summary: Summary | Scaling,
    *,
    signer: Signer | None = None,
    policy: Policy | None = None,
    rows: RowsLike | RowCounts = None,
) -> str:
    """Write a summary to a shared folder, completely or not at all, for `collect` to find.

    The file is a model file like any other: `fedpca.load` reads it, too. Publishing it again changes nothing.
    A `Scaling` is for `collect_scaling` to find, in a file of its own kind and with versions of its own.

    Args:
        folder: a folder that exists, or a URL such as "s3://bucket/study", which needs the extra "folder".
        child: the name of the owner: any text.
        version: a whole number, larger than those before. Files of older versions stay in the folder;
            readers use the newest.
        summary: of all rows of this child so far: a `Subspace` or `Moments`, a private release included; or
            a `Scaling`, which is not private.
        signer: signs the file, `roster.signer(key)`, as readers with a roster ask for.
        policy: what may leave; None checks nothing.
        rows: all rows behind the summary, or their counts, where the policy has to count them: see
            `Policy.check`.

    Returns:
        The path of the file.

    Raises:
        PolicyViolation: by the rule that does not hold. Nothing was written.
        FileExistsError: this version exists with other contents; it is left as it is.

    >>> import pathlib, tempfile, numpy as np, fedpca
    >>> rows = np.random.default_rng(0).normal(size=(20, 3))
    >>> with tempfile.TemporaryDirectory() as shared:
    ...     path = publish(shared, "north", 1, fedpca.Subspace.from_rows(rows))
    ...     pathlib.Path(path).name, fedpca.load(path).count
    ('north.1.safetensors', 20.0)
    """
    signer = require_signer(signer)
    if signer is not None and signer.member.id != child:
        raise ValueError(
            f"the key is that of {signer.member.id!r:.80}, who cannot publish as {child!r:.80}; publish "
            "under the id in the roster."
        )
    message = Message(child, version, summary)
    check_policy(policy, summary, rows)
    kind = SCALING if isinstance(summary, Scaling) else SUMMARY
    name = name_of(message.child, message.version, kind)
    contents = message.encode()
    if signer is not None:
        contents = signer.sign(contents)
    return create(open_storage(folder), name, contents, signer)


def create(storage: Storage, name: str, contents: bytes, signer: Signer | None) -> str:
    """Write a message, unless it is there already; returns its path."""
    if not storage.create(name, contents) and not _is_there(storage, name, contents, signer):
        raise FileExistsError(
            f"{storage.path(name)} already exists with other contents; publish a newer version, or "
            "choose another folder."
        )
    return storage.path(name)


def _is_there(storage: Storage, name: str, contents: bytes, signer: Signer | None) -> bool:
    """Whether a file has these contents; or the same, signed by the same member under an earlier roster."""
    found = storage.read(name, 2 * len(contents) + 2**20)
    if found == contents or signer is None:
        return found == contents
    try:
        earlier = signer.roster.check(found, signer.member.id)
    except (SignatureError, ModelFileError):
        return False
    return earlier.checksum == model_file.opened(contents, name).checksum


def collect(
    folder: str | os.PathLike[str],
    aggregator: Aggregator,
    *,
    before: Iterable[SkippedFile] = (),
    max_bytes: int = 2**30,
) -> list[SkippedFile]:
    """Hand the newest valid version of every child in a shared folder to an aggregator.

    No file can make it fail, or make it read or write anything outside the folder. Versions that the
    aggregator has are not read again; hidden files, such as unfinished ones, and scalings are skipped. The
    resulting model is recorded in the aggregator's history. Limits on what counts, such as `max_rows` and
    `max_rms`, are those of the aggregator, and so is the roster. With a roster, a file that was replaced by
    another of the same version, and a folder whose newest version is older than what the aggregator has, are
    named.

    Where owners published scalings, the history names children who divided their rows by numbers without
    having published one: their rows count, but had no part in the scale.

    Args:
        folder: as for `publish`.
        aggregator: receives the summaries.
        before: the result of the last call: invalid files are read again only if they changed, rejected ones
            also if the aggregator has.
        max_bytes: larger files are skipped unread.

    Returns:
        The files that do not count, and why; older versions than the one that counts are not listed.

    >>> import pathlib, tempfile, numpy as np, fedpca
    >>> with tempfile.TemporaryDirectory() as shared:
    ...     for seed, child in enumerate(["north", "south"]):
    ...         rows = np.random.default_rng(seed).normal(size=(20, 3))
    ...         path = publish(shared, child, 1, fedpca.Subspace.from_rows(rows))
    ...     size = pathlib.Path(shared, "notes.txt").write_text("meeting at ten")
    ...     aggregator = Aggregator(rank=1)
    ...     collect(shared, aggregator)
    [SkippedFile(file='notes.txt', reason='file name is not <child>.<version>.safetensors.')]
    >>> aggregator.model().count
    40.0
    """
    validation.integer(max_bytes, "max_bytes", at_least=1)
    storage = open_storage(folder)
    known = {(old.file, old.stamp): old for old in before}
    received = {file_name(child): version for child, version in aggregator.versions.items()}
    files = listed(storage, max_bytes)
    skipped = files.others
    counted = _counted.setdefault(aggregator, {}).setdefault(storage.path(""), {})
    if aggregator.roster is None:
        _log.info("%s: %s", folder, ANYONE)
    scalings = files.kinds.get(SCALING, {})
    for stem, versions in files.of(SUMMARY):
        warning = _NOT_IN_SCALE if scalings and stem not in scalings else ""
        for version, entry in versions:
            is_known = version <= received.get(stem, -1)
            if is_known and (aggregator.roster is None or counted.get(entry.name) == entry.stamp):
                break
            problem = known.get((entry.shown, entry.stamp))
            problem = problem or known.get((entry.shown, _stamp_of_rejection(entry, aggregator)))
            problem = problem or _hand_over(storage, entry, aggregator, max_bytes, warning)
            if problem is None:
                counted[entry.name] = entry.stamp
                break  # older versions do not count
            skipped.append(problem)
            if is_known:
                break
    aggregator.record()
    return sorted(skipped, key=lambda item: item.file)


def collect_scaling(
    folder: str | os.PathLike[str], *, roster: Roster | None = None, max_bytes: int = 2**30
) -> CollectedScaling:
    """The scaling of the rows of all owners who published theirs: the newest valid version of each.

    No file can make it fail. All callers get the same result until another scaling is published. Therefore
    wait until all owners have published; owners who join later use the result without publishing one.

    Args:
        folder: as for `publish`.
        roster: only what its members have signed counts. None: senders are not verified.
        max_bytes: larger files are skipped unread.

    Raises:
        ValueError: there is none yet.

    >>> import tempfile, numpy as np, fedpca
    >>> rows = {"north": [[1.0, 20.0], [3.0, 60.0]], "south": [[2.0, 40.0]]}
    >>> with tempfile.TemporaryDirectory() as shared:
    ...     for child, part in rows.items():
    ...         path = publish(shared, child, 1, fedpca.Scaling.from_rows(part))
    ...     collected = collect_scaling(shared)
    >>> collected.owners, collected.scaling.mean
    (('north', 'south'), array([ 2., 40.]))
    """
    validation.integer(max_bytes, "max_bytes", at_least=1)
    storage = open_storage(folder)
    if require_roster(roster) is None:
        _log.info("%s: %s", folder, ANYONE)
    found: list[tuple[Entry, str, Scaling]] = []
    skipped = []
    for _, versions in listed(storage, max_bytes).of(SCALING):
        for _, entry in versions:
            try:
                message = read_checked(storage, entry, SCALING, max_bytes, roster)
                found.append((entry, message.child, message.of(Scaling)))
                break  # older versions do not count
            except Exception as error:  # anyone may have written the file: no fault of it may stop the others
                skipped.append(entry.skipped(str(error) or type(error).__name__))
    # The features of most decide.
    usual = Counter((scaling.n_features, scaling.feature_names) for _, _, scaling in found)
    found.sort(key=lambda item: -usual[item[2].n_features, item[2].feature_names])
    merged: dict[str, Scaling] = {}
    together: Scaling | None = None
    for entry, child, scaling in found:
        try:
            together = scaling if together is None else Scaling.merge([together, scaling])
        except ValueError as error:
            skipped.append(entry.skipped(str(error)))
        else:
            merged[child] = scaling
    if not merged:
        raise ValueError(
            f"there is no scaling in {folder}: {'; '.join(item.reason for item in skipped) or 'none yet'}. "
            "Let every owner publish(folder, child, version, fedpca.Scaling.from_rows(rows))."
        )
    owners = tuple(sorted(merged))
    whole = Scaling.merge([merged[child] for child in owners])  # in this order: the same for everybody
    return CollectedScaling(whole, owners, tuple(sorted(skipped, key=lambda item: item.file)))


_Versions = dict[str, list[tuple[int, Entry]]]


class _Files(NamedTuple):
    """What is in a folder: files that may be messages, by kind, child and version; and all others."""

    kinds: dict[str, _Versions]
    others: list[SkippedFile]

    def of(self, kind: str) -> list[tuple[str, list[tuple[int, Entry]]]]:
        """The files of a kind, as its names end, by child, the newest version first."""
        return [
            (stem, sorted(versions, reverse=True))
            for stem, versions in sorted(self.kinds.get(kind, {}).items())
        ]


def listed(storage: Storage, max_bytes: int) -> _Files:
    files = _Files({}, [])
    for entry in storage.entries():
        match = _FILE_NAME.fullmatch(entry.name)
        if entry.name.startswith("."):
            continue
        if not entry.is_file:
            files.others.append(entry.skipped("not a regular file."))
        elif match is None:
            files.others.append(entry.skipped("file name is not <child>.<version>.safetensors."))
        elif entry.size > max_bytes and not match[3]:
            files.others.append(entry.skipped(_too_large(entry, max_bytes)))
        else:
            versions = files.kinds.setdefault(match[3], {})
            versions.setdefault(match[1], []).append((int(match[2]), entry))
    return files


def _too_large(entry: Entry, max_bytes: int) -> str:
    return f"{entry.size} bytes are more than max_bytes={max_bytes}."


def _hand_over(
    storage: Storage, entry: Entry, aggregator: Aggregator, max_bytes: int, warning: str
) -> SkippedFile | None:
    """Read a file and hand its message to the aggregator; returns why it does not count, or None.

    The warning is for summaries of rows that were divided by numbers.
    """
    try:
        message = _read(storage, entry.name, max_bytes)
    except ModelFileError as error:
        return entry.skipped(str(error), entry.stamp)
    except Exception as error:  # permissions and networks change without a trace in the file
        return entry.skipped(str(error) or type(error).__name__)
    if message.summary is None or not isinstance(message.summary.scale, np.ndarray):
        warning = ""
    try:
        aggregator.receive_message(message, warning=warning)
    except SummaryRejected as rejection:
        return entry.skipped(f"rejected: {rejection}", _stamp_of_rejection(entry, aggregator))
    except OSError:  # of the store, for all files alike
        raise
    except Exception as error:  # anyone may have written the file: no fault of it may stop the others
        return entry.skipped(f"rejected: {type(error).__name__}: {error}")
    return None


def read_checked(storage: Storage, entry: Entry, kind: str, max_bytes: int, roster: Roster | None) -> Message:
    """The scaling or sum in a file, with a roster from a member, and of no more rows than it declared."""
    if entry.size > max_bytes:
        raise ValueError(_too_large(entry, max_bytes))
    message = _read(storage, entry.name, max_bytes, kind)
    if roster is not None:
        roster.check_signature(message.signature, message.child, entry.name)
        check_agreed_rows(roster, message)
    return message


def _read(storage: Storage, name: str, max_bytes: int, kind: str = SUMMARY) -> Message:
    """The message in a file."""
    message = Message.decode(contents_of(storage, name, max_bytes), name)
    if message.content is None:
        raise ModelFileError("it has no summary; only the aggregator withdraws a child.")
    if name != name_of(message.child, message.version, kind):
        raise ModelFileError(f"renamed: it is version {message.version} of {message.child!r}.")
    return message


def contents_of(storage: Storage, name: str, max_bytes: int) -> bytes:
    """A copy of a file in memory that nobody can change meanwhile."""
    contents = storage.read(name, max_bytes + 1)
    if len(contents) > max_bytes:
        raise ValueError(f"it has grown to more than max_bytes={max_bytes}.")
    return contents


def _stamp_of_rejection(entry: Entry, aggregator: Aggregator) -> str:
    """What another child has sent may be the reason, and may change."""
    return f"{entry.stamp} {aggregator.version}"


def name_of(child: str, version: int, kind: str) -> str:
    """The name of a file."""
    return f"{file_name(child)}.{version}{kind}.safetensors"
