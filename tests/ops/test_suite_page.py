"""The figures of docs/conformance.md are those of the record."""

from __future__ import annotations

import suite_page


def test_page_is_up_to_date() -> None:
    assert suite_page.PAGE.read_text(encoding="utf-8") == suite_page.current(), "run tests/ops/suite_page.py"


def test_groups_are_counted_and_reasons_sorted() -> None:
    verdicts = {
        "test_abs": "pass", "test_add": "no | such", "test_and2d": "no | such", "test_acos": "other",
        "test_AvgPool1d": "pass", "test_operator_basic": "pass", "test_expand_shape_model1": "other",
        "test_expand_shape_model2": "a third",
    }  # fmt: skip
    text = suite_page.page(verdicts)
    assert "| node | 4 | 1 | 3 |\n| simple | 2 | 0 | 2 |\n| pytorch-converted | 1 | 1 | 0 |" in text
    assert "| pytorch-operator | 1 | 1 | 0 |\n| all | 8 | 3 | 5 |" in text
    assert text.endswith(
        "| no \\| such | 2 | `test_add` |\n| other | 2 | `test_acos` |\n"
        "| a third | 1 | `test_expand_shape_model2` |\n"
    )
