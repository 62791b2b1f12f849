"""Fits the cost model to this machine: ``python -m benchmarks.fit_cost --help``.

Some hundred and twenty small networks, most of them of one kernel, are compiled and timed; the model's
parameters are fitted to them, and the intervals are calibrated by the residuals of models that were left
out of the fit (five folds).  Then networks of the zoo, which had no part in either, are predicted and
measured: the error and the share that lies in its interval.

Printed is the ``cost`` mapping for a device of a profile.  With ``--work`` the libraries are kept and
reused.
"""

from __future__ import annotations

import argparse
import datetime
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from zoo.entry import Feeds, Unavailable
from zoo.net import Net, f32, i64
from zoo.registry import find

import cuvil
from benchmarks.latency import machine
from cuvil import artefacts, fsio
from cuvil.cost import model, uncertainty
from cuvil.cost.estimate import cpu_devices, machine_of, scheduled
from cuvil.cost.model import Measurement
from cuvil.cost.parameters import Parameters, of_device
from cuvil.frontend.onnx_reader import read_model
from cuvil.ir import expr
from cuvil.session import Session
from cuvil.target.schema import Target, at_level, load

HELD_OUT = (
    "digits", "vowels", "ds_cnn", "mlp", "lstm", "gru", "bert_encoder_layer", "bert_mini", "squeezenet",
    "unet", "mobilenet_v2", "resnet18", "magika", "crepe_tiny", "mtcnn_onet", "mobilenet_v1",
    "efficientnet_lite0", "silero_vad_16k_sequence", "minilm", "vit_small",
)  # fmt: skip
"""Networks that are predicted and measured but never fitted to."""

FOLDS = 5
BLOCK = 15e-3
"""Seconds that a network is run for in one round."""

QUANTILE = 0.1
"""Of the timings of a block."""

Build = Callable[[Net], None]


@dataclass(frozen=True)
class Case:
    """A small network: its name, what builds it, and the arithmetic it is compiled for."""

    name: str
    build: Build
    quantization: str = "none"


# c_in, c_out, kernel, stride, groups, size
CONVOLUTIONS = (
    (3, 32, 3, 2, 1, 112), (3, 64, 7, 2, 1, 64), (16, 16, 3, 1, 1, 28), (32, 64, 3, 1, 1, 28),
    (64, 64, 3, 1, 1, 56), (128, 128, 3, 2, 1, 28), (128, 256, 3, 1, 1, 14), (256, 256, 3, 1, 1, 7),
    (512, 512, 3, 1, 1, 7), (16, 96, 1, 1, 1, 56), (64, 128, 1, 1, 1, 28), (256, 64, 1, 1, 1, 14),
    (384, 64, 1, 1, 1, 14), (512, 1000, 1, 1, 1, 13), (24, 40, 5, 1, 1, 20), (8, 24, 3, 1, 1, 96),
    (32, 32, 3, 1, 32, 56), (96, 96, 3, 2, 96, 56), (144, 144, 3, 1, 144, 28), (384, 384, 3, 1, 384, 14),
    (64, 64, 3, 1, 64, 7), (64, 64, 3, 1, 2, 28),
)  # fmt: skip
INNER_CONVOLUTIONS = (
    (32, 64, 3, 2, 1, 56), (128, 128, 3, 2, 1, 28), (256, 256, 3, 1, 1, 14), (256, 512, 3, 2, 1, 14),
    (512, 512, 3, 1, 1, 7), (64, 256, 1, 1, 1, 56), (64, 128, 1, 1, 1, 28), (144, 32, 1, 1, 1, 28),
    (256, 128, 1, 2, 1, 28), (384, 96, 1, 1, 1, 14), (96, 576, 1, 1, 1, 14), (960, 160, 1, 1, 1, 7),
    (128, 96, 5, 1, 1, 14), (64, 64, 3, 1, 1, 28), (256, 256, 3, 1, 256, 14),
)  # fmt: skip
"""Those that have a network around them, and so channels in blocks on both sides."""

