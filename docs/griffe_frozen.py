"""Show the value classes made by `procsched._core.frozen.frozen` with their constructor's signature.

griffe, which reads the sources for mkdocstrings, knows the decorator of the standard library only.
"""

from __future__ import annotations

from typing import Any

import griffe


class FrozenExtension(griffe.Extension):
    """Adds to each class decorated with ``@frozen`` the `__init__` that the decorator makes."""

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Build the signature from the annotated attributes; those after ``_: KW_ONLY`` are keyword-only."""
        if not any(str(decorator.value) == "frozen" for decorator in cls.decorators):
            return
        kind = griffe.ParameterKind.positional_or_keyword
        parameters = [griffe.Parameter("self", kind=kind)]
        for member in list(cls.members.values()):
            if not isinstance(member, griffe.Attribute) or member.annotation is None:
                continue
            if str(member.annotation) == "KW_ONLY":
                kind = griffe.ParameterKind.keyword_only
                cls.del_member(member.name)
            elif "property" not in member.labels and not str(member.annotation).startswith("ClassVar"):
                parameters.append(
                    griffe.Parameter(member.name, annotation=member.annotation, kind=kind, default=member.value)
                )
                # The class documents its fields as arguments; a second list without words would be noise.
                if member.docstring is None:
                    cls.del_member(member.name)
        init = griffe.Function("__init__", parameters=griffe.Parameters(*parameters), returns="None")
        init.parent = cls
        cls.set_member("__init__", init)
