"""The Trainer of Hugging Face's transformers, with its defaults."""

import tempfile

import torch
from faults import STEPS, Rows, Takes, preprocess
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), Takes(), nn.Linear(64, 1))

    def forward(self, x, labels=None):
        predicted = self.net(x)
        return {"loss": nn.functional.mse_loss(predicted, labels), "logits": predicted}


class Named(Rows):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return {"x": x, "labels": y}


class Prepare(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        preprocess()


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        max_steps=STEPS,
        per_device_train_batch_size=8,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        logging_steps=20,
        disable_tqdm=True,
        ddp_backend="gloo",
    )
    trainer = Trainer(Regression(), arguments, train_dataset=Named(STEPS * 16), callbacks=[Prepare()])
    trainer.train()
