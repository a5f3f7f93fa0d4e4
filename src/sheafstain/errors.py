"""What went wrong, in one line that a user can act on.

Anything raised as one of these reaches the terminal as a single line: which file or setting, what is wrong with it, and
what to do. Everything else is a bug and shows as such.
"""


class SheafStainError(Exception):
    """The work could not be done: exit code 1."""

    exit_code = 1


class UsageError(SheafStainError):
    """The command itself was wrong (an unknown layout, a size that is no size): exit code 2."""

    exit_code = 2
