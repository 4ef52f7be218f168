"""What `write` ships has no personal data in the text, the title, the author or any other field; what is left in urls is
counted, and never silently."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import gristmill

pytestmark = pytest.mark.usefixtures("here")


def test_authors_and_titles_are_masked_and_every_column_is_counted(tmp_path: Path) -> None:
    rows = [
        {
            "text": f"Write to john.doe{i}@gmail.com, who mends wheel {i} of the old mill by the river.",
            "url": f"https://x.org/{i}?mail=jane{i}%40corp.com" if i < 4 else f"https://x.org/{i}",
            "title": f"Mail bob{i}@corp.com",
            "author": {"names": [f"ann{i}@corp.com"]},
        }
        for i in range(30)
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = tmp_path / "r.yaml"
    recipe.write_text("name: r\nsources: {a: {jsonl: {path: in.jsonl}}}\nstages: [personal_data, write]\n")
    run = gristmill.run(recipe, tmp_path / "out", workers=1)
    kept = [row for path in (tmp_path / "out/write").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert len(kept) == 30
    for row in kept:
        assert row["text"].startswith("Write to <email>,") and row["personal_emails"] == 1
        assert json.loads(row["meta"]) == {"author": {"names": ["<email>"]}, "title": "Mail <email>"}
    assert sum("%40corp.com" in row["url"] for row in kept) == 4
    report = json.loads((tmp_path / "out/stages/personal_data/report.json").read_text())
    assert report["noted"] == {"text_emails": 30, "meta_emails": 60, "url_emails": 4}
    [alarm] = [alarm for alarm in run.alarms if "personal_data" in alarm]
    assert "`url` of a holds e-mail addresses that are left as they are (4); `url: true` masks them" in alarm
    page = (tmp_path / "out/report.html").read_text()
    assert "Spans by column" in page and "url (left as it is)" in page
