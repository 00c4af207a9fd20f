"""A LightningModule in a Trainer with DDP."""

import os

import lightning
import torch
from faults import STEPS, Rows, Takes, preprocess
from torch import nn
from torch.utils.data import DataLoader


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), Takes(), nn.Linear(64, 1))

    def on_train_batch_start(self, batch, batch_idx):
        preprocess()

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.net(inputs), targets)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), DataLoader(Rows(STEPS * 16), batch_size=8, shuffle=True))
