"""A job as the bytes that a sandboxed process is sent: what it is called with is plain data, nothing is pickled."""

from __future__ import annotations

import os
import sys

from procsched.errors import TaskSerializationError, ValidationError
from procsched.sandbox import paths
from procsched.sandbox.plain import PlainError, dump
from procsched.sandbox.policy import Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from procsched.sandbox.prepare import Prepared

MOST_NODES: Final = 1 << 40  # of arguments: they are the caller's own
_MAIN: Final = ("__main__", "__mp_main__")


def pack(prepared: Prepared, action: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return a call as JSON.

    Raises:
        TaskSerializationError: an argument is no plain data.
        ValidationError: the action is neither a `Source` nor a function that the sandbox can import.
    """
    if isinstance(action, Source):
        job: dict[str, Any] = {"source": action.text, "name": action.name}
    else:
        job = _by_name(prepared, action)
    parts = []
    for name, value in (*job.items(), ("args", list(args)), ("kwargs", kwargs)):
        try:
            parts.append(b'"%s":%s' % (name.encode(), dump(value, MOST_NODES, name)))
        except PlainError as error:
            raise TaskSerializationError(
                f"{error}; a sandboxed job is sent plain data, for what it sends back is plain data as well"
            ) from None
    return b",".join(parts)


def order(number: int, payload: bytes, facts: list[Any]) -> bytes:
    """Return the message that has a process run a packed call, with its length before it.

    Args:
        facts: what `current_run()` is to say. Texts among them are the user's, of any kind, and are only shown: what
            cannot be sent of them is escaped, for it is too late to refuse the call.
    """
    sent = [_sendable(fact) if isinstance(fact, str) else fact for fact in facts]
    body = b'{"id":%d,"facts":%s,%s}' % (number, dump(sent, 100), payload)
    return len(body).to_bytes(4, "big") + body


def _sendable(text: str) -> str:
    return str.encode(text, "utf-8", "backslashreplace").decode()


def _by_name(prepared: Prepared, action: Any) -> dict[str, Any]:
    name, module = getattr(action, "__qualname__", None), getattr(action, "__module__", None)
    if not isinstance(name, str) or not isinstance(module, str) or module in _MAIN or "<" in name:
        raise ValidationError(
            f"{action!r} cannot be run in a sandbox: only a function that can be imported by its name is; put it into "
            "a module, or give its text as Source(text, name)"
        )
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not action:
        raise ValidationError(
            f"{module}.{name} is not {action!r}, so it cannot be found by its name in a sandbox; give a function of a "
            "module itself, or a Source(text, name)"
        )
    return {"module": module, "name": name, "path": _root_of(prepared, module)}


def _root_of(prepared: Prepared, module: str) -> str | None:
    """Return the directory from which a module is imported, None where the sandbox has it on its path anyway.

    Raises:
        ValidationError: the sandbox cannot read it.
    """
    file = getattr(sys.modules[module], "__file__", None)
    if not isinstance(file, str):
        return None  # built in
    root = os.path.dirname(os.path.abspath(file))
    depth = module.count(".") + (os.path.splitext(os.path.basename(file))[0] == "__init__")
    for _ in range(depth):
        root = os.path.dirname(root)
    if paths.is_within(root, prepared.reads) or paths.is_within(root, prepared.search):
        return None
    directory = os.path.dirname(os.path.abspath(file))
    if not paths.is_within(directory, prepared.policy.readable):
        raise ValidationError(
            f"the sandbox cannot read {directory}, where {module} is: name it, as in "
            f"Sandbox(readable=({(root if depth else directory)!r},))"
        )
    return root
