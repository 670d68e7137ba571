"""From a specification to a proved network: train, verify, feed back, repeat; and repair."""

from qll.cycle.loop import CycleConfig, cycle
from qll.cycle.records import CycleResult
from qll.cycle.repair import Repair, RepairResult, repair

__all__ = ["CycleConfig", "CycleResult", "Repair", "RepairResult", "cycle", "repair"]
