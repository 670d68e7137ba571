"""Options that several commands share."""

from __future__ import annotations

from qll.errors import InputError


def parse_settings(settings: list[str] | None) -> dict[str, float]:
    """``--set key=value`` for the parameters of a property."""
    values: dict[str, float] = {}
    for setting in settings or []:
        key, sign, text = setting.partition("=")
        try:
            top, _, bottom = text.partition("/")
            values[key.strip()] = float(top) / float(bottom) if bottom else float(top)
        except (ValueError, ZeroDivisionError):
            raise InputError(
                f"--set {setting} is not a setting",
                expected="NAME=NUMBER",
                found=f"'{text}'" if sign else "no '='",
                fix="write --set epsilon=0.1 or --set epsilon=4/255",
            ) from None
    return values
