"""The records of decisions stay few and short, so that all of them hold and can be read."""

import re
from pathlib import Path

import pytest

from doc_commands import ROOT

RECORDS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
CITED = re.compile(r"\bdecisions?[ /](\d+)")


def test_there_are_at_most_25_records() -> None:
    assert len(RECORDS) <= 25


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_says_context_decision_and_consequences_in_a_page(record: Path) -> None:
    text = record.read_text()
    assert text.startswith(f"# {int(record.name[:4])}. ")
    assert all(f"**{part}.**" in text for part in ("Context", "Decision"))
    assert len(text.split()) <= 400


def test_every_decision_that_is_cited_is_there() -> None:
    numbers = {int(record.name[:4]) for record in RECORDS}
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), ROOT / "Makefile"]
    files += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md"), ROOT / "CHANGELOG.md"]
    cited = {(path.name, int(number)) for path in files for number in CITED.findall(path.read_text())}
    assert [(name, number) for name, number in sorted(cited) if number not in numbers] == []
