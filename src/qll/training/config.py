"""What a run is: every hyperparameter, resolved from the paper's defaults, a file and options."""

from __future__ import annotations

import builtins
import tomllib
from collections.abc import Container, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qll.attacks.base import Attack
from qll.attacks.base import attack as read_attack
from qll.attacks.problem import Engine
from qll.data.augment import Views
from qll.data.base import data_sets
from qll.data.schema import Schema
from qll.errors import InputError, QllError
from qll.files import parse_toml
from qll.logics.base import Logic
from qll.logics.base import logic as read_logic
from qll.properties import declared_parameters, load_fitting
from qll.property import Property
from qll.registry import suggest
from qll.training.balance import Balance
from qll.training.schedule import Ramp
from qll.training.stages import stages

BASELINE = "baseline"
Fits = int | Schema
"""What a property has to fit: a number of outputs, or the schema of a table."""
_LIST_END = 1_000_000_000


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RampConfig(_Record):
    """A number that moves over the epochs (see ``qll.training.schedule.Ramp``)."""

    start: float
    end: float
    epochs: int = Field(ge=0)
    delay: int = Field(default=0, ge=0)
    geometric: bool = False

    def ramp(self) -> Ramp:
        return Ramp(self.start, self.end, self.epochs, self.delay, self.geometric)


class PixelRamp(_Record):
    """Initialisation by ramps (``qll.training.initialise``): from ``low`` (the trained epsilon) to
    ``high`` (1 - low), in input units. ``held``: the first convolution is not trained. ``bias`` is
    added to those of the hidden units behind it: with 1 all of them start open, and a large
    learning rate leaves none dead."""

    low: float | None = None
    high: float | None = None
    held: bool = True
    bias: float = Field(default=0.0, allow_inf_nan=False)


class ViewsConfig(_Record):
    """Views of training images that keep their labels (``qll.data.augment.Views``)."""

    mirror: bool = False
    shift: int = Field(default=0, ge=0)
    colours: bool = False

    def views(self) -> Views:
        return Views(self.mirror, self.shift, self.colours)


