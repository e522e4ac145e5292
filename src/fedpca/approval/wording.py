"""What a certificate may say: words of the library, ids, times and numbers, so that nothing else leaves."""

import re
from collections.abc import Iterator
from typing import get_args

from fedpca._typing import JSON
from fedpca.privacy.calibration import Adjacency
from fedpca.privacy.mechanisms import MECHANISMS
from fedpca.privacy.noise import ExactNoise
from fedpca.privacy.steps import StepName
from fedpca.secure.fit import SAMPLER
from fedpca.summaries.certificate import (
    CORRECTED_SCALE,
    FORMAT,
    IN_MEMORY,
    PRIVATE_SCALE,
    PUBLIC_SCALE,
    Certificate,
)
from fedpca.summaries.certificate_merging import ASSUMES

_ID = r"[0-9a-f-]{1,64}"
_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|\+00:00)"
_NAME = r".{1,100}"  # of a member, or of a study: a roster has it


def _any_of(*texts: str) -> str:
    return "|".join(map(re.escape, texts))


_ALLOWED = {
    "format": _any_of(FORMAT),
    "unit": "record",
    "adjacency": _any_of(*get_args(Adjacency)),
    "mechanism": _any_of(*MECHANISMS),
    "sampler": _any_of(ExactNoise.sampler, SAMPLER),
    "center": _any_of("private", "public", "none: about the origin", "none: differences of pairs"),
    "clipping": "(ball|sphere)(, differences of pairs)?",
    "scale": _any_of(PUBLIC_SCALE, PRIVATE_SCALE, CORRECTED_SCALE),
    "calibration": "analytic|published formula",
    "public": _any_of("number of records, number and names of features, and these settings"),
    "assumes": _any_of(ASSUMES),
    "step": _any_of(*get_args(StepName), *MECHANISMS),
    "sum": _any_of(*get_args(StepName), *MECHANISMS),
    "promise": r"holds against the coordinator together with any \d{1,5} of the \d{1,5} members",
    "kept": _any_of(IN_MEMORY, "in a file"),
    **dict.fromkeys(("release", "stream", "ledger", "id"), _ID),
    **dict.fromkeys(("study", "members", "owners"), _NAME),
    "time": _TIME,
    "fedpca": r"\d[0-9a-z.+]{0,39}",
}
_MERGED = ("unit", "adjacency", "mechanism", "sampler", "center")  # of several releases, side by side


def refuse_other_words(certificate: Certificate | None) -> None:
    """Raise for a certificate with a text that the library does not write.

    What weakens the promise is in words of its own, and policies refuse it.
    """
    for name, text in () if certificate is None else _texts(certificate.to_json()):
        if name == "warnings":
            continue
        parts = text.split(" | ") if name in _MERGED else [text]
        if not all(part == "" or re.fullmatch(_ALLOWED[name], part) for part in parts):
            raise ValueError(
                f"a certificate must have no text but what fedpca writes, and {name} is {text!r:.80}; let "
                "its owner release it again."
            )


def _texts(contents: JSON | list[JSON], of: str = "") -> Iterator[tuple[str, str]]:
    """Every text in JSON, with the name of its field."""
    for name, value in contents.items() if isinstance(contents, dict) else ((of, each) for each in contents):
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, dict | list):
            yield from _texts(value, name)
