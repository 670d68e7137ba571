"""MNIST: 70,000 handwritten digits (LeCun, Cortes and Burges)."""

from __future__ import annotations

from pathlib import Path

from qll.data.base import DataSet, Progress, data_sets
from qll.data.digits import Published, load_digits

MNIST = Published(
    name="mnist",
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    ),
    folders=("mnist", "MNIST/raw", "MNIST", "."),
    train_images="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    train_labels="65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    test_images="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    test_labels="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    classes=tuple("0123456789"),
    mean=0.1307,
    std=0.3081,
)


@data_sets.register("mnist")
def load_mnist(
    data_dir: Path | None, *, progress: Progress | None = None, checksum: bool = True
) -> DataSet:
    """Handwritten digits, 60,000 to train and 10,000 to test, 28 x 28 grey."""
    return load_digits(MNIST, data_dir, progress=progress, checksum=checksum)
