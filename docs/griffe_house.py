"""Teach griffe, which reads the sources for mkdocstrings, two habits of this code base.

Value classes are made by `procsched._core.frozen.frozen`, and griffe knows only the decorator of the standard
library. Sections of a docstring follow each other without blank lines, which griffe wants before each.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

# "Thread safety:" and "Source:" are not sections to griffe, but end the one before them.
SECTION = re.compile(
    r"(?<=[^\n])\n(?=(?:Args|Attributes|Raises|Returns|Source|Thread safety|Yields):(?: |\n))"
)


class HouseExtension(griffe.Extension):
    """Shows the constructors of frozen classes, and every section of a docstring."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Put a blank line before each section."""
        if obj.docstring is not None:
            obj.docstring.value = SECTION.sub("\n\n", obj.docstring.value)

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Give a frozen class its `__init__`: the annotated attributes, keyword-only after ``_: KW_ONLY``."""
        if not any(str(decorator.value) == "frozen" for decorator in cls.decorators):
            return
        kind = griffe.ParameterKind.positional_or_keyword
        parameters = [griffe.Parameter("self", kind=kind)]
        for name, member in list(cls.members.items()):
            annotation = member.annotation if isinstance(member, griffe.Attribute) else None
            if annotation is None or "property" in member.labels:
                continue
            if str(annotation) == "KW_ONLY":
                kind = griffe.ParameterKind.keyword_only
            else:
                parameters.append(
                    griffe.Parameter(name, annotation=annotation, kind=kind, default=member.value)
                )
            # The class documents its fields as arguments; a second list without words would be noise.
            if member.docstring is None:
                cls.del_member(name)
        if "__init__" in cls.members:
            return  # the class says itself, for type checkers, what its constructor accepts
        init = griffe.Function("__init__", parameters=griffe.Parameters(*parameters), returns="None")
        init.parent = cls
        cls.set_member("__init__", init)
