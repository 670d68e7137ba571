"""Compiled inner loops: the attack on networks, samples across SIMD lanes.

Every kernel has a torch reference that the tests hold it to. numba is imported only when a kernel
is asked for; without it, and for networks and formulas that are not recognised, callers take the
autograd path.
"""

from __future__ import annotations

from functools import cache


@cache
def available() -> bool:
    """Whether kernels can be compiled here: numba is installed and can be imported."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True
