"""Records from what a user gave: a wrong value is named in three lines, not in a traceback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from qll.errors import InputError
from qll.registry import suggest

Record = TypeVar("Record", bound=BaseModel)


def record(
    kind: type[Record], names: Mapping[str, str] | None = None, mark: str = "", /, **values: Any
) -> Record:
    """The record, or the first thing that is wrong with it by the name of its argument (``names``:
    where that is another than the field's); with ``mark`` ``--`` by that of its option."""
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else kind.__name__
        name = (names or {}).get(field, field)
        option = mark + name.replace("_", "-") if mark else name
        if first["type"] == "extra_forbidden":
            raise InputError(
                f"unknown setting '{option}'",
                expected=f"a setting of {kind.__name__}",
                found=f"'{option}'",
                fix=suggest(field, sorted(kind.model_fields)),
            ) from error
        raise InputError(
            f"{option} has a wrong value",
            expected=str(first["msg"]).lower().removeprefix("input should be "),
            found=repr(first["input"]),
            fix=f"pass {option} with such a value",
        ) from error
