"""Moved to `qll.files`."""

from qll.files import (
    Locked,
    append_line,
    exclusive,
    read_json,
    read_lines,
    write_atomically,
    write_error,
    write_json,
)

__all__ = [
    "Locked",
    "append_line",
    "exclusive",
    "read_json",
    "read_lines",
    "write_atomically",
    "write_error",
    "write_json",
]
