"""Neural networks that provably obey a written rule: one formula, many readings.

``load`` and ``parse`` give a `Property`. ``train`` makes a network that obeys it, ``attack`` looks
for a point where one does not, ``verify`` proves that there is none or finds it, ``audit`` checks a
proof without the prover, ``evaluate`` sums up; ``cycle`` goes from a rule to a proved network,
``repair`` mends one that violates it, ``bounds`` encloses outputs, ``zoo`` has proved networks.
`PropertyLoss` is for a training loop of your own. The builders of formulas are in `qll.formula`.

Names are looked up on first use, so that ``import qll.formula`` needs no torch and the command
line answers at once.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inspect import Signature

    from qll.audit.check import audit as audit
    from qll.errors import QllError as QllError
    from qll.formula.build import all_of as all_of
    from qll.formula.build import any_of as any_of
    from qll.formula.build import ball as ball
    from qll.formula.build import bottom as bottom
    from qll.formula.build import box as box
    from qll.formula.build import condition as condition
    from qll.formula.build import differ as differ
    from qll.formula.build import equal as equal
    from qll.formula.build import every as every
    from qll.formula.build import exists as exists
    from qll.formula.build import forall as forall
    from qll.formula.build import index_set as index_set
    from qll.formula.build import indices as indices
    from qll.formula.build import label as label
    from qll.formula.build import par as par
    from qll.formula.build import parameter as parameter
    from qll.formula.build import tensor as tensor
    from qll.formula.build import top as top
    from qll.formula.build import unit as unit
    from qll.formula.build import valid_range as valid_range
    from qll.formula.build import x as x
    from qll.formula.build import x0 as x0
    from qll.formula.build import x2 as x2
    from qll.formula.build import y as y
    from qll.formula.build import y0 as y0
    from qll.formula.build import y2 as y2
    from qll.formula.nodes import Specification as Specification
    from qll.logics.base import LOGICS as LOGICS
    from qll.logics.base import Logic as Logic
    from qll.logics.base import logic as logic
    from qll.logics.boolean import Boolean as Boolean
    from qll.logics.dl2 import DL2 as DL2
    from qll.logics.goedel import Goedel as Goedel
    from qll.logics.lukasiewicz import Lukasiewicz as Lukasiewicz
    from qll.logics.product import Product as Product
    from qll.logics.qll import QLL as QLL
    from qll.logics.stl import STL as STL
    from qll.logics.yager import Yager as Yager
    from qll.properties import load as load
    from qll.properties import parse as parse
    from qll.property import Property as Property
    from qll.regions import Region as Region
    from qll.training.loss import PropertyLoss as PropertyLoss
    from qll.verbs import attack as attack
    from qll.verbs import bounds as bounds
    from qll.verbs import cycle as cycle
    from qll.verbs import evaluate as evaluate
    from qll.verbs import repair as repair
    from qll.verbs import train as train
    from qll.verify.api import verify as verify
    from qll.verify.verdict import Verdict as Verdict
    from qll.zoo.shelf import zoo as zoo

    __version__: str

__all__ = [
    "LOGICS",
    "Property",
    "PropertyLoss",
    "QllError",
    "Region",
    "Verdict",
    "attack",
    "audit",
    "bounds",
    "cycle",
    "evaluate",
    "load",
    "logic",
    "parse",
    "repair",
    "train",
    "verify",
    "zoo",
]

_VERBS = ("attack", "bounds", "cycle", "evaluate", "repair", "train")
_BUILDERS = (
    "all_of any_of ball bottom box condition differ equal every exists forall index_set indices "
    "label par parameter tensor top unit valid_range x x0 x2 y y0 y2"
)
_WHERE = {
    **dict.fromkeys(_VERBS, "qll.verbs"),
    "audit": "qll.audit.check",
    "verify": "qll.verify.api",
    "zoo": "qll.zoo.shelf",
    "load": "qll.properties",
    "parse": "qll.properties",
    "Property": "qll.property",
    "PropertyLoss": "qll.training.loss",
    "QllError": "qll.errors",
    "Region": "qll.regions",
    "Verdict": "qll.verify.verdict",
    "LOGICS": "qll.logics.base",
    "logic": "qll.logics.base",
    # importable, but not what one begins with
    **dict.fromkeys(_BUILDERS.split(), "qll.formula.build"),
    "Specification": "qll.formula.nodes",
    "Logic": "qll.logics.base",
    "Boolean": "qll.logics.boolean",
    "DL2": "qll.logics.dl2",
    "Goedel": "qll.logics.goedel",
    "Lukasiewicz": "qll.logics.lukasiewicz",
    "Product": "qll.logics.product",
    "QLL": "qll.logics.qll",
    "STL": "qll.logics.stl",
    "Yager": "qll.logics.yager",
}
_PACKAGES = frozenset(
    {"attacks", "audit", "bounds", "cycle", "data", "errors", "formula", "kernels", "logics"}
    | {"metrics", "networks", "properties", "property", "regions", "registry", "training"}
    | {"tuning", "verify", "zoo"}
)


class _CallablePackage(ModuleType):
    """A package that has the name of a verb: ``qll.verify(...)`` calls ``qll.verify.api.verify``,
    and ``qll.verify.api`` is a module of it all the same."""

    def _verb(self) -> Any:
        name = self.__name__.removeprefix("qll.")
        return getattr(import_module(_WHERE[name]), name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._verb()(*arguments, **options)

    @property
    def __signature__(self) -> Signature:
        from inspect import signature

        return signature(self._verb())

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """What ``help`` shows: the verb with its arguments, then the package."""
        from inspect import getdoc

        first, _, rest = (getdoc(self._verb()) or "").partition("\n\n")
        taken = self.__signature__
        end = f") -> {taken.return_annotation}"
        call = "\n".join([f"{self.__name__}(", *_arguments(taken), end])
        return "\n\n".join(filter(None, [first, call, rest, self.__dict__["__doc__"]]))


def _arguments(signature: Signature) -> list[str]:
    lines: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "    *," not in lines:
            lines.append("    *,")
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"    {stars}{parameter.name}: {parameter.annotation}{default},")
    return lines


class _Root(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        """The import system sets a package as an attribute of its parent, over any function of that
        name: so the package itself is made callable, as soon as it is there."""
        if name in _WHERE and isinstance(value, ModuleType):
            value.__class__ = _CallablePackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Root


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"qll.{name}")
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("qll")
    elif name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
    else:
        raise AttributeError(f"module 'qll' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*(n for n in globals() if n.startswith("__")), *__all__, *_PACKAGES})