BYTE_CONVOLUTIONS = (
    (32, 64, 3, 1, 1, 28), (64, 64, 3, 1, 1, 56), (256, 256, 3, 1, 1, 7), (64, 128, 1, 1, 1, 28),
    (16, 32, 3, 2, 1, 56),
)  # fmt: skip
# m, k, n
PRODUCTS = (
    (1, 64, 10), (1, 256, 256), (1, 1024, 1000), (1, 2048, 2048), (8, 128, 128), (32, 256, 256), (64, 64, 64),
    (100, 300, 70), (128, 256, 1024), (128, 512, 512), (256, 768, 768), (7, 33, 49), (24, 768, 768),
    (48, 128, 512), (64, 1024, 256), (128, 768, 3072), (197, 192, 576), (1024, 64, 64), (512, 320, 32),
)  # fmt: skip
BYTE_PRODUCTS = ((1, 512, 512), (64, 256, 256), (128, 256, 1024))
POOLS = (
    ("MaxPool", 64, 56, 3, 2), ("MaxPool", 32, 28, 2, 2), ("AveragePool", 128, 14, 2, 2),
    ("MaxPool", 192, 14, 3, 1),
)  # fmt: skip
NETWORKS = 20


def cases() -> Iterator[Case]:
    """The networks that the model is fitted to."""
    for c in CONVOLUTIONS:
        yield Case("conv{}x{}k{}s{}g{}h{}".format(*c), partial(_conv, spec=c))
    for c in INNER_CONVOLUTIONS:
        yield Case("inner{}x{}k{}s{}g{}h{}".format(*c), partial(_inner, spec=c))
    for c in BYTE_CONVOLUTIONS:
        yield Case("byteconv{}x{}k{}s{}g{}h{}".format(*c), partial(_conv, spec=c, stem=4), "int8")
    for m, k, n in PRODUCTS:
        yield Case(f"gemm{m}x{k}x{n}", partial(_gemm, m=m, k=k, n=n))
    for m, k, n in BYTE_PRODUCTS:
        yield Case(f"bytegemm{m}x{k}x{n}", partial(_gemm, m=m, k=k, n=n), "int8")
    for kind in ("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Sqrt"):
        for count in (1 << 12, 1 << 16, 1 << 20) if kind in ("Relu", "Tanh") else (1 << 12,):
            yield Case(f"{kind.lower()}{count}", partial(_unary, kind=kind, count=count))
    for rows, columns in ((16, 64), (128, 256), (512, 128), (32, 1000)):
        for kind in ("Softmax", "Norm"):
            build = partial(_rows, kind=kind, rows=rows, columns=columns)
            yield Case(f"{kind.lower()}{rows}x{columns}", build)
    for p in POOLS:
        yield Case("{}{}h{}k{}s{}".format(*p).lower(), partial(_pool, spec=p))
    for channels, size in ((64, 28), (512, 7), (1280, 7)):
        yield Case(f"globalpool{channels}h{size}", partial(_global, channels=channels, size=size))
    for channels, size in ((64, 28), (256, 14)):
        yield Case(f"transpose{channels}h{size}", partial(_transpose, channels=channels, size=size))
    for steps, size, hidden in ((10, 32, 64), (32, 64, 128), (8, 128, 256)):
        for kind in ("LSTM", "GRU"):
            build = partial(_scan, kind=kind, steps=steps, size=size, hidden=hidden)
            yield Case(f"{kind.lower()}{steps}x{size}x{hidden}", build)
    yield Case("tiny", partial(_unary, kind="Relu", count=1))
    for number in range(NETWORKS):
        yield Case(f"network{number}", partial(_dense if number % 5 > 2 else _convolutional, seed=number))


def _conv(net: Net, spec: tuple[int, ...], stem: int = 0) -> None:
    """A convolution; with `stem`, behind a small one from so many channels."""
    c_in, c_out, kernel, stride, groups, size = spec
    out = (size + stride - 1) // stride
    x = net.input("x", [1, stem or c_in, size, size])
    x = net.op("Relu", net.conv(x, stem, c_in, 1)) if stem else x
    y = net.conv(x, c_in, c_out, kernel, stride=stride, groups=groups)
    net.output(net.op("Relu", y), "y", [1, c_out, out, out])


