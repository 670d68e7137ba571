"""The data sets: the record's checks, the published files, and the embedded rendered dice."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from qll.data import DataSet, Split, data_sets, load
from qll.data.dice import decode, parse_labels
from qll.data.files import cache_dir
from qll.data.idx import read_idx, write_idx
from qll.errors import DataError, InputError
from qll.folders import user_cache


@pytest.fixture(scope="module")
def shared() -> Path:
    folder = os.environ.get("QLL_SHARED")
    if folder:
        return Path(folder)
    pytest.skip("QLL_SHARED is not set: it names the folder with the published data and networks")


# --- the record ---------------------------------------------------------------------------------


def record(**changes: object) -> DataSet:
    pixels = np.arange(2 * 1 * 2 * 2, dtype=np.uint8).reshape(2, 1, 2, 2)
    fields: dict[str, object] = {
        "name": "toy",
        "train": Split(pixels, np.array([0, 2])),
        "test": Split(pixels, np.array([1, 1])),
        "classes": ("a", "b", "c"),
        "task": "single-label",
        "mean": (0.5,),
        "std": (0.5,),
        "batch_size": 2,
    }
    return DataSet(**(fields | changes))  # type: ignore[arg-type]


def test_a_good_record() -> None:
    data = record()
    assert data.shape == (1, 2, 2) and (data.lower, data.upper) == (0, 1)
    assert data.train.inputs.dtype == np.float32
    np.testing.assert_array_equal(data.train.inputs, data.train.stored / np.float32(255))
    images, labels = data.train.batch(torch.tensor([1, 0]))
    np.testing.assert_array_equal(images, data.train.inputs[[1, 0]])
    assert images.dtype == torch.float32 and labels.tolist() == [2, 0]
    assert torch.equal(data.augment(images, torch.Generator()), images)
    with pytest.raises(DataError, match="no published verification subset"):
        data.published_subset()


PIXELS = np.zeros((2, 1, 2, 2), np.uint8)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"test": Split(PIXELS, np.array([0, 3]))}, "label of image 1 is out of range"),
        ({"test": Split(PIXELS, np.array([-1, 0]))}, "found -1"),
        ({"test": Split(PIXELS, np.array([0]))}, "Expected 2 labels, one an image, found 1"),
        ({"test": Split(PIXELS, np.array([0, 1], np.uint8))}, "wrong shape"),
        ({"test": Split(PIXELS, np.zeros((2, 3), np.int64))}, "wrong shape"),
        ({"test": Split(PIXELS[:, 0], np.array([0, 1]))}, "(count, channels, height, width)"),
        ({"test": Split(PIXELS[:0], np.zeros(0, np.int64))}, "at least one"),
        ({"test": Split(PIXELS[..., :1], np.array([0, 1]))}, "different shapes"),
        ({"test": Split(PIXELS + np.float32(1.5), np.array([0, 1]))}, "not in raw units"),
        ({"test": Split(PIXELS * np.float32(np.nan), np.array([0, 1]))}, "not in raw units"),
        ({"task": "multi-label"}, "int64 labels of shape (2, 3)"),
        ({"mean": (0.5, 0.5)}, "1 means"),
        ({"std": (0.0,)}, "positive deviations"),
    ],
)
def test_a_bad_record(changes: dict[str, object], part: str) -> None:
    with pytest.raises(DataError) as caught:
        record(**changes)
    assert part in str(caught.value) and "\nFix: " in str(caught.value)


def test_multi_hot_labels_are_zero_or_one() -> None:
    good = Split(PIXELS, np.array([[0, 1, 1], [0, 0, 0]]))
    bad = Split(PIXELS, np.array([[0, 1, 1], [0, 2, 0]]))
    assert record(task="multi-label", train=good, test=good).task == "multi-label"
    with pytest.raises(DataError, match=r"label of image 1 is out of range"):
        record(task="multi-label", train=good, test=bad)


# --- names, options, folders --------------------------------------------------------------------


def test_registry_and_options() -> None:
    assert list(data_sets) == ["dice", "dice-rendered", "fashion", "mnist"]
    with pytest.raises(InputError, match="did you mean 'mnist'"):
        load("mnits")
    with pytest.raises(InputError, match="did you mean 'seed'"):
        load("dice-rendered", sed=3)
    for wrong in ("3", True, 3.0):
        with pytest.raises(InputError, match="wrong type"):
            load("dice-rendered", seed=wrong)
    for wrong in ({"count_train": 0}, {"count_test": -1}, {"seed": -1}):
        with pytest.raises(DataError, match="out of range"):
            load("dice-rendered", **wrong)


def test_repr_rebuilds() -> None:
    data = load("dice-rendered", count_train=4, count_test=2, seed=5)
    assert repr(data) == "load('dice-rendered', count_train=4, count_test=2, seed=5)"
    again = eval(repr(data), {"load": load})  # noqa: S307 - our own repr
    np.testing.assert_array_equal(again.train.stored, data.train.stored)


def test_import_needs_no_extra() -> None:
    """Listing the data sets and loading the rendered one must work without pillow."""
    code = (
        "import sys; sys.modules['PIL'] = None\n"
        "from qll.data import data_sets, load\n"
        "assert list(data_sets); load('dice-rendered', count_train=2, count_test=1)\n"
        "assert not {'numba', 'scipy', 'onnx', 'rich', 'safetensors'} & set(sys.modules)\n"
        "from qll.data.dice import decode\n"
        "from qll.errors import MissingExtra\n"
        "try: decode(b'', 'x')\n"
        "except MissingExtra as error: assert 'qll[train]' in str(error)\n"
        "else: raise SystemExit('no MissingExtra')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QLL_DATA_DIR", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("QLL_DATA_DIR")
    monkeypatch.setenv("QLL_CACHE_DIR", str(tmp_path / "kept"))
    assert cache_dir() == user_cache() == tmp_path / "kept"
    monkeypatch.delenv("QLL_CACHE_DIR")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache_dir() == tmp_path / "xdg" / "qll"
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache_dir() == user_cache() == Path.home() / ".cache" / "qll"


@pytest.mark.parametrize("name", ["mnist", "fashion", "dice"])
def test_folder_without_the_files(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such data folder"):
        load(name, tmp_path / "none")
    with pytest.raises(DataError, match=f"data set '{name}' is not complete"):
        load(name, tmp_path)


def write_small(folder: Path, labels: int = 3, images: int = 3) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for stem in ("train", "t10k"):
        write_idx(folder / f"{stem}-images-idx3-ubyte", np.zeros((images, 28, 28), np.uint8))
        write_idx(folder / f"{stem}-labels-idx1-ubyte.gz", np.arange(labels, dtype=np.uint8))


@pytest.mark.parametrize("folder", [".", "mnist", "MNIST/raw"])
def test_own_files(folder: str, tmp_path: Path) -> None:
    """Plain and zipped, with and without the sub-folder; other contents only on request."""
    write_small(tmp_path / folder)
    with pytest.raises(DataError, match="not the published one"):
        load("mnist", tmp_path)
    data = load("mnist", tmp_path, checksum=False)
    assert len(data.train) == 3 and data.published is None


def test_own_files_that_do_not_fit(tmp_path: Path) -> None:
    write_small(tmp_path, labels=4)
    with pytest.raises(DataError, match="differ in number"):
        load("mnist", tmp_path, checksum=False)
    write_small(tmp_path, labels=12, images=12)
    with pytest.raises(DataError, match="label of image 10 is out of range"):
        load("mnist", tmp_path, checksum=False)
    write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((12, 28, 28), np.float32))
    with pytest.raises(DataError, match="holds something else"):
        load("mnist", tmp_path, checksum=False)


# --- the published sets -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mean", "std"), [("mnist", 0.1307, 0.3081), ("fashion", 0.2860, 0.3530)]
)
def test_published_digits(shared: Path, name: str, mean: float, std: float) -> None:
    data = load(name, shared / "data")
    assert (len(data.train), len(data.test), data.shape) == (60000, 10000, (1, 28, 28))
    assert (data.mean, data.std, data.batch_size) == ((mean,), (std,), 512)
    assert abs(data.train.stored.mean() / 255 - mean) < 1e-4
    assert abs(data.train.stored.std() / 255 - std) < 1e-4
    assert np.bincount(data.test.labels).tolist() == (
        [1000] * 10
        if name == "fashion"
        else [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    )
    rows = data.published_subset()
    verified = read_idx(shared / "corpus" / f"{name}-images.idx")  # (100, 28, 28) float64
    np.testing.assert_array_equal(data.test.stored[rows, 0] / 255, verified)
    labels = read_idx(shared / "corpus" / f"{name}-labels.idx")
    np.testing.assert_array_equal(data.test.labels[rows], labels)


def test_published_dice(shared: Path) -> None:
    data = load("dice", shared / "data")
    assert (len(data.train), len(data.test), data.shape) == (272, 68, (3, 28, 28))
    assert data.batch_size == 16 and data.task == "multi-label"
    rows = data.published_subset()
    verified = read_idx(shared / "corpus" / "dice-images.idx")  # (68, 3, 28, 28) float32
    np.testing.assert_array_equal(data.test.inputs[rows], verified)
    faces = read_idx(shared / "corpus" / "dice-labels.idx")  # (68, 3) visible faces
    multi_hot = np.zeros((68, 6), np.int64)
    np.put_along_axis(multi_hot, faces.astype(np.int64), 1, axis=1)
    np.testing.assert_array_equal(data.test.labels[rows], multi_hot)
    images = data.train.inputs.astype(np.float64)
    np.testing.assert_allclose(images.mean((0, 2, 3)), data.mean, atol=5e-4)
    np.testing.assert_allclose(images.std((0, 2, 3)), data.std, atol=5e-5)


def test_spoiled_dice(shared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dice"
    shutil.copytree(shared / "data" / "dice", folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    (folder / "005.png").write_bytes((folder / "006.png").read_bytes())
    with pytest.raises(DataError, match="pictures: the file is not the published one"):
        load("dice", tmp_path)
    assert len(load("dice", tmp_path, checksum=False).train) == 272
    (folder / "005.png").write_bytes((folder / "006.png").read_bytes()[:300])
    with pytest.raises(DataError, match=r"005\.png: bad picture"):
        load("dice", tmp_path, checksum=False)
    (folder / "005.png").unlink()
    with pytest.raises(DataError, match=r"005\.png: cannot read"):
        load("dice", tmp_path)


@pytest.mark.parametrize(
    "row",
    [
        "../../secret.png,0,0,0,1,1,1",
        "C:\\x.png,0,0,0,1,1,1",
        "..,0,0,0,1,1,1",
        "a.png,0,0,0,1,1,2",
        "a.png,0,0,0,1,1",
        "a.png,0,0,0,1,1,",
        "b.png,0,0,0,1,1,1",
        '"a.png,0,0,0,1,1,1',
        "\xff\xfe,0,0,0,1,1,1",
    ],
)
def test_bad_label_table(row: str) -> None:
    text = f"filename,f1,f2,f3,f4,f5,f6\nb.png,1,1,1,0,0,0\n{row}\n".encode("latin-1")
    with pytest.raises(DataError, match="bad label table"):
        parse_labels(text, "labels.csv")


def test_bad_pictures() -> None:
    from io import BytesIO

    from PIL import Image

    big = BytesIO()
    Image.new("RGB", (29, 28)).save(big, format="PNG")
    jpeg = BytesIO()
    Image.new("RGB", (28, 28)).save(jpeg, format="JPEG")
    for content in (b"", b"\x89PNG\r\n\x1a\n", big.getvalue(), jpeg.getvalue()):
        with pytest.raises(DataError, match="bad picture"):
            decode(content, "x.png")


def test_records_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        record().name = "other"  # type: ignore[misc]