class TrainConfig(_Record):
    """One training run. ``logic`` is ``baseline`` for training on the prediction alone."""

    property: str
    data: str  # a named set, a file or folder, or package.module:factory
    logic: str = BASELINE
    seed: int = Field(default=0, ge=0, lt=2**32)
    method: str = "attack"

    # the property: as trained, and as judged where that differs
    parameters: dict[str, float] = Field(default_factory=dict)
    judged: dict[str, float] | None = None
    # where the published runs measured CAcc and CSec at other parameters than they proved
    measured: dict[str, float] = Field(default_factory=dict)
    formula: str | None = None
    floor: float | None = None
    as_published: bool = True
    # another property to train on in its place (labels that stay, say), and the trained epsilon
    # as a multiple of the property's own
    surrogate: str | None = None
    reach: float = Field(default=1.0, gt=0, allow_inf_nan=False)

    # data and network
    data_dir: str | None = None
    data_options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    # the data set's own augmentation, where wanted, and after it these views
    augment: bool = True
    views: ViewsConfig = ViewsConfig()
    validation: int = Field(default=0, ge=0)
    network: str = "paper-mnist"  # auto: one that suits the data
    network_options: dict[str, Any] = Field(default_factory=dict)
    initialisation: Literal["default", "threshold", "ramp"] = "default"
    ramp: PixelRamp = PixelRamp()

    # prediction: how far a number is off, and whether rare classes weigh as much as others
    distance: Literal["mse", "l1"] = "mse"
    class_weights: Literal["none", "balanced"] = "none"

    # optimisation
    epochs: int = Field(default=100, ge=0, lt=_LIST_END)
    batch_size: int = Field(default=512, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    learning_rate_schedule: Literal["constant", "cosine"] = "constant"
    # epochs over which the rate rises from 0 in each stage: full first steps leave units dead
    learning_rate_warm_up: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    weight_decay: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
    alpha: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    balance_parameters: Literal["last-linear", "all"] = "last-linear"
    most_lambda: float = Field(default=10.0, gt=0)
    # a fixed lambda instead of the balance; hardness of "for all data", from the mean (none)
    # towards the worst sample of a batch
    weight: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    batch_hardness: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    # where a sample's property loss stops to count, in units of what is compared (none: nowhere)
    enough: float | None = Field(default=None, allow_inf_nan=False)
    delay: int = Field(default=0, ge=0)
    hardness: RampConfig | None = None
    # epsilon by a ramp of its own, or from 0 over this share of the epochs
    epsilon: RampConfig | None = None
    warm_up: float = Field(default=0.0, ge=0, le=1)
    # consecutive parts of a run, each with settings of its own: qll.training.stages
    stages: tuple[dict[str, Any], ...] = ()

    # attack
    attack: str = "apgd"
    steps: int = Field(default=20, ge=0)
    restarts: int = Field(default=2, ge=0)

    # evaluation
    evaluate_every: int = Field(default=0, ge=0)
    samples: int = Field(default=1, ge=1)
    oracle: str = "qll:5"

    # the machine
    device: str = "cpu"
    engine: Engine = "auto"

    # options of a method, by the method's own names
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)

    @builtins.property
    def is_baseline(self) -> bool:
        return self.logic == BASELINE

    def record(self) -> Logic | None:
        return None if self.is_baseline else read_logic(self.logic)

    def make_balance(self) -> Balance | float:
        if self.weight is not None:
            return self.weight
        return Balance(self.alpha, self.balance_parameters, self.most_lambda)

    def make_judging_attack(self) -> Attack:
        """The attack of CSec: the paper's, however short the one is that the run trains on."""
        return self._attack("apgd")

    def make_attack(self) -> Attack:
        if ":" in self.attack:  # with its own options, which then are all
            return read_attack(self.attack)
        return self._attack(self.attack)

    def _attack(self, text: str) -> Attack:
        options = [f"steps={self.steps}", f"restarts={self.restarts}"]
        if text == "apgd":
            options.append(f"as_published={self.as_published}")
        return read_attack(f"{text}:{','.join(options)}")

    def judged_property(self, fits: Fits) -> Property:
        """The clean formula: what satisfaction means in every figure of the run."""
        return load_fitting(
            self.property, fits, **(self.parameters if self.judged is None else self.judged)
        )

    def measured_property(self, fits: Fits) -> Property:
        """What CAcc and CSec speak of: the judged property, but for what the published runs did."""
        prop = self.judged_property(fits)
        if self.as_published and self.surrogate is None and self.measured:
            return prop.with_parameters(**self.measured)
        return prop

    def own_epsilon(self) -> float | None:
        """The property's epsilon, from its text where nothing else is said; None if it has none.
        ``reach`` is a multiple of it."""
        if "epsilon" in self.parameters:
            return self.parameters["epsilon"]
        declared = {p.name: p.default for p in declared_parameters(self.property)}
        return declared.get("epsilon")

    def trained_property(self, fits: Fits) -> Property:
        """The formula of the loss: as published where the published runs differ."""
        parameters = dict(self.parameters)
        if (epsilon := self.own_epsilon()) is not None:
            parameters["epsilon"] = epsilon * self.reach
        if self.surrogate is not None:
            prop = load_fitting(self.surrogate, fits)
            declared = {p.name for p in prop.specification.parameters}
            return prop.with_parameters(**{k: v for k, v in parameters.items() if k in declared})
        if self.as_published and self.formula is not None:
            return load_fitting(published_formula(self.formula), fits, **parameters)
        return load_fitting(self.property, fits, **parameters)

    def attacked_property(self, fits: Fits) -> Property:
        """The formula that drives the attacks of the metrics: trained form, measured parameters."""
        measured = self.measured_property(fits)
        if self.surrogate is not None:
            return measured
        trained = self.trained_property(fits)
        declared = [p.name for p in trained.specification.parameters]
        return trained.with_parameters(
            **{k: measured.value_of(k) for k in declared if k in measured.values}
        )


def published_formula(name: str) -> Path:
    """The text of a loss as the published runs had it."""
    folder = Path(str(resources.files("qll.training").joinpath("published")))
    known = sorted(path.stem for path in folder.glob("*.qll"))
    if name not in known:
        raise InputError(
            f"there is no published variant '{name}'",
            expected=f"one of: {', '.join(known)}",
            found=f"'{name}'",
            fix=suggest(name, known),
        )
    return folder / f"{name}.qll"


def resolve(
    prop: str,
    data: str,
    *,
    file: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
) -> TrainConfig:
    """Defaults of the paper, those of the method, then the file, options, ``key=value`` settings.

    >>> resolve("not-both", "dice").steps
    30
    """
    given = {} if file is None else read_config(file)
    _merge(given, {k: v for k, v in (options or {}).items() if v is not None})
    more, own = parse_settings(settings, parameters=_parameters_of(prop))
    _merge(given, more)
    values = paper_defaults(prop, data)
    method = str(given.get("method", "attack"))
    _merge(values, method_defaults(prop, data, method))
    if data not in data_sets:  # what was found for large sets of images does not hold for it
        _merge(values, _default_tables()["own"])
    if method != "attack":  # who names a method wants the property trained
        values["logic"] = default_logic(prop, data, method)
    _merge(values, given)
    for table in ("parameters", "judged"):
        held = values.get(table)
        if table == "parameters" or held is not None:
            values[table] = {**(held or {}), **own}
    values["measured"] = {k: v for k, v in values.get("measured", {}).items() if k not in own}
    values["property"], values["data"] = prop, data
    return build(values)


