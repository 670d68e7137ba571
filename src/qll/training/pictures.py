"""Pictures of a run: test images, the worst points found around them, and the difference."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from qll.data import DataSet
from qll.errors import MissingExtra
from qll.property import Property
from qll.training.config import TrainConfig

_SHOWN = 6


def draw_samples(
    path: Path, model: nn.Module, config: TrainConfig, data: DataSet, judged: Property
) -> bool:
    """False without the package that draws."""
    from qll.data.pictures import save_comparison

    if data.schema is not None or data.shape[0] not in (1, 3):
        return True
    x, labels = data.test.batch(slice(0, _SHOWN))
    found = config.make_attack()(
        model,
        config.attacked_property(data.fits),
        x.to(config.device),
        labels.to(config.device),
        logic=config.oracle,
        judge=judged,
        engine=config.engine,
    )
    captions = [
        f"{'violated' if bad else 'not falsified'}, margin {margin:.3g}"
        for bad, margin in zip(found.falsified.tolist(), found.margins.tolist(), strict=True)
    ]
    try:
        save_comparison(path, x.numpy(), found.x.cpu().numpy(), captions=captions)
    except MissingExtra:
        return False
    return True
