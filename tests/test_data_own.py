"""Data of one's own: formats, schemas, what is refused and where."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

from qll.cli.main import build_app
from qll.data import load
from qll.data.formats import FORMATS
from qll.data.idx import write_idx
from qll.data.own import open_source
from qll.data.schema import Feature, Schema
from qll.data.schema_file import schema_text
from qll.errors import DataError, InputError

CARS = """\
weight,cylinders,fuel,turbo,mpg
2100.5,4,petrol,no,31.5
3400.0,8,diesel,yes,14.0
2900.0,6,gas,no,19.0
2000.0,4,petrol,no,33.0
3600.0,8,diesel,yes,13.0
2500.0,4,petrol,yes,25.0
2700.0,6,gas,no,21.0
2300.0,4,petrol,no,29.5
3100.0,6,diesel,yes,18.0
2200.0,4,gas,no,30.0
"""


@pytest.fixture
def cars(tmp_path: Path) -> Path:
    path = tmp_path / "cars.csv"
    path.write_text(CARS)
    return path


def edited(path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


def test_a_table_is_understood_from_its_cells(cars: Path) -> None:
    data = load(str(cars), target="mpg")
    schema = data.schema
    assert schema is not None
    kinds = {f.name: (f.kind, f.encoding) for f in schema.features}
    assert kinds["weight"][0] == "real" and kinds["cylinders"][0] == "integer"
    assert kinds["fuel"] == ("category", "one-hot") and kinds["turbo"][0] == "binary"
    assert schema.task == data.task == "regression"
    names = ("weight", "cylinders", "fuel=diesel", "fuel=gas", "fuel=petrol", "turbo")
    assert schema.input_names == names
    assert schema.lower == (2000.0, 4.0, 0.0, 0.0, 0.0, 0.0)
    assert schema.upper == (3600.0, 8.0, 1.0, 1.0, 1.0, 1.0)
    assert schema.integers == (1, 2, 3, 4, 5) and schema.groups == ((2, 3, 4),)
    assert (len(data.train), len(data.test)) == (8, 2) and data.shape == (6,)
    both = np.concatenate([data.train.inputs, data.test.inputs])
    assert [2100.5, 4, 0, 0, 1, 0] in both.tolist()
    assert data.train.labels.dtype == np.float32 and data.train.labels.shape == (8, 1)


def test_the_split_is_that_of_its_seed(cars: Path) -> None:
    first, again = load(str(cars), target="mpg"), load(str(cars), target="mpg")
    other = load(str(cars), target="mpg", seed=3)
    np.testing.assert_array_equal(first.test.inputs, again.test.inputs)
    assert not np.array_equal(first.test.inputs, other.test.inputs)


def test_a_schema_beside_the_table_says_what_the_cells_do_not(cars: Path) -> None:
    cars.with_suffix(".toml").write_text(
        """
