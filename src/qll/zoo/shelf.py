"""Where the zoo is, and what is in it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from qll.errors import InputError
from qll.registry import suggest
from qll.zoo.card import NAME, Card, read_card

if TYPE_CHECKING:
    from qll.networks import Network
    from qll.property import Property

ENVIRONMENT = "QLL_ZOO"


@dataclass(frozen=True, eq=False)
class ProvedNetwork:
    """One network of the zoo: ``network`` and ``property`` go into every verb of ``qll``."""

    path: Path
    card: Card

    @property
    def onnx(self) -> Path:
        return self.path / "network.onnx"

    @property
    def certificates(self) -> Path:
        return self.path / "certificates.zip"

    @property
    def hashes(self) -> Path:
        return self.path / "hashes.xz"

    @cached_property
    def network(self) -> Network:
        from qll.networks import load

        return load(self.onnx)

    @cached_property
    def property(self) -> Property:
        from qll.properties import load

        return load(self.path / "rule.qll")

    def __repr__(self) -> str:
        card = self.card
        figure = card.figure if card.accuracy is None else f"accuracy {card.figure}"
        share = f"proved {card.proved.share:.1%} of {card.proved.meant:,} regions"
        if card.closed:
            share = f"{card.proved.status} on the whole domain"
        return f"{card.name}: {card.rule} on {card.data}, {figure}, {share}"


def zoo_folder(given: Path | None = None) -> Path:
    """``given``, else $QLL_ZOO, else the one of the repository that this package is run from, else
    the one here: a package that was installed from a clone does not know where that is."""
    named, beside = os.environ.get(ENVIRONMENT), Path(__file__).parents[3] / "zoo"
    chosen = given or (Path(named) if named else beside if beside.is_dir() else Path("zoo"))
    if not chosen.is_dir():
        raise InputError(
            "the zoo of proved networks is not here",
            where=str(chosen),
            expected="the folder 'zoo' of the repository",
            found="no such folder",
            fix=f"run it in a clone of the repository, pass --folder, or set {ENVIRONMENT} to its "
            "folder zoo",
        )
    return chosen


def names(given: Path | None = None) -> list[str]:
    return sorted(path.parent.name for path in zoo_folder(given).glob(f"*/{NAME}"))


def zoo(name: str, *, folder: str | Path | None = None) -> ProvedNetwork:
    """A network of the zoo by its name: ``qll.zoo("mnist-robust")``.

    The result has ``network`` and ``property``, to be passed on to ``qll.verify``, ``qll.attack``
    and the others, the ``card`` that says how it was trained and what is proved, and the paths
    ``onnx`` and ``certificates``. ``qll zoo check NAME`` checks its proofs on your machine.
    """
    given = None if folder is None else Path(folder)
    known = names(given)
    if name not in known:
        raise InputError(
            f"there is no network '{name}' in the zoo",
            where=str(zoo_folder(given)),
            expected=", ".join(known) or "a folder with a network in it",
            found=repr(name),
            fix=suggest(str(name), known) if known else "pass the folder zoo of the repository",
        )
    place = zoo_folder(given) / name
    return ProvedNetwork(place, read_card(place))
