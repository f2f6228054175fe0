"""Links of README and docs lead somewhere."""

import re
from pathlib import Path

import pytest

from doc_commands import PAGES, ROOT

MORE = [ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md", *sorted((ROOT / "benchmarks").glob("*.md"))]
WORDS = {
    "docs/results.md": 4000,
    "docs/paper.md": 1800,
    "docs/jobs.md": 1800,
    "benchmarks/README.md": 4000,
    "benchmarks/jobs.md": 2500,
}
"""The most words of pages that would grow with every measurement."""
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)|(?:src|srcset)=\"([^\"]+)\"")


@pytest.mark.parametrize("page", [*PAGES, *MORE], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    targets = [first or second for first, second in LINK.findall(page.read_text())]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_site_leads_to_every_page_of_the_docs() -> None:
    nav = re.findall(r"[\w/*-]+\.md", (ROOT / "mkdocs.yml").read_text())
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    left_out = [str(page) for page in pages if not any(page.match(entry) for entry in nav)]
    assert [page for page in left_out if not page.startswith("decisions/")] == []


def test_the_symbols_of_the_paper_stand_in_the_files_that_the_table_names() -> None:
    rows = re.findall(
        r"^\|[^|]*\|([^|]*)\| `([\w/]+\.py)` \|$", (ROOT / "docs" / "paper.md").read_text(), re.MULTILINE
    )
    assert len(rows) >= 10
    missing = []
    for names, file in rows:
        text = (ROOT / "src" / "slimsched" / file).read_text()
        words = re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", names)))
        missing += [f"{word} in {file}" for word in words if not re.search(rf"\b{word}\b", text)]
    assert missing == []


@pytest.mark.parametrize(("page", "words"), WORDS.items())
def test_a_page_that_grows_with_every_measurement_stays_short(page: str, words: int) -> None:
    assert len((ROOT / page).read_text().split()) <= words


def test_the_readme_fits_on_two_screens() -> None:
    text = re.sub(r"```.*?```|<[^>]*>|\]\([^)]*\)", " ", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(re.findall(r"\w[\w.,%]*", text)) < 700
