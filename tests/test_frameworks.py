"""The property in the training loops of others, each against the real library."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import qll
from qll.errors import InputError
from qll.training.frameworks.added import add_gradients, one_process

# Two classes by the sign of x[0]; the rule keeps class 1 on top of wherever x[1] is large.
RULE = """outputs 2
forall x in ball(x0, 0.1) and range(-1, 1): x[1] >= 0.5 -> y[1] >= y[0] + 0.5
"""


def points(count: int = 64) -> tuple[Tensor, Tensor]:
    x = torch.rand(count, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return x, (x[:, 0] > 0).long()


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))


def loss_of(**options: Any) -> qll.PropertyLoss:
    return qll.PropertyLoss(qll.parse(RULE), attack="apgd:3,restarts=0", **options)


def obeying(model: nn.Module) -> float:
    x, labels = points()
    with torch.no_grad():
        return float(qll.parse(RULE).holds(model(x), x=x, labels=labels).float().mean())


@pytest.mark.parametrize("balance", [None, 0.7])
def test_added_gradients_are_those_of_the_whole_loss(balance: float | None) -> None:
    x, labels = points()
    first, second = small_network(), small_network()
    whole = loss_of(balance=balance, learned=0.0)
    whole(first, x, labels).backward()
    nn.functional.cross_entropy(second(x), labels).backward()
    seen = add_gradients(loss_of(balance=balance, learned=0.0), second, x, labels)
    assert whole.last is not None and seen.weight == pytest.approx(whole.last.weight, rel=1e-4)
    assert seen.weight > 0
    for mine, theirs in zip(second.parameters(), first.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)  # type: ignore[arg-type]


def test_several_processes_are_refused() -> None:
    with pytest.raises(InputError, match="in one process"):
        one_process(2)


def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from qll.training.frameworks.lightning import PropertyCallback

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Classifier(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = small_network()

        def forward(self, x: Tensor) -> Any:
            return self.net(x)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, labels = batch
            return nn.functional.cross_entropy(self(x), labels)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.02)

    def trained(*callbacks: Any) -> Any:
        lightning.seed_everything(0, verbose=False)
        module = Classifier()
        trainer = lightning.Trainer(
            max_epochs=12, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=list(callbacks),
            accumulate_grad_batches=2, default_root_dir=tmp_path, gradient_clip_val=5.0,
        )  # fmt: skip
        trainer.fit(module, DataLoader(TensorDataset(*points()), batch_size=16))
        return module, trainer

    plain, _ = trained()
    property_loss = loss_of(balance=5.0, learned=0.0)
    module, trainer = trained(PropertyCallback(property_loss, network=lambda m: m.net))
    assert property_loss.calls == 12 * 2  # one for each step of the optimiser
    assert obeying(module.net) > obeying(plain.net) + 0.05
    assert set(trainer.callback_metrics) >= {"qll/weight", "qll/satisfied", "qll/property_loss"}


class Rows(Dataset[dict[str, Tensor]]):
    def __init__(self) -> None:
        self.x, self.labels = points()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"values": self.x[index], "labels": self.labels[index]}


class Answering(nn.Module):
    """A model as the Trainer wants it: a loss and logits by name."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_network()

    def forward(self, values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        found = {"logits": self.net(values)}
        if labels is not None:
            found["loss"] = nn.functional.cross_entropy(found["logits"], labels)
        return found


def test_hugging_face(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from qll.training.frameworks.hugging_face import PropertyCallback

    def trained(*callbacks: Any) -> Answering:
        transformers.set_seed(0)
        model = Answering()
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), num_train_epochs=12, per_device_train_batch_size=16,
            gradient_accumulation_steps=2, learning_rate=0.02, lr_scheduler_type="constant",
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
            use_cpu=True, max_grad_norm=5.0,
        )  # fmt: skip
        trainer = transformers.Trainer(
            model, arguments, train_dataset=Rows(), callbacks=list(callbacks)
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        return model

    plain = trained()
    property_loss = loss_of(balance=5.0, learned=0.0)
    model = trained(PropertyCallback(property_loss, inputs="values"))
    assert property_loss.calls == 12 * 2
    assert obeying(model.net) > obeying(plain.net) + 0.05
    assert not model._forward_pre_hooks  # nothing stays behind
    with pytest.raises(InputError, match="not called with 'pixel_values'"):
        trained(PropertyCallback(loss_of()))
