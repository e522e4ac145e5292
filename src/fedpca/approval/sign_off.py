"""The page to sign: what leaves, under which rules, in words for whoever answers for it."""

from math import ceil, exp, floor, log10
from pathlib import Path
from typing import Any

from fedpca._typing import JSON
from fedpca._util.extras import require
from fedpca._util.text import format_number, join_names, pluralize, sanitize
from fedpca._util.version import __version__
from fedpca.disclosure.policy import NO_POLICY
from fedpca.report.formatting import timestamp

_jinja2 = require("jinja2", extra="report", purpose="a page to sign")
_TEMPLATE = Path(__file__).with_name("sign_off.html.jinja")
_MOST_NAMES, _MOST_LETTERS = 10, 24  # so that all of it fits on one page
_RULES = {  # what a rule is about, and in which words its limit is said
    "least_rows": ("Records behind every number", "at least {}"),
    "most_features_per_row": ("Records per column", "at least {}"),
    "least_level": ("Records in the rarer group of a two-valued column", "at least {}"),
    "most_directions_per_row": ("Records per direction", "at least {}"),
    "privacy_required": ("Differential privacy", "required"),
    "largest_epsilon": ("Privacy loss, epsilon", "at most {}"),
    "secure_sums_required": ("Secure sums over several owners", "required"),
    "mean_allowed": ("Averages of columns", "allowed"),
}
_PER_ROW = ("most_features_per_row", "most_directions_per_row")  # whose inverse is said
_RESULTS = {"holds": "met", "off": "–", "waived": "waived", "broken": "NOT met"}


def sign_off_page(title: str, release: JSON, release_hash: str) -> str:
    """One printed page about a release, as `release.json` describes it."""
    environment = _jinja2.Environment(
        autoescape=True,  # untrusted names are text, never markup
        undefined=_jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    policy = release["policy"]
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        title=sanitize(title, 60),
        time=timestamp(release["time"]),
        facts=_facts(release),
        leaves=_what_leaves(release),
        other_releases=_other_releases(release),
        protects=_what_protects(release),
        rules=[] if policy is None else [_rule(each) for each in policy["rules"]],
        no_policy=NO_POLICY.capitalize(),
        hashes=_hashes(release, release_hash),
        version=__version__,
    )


def _facts(release: JSON) -> list[tuple[str, str]]:
    """The numbers at the top."""
    privacy = release["privacy"]
    return [
        ("records (rows)", format_number(release["rows"])),
        ("columns", format_number(release["columns"])),
        ("directions", format_number(release["directions"])),
        ("differential privacy", "none" if privacy is None else f"epsilon = {privacy['epsilon']:g}"),
    ]


def _hashes(release: JSON, release_hash: str) -> list[tuple[str, str]]:
    """The checksum of each file of the package, and of the policy."""
    hashes = [(name, facts["sha256"]) for name, facts in release["files"].items()]
    hashes.append(("release.json", release_hash))
    if release["policy"] is not None:
        hashes.append(("policy", release["policy"]["hash"].removeprefix("sha256:")))
    return hashes


def _what_leaves(release: JSON) -> list[str]:
    """What is in the file."""
    records, columns = pluralize(release["rows"], "record"), pluralize(release["columns"], "column")
    parts = ["the number of records"]
    if release["means"]:
        parts.append("the average of every column")
    if release["contents"] == "moments":
        parts.append("how every two columns vary together (one number per pair)")
    else:
        parts.append(f"the {pluralize(release['directions'], 'direction')} in which the records vary most")
    if release["scaled"]:
        parts.append("the spread of every column")
    names = release["column_names"]
    text = (
        f"One model file, computed from {records} with {columns}. It holds {', '.join(parts[:-1])} and "
        f"{parts[-1]}. "
    )
    if release["privacy"] is None and release["rows"] <= release["directions"] + 1:
        text += "From so few records, the records themselves can be computed from it."
    else:
        text += "It holds no record, no name and no identifier of a person."
    if not names:
        return [text]
    shown = [sanitize(name, _MOST_LETTERS) for name in names[:_MOST_NAMES]]
    more = [""] * (len(names) - len(shown))
    return [text, f"The columns are {join_names([*shown, *more], _MOST_NAMES)}."]


