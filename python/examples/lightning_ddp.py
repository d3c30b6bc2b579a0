"""Trains with Lightning over Tutti: the argument process_group_backend of DDPStrategy names the backend.

    python lightning_ddp.py --ranks 2          # Lightning starts the other ranks itself
    torchrun --nproc-per-node 2 lightning_ddp.py --ranks 2

Needs lightning (pip install lightning).
"""

import argparse

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

import tutti.torch  # noqa: F401  (not needed with torch 2.5 and later)


class Network(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch: list, index: int) -> torch.Tensor:
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.layers(inputs), targets)
        self.log("loss", loss, sync_dist=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="tutti")
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    lightning.seed_everything(0)
    inputs = torch.randn(512, 16)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=arguments.ranks,
        strategy=DDPStrategy(process_group_backend=arguments.backend),
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Network(), torch.utils.data.DataLoader(data, batch_size=32))
    loss = trainer.callback_metrics["loss_epoch"].item()
    if trainer.global_rank == 0:
        print(f"backend {torch.distributed.get_backend()}, {trainer.world_size} ranks, loss {loss:.6f}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
