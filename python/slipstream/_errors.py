"""The exceptions. All derive from Error; some also from the built-in exception that a program expects."""

from __future__ import annotations


class Error(RuntimeError):
    """An error of the runtime. `code` names its kind, for example "invalid handle" (see ERROR_CODES).

    `file` and `line` are the position of the call or of the op that failed, or "" and 0.
    """

    code: str = ""
    file: str = ""
    line: int = 0


class InvalidValue(Error, ValueError):
    """An impossible size, range, flag or name."""


class OutOfMemory(Error, MemoryError):
    """The device has not enough memory."""


class Timeout(Error, TimeoutError):
    """A wait reached its limit."""


class IoError(Error, OSError):
    """A file could not be read or written."""


class LaunchFailed(Error):
    """A kernel or a host function raised an exception. The text contains its type, message and line."""


class RankLost(Error, ConnectionError):
    """A rank died, was stopped or became unreachable."""


_BY_CODE: dict[str, type[Error]] = {
    "invalid value": InvalidValue,
    "out of memory": OutOfMemory,
    "timeout": Timeout,
    "input/output error": IoError,
    "launch failed": LaunchFailed,
    "rank lost": RankLost,
}


def make(code: str, text: str, file: str, line: int) -> Error:
    """The exception for an error of the extension module, which calls this function."""
    error = _BY_CODE.get(code, Error)(text)
    error.code, error.file, error.line = code, file, line
    return error
