"""Attacks by the sign of the gradient: one plan, two engines."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from qll.attacks.ascent import ascend
from qll.attacks.base import Attack, check_count
from qll.attacks.compiled import compile_search
from qll.attacks.problem import AttackBatch, Points
from qll.errors import RunError
from qll.kernels.schedule import Schedule


@dataclass(frozen=True)
class SignedAttack(Attack):
    """Takes the compiled path when network, formula, region and device are recognised."""

    steps: int = 20
    restarts: int = 2

    def __post_init__(self) -> None:
        check_count(self.steps, "steps", 0)
        check_count(self.restarts, "restarts", 0)

    @abstractmethod
    def schedule(self) -> Schedule: ...

    @property
    def runs(self) -> int:
        """Random starts: the first, and the restarts."""
        return self.restarts + 1

    def search(self, problem: AttackBatch) -> Points:
        if problem.engine != "autograd":
            compiled = compile_search(problem)
            if not isinstance(compiled, str):
                return compiled(problem, self.schedule(), self.runs)
            if problem.engine == "compiled":
                raise RunError(
                    "the compiled attack does not take this problem",
                    expected="layers of docs/layers.md in float32 on the CPU, a formula over "
                    "outputs and a box, with numba installed",
                    found=compiled,
                    fix="pass engine='auto': autograd then takes what the kernels do not",
                )
        return ascend(problem, self.schedule(), self.runs)
