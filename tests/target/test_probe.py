from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from cuvil.errors import TargetError
from cuvil.target import probe, profiles, schema, yamlfile

V3 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("arch", "flags", "name"),
    [
        ("x86_64", "", "x86-64"),
        ("x86_64", "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 avx", "x86-64-v2"),
        ("x86_64", V3, "x86-64-v3"),
        ("x86_64", V3.replace(" bmi2", ""), "x86-64-v2"),
        ("x86_64", f"{V3} avx_vnni", "x86-64-v3-vnni"),
        ("x86_64", f"{V3} avx512f avx512_vnni", "x86-64-v3"),
        ("x86_64", V4, "x86-64-v4"),
        ("x86_64", f"{V4} avx_vnni avx512_vnni", "x86-64-v4-vnni"),
        ("x86_64", f"{V4} avx512_vnni amx_tile amx_bf16 amx_int8", "x86-64-v4-amx"),
        ("x86_64", f"{V4} avx512_vnni amx_tile amx_int8", "x86-64-v4-vnni"),
        ("x86_64", f"{V4} amx_tile amx_bf16", "x86-64-v4"),
        ("aarch64", "fp asimd crc32", "armv8-a"),
        ("aarch64", "fp asimd atomics asimdrdm crc32 dcpop asimddp", "armv8.2-a-dotprod"),
        ("aarch64", "fp asimd asimddp i8mm", "armv8-a"),
        ("arm", "neon", "armv7a-neon"),
        ("arm", "neon vfpv4", "armv7a-neon-vfpv4"),
        ("riscv64", "i m a f d c v", "rv64gcv"),
        ("riscv64", "i m a f d c", "rv64gc"),
    ],
)
def test_isa_is_the_largest_that_every_feature_supports(arch: str, flags: str, name: str) -> None:
    assert probe.best_isa(arch, flags.split()) == name


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    return monkeypatch


def read(profile: dict[str, object]) -> schema.Target:
    return schema.resolve(yamlfile.from_plain(profile, "probe"))


