"""The figures that `make figures` watches: they stand on their pages, and one that has moved is named."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from printed_figures import GROUPS, ROOT, Figure, Group, moves, ties

DIGITS = {"accuracy": 2, "latency_p99_s": 0, "jct_mean_s": 2, "makespan_s": 1, "latency_mean_s": 3}
DIGITS |= {"energy_paper_j": 1, "gpu_var": 4, "completed": 0}


@pytest.mark.parametrize("name", GROUPS)
def test_what_is_watched_stands_on_its_page(name: str) -> None:
    text = (ROOT / GROUPS[name].page).read_text().replace(",", "")
    printed = [f"{figure.value:.{DIGITS[figure.field]}f}" for figure in GROUPS[name].figures]
    assert [value for value in printed if value not in text] == []


def test_a_figure_that_has_moved_is_named() -> None:
    bound = GROUPS["bound"]
    assert list(moves(bound)) == []
    wrong = Group(bound.page, bound.command, (Figure("", "accuracy", 70.0, 0.5),))
    (said,) = moves(wrong)
    assert "accuracy was 70 ± 0.5, is 75.75" in said


def test_the_best_of_ties_is_what_the_table_takes() -> None:
    assert ties() == "156 of 256 plans; best 74.39 %, mean 73.58 %, worst 72.71 %"
