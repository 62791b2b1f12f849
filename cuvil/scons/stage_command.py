"""``cuvil stage NAME ...``: one stage of `cuvil.stages` as a command, files in and files out.

This is what a build node runs, in its own process or in the build's; ``scons verbose=1`` prints it.  The
part of the board profile that the stage reads is given as JSON, so the command alone decides the outcome.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cuvil.errors import CuvilError
from cuvil.target.records import one_of
from cuvil.target.yamlfile import quoted

Progress = Callable[[str], None]

STAGES = ("import", "partition", "quantize", "codegen", "interface", "cc")


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    result = argparse.ArgumentParser(prog="cuvil stage", description=__doc__.split("\n\n")[0])
    add = result.add_argument
    add("stage", choices=STAGES, help="the stage to run")
    add("--folder", type=Path, required=True, help="folder of all artefacts of the model")
    add("--name", required=True, help="the model's name")
    add("--devices", required=True, metavar="A,B", help="the target's devices, in order")
    add("--slice", default="{}", metavar="JSON", help="what the stage reads of the board profile")
    add("--device", default="", help="the device to work for; cc without one links the model")
    add("--level", default="", help="cc: compile the device's code for one of its instruction sets alone")
    add("--model", type=Path, help="import: the .onnx file")
    add("--shapes", default="{}", metavar="JSON", help="import: sizes or names of dimensions, by input")
    add("--values", default="{}", metavar="JSON", help="import: values of inputs that become constants")
    add("--io-format", default="nchw", help="import: nchw or nhwc")
    add("--calibration", type=Path, metavar="FILE.npz", help="quantize: samples of the inputs")
    return result


def run(arguments: Sequence[str], progress: Progress | None = None) -> None:
    """Run the stage that `arguments` describe.

    Raises:
        CuvilError: what the stage could not do, or an argument that is missing or malformed.
    """
    from cuvil import artefacts, stages  # with numpy and onnx; not needed to declare a build

    args = parser().parse_args(arguments)
    out = artefacts.Layout(args.folder, args.name, tuple(args.devices.split(",")))
    target = _json("--slice", args.slice)
    if args.device not in ("", *out.devices) or (args.stage == "codegen" and not args.device):
        allowed = one_of(out.devices, args.device)
        raise CuvilError(f"is no device; {allowed}", f"--device {quoted(args.device)}")
    if args.stage == "import":
        if args.model is None:
            raise CuvilError("is needed to import", "--model")
        shapes, values = _json("--shapes", args.shapes), _json("--values", args.values)
        stages.run_import(args.model, out, shapes, args.io_format, values)
    elif args.stage == "partition":
        stages.run_partition(out, target)
    elif args.stage == "quantize":
        stages.run_quantize(out, target, args.calibration, progress)
    elif args.stage == "codegen":
        stages.run_codegen(out, args.device, target)
    elif args.stage == "interface":
        stages.run_interface(out, target)
    elif args.device and args.level:
        stages.run_cc_level(out, args.device, args.level, target, progress)
    elif args.device:
        stages.run_cc_device(out, args.device, target, progress)
    else:
        stages.run_cc_model(out, target, progress)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; progress goes to stderr.

    Raises:
        CuvilError: see `run`.
    """

    def say(text: str) -> None:
        print(f"cuvil: {text}", file=sys.stderr, flush=True)

    run(sys.argv[1:] if arguments is None else arguments, say)
    return 0


def _json(option: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CuvilError(f"is not JSON: {error}", option) from None
    if not isinstance(value, dict):
        raise CuvilError("is no JSON object", option)
    return value


if __name__ == "__main__":
    from cuvil import cli

    sys.exit(cli.main(["stage", *sys.argv[1:]]))
