"""All exceptions of fedpca.

    ValueError
    ├── FileFormatError     a data file cannot be read as rows
    ├── ModelFileError      a file is not a model file, is damaged, or has an unknown format version
    ├── NodeError           a Flower node cannot answer a request
    ├── NonFiniteError      rows on a device contain NaN, infinity, or values too large to square
    └── SummaryRejected     an aggregator rejected a summary
    RuntimeError
    └── BudgetExceeded      a release would cost more than is left of a privacy budget
    AttributeError
    └── NotReleasedError    a private estimator has not released yet

Everything else that fedpca raises is a plain ValueError, TypeError or OSError.
"""


class FileFormatError(ValueError):
    """A data file cannot be read as rows. Messages name lines and columns, never their contents."""


class ModelFileError(ValueError):
    """A file is not a model file, is damaged, or has a format version this library does not know."""


class NodeError(ValueError):
    """A node cannot answer, for a reason that reveals nothing of its rows and may be sent to anyone."""


class NonFiniteError(ValueError):
    """Rows on a device contain NaN, infinity, or values too large to square."""


class SummaryRejected(ValueError):
    """Raised when a summary is rejected; the aggregator is unchanged."""


class BudgetExceeded(RuntimeError):
    """A release would cost some record more than its budget. Nothing was noised, nothing was spent."""


class NotReleasedError(AttributeError):
    """A private estimator was asked for something that only a release may reveal."""
