"""Policy: what an owner of rows lets out, checked before anything leaves.

A policy decides whether something may leave; it never changes what is computed. Without privacy its rules are
those that data platforms apply to tables and models. With differential privacy noise protects every row, and
only rules on public numbers and settings decide: a refusal that depends on rows would itself tell about them.
"""

import hashlib
import json
import logging
import os
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self

from fedpca._typing import JSON, RowsLike
from fedpca._util.files import local_path
from fedpca._util.text import format_number, pluralize, sanitize
from fedpca.disclosure.row_counts import RowCounts, Rows
from fedpca.errors import PolicyViolation
from fedpca.summaries import validation
from fedpca.summaries.certificate import Certificate
from fedpca.summaries.moments import Moments
from fedpca.summaries.scaling import Scaling
from fedpca.summaries.subspace import Subspace
from fedpca.summaries.summary import Summary

if TYPE_CHECKING:
    from fedpca.privacy import Privacy

_log = logging.getLogger(__name__)
NO_POLICY = "no policy: nothing was checked"
_PAIRS = "none: differences of pairs"  # the only center of a private release that shows no mean
_MOST = 2**53  # limits above are typing errors, and no numbers in every reader of JSON
_NO_MEAN = 1e-12  # squared, in units of the variance: rows that were centered before, in float32

PRESETS: MappingProxyType[str, JSON] = MappingProxyType(
    {
        "default": {},
        "ohdsi": {"least_level": 5},
        "tre": {"least_level": 10},
        "strict": {"least_rows": 50, "least_level": 10, "privacy_required": True, "largest_epsilon": 1.0},
    }
)
"""What presets change: OHDSI's smallest cell is 5, that of UK trusted research environments 10."""


@dataclass(frozen=True)
class RuleResult:
    """What a rule says about something that is to leave.

    Attributes:
        rule: its key in the policy.
        limit: its value there.
        value: what was found; None if it is not known, or not to be told.
        result: "holds", "broken", "off" if it would be broken but is not set, or "waived" under privacy.
        problem: if it is broken: rule, value and remedy in a sentence.
    """

    rule: str
    limit: float | bool
    value: float | bool | None
    result: Literal["holds", "broken", "off", "waived"]
    problem: str = ""

    def to_json(self) -> JSON:
        """Plain JSON values; infinity, of a limit or of a ratio to no rows, is null."""
        found = {name: None if value == inf else value for name, value in asdict(self).items()}
        return {name: value for name, value in found.items() if name != "problem" or value}