def _inner(net: Net, spec: tuple[int, ...]) -> None:
    """A convolution behind a small one, in front of a global pool."""
    c_in, c_out, kernel, stride, groups, size = spec
    x = net.op("Relu", net.conv(net.input("x", [1, 4, size, size]), 4, c_in, 1))
    y = net.op("Relu", net.conv(x, c_in, c_out, kernel, stride=stride, groups=groups))
    net.output(net.op("GlobalAveragePool", y), "y", [1, c_out, 1, 1])


def _gemm(net: Net, m: int, k: int, n: int) -> None:
    net.output(net.linear(net.input("x", [m, k]), k, n), "y", [m, n])


def _unary(net: Net, kind: str, count: int) -> None:
    net.output(net.op(kind, net.input("x", [count])), "y", [count])


def _rows(net: Net, kind: str, rows: int, columns: int) -> None:
    x = net.input("x", [rows, columns])
    y = net.layer_norm(x, columns) if kind == "Norm" else net.op("Softmax", x, axis=-1)
    net.output(y, "y", [rows, columns])


def _pool(net: Net, spec: tuple[str, int, int, int, int]) -> None:
    kind, channels, size, kernel, stride = spec
    out = (size - kernel) // stride + 1
    x = net.input("x", [1, channels, size, size])
    y = net.op(kind, x, kernel_shape=[kernel] * 2, strides=[stride] * 2)
    net.output(y, "y", [1, channels, out, out])


def _global(net: Net, channels: int, size: int) -> None:
    x = net.input("x", [1, channels, size, size])
    net.output(net.op("GlobalAveragePool", x), "y", [1, channels, 1, 1])


def _transpose(net: Net, channels: int, size: int) -> None:
    x = net.input("x", [1, channels, size, size])
    net.output(net.op("Transpose", x, perm=[0, 2, 3, 1]), "y", [1, size, size, channels])


def _scan(net: Net, kind: str, steps: int, size: int, hidden: int) -> None:
    gates = 4 if kind == "LSTM" else 3
    x = net.input("x", [steps, 1, size])
    w = net.weight(1, gates * hidden, size, fan_in=size)
    r = net.weight(1, gates * hidden, hidden, fan_in=hidden)
    y = net.op(kind, x, w, r, hidden_size=hidden)
    net.output(net.op("Squeeze", y, i64(1)), "y", [steps, 1, hidden])


def _convolutional(net: Net, seed: int) -> None:
    """A random stack of convolutions, depthwise ones, pools and residual sums."""
    rng = random.Random(seed)
    c, size = rng.choice((3, 8, 16)), rng.choice((32, 48, 64))
    x = net.input("x", [1, c, size, size])
    for _ in range(rng.randint(3, 6)):
        wide = rng.choice((16, 24, 32, 48, 64, 96))
        y = net.op("Relu", net.conv(x, c, wide, rng.choice((1, 3, 3)), stride=1))
        kind = rng.choice(("depthwise", "residual", "pool", "none"))
        if kind == "depthwise":
            y = net.op("Clip", net.conv(y, wide, wide, 3, groups=wide), f32(0.0), f32(6.0))
        elif kind == "residual":
            y = net.op("Relu", net.op("Add", y, net.conv(y, wide, wide, 3)))
        elif kind == "pool" and size >= 16:
            y = net.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
            size //= 2
        x, c = y, wide
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    net.output(net.gemm(x, c, 10), "y", [1, 10])


def _dense(net: Net, seed: int) -> None:
    """A random stack of dense layers, normalizations and activations over a sequence."""
    rng = random.Random(seed)
    rows, width = rng.choice((1, 16, 64, 128)), rng.choice((64, 128, 256))
    x = net.input("x", [rows, width])
    for _ in range(rng.randint(2, 5)):
        inner = width * rng.choice((1, 2, 4))
        y = net.linear(net.layer_norm(x, width), width, inner)
        y = net.gelu(y) if rng.random() < 0.5 else net.op("Relu", y)
        x = net.op("Add", x, net.linear(y, inner, width))
    net.output(net.op("Softmax", x, axis=-1), "y", [rows, width])


# --- measuring ------------------------------------------------------------------------------------


