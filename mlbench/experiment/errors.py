"""The one exception whose text is written for the person at the terminal."""


class UserError(Exception):
    """A mistake of the user's that one sentence explains and the hint mends.

    Commands print it without a traceback and exit with code 2, before any worker starts.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message
