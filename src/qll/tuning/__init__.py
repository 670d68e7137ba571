"""The front of accuracy and proved share: a search over methods and their dials."""

from qll.tuning.study import Point, TuneConfig, tune

__all__ = ["Point", "TuneConfig", "tune"]
