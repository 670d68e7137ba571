"""Records from the command line: a wrong number is a user's mistake, named in three lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from qll.errors import InputError

Record = TypeVar("Record", bound=BaseModel)


def record(kind: type[Record], names: Mapping[str, str] | None = None, /, **values: Any) -> Record:
    """The record, or the first thing that is wrong with it by the name of its option (``names``:
    where that is another than the field's)."""
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else kind.__name__
        option = "--" + (names or {}).get(field, field).replace("_", "-")
        raise InputError(
            f"{option} has a wrong value",
            expected=str(first["msg"]).lower().removeprefix("input should be "),
            found=repr(first["input"]),
            fix=f"pass {option} with such a value",
        ) from error
