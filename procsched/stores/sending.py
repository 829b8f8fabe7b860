"""A stored call on its way from one process to another, as plain data."""

from __future__ import annotations

import base64

from procsched.child.stored import BLOB, JSON, PICKLE, REFERENCE
from procsched.stores.payloads import StoredCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def sent_call(call: StoredCall) -> dict[str, str]:
    """Return a call as what JSON can say."""
    return {
        "kind": call.kind,
        "name": call.name,
        "form": call.form,
        "data": base64.b64encode(call.data).decode(),
        "python": call.python,
        "pickler": call.pickler,
    }


def read_call(sent: dict[str, Any]) -> StoredCall:
    """Return the call that `sent_call` wrote. It is not opened.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    texts = [sent[name] for name in ("kind", "name", "form", "python", "pickler")]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a call is described by texts")
    kind, name, form, python, pickler = texts
    if (kind, form) not in ((REFERENCE, JSON), (REFERENCE, PICKLE), (BLOB, "")):
        raise ValueError(f"there is no call of the kind {kind!r} with arguments as {form!r}")
    call = StoredCall(kind, name, form, base64.b64decode(sent["data"], validate=True), python, pickler)
    call.arguments()  # they are read in the parent, too, where they are plain data
    return call
