"""A generator and a discriminator with an optimizer each, and images of a fixed noise."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(999)
images = torch.tanh(torch.randn(128, 1, 8, 8) + torch.linspace(-1, 1, 8))
loader = DataLoader(TensorDataset(images), batch_size=16, shuffle=True)
netG = nn.Sequential(
    nn.ConvTranspose2d(8, 16, 4, 1, 0),
    nn.BatchNorm2d(16),
    nn.ReLU(True),
    nn.ConvTranspose2d(16, 1, 4, 2, 1),
    nn.Tanh(),
)
netD = nn.Sequential(
    nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(16, 1, 4, 1, 0), nn.Sigmoid()
)
criterion, fixed_noise = nn.BCELoss(), torch.randn(4, 8, 1, 1)
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
for epoch in range(2):
    for i, (real,) in enumerate(loader):
        netD.zero_grad()
        label = torch.full((len(real),), 1.0)
        errD_real = criterion(netD(real).view(-1), label)
        errD_real.backward()
        fake = netG(torch.randn(len(real), 8, 1, 1))
        errD_fake = criterion(netD(fake.detach()).view(-1), label.fill_(0.0))
        errD_fake.backward()
        optimizerD.step()
        netG.zero_grad()
        errG = criterion(netD(fake).view(-1), label.fill_(1.0))
        errG.backward()
        optimizerG.step()
        if i % 4 == 0:
            errD = (errD_real + errD_fake).item()
            print(f"[{epoch}/2][{i}/{len(loader)}] Loss_D: {errD:.4f} Loss_G: {errG.item():.4f}")
with torch.no_grad():
    torch.save(netG(fixed_noise), "fake_samples.pt")
torch.save(netG.state_dict(), "netG.pth")
torch.save(netD.state_dict(), "netD.pth")
