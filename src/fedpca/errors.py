"""All exceptions of fedpca.

    ValueError
    ├── FileFormatError     a data file cannot be read as rows
    ├── ModelFileError      a file is not a model file, is damaged, or has an unknown format version
    ├── NodeError           a Flower node cannot answer a request
    │   └── NodeConfigError  its config cannot be used
    ├── NonFiniteError      rows on a device contain NaN, infinity, or values too large to square
    ├── SecureError         a message of a secure sum does not count, or a coordinator lies
    ├── SignatureError      a file is not signed as the roster of its study requires
    │   └── OutdatedRoster  it was signed under a roster that this one does not know: get the newest
    ├── PolicyViolation     a release would break a rule of its owner's policy
    └── SummaryRejected     an aggregator rejected a summary
    RuntimeError
    └── BudgetExceeded      a release would cost more than is left of a privacy budget
    AttributeError
    └── NotReleasedError    a private estimator has not released yet

Everything else that fedpca raises is an exception of Python or scikit-learn: ValueError, TypeError,
OSError, RuntimeError, ImportError or NotFittedError.
"""


class FileFormatError(ValueError):
    """A data file cannot be read as rows. Messages name lines and columns, never their contents.

    Args:
        problem: what is wrong; the whole message, if there is no remedy.
        remedies: what to do, any of them.

    >>> print(FileFormatError("a.csv: columns must be numeric", "encode them", "select others"))
    a.csv: columns must be numeric; encode them, or select others.
    """

    def __init__(self, problem: str, *remedies: str) -> None:
        super().__init__(f"{problem}; {', or '.join(remedies)}." if remedies else problem)


class ModelFileError(ValueError):
    """A file is not a model file, is damaged, or has a format version this library does not know."""


class NodeError(ValueError):
    """A node cannot answer, for a reason that reveals nothing of its rows and may be sent to anyone."""


class NodeConfigError(NodeError):
    """A node config cannot be used. The text may quote it, and is for the log of the node alone.

    Attributes:
        public: what may be sent to anyone.
    """

    def __init__(self, text: str, public: str) -> None:
        super().__init__(text)
        self.public = public


class NonFiniteError(ValueError):
    """Rows on a device contain NaN, infinity, or values too large to square."""


class SecureError(ValueError):
    """A message of a secure sum does not count, or a coordinator lies: nothing more was sent."""


class SignatureError(ValueError):
    """A file is not signed as the roster of its study requires."""


class OutdatedRoster(SignatureError):
    """A member signed a file under a roster that this one does not know: get the newest roster."""


class PolicyViolation(ValueError):
    """A release would break a rule of its owner's policy. Nothing left.

    Attributes:
        rule: the key of the policy.
        limit: its value there.
        value: what was found, or None where it is not known.
    """

    def __init__(self, text: str, rule: str, limit: object, value: object) -> None:
        self.rule, self.limit, self.value = rule, limit, value
        super().__init__(text, rule, limit, value)  # all of them, so that it can be pickled

    def __str__(self) -> str:
        return str(self.args[0])


class SummaryRejected(ValueError):
    """Raised when a summary is rejected; the aggregator is unchanged."""


class BudgetExceeded(RuntimeError):
    """A release would cost some record more than its budget. Nothing was noised, nothing was spent."""


class NotReleasedError(AttributeError):
    """A private estimator was asked for something that only a release may reveal."""