def build(values: Mapping[str, Any]) -> TrainConfig:
    """The record, or one error that names the first wrong key."""
    try:
        config = TrainConfig.model_validate(dict(values))
        config.record()
        config.make_attack()
        stages(config)  # names what is wrong in them
        return config
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        known = sorted(TrainConfig.model_fields)
        if first["type"] == "extra_forbidden":
            raise InputError(
                f"unknown setting '{key}'",
                expected="a setting of a training run",
                found=f"'{key}'",
                fix=suggest(key, known),
            ) from error
        raise InputError(
            f"setting '{key}' has a wrong value",
            expected=str(first["msg"]).lower(),
            found=repr(first["input"]),
            fix=f"pass --set {key}=VALUE with such a value",
        ) from error


def paper_defaults(prop: str, data: str) -> dict[str, Any]:
    """The paper's values for a property and a data set; general ones where it has none."""
    tables = _default_tables()
    values: dict[str, Any] = {}
    for table in (
        tables["default"],
        tables.get("data", {}).get(data, {}),
        tables.get("property", {}).get(prop, {}),
    ):
        _merge(values, table)
    return values


def method_defaults(prop: str, data: str, method: str) -> dict[str, Any]:
    """What a method does best with, in general and for a property and a data set."""
    tables = _default_tables()
    values: dict[str, Any] = {}
    _merge(values, tables.get("method", {}).get(method, {}))
    _merge(values, tables.get("recipe", {}).get(f"{method}/{prop}/{data}", {}))
    return values


def default_logic(prop: str, data: str, method: str) -> str:
    """The logic of whoever names a method and no logic: what the method's recipe says, else QLL."""
    return str(method_defaults(prop, data, method).get("logic", "qll:5"))


def _default_tables() -> dict[str, Any]:
    text = resources.files("qll.training").joinpath("defaults.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def read_config(path: str | Path) -> dict[str, Any]:
    """A TOML file with any of the settings."""
    try:
        values = parse_toml(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "the configuration cannot be read",
            where=str(path),
            expected="a TOML file in UTF-8",
            found=str(getattr(error, "strerror", None) or "bytes that are not UTF-8"),
            fix="check the path given to --config",
        ) from error
    except ValueError as error:
        raise InputError(
            "the configuration is not TOML",
            where=str(path),
            expected="lines such as 'epochs = 100'",
            found=str(error),
            fix="correct that line",
        ) from error
    return values


def parse_settings(
    settings: Iterable[str], *, parameters: Container[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """``key=value`` texts, values as in TOML, else plain text; ``a.b=1`` reaches into a table.

    Apart from these, those of the property's own ``parameters``: a bare ``epsilon=0.1`` is where
    the property is trained and judged.

    >>> parse_settings(["epochs=3", "epsilon=0.1"], parameters={"epsilon"})
    ({'epochs': 3}, {'epsilon': 0.1})
    """
    values: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for setting in settings:
        key, sign, text = setting.partition("=")
        key = key.strip()
        if not sign or not key:
            raise InputError(
                "a setting has no value",
                expected="key=value",
                found=f"'{setting}'",
                fix="write --set epochs=20, say",
            )
        value = _toml_value(text.strip())
        # 'epsilon' is also a schedule: a plain number is the parameter.
        if key in parameters and not isinstance(value, dict):
            own[key] = value
            continue
        table = value
        for part in reversed(key.split(".")):
            table = {part: table}
        _merge(values, table)
    return values, own


def _parameters_of(prop: str) -> set[str]:
    return {p.name for p in declared_parameters(prop)}


def _toml_value(text: str) -> Any:
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        pass
    try:
        top, _, bottom = text.partition("/")
        return float(top) / float(bottom)  # 4/255
    except (ValueError, ZeroDivisionError):
        return text


def _merge(values: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Tables of names merge key by key; everything else is replaced."""
    for key, value in more.items():
        held = values.get(key)
        if isinstance(held, dict) and isinstance(value, Mapping):
            values[key] = {**held, **value}
        else:
            values[key] = dict(value) if isinstance(value, Mapping) else value


def check_property(config: TrainConfig, fits: Fits, inputs: tuple[int, ...] | None = None) -> None:
    """A property whose index sets do not fit the network is named before any work."""
    outputs = fits if isinstance(fits, int) else len(fits.output_names)
    for prop in (config.judged_property(fits), config.trained_property(fits)):
        if prop.uses_labels and isinstance(fits, Schema) and fits.task == "regression":
            raise InputError(
                f"property '{prop.name}' speaks of labels",
                expected="a rule of the numbers that are predicted, such as y[0] <= 10",
                found="'label' in it, and a regression to train",
                fix="write the rule without 'label', or choose a target of classes",
            )
        try:
            labels = (0,) if prop.uses_labels else None
            prop.ground(labels, read_logic("qll"), outputs=outputs, inputs=inputs)
        except QllError as error:
            place = f"property '{config.property}' on a network with {outputs} outputs"
            raise error.at(error.where or place) from None
