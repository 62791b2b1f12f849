"""What the documents say is there: links, commands, options, examples that load."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from cuvil import cli
from cuvil.scons import project
from cuvil.target.schema import load

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert target.startswith("https://") or (path.parent / target).exists(), target


def test_first_two_commands_of_the_readme() -> None:
    first, second = blocks(ROOT / "README.md", "sh")[:2]
    assert first.splitlines()[-1].endswith("scons verify")
    assert second.splitlines()[-1].endswith("-m pytest -n auto")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    extract = next(line for line in script.splitlines() if line.startswith("block="))
    shell = f'{extract}\nprintf "%s\\n" "$block"'
    done = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == second


def test_every_command_and_option_is_in_the_manual(capsys: pytest.CaptureFixture[str]) -> None:
    manual = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert cli.main(["--help"]) == 0
    listed = capsys.readouterr().out.split("commands:")[1]
    commands = re.findall(r"^    ([a-z]+)", listed, re.MULTILINE)
    assert {"compile", "verify"} <= set(commands)
    for command in commands:
        assert f"`cuvil {command}`" in manual
        assert cli.main([command, "--help"]) == 0
        for option in set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help", "--debug"}:
            assert f"{option}" in manual, f"{command} {option}"


def test_profile_of_the_manual(tmp_path: Path) -> None:
    example, _ = blocks(ROOT / "docs" / "targets.md", "yaml")
    (tmp_path / "board.yaml").write_text(example)
    big = load(tmp_path / "board.yaml").device("big")
    assert (big.cores, big.cpus, big.peak_f32) == (4, (4, 5, 6, 7), 19.2e9)


def test_project_of_the_manual(tmp_path: Path) -> None:
    (example,) = blocks(ROOT / "docs" / "build.md", "yaml")
    (tmp_path / "cuvil.yaml").write_text(example)
    assert [m.shapes for m in project.read(tmp_path / "cuvil.yaml").models] == [{"image": (1, 1, 28, 28)}]