@dataclass(frozen=True)
class Policy:
    """What may leave, as its owner decides. Every rule has a default from practice.

    Args:
        least_rows: the fewest rows behind anything that leaves, behind any column of it, and behind any group
            of rows that alone know the same features. 10, as the Medical Informatics Platform and UK trusted
            research environments have it.
        most_features_per_row: features divided by rows, at most. 0.33, as DataSHIELD has it for covariances
            and models. Waived under privacy.
        least_level: the fewest rows in each level of a column that has two. 3, as DataSHIELD has it. It needs
            the rows; 0 switches it off. Waived under privacy.
        most_directions_per_row: directions divided by rows, at most: as many directions as rows are the rows
            themselves. Counts what a model carries, not what it shows. Waived under privacy.
        privacy_required: only differentially private releases may leave.
        largest_epsilon: of a private release. Above 10 privacy promises little, and would waive rules.
        secure_sums_required: only sums over owners that nobody can take apart may leave: what an owner sends
            in a secure study, and the model of one.
        mean_allowed: whether the means of columns may leave. If not, only rows whose mean was subtracted
            before, or private differences of pairs of rows, may be summarized.

    >>> import numpy as np
    >>> policy = Policy(least_rows=20)
    >>> rows = np.random.default_rng(0).normal(size=(15, 3))
    >>> policy.check(Subspace.from_rows(rows), rows)
    Traceback (most recent call last):
    ...
    fedpca.errors.PolicyViolation: least_rows: at least 20 rows must be behind what leaves, got 15; wait for
    more, or leave out columns that few rows know.
    """

    least_rows: int = 10
    most_features_per_row: float = 0.33
    least_level: int = 3
    most_directions_per_row: float = 0.33
    privacy_required: bool = False
    largest_epsilon: float = 10.0
    secure_sums_required: bool = False
    mean_allowed: bool = True

    def __post_init__(self) -> None:
        for name in ("least_rows", "least_level"):
            number = validation.integer(getattr(self, name), name, at_least=0)
            if number > _MOST:
                raise ValueError(f"{name} must be at most {_MOST}, got {name}={number!r:.80}.")
            object.__setattr__(self, name, number)
        for name in ("most_features_per_row", "most_directions_per_row", "largest_epsilon"):
            value = getattr(self, name)
            if not validation.is_real(value):
                raise TypeError(f"{name} must be a number, got {name}={value!r:.80}.")
            if not value > 0 or _MOST < value < inf:  # nor NaN
                raise ValueError(
                    f"{name} must be above 0 and at most {_MOST}, or inf for no limit, got "
                    f"{name}={value!r:.80}."
                )
            object.__setattr__(self, name, float(value))
        for name in ("privacy_required", "secure_sums_required", "mean_allowed"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be true or false, got {name}={getattr(self, name)!r:.80}.")

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """The policy of a kind of place: "default", "ohdsi", "tre" or "strict", with some keys changed.

        >>> Policy.preset("tre").least_level, Policy.preset("strict").privacy_required
        (10, True)
        """
        if not isinstance(name, str) or name not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r:.80}.")
        return cls(**PRESETS[name] | changes)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a policy.toml: any of the keys above, and `preset`, from which the others differ.

        >>> from tempfile import mkdtemp
        >>> path = local_path(mkdtemp()) / "policy.toml"
        >>> _ = path.write_text('preset = "tre"\\nleast_rows = 30\\n')
        >>> policy = Policy.load(path)
        >>> policy.least_rows, policy.least_level
        (30, 10)
        """
        path = local_path(path)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder, not a policy; name a file in it.")
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such policy; check the path, or write the file.")
        try:
            keys = tomllib.loads(path.read_bytes().decode())
        except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
            raise ValueError(f"{path} must be a TOML file, and is not: {sanitize(error, 200)}.") from error
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(keys) - {*known, "preset"}):
            names = ", ".join(sanitize(name, 60) for name in unknown[:8])
            raise ValueError(f"{path} has unknown keys: {names}; known are preset, {', '.join(known)}.")
        try:
            return cls.preset(keys.pop("preset", "default"), **keys)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error

    def to_json(self) -> JSON:
        """All keys; a limit of infinity is null."""
        return {name: None if value == inf else value for name, value in asdict(self).items()}

    @property
    def hash(self) -> str:
        """The same for all policies with the same rules, however their files are written."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    # --- before anything is fitted ---

    def check_rows(self, rows: RowsLike, *, privacy: "Privacy | None" = None) -> RowCounts | None:
        """Refuse rows before they are fitted, and before anything is spent on them.

        Without privacy it reads all rows once, to count them. With privacy it counts the rows, unless their
        number is known, and looks at nothing in them.

        Args:
            rows: all of them: an array, a frame, a sparse matrix, or files from `fedpca.readers.open_rows`.
            privacy: with which they are to be released.

        Returns:
            The counts, for `check`; None under privacy.

        Raises:
            PolicyViolation: by the first rule that does not hold.
        """
        if privacy is not None:
            self.check_private(Rows.of(rows).length(), privacy)
            return None
        raise_broken([self._privacy_rule(None), self._secure_rule(None)])
        counts = RowCounts.of(rows)
        raise_broken(self._count_rules(counts, counts.rows, Rows.of(rows).n_features / counts.rows))
        return counts

    def check_private(self, n_rows: int, privacy: "Privacy") -> None:
        """Refuse a private release of so many rows, before noise is drawn or anything is spent.

        Raises:
            PolicyViolation: by the first rule that does not hold.
        """
        self._check_noisy(n_rows, privacy, self._secure_rule(None))

    def check_secure(
        self, rows: RowsLike, privacy: "Privacy | None" = None, *, least: int, colluding: int
    ) -> RowCounts | None:
        """Refuse rows of a secure study, before any key leaves and before anything is spent on them.

        All rules apply to the owner's own rows, as if these left alone: what the others have is not known.

        Args:
            rows: all of them, as for `check_rows`; with privacy their number is enough.
            privacy: with which they are summed. Without it all moments of the rows are part of the sums.
            least: the fewest owners in a sum of the study.
            colluding: how many of them may share what they know.

        Returns:
            The counts; None under privacy.

        Raises:
            PolicyViolation: by the first rule that does not hold.

        >>> import numpy as np
        >>> strict = Policy(secure_sums_required=True)
        >>> strict.check_secure(np.random.default_rng(0).normal(size=(100, 4)), least=5, colluding=1)
        RowCounts(rows=100, fewest_values=100, smallest_level=None, column='')
        """
        secure = self._secure_rule(least - colluding)
        if privacy is not None:
            n_rows = rows if isinstance(rows, int) else Rows.of(rows).length()
            self._check_noisy(n_rows, privacy, secure)
            return None
        raise_broken(
            [self._privacy_rule(None), secure, self._mean_rule(True, "sum with privacy and center='pairs'")]
        )
        counts = RowCounts.of(rows)
        per_row = Rows.of(rows).n_features / counts.rows
        raise_broken([*self._count_rules(counts, counts.rows, per_row), self._directions_rule(per_row)])
        return counts

    def _check_noisy(self, n_rows: int, privacy: "Privacy", secure: RuleResult) -> None:
        problem = ""
        if privacy.insecure_seed_for_tests is not None:
            problem = "its noise comes from a seed"
        has_mean = privacy.center != "pairs"
        raise_broken(self._private_rules(n_rows, privacy.epsilon, has_mean, problem, secure))

    # --- before it leaves ---

    def check(self, summary: Summary | Scaling, rows: RowsLike | RowCounts = None) -> None:
        """Refuse what may not leave.

        Args:
            summary: what is to leave.
            rows: all rows behind it, or what `check_rows` counted. Without them a model that is not private
                leaves only if `least_level` is 0. Under privacy they are not looked at.

        Raises:
            PolicyViolation: by the first rule that does not hold; it names the others.
        """
        raise_broken(self.results(summary, rows))

    def results(self, summary: Summary | Scaling, rows: RowsLike | RowCounts = None) -> list[RuleResult]:
        """What every rule that applies says about something that is to leave; see `check`.

        >>> import numpy as np
        >>> rows = np.random.default_rng(0).normal(size=(100, 4))
        >>> [result.result for result in Policy().results(Subspace.from_rows(rows), rows)]
        ['holds', 'holds', 'holds', 'holds', 'off', 'off', 'holds']
        """
        if not isinstance(summary, Subspace | Moments | Scaling):
            raise TypeError(
                f"a policy checks Subspace, Moments or Scaling, got {type(summary).__name__}; pass summary_."
            )
        if not isinstance(summary, Scaling) and summary.certificate is not None:
            return self._results_of_release(summary, summary.certificate)
        counts = rows if rows is None or isinstance(rows, RowCounts) else _counts_behind(summary, rows)
        if isinstance(summary, Scaling):
            observed = summary.observed[summary.observed > 0]
            found = [*self._count_rules(counts, float(observed.min()) if len(observed) else 0.0, None)]
        else:
            known = [(leaf, leaf.count) for leaf in summary.leaves]
            if counts is not None:  # weights make no rows
                known = [(leaf, min(count, counts.rows)) for leaf, count in known]
            found = [
                *self._count_rules(
                    counts,
                    min(count for _, count in known),
                    max(_ratio(leaf.n_known, count) for leaf, count in known),
                ),
                self._directions_rule(max(_ratio(_n_directions(leaf), count) for leaf, count in known)),
            ]
        return [
            *found,
            self._privacy_rule(None),
            self._secure_rule(None),
            self._mean_rule(shows_mean(summary), "subtract the mean of every column from the rows first"),
        ]

    # --- rules ---

    def _count_rules(
        self, counts: RowCounts | None, rows: float, features_per_row: float | None
    ) -> Iterator[RuleResult]:
        """The rules on rows that are not private; those on features if any are said."""
        if counts is not None:
            rows = min(rows, counts.rows, counts.fewest_values)
        yield self._rows_rule(rows, "wait for more, or leave out columns that few rows know")
        if features_per_row is not None:
            yield self._most(
                "most_features_per_row",
                features_per_row,
                "features per row may leave, got {}; select fewer columns, or fit with privacy",
            )
        yield self._level_rule(counts)

    def _rows_rule(self, rows: float, remedy: str) -> RuleResult:
        problem = (
            f"at least {pluralize(self.least_rows, 'row')} must be behind what leaves, got "
            f"{format_number(rows)}; {remedy}"
        )
        return self._rule("least_rows", rows, rows >= self.least_rows, problem)

    def _most(self, rule: str, value: float, problem: str) -> RuleResult:
        limit = getattr(self, rule)
        text = f"at most {limit:g} {problem.format(f'{value:.4g}')}"
        return self._rule(rule, value, value <= limit, text)

    def _directions_rule(self, per_row: float) -> RuleResult:
        problem = "directions per row may leave, got {}; keep fewer components, or fit with privacy"
        return self._most("most_directions_per_row", per_row, problem)

    def _level_rule(self, counts: RowCounts | None) -> RuleResult:
        name = "least_level"
        if counts is None:
            problem = (
                "the rows must be counted, and a model alone does not show them; pass the rows, or set "
                "least_level = 0"
            )
            return self._rule(name, None, False, problem, is_on=self.least_level > 0)
        smallest = counts.smallest_level
        where = f"one of {counts.column!r}" if counts.column else "one"
        problem = (
            f"every level of a column with two must have at least {pluralize(self.least_level, 'row')}, and "
            f"{where} has {smallest}; leave the column out, or fit with privacy"
        )
        holds = smallest is None or smallest >= self.least_level
        return self._rule(name, smallest, holds, problem)

    def _privacy_rule(self, problem: str | None) -> RuleResult:
        """Of a release with this problem, "" for none; None for what is not private at all."""
        private = problem == ""
        text = "only private releases may leave, and this is none; fit with epsilon and delta"
        if problem:
            text = f"a private release must keep its promise, but {problem}; release it again"
        is_on = self.privacy_required or bool(problem)
        return self._rule("privacy_required", private, private, text, is_on=is_on)

    def _secure_rule(self, honest: int | None) -> RuleResult:
        """Of a sum with at least so many owners who share nothing; None for what is no secure sum."""
        holds = honest is not None and honest > 1
        text = "only secure sums may leave, and this is none; take part in a secure study, fedpca secure"
        if honest is not None:
            text = (
                f"at least 2 owners beside those who collude must be in every sum, got {honest}; "
                "lower colluding"
            )
        return self._rule("secure_sums_required", holds, holds, text, is_on=self.secure_sums_required)

    def _mean_rule(self, has_mean: bool, remedy: str) -> RuleResult:
        text = f"the means of columns may not leave, and this shows them; {remedy}"
        return self._rule("mean_allowed", has_mean, self.mean_allowed or not has_mean, text)

    def _rule(
        self, rule: str, value: float | bool | None, holds: bool, problem: str, *, is_on: bool = True
    ) -> RuleResult:
        limit = getattr(self, rule)
        if holds or not is_on:
            return RuleResult(rule, limit, value, "holds" if holds else "off")
        return RuleResult(rule, limit, value, "broken", f"{rule}: {problem}.")

    def _results_of_release(self, summary: Summary, certificate: Certificate) -> list[RuleResult]:
        releases = certificate.all_releases()
        records = [float(release.records) for release in releases if release.records] or [summary.count]
        problem = ""
        if not certificate.private:
            problem = "its noise came from a seed"
        elif certificate.warnings:
            problem = f"it is weakened ({sanitize(certificate.warnings[0], 200)})"
        elif certificate.delta * max(records) >= 1:
            problem = f"its delta, {certificate.delta:g}, is not below one over its rows"
        terms = [release.secure for release in releases]
        honest = [each.least - each.colluding for each in terms if each is not None]
        secure = self._secure_rule(min(honest) if len(honest) == len(terms) else None)
        n_rows, has_mean = min(summary.count, *records), shows_mean(summary)
        return self._private_rules(n_rows, certificate.epsilon, has_mean, problem, secure)

    def _private_rules(
        self, n_rows: float, epsilon: float, has_mean: bool, problem: str, secure: RuleResult
    ) -> list[RuleResult]:
        """The rules on public numbers and settings."""
        waived = ("most_features_per_row", "least_level", "most_directions_per_row")
        text = f"at most {self.largest_epsilon:g} may be spent, got {epsilon:g}; release with less"
        return [
            self._rows_rule(n_rows, "wait for more"),
            *(RuleResult(name, getattr(self, name), None, "waived") for name in waived),
            self._privacy_rule(problem),
            self._rule("largest_epsilon", epsilon, epsilon <= self.largest_epsilon, text),
            secure,
            self._mean_rule(has_mean, "release differences of pairs of rows, center='pairs'"),
        ]


