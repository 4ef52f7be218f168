"""A file or folder has its name when it is whole, and nothing is left of one that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.kernels.common.files import whole_file, whole_folder


class Broke(Exception):
    pass


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("durable", [True, False])
def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path, durable: bool) -> None:
    folder = tmp_path / "above" / "made"
    with pytest.raises(Broke), whole_folder(folder, durable) as draft:
        (draft / "half").write_text("")
        raise Broke
    assert names(folder.parent) == []
    with whole_folder(folder, durable) as draft:
        (draft / "below").mkdir()
        (draft / "below" / "file").write_text("new")
        assert not folder.exists()
    assert names(folder.parent) == ["made"] and (folder / "below" / "file").read_text() == "new"


def test_only_an_empty_folder_is_taken_unless_it_may_be_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    with whole_folder(folder) as draft:
        (draft / "file").write_text("first")
    with pytest.raises(OSError, match="not empty"), whole_folder(folder) as draft:
        (draft / "file").write_text("second")
    assert (folder / "file").read_text() == "first"
    with whole_folder(folder, replace=True) as draft:
        (draft / "other").write_text("third")
        assert (folder / "file").read_text() == "first"
    assert names(folder) == ["other"] and names(tmp_path) == ["made"]


def test_a_file_that_failed_leaves_the_one_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("first")
    with pytest.raises(Broke), whole_file(tmp_path / "file") as file:
        file.write(b"half")
        raise Broke
    assert names(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "first"
