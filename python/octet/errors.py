"""Errors of Octet: `octet.Error` with a `code`, and classes that are also Python's own where one fits."""


class Error(Exception):
    """What went wrong, with the values and the way out; `code` names its kind."""

    code: str = "internal"


class InvalidArgument(Error, ValueError):
    """A value that cannot be used: an option, a prompt, a setting."""

    code = "invalid_argument"


class NotFound(Error, FileNotFoundError):
    """A file, folder or name that does not exist."""

    code = "not_found"


class IoError(Error, OSError):
    """The operating system refused a read or a write."""

    code = "io"


class OutOfMemory(Error, MemoryError):
    """Not enough memory for the plan, on the machine or the device."""

    code = "out_of_memory"


class Unsupported(Error, NotImplementedError):
    """Valid, but not what this build, device or process can do."""

    code = "unsupported"


_CLASSES: dict[str, type[Error]] = {
    **{one.code: one for one in (InvalidArgument, NotFound, IoError, OutOfMemory, Unsupported)},
    "context_length_exceeded": InvalidArgument,
}


def class_of(code: str) -> type[Error]:
    """The class of errors with this code; codes without one are plain: corrupt, queue_full, timeout, device, internal."""
    return _CLASSES.get(code, Error)
