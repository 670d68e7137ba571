"""Complete verification. ``qll.verify(prop, network, x, labels=...)`` returns the verdicts: the
package itself can be called."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from qll.verify.api import verify

        return verify(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
