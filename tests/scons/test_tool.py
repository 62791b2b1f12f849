"""The tool in a build of someone else's."""

from __future__ import annotations

from scons_tree import Tree

SCONSTRUCT = """\
import cuvil.scons

env = Environment(tools=[cuvil.scons.generate])
net = env.CuvilModel("models/tiny.onnx", target="targets/board.yaml", name="net")
other = env.CuvilModel("models/other.onnx", target="targets/board.yaml", folder="elsewhere", threads=1)
copies = env.Command("firmware.bin", net.libraries[0], Copy("$TARGET", "$SOURCE"))
env.Default(copies, other.libraries)
"""


def test_models_as_nodes_of_another_build(fresh: Tree) -> None:
    (fresh.folder / "SConstruct").write_text(SCONSTRUCT, encoding="utf-8")
    assert "CC       net [board]" in fresh.scons().stdout
    library = fresh.folder / "build" / "board" / "net" / "libnet.a"
    assert (fresh.folder / "firmware.bin").read_bytes() == library.read_bytes()
    assert (fresh.folder / "elsewhere" / "libother.so").is_file()
    assert fresh.stages() == []
    fresh.model.write_bytes((fresh.folder / "models" / "other.onnx").read_bytes())
    ran = fresh.scons().stdout
    assert "IMPORT   net [board]" in ran and 'Copy("firmware.bin"' in ran and "other [board]" not in ran
    fresh.scons("-c")
    assert not library.parent.exists()
    assert not (fresh.folder / "firmware.bin").exists()


def test_errors_end_the_build_in_one_line(fresh: Tree) -> None:
    start = SCONSTRUCT.partition("net = ")[0]
    (fresh.folder / "SConstruct").write_text(f"{start}env.CuvilModel('m.onnx', 'bord')\n", encoding="utf-8")
    done = fresh.scons(status=2)
    assert done.stderr.startswith("cuvil: error: unknown target 'bord'; ")
    assert done.stderr.count("\n") == 1