def two_sockets(root: Path) -> Path:
    block = "processor\t: {}\nmodel name\t: Some CPU @ 2.50GHz\nflags\t\t: fpu {}\n"
    cpu, node = "sys/devices/system/cpu/cpu", "sys/devices/system/node/node"
    files = {"proc/cpuinfo": "\n".join(block.format(i, V4 if i else f"{V4} avx512_vnni") for i in range(8))}
    for i in range(8):
        files |= {
            f"{cpu}{i}/topology/physical_package_id": str(i // 4),
            f"{cpu}{i}/topology/core_id": str(i // 2),
        }
    for i in (0, 4):
        for index, (level, kind, size) in enumerate(
            [
                ("1", "Data", "48K"),
                ("1", "Instruction", "32K"),
                ("2", "Unified", "2048K"),
                ("3", "Unified", "33M"),
            ]
        ):
            files |= {
                f"{cpu}{i}/cache/index{index}/{key}": value
                for key, value in (
                    ("level", level),
                    ("type", kind),
                    ("size", size),
                    ("coherency_line_size", "64"),
                )
            }
    for i, (cpus, distance) in enumerate([("0-3", "10 21"), ("4-5,6-7", "21 10")]):
        files |= {
            f"{node}{i}/cpulist": cpus,
            f"{node}{i}/distance": distance,
            f"{node}{i}/meminfo": f"Node {i} MemTotal:       33000000 kB",
        }
    return tree(root, files)


def test_two_sockets(tmp_path: Path, linux: pytest.MonkeyPatch) -> None:
    profile = probe.probe(two_sockets(tmp_path))
    assert profile["devices"] == {
        f"cpu{i}": {
            "kind": "cpu",
            "isa": isa,
            "cores": 2,
            "frequency": "2.5 GHz",
            "caches": {"l1d": "48 KiB", "line": "64 B", "l2": "2 MiB", "l3": "33 MiB"},
            "memory": f"node{i}",
            "cpus": list(range(4 * i, 4 * i + 4)),
        }
        for i, isa in enumerate(("x86-64-v4", "x86-64-v4"))
    }
    assert profile["memories"]["node1"] == {
        "size": "32192 MiB",
        "bandwidth": "10 GB/s",
        "latency": "100 ns",
        "remote": {"node0": {"latency": "210 ns"}},
    }
    assert read(profile).memory("node0").remote["node1"].latency == 210e-9


def test_measured(tmp_path: Path, linux: pytest.MonkeyPatch) -> None:
    asked = []

    def measure(what: str, isa: str, cpus: tuple[int, ...]) -> float:
        asked.append((what, isa, cpus))
        return {"peak_f32": 191.96e9, "bandwidth": 98.7654e9}[what]

    target = read(probe.probe(two_sockets(tmp_path), measure))
    assert target.device("cpu1").peak_f32 == 192e9
    assert target.memory("node1").bandwidth == 98.77e9
    assert asked == [
        (what, "x86-64-v4", cpus)
        for what in ("peak_f32", "bandwidth")
        for cpus in ((0, 1, 2, 3), (4, 5, 6, 7))
    ]


def test_big_and_little(tmp_path: Path, linux: pytest.MonkeyPatch) -> None:
    linux.setattr(platform, "machine", lambda: "aarch64")
    dotprod = "fp asimd atomics asimdrdm crc32 dcpop asimddp"
    block = "processor\t: {}\nFeatures\t: {}\nCPU implementer\t: 0x41\nCPU part\t: {}\n"
    files = {
        "proc/cpuinfo": "\n".join(block.format(i, dotprod, "0xd05" if i < 4 else "0xd0b") for i in range(8)),
        "proc/meminfo": "MemTotal:        8000000 kB",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "1800000",
        "sys/devices/system/cpu/cpu4/cpufreq/cpuinfo_max_freq": "2400000",
    }
    target = read(probe.probe(tree(tmp_path, files)))
    assert [(d.isa, d.cores, d.frequency, d.cpus) for d in target.devices] == [
        ("armv8.2-a-dotprod", 4, 1.8e9, (0, 1, 2, 3)),
        ("armv8.2-a-dotprod", 4, 2.4e9, (4, 5, 6, 7)),
    ]
    assert str(target.triple) == "aarch64-linux-gnu"


def test_virtual_machine_without_cpufreq_and_topology(tmp_path: Path, linux: pytest.MonkeyPatch) -> None:
    block = (
        "processor\t: {}\nmodel name\t: virtual\ncpu MHz\t\t: 1234.5\nbogomips\t: 5199.98\nflags\t\t: fpu\n"
    )
    target = read(probe.probe(tree(tmp_path, {"proc/cpuinfo": block.format(0) + "\n" + block.format(1)})))
    device = target.devices[0]
    assert (device.isa, device.cores, device.frequency, device.cpus) == ("x86-64", 2, 2.6e9, ())


@pytest.mark.parametrize(
    ("system", "machine", "triple", "isa"),
    [
        ("Linux", "x86_64", "x86_64-linux-gnu", "x86-64"),
        ("Darwin", "arm64", "aarch64-macos-none", "armv8.2-a-dotprod"),
        ("Windows", "AMD64", "x86_64-windows-gnu", "x86-64"),
        ("Linux", "armv7l", "arm-linux-gnueabihf", "armv7a-neon"),
    ],
)
def test_nothing_readable(
    tmp_path: Path, linux: pytest.MonkeyPatch, system: str, machine: str, triple: str, isa: str
) -> None:
    linux.setattr(platform, "system", lambda: system)
    linux.setattr(platform, "machine", lambda: machine)
    target = read(probe.probe(tmp_path))
    assert (str(target.triple), target.devices[0].isa, target.devices[0].cores) == (triple, isa, 1)


def test_machine_that_cannot_be_a_target(tmp_path: Path, linux: pytest.MonkeyPatch) -> None:
    linux.setattr(platform, "machine", lambda: "s390x")
    with pytest.raises(TargetError, match="this machine cannot be a target: unknown architecture 's390x'"):
        probe.probe(tmp_path)


def pci_tree(root: Path) -> Path:
    """A GPU behind a switch, a disk at a root port of node 1, and an on-board device without a link."""
    gpu = "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0"
    chains = {
        gpu: [
            ("0x060400", "16.0 GT/s PCIe", "16"),
            ("0x060400", "16.0 GT/s PCIe", "16"),
            ("0x060400", "16.0 GT/s PCIe", "16"),
            ("0x030000", "8.0 GT/s PCIe", "8"),
        ],
        "pci0000:80/0000:80:01.0/0000:81:00.0": [
            ("0x060400", "16.0 GT/s PCIe", "16"),
            ("0x010802", "16.0 GT/s PCIe", "4"),
        ],
        "pci0000:00/0000:00:02.0": [("0x030000", "Unknown", "0")],
    }
    for chain, levels in chains.items():
        steps = chain.split("/")
        for depth, (kind, speed, width) in enumerate(levels):
            folder = f"sys/devices/{'/'.join(steps[: depth + 2])}"
            tree(
                root,
                {
                    f"{folder}/class": kind,
                    f"{folder}/max_link_speed": speed,
                    f"{folder}/max_link_width": width,
                    f"{folder}/numa_node": "1" if "0000:80" in chain else "-1",
                },
            )
            link = root / "sys/bus/pci/devices" / steps[depth + 1]
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(root / folder)
    return root


def test_pcie(tmp_path: Path, linux: pytest.MonkeyPatch) -> None:
    profile = probe.probe(pci_tree(two_sockets(tmp_path)))
    assert profile["pcie"] == {
        "root_ports": {
            "root0": {"memory": "node0", "address": "0000:00:01.0"},
            "root1": {"memory": "node1", "address": "0000:80:01.0"},
        },
        "switches": {"switch0": {"address": "0000:01:00.0"}},
        "endpoints": {"gpu0": {"address": "0000:03:00.0"}, "nvme0": {"address": "0000:81:00.0"}},
        "links": [
            {"upstream": "root0", "downstream": "switch0", "generation": 4, "lanes": 16},
            {"upstream": "switch0", "downstream": "gpu0", "generation": 3, "lanes": 8},
            {"upstream": "root1", "downstream": "nvme0", "generation": 4, "lanes": 4},
        ],
    }
    assert read(profile).pcie.links[1].lanes == 8


def test_yaml_reads_back_as_the_same_profile(tmp_path: Path, linux: pytest.MonkeyPatch) -> None:
    root = pci_tree(two_sockets(tmp_path / "root"))
    text = probe.probe_yaml(root)
    assert text.startswith("# yaml-language-server: $schema=schema.json\n")
    node = yamlfile.read_bytes(text.encode(), "host.yaml")
    assert node.plain() == probe.probe(root)
    assert 'address: "0000:00:01.0"' in text


def test_this_machine() -> None:
    assert probe.probe() == probe.probe()
    profiles._probed.cache_clear()
    target = schema.load("host", [])
    assert target.name == "host"
    assert target.devices[0].kind == "cpu"
    if sys.platform == "linux":
        assert target.triple.os == "linux"
