"""What is said of a network of the zoo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from qll.errors import InputError
from qll.files import parse_toml

NAME = "card.toml"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Proved(_Part):
    """Regions of the whole test set, or the one of a closed rule, decided by the verifier and
    confirmed by the checker."""

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

    @property
    def status(self) -> str:
        """Of one region, as a closed rule has it."""
        return next((s for s in ("falsified", "unknown") if getattr(self, s)), "verified")


class Card(_Part):
    name: str
    rule: str
    """What the rule is called; rule.qll has its text, with ``parameters`` as they are."""
    parameters: dict[str, float]
    data: str
    recipe: str
    """The commands that made it, one a line, in the folder of the repository."""
    seed: int
    accuracy: float | None = Field(default=None, ge=0, le=1)
    """PAcc on the whole test set."""
    r2: float | None = Field(default=None, le=1)
    """Of a regression, in its place: the share of the variance that is explained."""
    closed: bool = False
    """Whether the rule depends on no data point, so that its one region is the whole domain."""
    proved: Proved
    timeout: float = Field(gt=0, allow_inf_nan=False)
    machine: str
    licence: str
    network_sha256: str = Field(pattern="^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _has_one_figure(self) -> Self:
        if (self.accuracy is None) == (self.r2 is None):
            raise ValueError("either accuracy or r2 is given")
        return self

    @property
    def figure(self) -> str:
        return f"R2 {self.r2:.3f}" if self.accuracy is None else f"{self.accuracy:.1%}"


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
    values = card.model_dump(exclude_none=True, exclude_defaults=True)
    tables = {name: values.pop(name) for name in ("parameters", "proved")}
    lines = [_line(name, value) for name, value in values.items()]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(_line(key, value) for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any) -> str:
    if isinstance(value, str) and "\n" in value and "'''" not in value:
        return f"{name} = '''\n{value}'''"
    if isinstance(value, str | bool):
        # TOML's basic strings are JSON's, as long as nothing above U+FFFF is escaped.
        return f"{name} = {json.dumps(value, ensure_ascii=False)}"
    return f"{name} = {value!r}"