def _what_protects(release: JSON) -> list[str]:
    """What can be learned about a single record, honestly."""
    privacy = release["privacy"]
    if privacy is None:
        return [
            "The numbers are exact: no noise was added to them. Numbers about a group can tell something "
            "about its members, above all if the group is small or somebody knows all the others. Rules that "
            "keep groups large lower this risk; they do not rule it out."
        ]
    if not privacy["private"]:
        return ["Noise was added from a known seed, for a test. It protects nothing, and nothing may leave."]
    epsilon, delta = privacy["epsilon"], privacy["delta"]
    factor, chance = _rounded_up(exp(min(epsilon, 700.0))), f"1 in {_rounded_up(1 / delta)}"
    weakness = [f"This promise is weakened: {sanitize(text, 200)}." for text in privacy["warnings"][:1]]
    return [
        "Random noise was added, so that what leaves would be about the same if any one record had been "
        f"different (differential privacy, epsilon = {epsilon:g}, delta = {delta:g}). Whatever anybody knows "
        f"or tries, the odds of a statement about one record change by a factor of at most {factor}, but for "
        f"a chance of {chance}. Rules that look at records are waived: a refusal would tell about them.",
        *weakness,
        "A person with several records is protected less: with five of them, epsilon is "
        f"{privacy['of_five']:.3g}. Cells that are not numbers, such as words and dates, were read as "
        "missing. A column of words adds nothing, and no message says so: it would tell about the records.",
        *_who_saw(release["secure"]),
    ]


def _other_releases(release: JSON) -> list[str]:
    """What was spent on the records before, and what may leave next."""
    ledgers = release["ledgers"]
    if ledgers is None:
        return [
            "No account is kept of what leaves without noise. Two models of nearly the same records can show "
            "the records in which they differ, so whoever signs must know what has left before."
        ]
    if ledgers["releases"] > 1:
        return [
            f"{format_number(ledgers['releases'])} releases are behind this model, "
            f"{format_number(ledgers['kept'])} of them from a ledger, an owner's account of all releases. "
            "What each owner has left is on the page that this owner signs."
        ]
    one = ledgers["one"]
    if one is None or not ledgers["kept"]:
        return [
            "No ledger was kept: nothing adds up what this release and others of the same records cost. "
            "Whoever signs must know of all others. Of k releases like this one, each record pays for all."
        ]
    before = "Nothing had been spent before this release"
    if one["before"]:
        entries = one["entries_before"]
        listed = "" if entries is None else f" ({pluralize(entries, 'entry', 'entries')})"
        before = f"epsilon = {one['before']:.3g} had been spent before this release{listed}"
    after = (
        f"The next release of these records may cost epsilon = {one['left']:.3g} at most, and needs a page "
        "of its own; one that costs more is refused."
        if one["left"]
        else "Nothing is left: the next release of these records is refused, unless a new ledger is approved."
    )
    return [
        f"The owner's ledger, {sanitize(one['id'], 20)}, is the account of what all releases of these "
        "records cost. "
        f"Its budget is epsilon = {one['epsilon']:g} at delta = {one['delta']:g}. {before}, "
        f"epsilon = {one['spent']:.3g} with it; costs add up as their squares do, to less than the sum. "
        f"{after}"
    ]


def _who_saw(secure: JSON | None) -> list[str]:
    """What whoever collected the numbers of several owners saw of each."""
    if secure is None:
        return []
    return [
        f"Others saw sums over {secure['least']} owners or more, and the number of records of each owner."
    ]


def _rounded_up(value: float) -> str:
    """With three digits."""
    unit = 10.0 ** (floor(log10(value)) - 2)
    return format_number(float(f"{ceil(value / unit * (1 - 1e-9)) * unit:.3g}"))


def _rule(result: JSON) -> tuple[str, str, str, str]:
    """A rule in words: what, the limit, what was found, and whether it is met."""
    what, words = _RULES[result["rule"]]
    limit, found = result["limit"], result["value"]
    if result["rule"] in _PER_ROW:
        limit, found = (None if value is None else _inverse(value) for value in (limit, found))
    if isinstance(limit, bool):
        limit_text = words if limit else f"not {words}"
    else:
        limit_text = "no limit" if limit is None else words.format(_number(limit))
    return what, limit_text, _found(result["rule"], result["result"], found), _RESULTS[result["result"]]


def _inverse(value: float) -> float | None:
    """Records per column for columns per record, with three digits; None for none."""
    return float(f"{1 / value:.3g}") if value else None


def _found(rule: str, result: str, value: Any) -> str:
    if isinstance(value, bool):
        if rule == "mean_allowed":
            return "contained" if value else "not contained"
        return "yes" if value else "no"
    if value is not None:
        return _number(value)
    if result == "waived":
        return "not looked at"
    return "no such column" if rule == "least_level" and result == "holds" else "–"


def _number(value: float | None) -> str:
    return "–" if value is None else format_number(value)
