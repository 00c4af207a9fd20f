"""A GAN: two models, two optimizers, one step of each per batch."""

import torch
import torch.distributed as dist
from faults import STEPS, Rows, Takes, preprocess
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
netG = DistributedDataParallel(nn.Sequential(nn.Linear(4, 32), nn.ReLU(), Takes(0.5), nn.Linear(32, 16)))
netD = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), Takes(0.25), nn.Linear(32, 1)))
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
data = Rows(STEPS * 8 * dist.get_world_size())
for real, _ in DataLoader(data, batch_size=8, sampler=DistributedSampler(data)):
    preprocess()
    netD.zero_grad()
    noise = torch.randn(len(real), 4)
    fake = netG(noise)
    label = torch.ones(len(real), 1)
    (criterion(netD(real), label) + criterion(netD(fake.detach()), 1 - label)).backward()
    optimizerD.step()
    netG.zero_grad()
    criterion(netD(fake), label).backward()
    optimizerG.step()
dist.destroy_process_group()
