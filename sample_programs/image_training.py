"""A convolutional network trained in the manner of torchvision's and timm's reference scripts."""

import time

import torch
from torch import nn


class ConvNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
            nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16),
            nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.classifier = nn.Linear(16, classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0.0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def average(self):
        return self.sum / self.count


def train_one_epoch(model, criterion, optimizer, data_loader, device, epoch, scaler):
    model.train()
    losses, started = AverageMeter(), time.time()
    for image, target in data_loader:
        image, target = image.to(device), target.to(device)
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        losses.update(loss.item(), image.shape[0])
    rate = losses.count / (time.time() - started)
    print(f"Epoch {epoch} loss {losses.average:.6f} ({rate:.0f} images/s)")


def evaluate(model, criterion, data_loader, device):
    model.eval()
    top1 = AverageMeter()
    with torch.inference_mode():
        for image, target in data_loader:
            image = image.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            output = model(image)
            top1.update((output.argmax(1) == target).float().mean().item(), image.shape[0])
    print(f"Test Acc@1 {100 * top1.average:.3f}")


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images, targets = torch.randn(48, 3, 16, 16), torch.randint(0, 10, (48,))
    dataset = torch.utils.data.TensorDataset(images, targets)
    train_loader = torch.utils.data.DataLoader(dataset, batch_size=4, shuffle=True)
    test_loader = torch.utils.data.DataLoader(dataset, batch_size=4)
    model = ConvNet().to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
    for epoch in range(2):
        train_one_epoch(model, criterion, optimizer, train_loader, device, epoch, scaler=None)
        scheduler.step()
        evaluate(model, criterion, test_loader, device)


if __name__ == "__main__":
    main()