@dataclass
class Subject:
    """A network with its library: what it is fed, and what one inference took so far."""

    name: str
    folder: Path
    session: Session
    feeds: Feeds
    seconds: float = math.inf


def prepared(folder: Path, path: Path, feeds: Feeds, target: Target, quantization: str = "none") -> Subject:
    """Compile into `folder` and load, or only load what an earlier run has left there."""
    record = folder / "done"
    out = artefacts.layout(folder, path.stem, target)
    if not record.exists():
        cuvil.compile(
            path,
            target=target,
            shapes={name: list(a.shape) for name, a in feeds.items()},
            output=folder,
            quantization=quantization,
            calibration=feeds if quantization == "int8" else None,
        )
        record.touch()
    return Subject(path.stem, folder, Session(out.libraries[1], out.interface["json"]), feeds)


def time_all(subjects: Sequence[Subject], rounds: int) -> None:
    """Time every network in each round, and keep the fastest block: whatever else runs on the machine
    only ever slows a network down.  Of a long network the time of the thread counts where it is less
    than the clock's, for that one leaves out what others took."""
    for _ in range(rounds):
        for s in subjects:
            once = min(s.session.benchmark(s.feeds, 3))
            repeats = int(min(max(BLOCK / max(once, 1e-7), 3), 3000))
            begin = time.thread_time()
            wall = s.session.benchmark(s.feeds, repeats)
            own = (time.thread_time() - begin) / repeats
            s.seconds = min(s.seconds, float(np.quantile(wall, QUANTILE)), own)


def measurement(s: Subject, board: dict[str, Any]) -> Measurement:
    """The features and the time of a network."""
    expr.clear()
    device = cpu_devices(board)[0]
    machine = machine_of(board, device)
    graph = read_model(s.folder / "quantize" / f"{device}.onnx")
    found = model.features(scheduled(graph, board, device), machine)
    nominal = np.array([f.nominal for f in found])
    family = model.family(found, [float(t) for t in model.predict(found, machine.parameters)])
    return Measurement(nominal, s.seconds, family)


def left_out(measurements: Sequence[Measurement], start: Parameters, p: float) -> list[float]:
    """``log(measured / predicted)`` of each, by parameters fitted to the other folds."""
    errors = [0.0] * len(measurements)
    for fold in range(FOLDS):
        rest = [m for k, m in enumerate(measurements) if k % FOLDS != fold]
        fitted = model.fit(rest, start, (p,))
        for k in range(fold, len(measurements), FOLDS):
            errors[k] = float(model.residuals([measurements[k]], fitted)[0])
    return errors


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--target", default="host", help="profile of this machine")
    parser.add_argument("--isa", help="level of its CPU that is compiled for, where not the profile's")
    parser.add_argument("--work", type=Path, help="folder for libraries, kept and reused")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of timing")
    parser.add_argument("--no-check", action="store_true", help="skip the held-out networks")
    parser.add_argument("--output", type=Path, help="JSON file for the parameters and all that was measured")
    options = parser.parse_args(arguments)
    target = load(options.target)
    if options.isa:
        target = replace(target, devices=tuple(at_level(d, options.isa) for d in target.devices))
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": ["python", "-m", "benchmarks.fit_cost", *arguments],
        "machine": machine(),
    }
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        report |= run(work, target, options.rounds, not options.no_check)
    if options.output:
        fsio.write_json(options.output, report)


def built(work: Path, target: Target) -> Iterator[Subject]:
    """The libraries of all `cases`."""
    for number, case in enumerate(cases()):
        folder = work / case.name
        folder.mkdir(parents=True, exist_ok=True)
        net = Net(case.name, number)
        case.build(net)
        network = net.model()
        path = folder / f"{case.name}.onnx"
        onnx.save(network, path)
        shape = [d.dim_value for d in network.graph.input[0].type.tensor_type.shape.dim]
        feeds = {"x": np.random.default_rng(number).standard_normal(shape).astype(np.float32)}
        yield prepared(folder, path, feeds, target, case.quantization)