def check_policy(
    policy: Policy | None, summary: Summary | Scaling, rows: RowsLike | RowCounts = None
) -> None:
    """`Policy.check`; the log says if there is no policy."""
    if policy is None:
        _log.info(NO_POLICY)
        return
    if not isinstance(policy, Policy):
        raise TypeError(f"policy must be a Policy or None, got {type(policy).__name__}; use Policy.load.")
    policy.check(summary, rows)


def raise_broken(results: Iterable[RuleResult]) -> None:
    """Raise by the first rule that is broken; the message names the others."""
    broken = [result for result in results if result.result == "broken"]
    if not broken:
        return
    first, *others = broken
    more = f" Also broken: {', '.join(result.rule for result in others)}." if others else ""
    raise PolicyViolation(first.problem + more, first.rule, first.limit, first.value)


def _counts_behind(summary: Summary | Scaling, rows: RowsLike) -> RowCounts:
    """The counts of the rows of a summary; other rows, which would be counted instead, are refused."""
    counts, n_features = RowCounts.of(rows), Rows.of(rows).n_features
    if n_features != summary.n_features:
        raise ValueError(
            f"rows must be those behind what leaves, with {summary.n_features} features, got {n_features}; "
            "pass the rows of the fit."
        )
    return counts


def _ratio(number: float, count: float) -> float:
    return number / count if count else inf


def _n_directions(leaf: Summary) -> int:
    return leaf.rank if isinstance(leaf, Subspace) else leaf.n_known


def shows_mean(summary: Summary | Scaling) -> bool:
    """Whether something tells the means of columns; about the origin, directions show where the mean is.

    Of a private release its settings decide.
    """
    if isinstance(summary, Scaling):
        return True
    if summary.certificate is not None:
        return set(summary.certificate.center.split(" | ")) != {_PAIRS}
    return any(
        not leaf.centered or float(leaf.mean @ leaf.mean) * leaf.count > _NO_MEAN * max(leaf.total, 0.0)
        for leaf in summary.leaves
    )
