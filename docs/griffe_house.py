"""Teach griffe, which reads the sources for mkdocstrings, some habits of this code base.

Value classes are made by `procsched._core.frozen.frozen`, and griffe knows only the decorator of the standard
library. Sections of a docstring follow each other without blank lines, which griffe wants before each. And what
is private does not belong into a reference: base classes, names of constants, parameters that exist to refuse a call.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

# "Thread safety:" and "Source:" are not sections to griffe, but end the one before them.
SECTION = re.compile(
    r"(?<=[^\n])\n(?=(?:Args|Attributes|Raises|Returns|Source|Thread safety|Yields):(?: |\n))"
)

# These two are a sentence to us and a box with a title to griffe, where they go over several lines.
SENTENCE = re.compile(r"^((?:Source|Thread safety): [^\n]*(?:\n +[^\n]+)+)", re.MULTILINE)
PUBLIC_BASES = {"_EndedError": "ProcschedError"}
DEFAULTS = {"_FOUR": "4", "STUCK_AFTER": "1.0", "30 * DAY": "30 * 86_400.0"}


class HouseExtension(griffe.Extension):
    """Shows the constructors of frozen classes, and every section of a docstring; hides what is private."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Put a blank line before each section, and what is one sentence into one line."""
        if obj.docstring is not None:
            text = SENTENCE.sub(lambda found: " ".join(found[1].split()), obj.docstring.value)
            obj.docstring.value = SECTION.sub("\n\n", text)

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Name the public base in the place of a private one."""
        cls.bases = [
            griffe.ExprName(PUBLIC_BASES[str(base)], parent=cls) if str(base) in PUBLIC_BASES else base
            for base in cls.bases
        ]

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Leave out parameters that take nothing, and show the value of a default that is a constant of ours."""
        for parameter in list(func.parameters):
            if str(parameter.annotation) == "Never":
                del func.parameters[parameter.name]
            elif str(parameter.default) in DEFAULTS:
                parameter.default = DEFAULTS[str(parameter.default)]

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
