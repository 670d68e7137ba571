"""Neural networks that provably obey a written rule: one formula, many readings.

Names are looked up on first use, so that ``import qll.formula`` needs no torch and the command
line answers at once.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

__version__ = version("qll")

_BUILD = (
    "all_of any_of ball bottom box condition differ equal every exists forall index_set indices "
    "label par parameter tensor top unit valid_range x x0 x2 y y0 y2"
)
_WHERE = {
    **dict.fromkeys(_BUILD.split(), "qll.formula.build"),
    "QllError": "qll.errors",
    "Specification": "qll.formula.nodes",
    "LOGICS": "qll.logics.base",
    "Logic": "qll.logics.base",
    "logic": "qll.logics.base",
    "Boolean": "qll.logics.boolean",
    "DL2": "qll.logics.dl2",
    "Goedel": "qll.logics.goedel",
    "Lukasiewicz": "qll.logics.lukasiewicz",
    "Product": "qll.logics.product",
    "QLL": "qll.logics.qll",
    "STL": "qll.logics.stl",
    "Yager": "qll.logics.yager",
    "load": "qll.properties",
    "parse": "qll.properties",
    "Property": "qll.property",
    "Region": "qll.regions",
    "PropertyLoss": "qll.training.loss",
}
_PACKAGES = frozenset(
    {"attacks", "bounds", "data", "formula", "logics", "metrics", "networks", "properties"}
    | {"property", "registry", "regions", "training", "verify", "errors", "kernels"}
)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
    elif name in _PACKAGES:
        value = import_module(f"qll.{name}")
    else:
        raise AttributeError(f"module 'qll' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE, *_PACKAGES])
