"""Cells of CSV and TSV files that a spreadsheet shows as they are."""

from __future__ import annotations

_FORMULA = ("=", "+", "-", "@", "\t", "\n")


def csv_cell(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet would run as a formula; numbers stay as they are.

    Names in tables may come from strangers' files. The apostrophe is what a spreadsheet itself uses to mark text. A
    sign alone, such as a dash for a missing value, is no formula. A carriage return becomes a space.
    """
    text = text.replace("\r", " ")  # which a writer of lines that end in "\n" would not quote
    if not text.startswith(_FORMULA) or len(text) == 1:
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text if text[0] in "+-" else f"'{text}"
