"""Input sets in raw input units: box, ball, linear constraints; sample, project, contain."""

from qll.regions.region import Region

__all__ = ["Region"]
