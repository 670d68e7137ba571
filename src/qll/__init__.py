"""Neural networks that provably obey a written rule: one formula, many readings."""

from __future__ import annotations

from importlib.metadata import version

from qll.errors import QllError
from qll.formula.build import (
    all_of,
    any_of,
    ball,
    bottom,
    box,
    condition,
    differ,
    equal,
    every,
    exists,
    forall,
    index_set,
    indices,
    label,
    par,
    parameter,
    tensor,
    top,
    unit,
    valid_range,
    x,
    x0,
    x2,
    y,
    y0,
    y2,
)
from qll.formula.nodes import Specification
from qll.logics import LOGICS, Logic, logic
from qll.logics.boolean import Boolean
from qll.logics.dl2 import DL2
from qll.logics.goedel import Goedel
from qll.logics.lukasiewicz import Lukasiewicz
from qll.logics.product import Product
from qll.logics.qll import QLL
from qll.logics.stl import STL
from qll.logics.yager import Yager
from qll.properties import load, parse
from qll.property import Property
from qll.regions import Region

__version__ = version("qll")

__all__ = [
    "DL2",
    "LOGICS",
    "QLL",
    "STL",
    "Boolean",
    "Goedel",
    "Logic",
    "Lukasiewicz",
    "Product",
    "Property",
    "QllError",
    "Region",
    "Specification",
    "Yager",
    "__version__",
    "all_of",
    "any_of",
    "ball",
    "bottom",
    "box",
    "condition",
    "differ",
    "equal",
    "every",
    "exists",
    "forall",
    "index_set",
    "indices",
    "label",
    "load",
    "logic",
    "par",
    "parameter",
    "parse",
    "tensor",
    "top",
    "unit",
    "valid_range",
    "x",
    "x0",
    "x2",
    "y",
    "y0",
    "y2",
]
