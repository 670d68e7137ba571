"""What is said of a network of the zoo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qll.errors import InputError
from qll.files import parse_toml

NAME = "card.toml"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Proved(_Part):
    """Regions of the whole test set, decided by the verifier and confirmed by the checker."""

    verified: int = Field(ge=0)
    falsified: int = Field(ge=0)
    unknown: int = Field(ge=0)
    vacuous: int = Field(ge=0)
    """Of the verified: the rule says nothing about these points."""

    @property
    def meant(self) -> int:
        """The regions of which the rule says something."""
        return self.verified + self.falsified + self.unknown - self.vacuous

    @property
    def share(self) -> float:
        return (self.verified - self.vacuous) / self.meant if self.meant else 0.0


class Card(_Part):
    name: str
    rule: str
    """The shipped property, with ``parameters``; rule.qll has its text."""
    parameters: dict[str, float]
    data: str
    recipe: str
    """The command that trained it."""
    seed: int
    accuracy: float = Field(ge=0, le=1)
    """PAcc on the whole test set."""
    proved: Proved
    timeout: float
    machine: str
    licence: str
    network_sha256: str = Field(pattern="^[0-9a-f]{64}$")


def read_card(folder: Path) -> Card:
    path = folder / NAME
    try:
        return Card.model_validate(parse_toml(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise InputError(
            "the card of a network cannot be read",
            where=str(path),
            expected="a TOML file with " + ", ".join(Card.model_fields),
            found=str(getattr(error, "strerror", None) or error).replace("\n", " ")[:300],
            fix="get the zoo again from the repository",
        ) from error


def card_text(card: Card) -> str:
    """TOML: strings, numbers and two small tables, as ``read_card`` takes them."""
    values = card.model_dump()
    tables = {name: values.pop(name) for name in ("parameters", "proved")}
    lines = [_line(name, value) for name, value in values.items()]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(_line(key, value) for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any) -> str:
    # TOML's basic strings are JSON's, as long as nothing above U+FFFF is escaped.
    shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    return f"{name} = {shown}"