def held_out(work: Path, target: Target) -> Iterator[Subject]:
    """The libraries of the networks of `HELD_OUT`."""
    trained = Path(__file__).resolve().parent.parent / "models"
    for name in HELD_OUT:
        own = trained / name / f"{name}.onnx"
        entry = find(str(own) if own.exists() else name)
        folder = work / f"held-out-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            path = entry.path(folder)
        except Unavailable as error:
            print(f"  {name}: {error}")
            continue
        yield prepared(folder, path, entry.inputs(), target)


def run(work: Path, target: Target, rounds: int, check: bool) -> dict[str, Any]:
    """Compile, time, fit, print; the device, its parameters and the networks as data."""
    board = target.slice("partition")
    device = board["devices"][cpu_devices(board)[0]]
    begin = time.perf_counter()
    subjects = list(built(work, target))
    print(f"{len(subjects)} networks compiled in {time.perf_counter() - begin:.0f} s", flush=True)
    begin = time.perf_counter()
    time_all(subjects, rounds)
    print(f"timed in {time.perf_counter() - begin:.0f} s", flush=True)
    measured = [measurement(s, board) for s in subjects]
    start = of_device({**device, "cost": {}, "launch_overhead": 0.0})
    fitted = model.fit(measured, start)
    errors = left_out(measured, start, fitted.p)
    fitted = replace(fitted, spread=uncertainty.calibrate([m.family for m in measured], errors))
    for s, m, inside, outside in zip(subjects, measured, model.residuals(measured, fitted), errors):
        took = f"{m.seconds * 1e6:9.1f} us"
        print(f"  {s.name:28} {m.family:12} {took}, off by {inside:+.2f}, left out {outside:+.2f}")
    show_errors("fitted", model.residuals(measured, fitted))
    show_errors("left out", np.array(errors))
    cost = fitted.to_cost()
    print(yaml.safe_dump({"cost": cost}, sort_keys=False))
    rows = [row(s.name, m, fitted) for s, m in zip(subjects, measured)]
    report = {"target": board, "cost": cost, "fitted": rows}
    if check:
        others = list(held_out(work, target))
        time_all(others, rounds)
        report["held_out"] = [row(s.name, measurement(s, board), fitted) for s in others]
        show_held_out(report["held_out"])
    return report


def row(name: str, m: Measurement, fitted: Parameters) -> dict[str, Any]:
    """What a network took and was predicted to take, in microseconds."""
    predicted = float(model.times(m.nominal, fitted).sum())
    deviation = uncertainty.log_deviation(m.nominal, fitted)
    low, high = uncertainty.interval(
        predicted, uncertainty.half_width(deviation, fitted.spread.get(m.family))
    )
    times = {"measured_us": m.seconds, "predicted_us": predicted, "low_us": low, "high_us": high}
    return {"name": name, "family": m.family, **{k: round(1e6 * t, 3) for k, t in times.items()}}


def show_errors(what: str, errors: np.ndarray) -> None:
    """Mean absolute percentage error, share within 10 % and 25 %, and the bias."""
    relative = np.abs(np.exp(-errors) - 1)
    print(
        f"{what}: MAPE {100 * relative.mean():.1f} %, within 10 % {100 * (relative < 0.1).mean():.0f} %, "
        f"within 25 % {100 * (relative < 0.25).mean():.0f} %, median of measured / predicted "
        f"{math.exp(float(np.median(errors))):.2f}"
    )


def show_held_out(rows: Sequence[dict[str, Any]]) -> None:
    """Compare predictions and measurements of networks that had no part in the fit."""
    inside = 0
    for r in rows:
        hit = r["low_us"] <= r["measured_us"] <= r["high_us"]
        inside += hit
        said = f"predicted {r['predicted_us']:8.1f} us [{r['low_us']:.1f}, {r['high_us']:.1f}]"
        took = f"measured {r['measured_us']:8.1f} us"
        print(f"  {r['name']:20} {r['family']:8} {said}, {took}: {'inside' if hit else 'OUTSIDE'}")
    if rows:
        show_errors("held out", np.log([r["measured_us"] / r["predicted_us"] for r in rows]))
        print(f"inside their interval: {inside} of {len(rows)}, nominal {100 * uncertainty.COVERAGE:.0f} %")


if __name__ == "__main__":
    main()
