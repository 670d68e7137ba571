"""From a specification to a proved network: train, verify, feed back, repeat; and repair."""

from qll.cycle.loop import CycleConfig, CycleResult, cycle
from qll.cycle.repair import Repair, RepairResult, repair

__all__ = ["CycleConfig", "CycleResult", "Repair", "RepairResult", "cycle", "repair"]
