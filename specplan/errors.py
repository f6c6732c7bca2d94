"""Errors that a user can mend: one clear line that says what was read, where, what was expected and what to do.

::

    SpecplanError
    ├── InputError          a value, file or option is not what it must be
    │   └── NotFoundError   a name that no file answers to (carries near misses)
    ├── InfeasibleError     the numbers are fine, but no answer exists for them
    ├── UnsupportedError    a kind of model, engine or version that cannot be counted yet, named
    └── MissingExtraError   an optional package is needed; the message names the install line
"""


class SpecplanError(Exception):
    """Base of all errors that specplan raises on purpose; the command line prints it as one line and exits with 2."""


class InputError(SpecplanError):
    """A value, file or option is not what it must be."""


class NotFoundError(InputError):
    """A name that no file answers to; the message lists near misses."""


class InfeasibleError(SpecplanError):
    """The inputs are valid, but no solution exists (array functions answer NaN instead)."""


class UnsupportedError(SpecplanError):
    """A kind of model, engine or version that specplan cannot count yet; named, never guessed."""


class ModelNote(UserWarning):
    """A model's counts rest on an assumption that its spec carries; the command line shows each on stderr."""


class MissingExtraError(SpecplanError):
    """An optional package is needed.

    >>> str(MissingExtraError("torch", extra="harness"))
    "this needs torch, which is not installed; run: pip install 'specplan[harness]'"
    """

    def __init__(self, package: str, *, extra: str) -> None:
        super().__init__(f"this needs {package}, which is not installed; run: pip install 'specplan[{extra}]'")
        self.package = package
        self.extra = extra
