"""Every file in invalid/ is refused with the one line that its first line states."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuvil.errors import TargetError
from cuvil.target import schema

HERE = Path(__file__).parent
FILES = sorted((HERE / "invalid").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_error(path: Path) -> None:
    expected = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# error: ")
    with pytest.raises(TargetError) as caught:
        schema.load(path)
    file, _, rest = str(caught.value).partition(f"{path.name}:")
    assert rest == expected
    assert (Path(file) / path.name).resolve() == path


def test_the_base_that_they_spoil_is_valid() -> None:
    target = schema.load(HERE / "base.yaml", [])
    assert [device.name for device in target.devices] == ["cpu0", "gpu0"]
    assert len(FILES) > 80