target = "turbo"
task = "binary"
test = 0.3
seed = 1
[features.weight]
range = [1000, 5000]
unit = "pounds"
scale = 500
[features.fuel]
kind = "category"
values = ["petrol", "diesel", "gas", "none"]
encode = "code"
protected = true
"""
    )
    data = load(str(cars))
    schema = data.schema
    assert schema is not None
    assert schema.input_names == ("weight", "fuel") and schema.protected == ("fuel",)
    assert (schema.lower, schema.upper) == ((1000.0, 0.0), (5000.0, 3.0))
    assert schema.output_names == ("yes",) and data.task == "multi-label"
    assert schema.input_scales[0] == 500
    assert len(data.test) == 3
    assert set(data.train.inputs[:, 1].tolist()) <= {0.0, 1.0, 2.0}


def test_a_schema_that_is_written_is_read_back(cars: Path, tmp_path: Path) -> None:
    first = load(str(cars), target="mpg").schema
    assert first is not None
    (tmp_path / "other.toml").write_text(schema_text(first, file="cars.csv"))
    again = load(str(tmp_path / "other.toml")).schema
    assert again is not None and again.features == first.features
    assert (again.targets, again.task, again.test) == (first.targets, first.task, first.test)


def test_rows_to_test_on_may_be_a_file_and_the_table_an_environment_variable(
    cars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test.csv").write_text("\n".join(CARS.splitlines()[:4]) + "\n")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    schema = folder / "cars.toml"
    schema.write_text('file = "$CARS/cars.csv"\ntest = "$CARS/test.csv"\ntarget = "mpg"\n')
    with pytest.raises(DataError, match="environment variable that is not set"):
        load(str(schema))
    monkeypatch.setenv("CARS", str(tmp_path))
    data = load(str(schema))
    assert (len(data.train), len(data.test)) == (10, 3)


def test_a_file_without_a_header_gets_its_names_from_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_text("1;2.5;0\n2;3.5;1\n3;1.5;1\n4;0.5;0\n")
    assert list(open_source(str(path), target="column 3").content.columns) == [  # type: ignore[union-attr]
        "column 1", "column 2", "column 3",
    ]  # fmt: skip
    path.with_suffix(".toml").write_text('columns = ["a", "b", "c"]\ntarget = "c"\ntest = 0.5\n')
    schema = load(str(path)).schema
    assert schema is not None and schema.input_names == ("a", "b")
    assert schema.task == "classes" and schema.output_names == ("0", "1")


def test_blanks_and_row_numbers_of_other_programs(tmp_path: Path) -> None:
    path = tmp_path / "german.data"
    path.write_text("A11 6 1\nA12 48 2\nA14 12 1\nA11 42 1\nA12 24 2\n")
    assert load(str(path), target="column 3", test=0.4).classes == ("1", "2")
    path = tmp_path / "pandas.csv"
    path.write_text(",a,y\n7,1,0\n3,2,1\n5,3,0\n1,4,1\n")
    schema = load(str(path), test=0.5).schema
    assert schema is not None and schema.input_names == ("a",)


@pytest.mark.parametrize(
    ("old", "new", "what", "place"),
    [
        ("2900.0", "nan", "a value is missing", "line 4, column 'weight'"),
        ("2900.0", "", "a value is missing", "line 4, column 'weight'"),
        ("3400.0,8", "3400.0,inf", "this is no integer value", "line 3, column 'cylinders'"),
        ("3400.0,8", "9999,8", "outside the range", "line 3, column 'weight'"),
        ("diesel", "steam", "category 'steam' is not one", "line 3, column 'fuel'"),
        ("no,31.5", "no,31.5,7", "another number of cells", "line 2"),
        ("yes,13.0", "perhaps,13.0", "category 'perhaps'", "line 6, column 'turbo'"),
    ],
)
def test_what_does_not_fit_is_named_by_row_and_column(
    cars: Path, old: str, new: str, what: str, place: str
) -> None:
    schema = load(str(cars), target="mpg").schema
    assert schema is not None
    cars.with_suffix(".toml").write_text(schema_text(schema))
    with pytest.raises(DataError, match=what) as caught:
        load(str(edited(cars, old, new)))
    assert place in str(caught.value) and "Fix: " in str(caught.value)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ('targt = "mpg"', "unknown key 'targt'"),
        ('target = "mgp"', "no column 'mgp'"),
        ('target = "mpg"\n[features.wight]', "no column 'wight'"),
        ('target = "mpg"\n[features.weight]\nrange = [3, 1]', "'range' of a column is wrong"),
        ('target = "mpg"\n[features.weight]\nkind = "text"', "'kind' of a column is wrong"),
        ('target = "mpg"\n[features.weight]\nscale = 0', "'scale' of a column is wrong"),
        ('target = "mpg"\n[features.cylinders]\nkind = "integer"\nrange = [0, 1e12]', "float32"),
        ('target = "mpg"\ntest = 1.5', "'test' of the schema is wrong"),
        ('target = "mpg"\nseed = -1', "'seed' of the schema is wrong"),
        ('target = "mpg"\n[outputs.weight]\nscale = 1', "'outputs.weight' of the schema is wrong"),
        ("target = ", "not TOML"),
        ("test = 0.2", "'target' of the schema is wrong"),
        ('target = "mpg"\ntask = "classe"', "'task' of the schema is wrong"),
        ('target = "mpg"\n[features.mpg]', "'features' of the schema is wrong"),
    ],
)
def test_a_wrong_schema_is_refused(cars: Path, key: str, message: str) -> None:
    cars.with_suffix(".toml").write_text(key + "\n")
    with pytest.raises(DataError, match=message) as caught:
        load(str(cars))
    assert "Fix: " in str(caught.value) and str(caught.value).count("\n") == 2


@pytest.mark.parametrize(
    ("missing", "found"), [('"mean"', 2700.0), ('"commonest"', 2000.0), ("2500", 2500.0)]
)
def test_missing_values_are_filled_in_as_the_schema_says(
    cars: Path, missing: str, found: float
) -> None:
    edited(cars, "2900.0", "?")
    edited(cars, "3600.0", "3599.5")
    cars.with_suffix(".toml").write_text(
        f'target = "mpg"\n[features.weight]\nmissing = {missing}\n[features.cylinders]\n'
    )
    data = load(str(cars))
    both = np.concatenate([data.train.inputs, data.test.inputs])
    six = both[(both[:, 1] == 6)][:, 0]
    assert found in six or missing == '"mean"'
    cars.with_suffix(".toml").write_text(
        'target = "mpg"\n[features.weight]\nmissing = "drop"\n[features.cylinders]\n'
    )
    data = load(str(cars))
    assert len(data.train) + len(data.test) == 9


def test_columns_that_name_their_rows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    lines = [f"person {k},{k % 7},{k % 2}" for k in range(40)]
    path.write_text("name,age,target\n" + "\n".join(lines) + "\n")
    with pytest.raises(DataError, match="too many different texts"):
        load(str(path))
    assert load(str(path), features="age").shape == (1,)


def test_the_target_has_to_be_said(cars: Path) -> None:
    with pytest.raises(DataError, match="which column is to be predicted") as caught:
        load(str(cars))
    assert "--target mpg" in str(caught.value)


def test_unknown_options_and_names_are_refused(cars: Path) -> None:
    with pytest.raises(InputError, match="no option 'tagret'"):
        load(str(cars), tagret="mpg")
    with pytest.raises(InputError, match="unknown data set 'mnits'"):
        load("mnits")
    with pytest.raises(DataError, match="no such file"):
        load("nowhere/cars.csv")
    with pytest.raises(DataError, match=r"factory 'qll\.nowhere:data' is not found"):
        load("qll.nowhere:data")


# --- formats ---


def test_every_format_is_discovered() -> None:
    assert set(FORMATS) == {"csv", "parquet", "npz", "idx", "folder"}


def test_parquet_is_the_same_table(cars: Path, tmp_path: Path) -> None:
    from pyarrow import csv, parquet

    parquet.write_table(csv.read_csv(cars), tmp_path / "cars.parquet")
    one, other = load(str(cars), target="mpg"), load(str(tmp_path / "cars.parquet"), target="mpg")
    np.testing.assert_array_equal(one.train.inputs, other.train.inputs)
    np.testing.assert_array_equal(one.test.labels, other.test.labels)
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match="cannot be read"):
        load(str(tmp_path / "bad.parquet"), target="mpg")


def test_arrays_in_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3)), rng.integers(0, 3, 20)
    path = tmp_path / "points.npz"
    np.savez(path, x=x, y=y, features=["a", "b", "c"], classes=["low", "mid", "high"])
    data = load(str(path))
    assert data.schema is not None and data.schema.input_names == ("a", "b", "c")
    assert set(data.classes) == {"low", "mid", "high"}
    np.savez(path, x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    assert (len(load(str(path)).train), len(load(str(path)).test)) == (20, 5)
    np.save(tmp_path / "only.npy", x)
    with pytest.raises(DataError, match="nothing to predict"):
        load(str(tmp_path / "only.npy"))
    np.save(tmp_path / "only_labels.npy", rng.normal(size=20))
    assert load(str(tmp_path / "only.npy")).task == "regression"
    np.savez(path, z=x)
    with pytest.raises(DataError, match="cannot be read"):
        load(str(path))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read"):
        load(str(tmp_path / "objects.npy"))


def test_images_in_idx_files_and_folders(tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (12, 5, 4), dtype=np.uint8)
    classes = (np.arange(12) % 3).astype(np.uint8)
    write_idx(tmp_path / "my-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "my-labels-idx1-ubyte.gz", classes)
    data = load(str(tmp_path / "my-images-idx3-ubyte.gz"))
    assert data.shape == (1, 5, 4) and data.task == "single-label" and len(data.classes) == 3
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            folder = tmp_path / "pets" / split / name
            folder.mkdir(parents=True)
            for k in range(3):
                Image.fromarray(images[k]).save(folder / f"{k}.png")
    pets = load(str(tmp_path / "pets"))
    assert pets.classes == ("cat", "dog") and pets.shape == (1, 5, 4)
    assert (len(pets.train), len(pets.test)) == (6, 6)
    Image.fromarray(images[0][:3]).save(tmp_path / "pets/test/dog/9.png")
    with pytest.raises(DataError, match="differ in size"):
        load(str(tmp_path / "pets"))


def test_a_table_is_no_idx_file(cars: Path, tmp_path: Path) -> None:
    from qll.data.idx import read_idx

    with pytest.raises(DataError, match="not an IDX file") as caught:
        read_idx(cars)
    assert "--data" in str(caught.value)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"\0\0\x08"))
    with pytest.raises(DataError, match="damaged IDX file"):
        read_idx(tmp_path / "cut.gz")


# --- data in memory ---


def points() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(30, 2))
    return x, (x.sum(1) > 0).astype(int)


def frame() -> Any:
    import pandas

    x, y = points()
    return pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "target": y})


@pytest.mark.parametrize(
    "source",
    [
        points(),
        tuple(torch.tensor(part) for part in points()),
        TensorDataset(*(torch.tensor(part) for part in points())),
        {"a": points()[0][:, 0], "b": points()[0][:, 1], "target": points()[1]},
        frame(),
        f"{__name__}:points",
    ],
    ids=["arrays", "tensors", "dataset", "columns", "frame", "factory"],
)
def test_data_in_memory_is_the_same_table(source: Any) -> None:
    data = load(source)
    x, _ = points()
    both = np.sort(np.concatenate([data.train.inputs, data.test.inputs]), axis=0)
    np.testing.assert_array_equal(both, np.sort(x.astype(np.float32), axis=0))
    assert data.task == "single-label" and data.classes == ("0", "1")


def test_what_is_no_data_is_refused() -> None:
    for wrong in (3, object(), {"a": [1, 2], "target": [1]}, TensorDataset(torch.zeros(0, 2))):
        with pytest.raises(DataError):
            load(wrong)


# --- the schema itself ---


def test_outputs_are_named_by_the_task() -> None:
    age = Feature("age", "integer", 18, 90)
    grade = Feature("grade", "category", values=("a", "b", "c"))
    assert Schema((age,), (grade,), "classes").output_names == ("a", "b", "c")
    several = (Feature("cat", "binary"), Feature("dog", "binary"))
    assert Schema((age,), several, "labels").output_names == ("cat", "dog")
    price = Feature("price", scale=1000.0)
    assert Schema((age,), (price,), "regression").output_scales == (1000.0,)
    with pytest.raises(DataError, match="two inputs have one name"):
        Schema((Feature("fuel=gas"), Feature("fuel", "category", values=("gas",))), (price,),
               "regression")  # fmt: skip


# --- the command ---


def run(*arguments: str) -> Any:
    return CliRunner().invoke(build_app(), ["data", *arguments], catch_exceptions=True)


def test_the_command_shows_and_writes_the_schema(cars: Path) -> None:
    shown = run(str(cars), "--target", "mpg", "--write")
    assert shown.exit_code == 0, shown.output
    assert "8 rows to train on, 2 to test on" in shown.output.replace("\n", " ")
    for words in ("weight", "2000 to 3600", "category, one-hot", "x[2..4]", "to predict"):
        assert words in shown.output
    assert cars.with_suffix(".toml").is_file()
    again = run(str(cars))
    assert again.exit_code == 0 and "category, one-hot" in again.output
    assert isinstance(run(str(cars), "--write").exception, InputError)


def test_the_command_shows_named_sets_and_images(tmp_path: Path) -> None:
    write_idx(tmp_path / "a-images-idx3-ubyte", np.zeros((10, 4, 4), dtype=np.uint8))
    write_idx(tmp_path / "a-labels-idx1-ubyte", (np.arange(10) % 2).astype(np.uint8))
    assert "1 x 4 x 4" in run(str(tmp_path / "a-images-idx3-ubyte")).output


def test_a_file_that_the_schema_names_is_missed_by_its_key(tmp_path: Path) -> None:
    (tmp_path / "cars.csv").write_text("a,b\n1,2\n2,3\n3,4\n")
    (tmp_path / "cars.toml").write_text('target = "b"\ntask = "regression"\ntest = "later.csv"\n')
    with pytest.raises(DataError) as error:
        load(str(tmp_path / "cars.csv"))
    told = str(error.value)
    assert "cars.toml" in told and "test = 'later.csv'" in told
    assert str(tmp_path / "later.csv") in told and "correct 'test' in the schema" in told
