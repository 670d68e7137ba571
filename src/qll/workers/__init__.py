"""Many calls at once: on this machine's cores, on a Dask cluster, on Ray."""

from qll.workers.base import ENGINES, Lost, Workers

__all__ = ["ENGINES", "Lost", "Workers"]
