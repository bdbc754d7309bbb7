"""Show the comments beside the fields of a dataclass or named tuple in the API reference."""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

COMMENT = re.compile(r"  # (?:noqa: \w+\s+)?(.+)$")


class FieldComments(griffe.Extension):
    """Add a section of attributes to classes whose fields are explained by comments."""

    def on_class_members(self, *, node: ast.AST, cls: griffe.Class, **options: Any) -> None:
        """Write what stands beside each field into the docstring, before its examples."""
        is_tuple = any(str(base) == "NamedTuple" for base in cls.bases)
        is_data = any("dataclass" in str(decorator.value) for decorator in cls.decorators)
        if not (is_tuple or is_data) or cls.docstring is None or "Attributes:" in cls.docstring.value:
            return
        source = cls.lines_collection[cls.filepath]
        entries = []
        for name, field in cls.attributes.items():
            if field.annotation is None or field.lineno is None or name.startswith("_"):
                continue
            lines = source[field.lineno - 1 : field.endlineno]
            comment = next((match[1] for line in lines if (match := COMMENT.search(line))), None)
            if comment or is_tuple:  # the arguments of a dataclass are in its signature
                entries.append(f"    {name} ({field.annotation}): {comment or name.replace('_', ' ')}.")
        if entries:
            text, heading, examples = cls.docstring.value.partition("Examples:")
            cls.docstring.value = f"{text.rstrip()}\n\nAttributes:\n" + "\n".join(entries) + f"\n\n{heading}{examples}"
