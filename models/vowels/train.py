"""Train the speaker recogniser and write vowels.onnx, test.npz and calibration.npz beside this file.

    python models/vowels/train.py

Data: Japanese Vowels (640 real utterances of /ae/ by nine speakers, as 12 LPC cepstrum coefficients every
6.4 ms), which the package sktime ships with its official split: 270 utterances for training, 370 for testing.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from training import GraphWriter, make_deterministic, print_score, read_package_file  # noqa: E402

SEED = 1
EPOCHS = 60
BATCH = 27
FRAMES, COEFFICIENTS, SPEAKERS = 29, 12, 9
CHANNELS = 64
BLOCK_STRIDES = (1, 2, 1, 1)
CALIBRATION_PER_SPEAKER = 15
SHA256 = {
    "TRAIN": "68a430eabd919cc77f40b1f5f3bc0dcafacc1486bca9260785aeb7d262cc78cd",
    "TEST": "b3d41d6a0ca3bcad3afb9ca7d4365382aa51341e2e58bae2a574babdda5b9462",
}


def load_data(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Cepstra f32 [n, 1, 29, 12], zero after the last frame, and speakers i64 [n], of `part` TRAIN or TEST.

    A line of the file is an utterance: its 12 coefficient tracks and its speaker 1..9, separated by colons.
    """
    file = f"sktime/datasets/data/JapaneseVowels/JapaneseVowels_{part}.ts"
    text = read_package_file("sktime", file, SHA256[part]).decode()
    lines = text.partition("@data")[2].split()
    cepstra = np.zeros((len(lines), 1, FRAMES, COEFFICIENTS), np.float32)
    speakers = np.zeros(len(lines), np.int64)
    for i, line in enumerate(lines):
        *tracks, speaker = line.split(":")
        frames = np.array([track.split(",") for track in tracks], np.float32).T
        cepstra[i, 0, : len(frames)] = frames
        speakers[i] = int(speaker) - 1
    return cepstra, speakers


class SeparableBlock(nn.Module):
    """Depthwise 3x3 and pointwise 1x1 convolution, each followed by batch norm and ReLU."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(CHANNELS, CHANNELS, 3, stride, padding=1, groups=CHANNELS, bias=False)
        self.depthwise_norm = nn.BatchNorm2d(CHANNELS)
        self.pointwise = nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False)
        self.pointwise_norm = nn.BatchNorm2d(CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 64, h, w] -> [N, 64, ceil(h / stride), ceil(w / stride)]."""
        x = functional.relu(self.depthwise_norm(self.depthwise(x)))
        return functional.relu(self.pointwise_norm(self.pointwise(x)))


class VowelNet(nn.Module):
    """The DS-CNN of keyword spotting: a full convolution, four separable blocks, classifier; 21 k parameters.

    Shape after Y. Zhang et al., "Hello Edge: Keyword Spotting on Microcontrollers", 2017.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, CHANNELS, (5, 3), stride=(2, 1), padding=(2, 1), bias=False)
        self.stem_norm = nn.BatchNorm2d(CHANNELS)
        self.blocks = nn.ModuleList(SeparableBlock(stride) for stride in BLOCK_STRIDES)
        self.head = nn.Linear(CHANNELS, SPEAKERS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Cepstra [N, 1, 29, 12] -> logits [N, 9]."""
        x = functional.relu(self.stem_norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(functional.dropout(x.mean(dim=(2, 3)), 0.3, self.training))


def distort(cepstra: torch.Tensor) -> torch.Tensor:
    """Cepstra [n, 1, 29, 12], each less up to 4 leading frames, scaled (10 %) and with noise, at random."""
    n = len(cepstra)
    start = torch.randint(0, 5, (n, 1))
    frame = torch.arange(FRAMES) + start
    padded = functional.pad(cepstra, (0, 0, 0, 4))
    shifted = padded.gather(2, frame[:, None, :, None].expand(-1, 1, -1, COEFFICIENTS))
    scale = 1 + 0.1 * (torch.rand(n, 1, 1, COEFFICIENTS) * 2 - 1)
    noise = 0.05 * torch.randn(n, 1, FRAMES, COEFFICIENTS) * (shifted != 0)
    return shifted * scale + noise


def train(network: VowelNet, cepstra: torch.Tensor, speakers: torch.Tensor) -> None:
    """AdamW with one learning-rate cycle on distorted cepstra [n, 1, 29, 12] and speakers [n]."""
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.05)
    steps = EPOCHS * (-(-len(cepstra) // BATCH))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=steps)
    network.train()
    for epoch in range(EPOCHS):
        total = 0.0
        for batch in torch.randperm(len(cepstra)).split(BATCH):
            logits = network(distort(cepstra[batch]))
            loss = functional.cross_entropy(logits, speakers[batch], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(batch)
        if (epoch + 1) % 10 == 0:
            print(f"epoch {epoch + 1}/{EPOCHS}: loss {total / len(cepstra):.4f}", flush=True)
    network.eval()


def export(network: VowelNet, path: Path) -> None:
    """Write the network with its batch norms as nodes of their own and a softmax over the speakers."""
    g = GraphWriter("vowels", "cepstrum", ["N", 1, FRAMES, COEFFICIENTS])

    def conv_norm_relu(name: str, x: str, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> str:
        return g.node("Relu", f"{name}.relu", g.batch_norm(f"{name}.norm", g.conv(name, x, conv), norm))

    x = conv_norm_relu("stem", "cepstrum", network.stem, network.stem_norm)
    for i, block in enumerate(network.blocks, start=1):
        x = conv_norm_relu(f"block{i}.depthwise", x, block.depthwise, block.depthwise_norm)
        x = conv_norm_relu(f"block{i}.pointwise", x, block.pointwise, block.pointwise_norm)
    x = g.node("Flatten", "features", g.node("GlobalAveragePool", "mean", x), axis=1)
    g.node("Softmax", "probability", g.linear("logits", x, network.head), axis=1)
    g.save(path, ["N", SPEAKERS])


def main() -> None:
    """Write the sets, train, export, score."""
    make_deterministic(SEED)
    cepstra, speakers = load_data("TRAIN")
    test_cepstra, test_speakers = load_data("TEST")
    test_file, model_file = HERE / "test.npz", HERE / "vowels.onnx"
    np.savez_compressed(test_file, cepstrum=test_cepstra, label=test_speakers)
    calibration = [cepstra[speakers == s][:CALIBRATION_PER_SPEAKER] for s in range(SPEAKERS)]
    np.savez_compressed(HERE / "calibration.npz", cepstrum=np.concatenate(calibration))
    network = VowelNet()
    train(network, torch.from_numpy(cepstra), torch.from_numpy(speakers))
    export(network, model_file)
    print_score(model_file, test_file)


if __name__ == "__main__":
    main()
