"""Fashion-MNIST: 70,000 pictures of clothes (Xiao, Rasul and Vollgraf, Zalando Research)."""

from __future__ import annotations

from pathlib import Path

from qll.data.base import DataSet, Progress, data_sets
from qll.data.digits import Published, load_digits

FASHION = Published(
    name="fashion",
    # Plain HTTP is all that the publisher offers; the checksum decides what is accepted.
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",),
    folders=("fashion", "FashionMNIST/raw", "FashionMNIST", "."),
    train_images="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    train_labels="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    test_images="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    test_labels="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    classes=(
        "t-shirt",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    mean=0.2860,
    std=0.3530,
)


@data_sets.register("fashion")
def load_fashion(
    data_dir: Path | None, *, progress: Progress | None = None, checksum: bool = True
) -> DataSet:
    """Clothes, 60,000 to train and 10,000 to test, 28 x 28 grey."""
    return load_digits(FASHION, data_dir, progress=progress, checksum=checksum)
