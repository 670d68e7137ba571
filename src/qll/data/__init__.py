"""Data sets in raw units: ``load("mnist")``, ``load("dice-rendered", seed=1)``."""

from qll.data.base import Augmentation, DataSet, Progress, Split, Task, data_sets
from qll.data.source import load

__all__ = ["Augmentation", "DataSet", "Progress", "Split", "Task", "data_sets", "load"]
