"""An exception as text for a person, whatever its own methods do. Parent and child use the same words."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

LONGEST: Final = 10_000  # characters of a message that are kept: an error is read by a person


def describe(exception: BaseException) -> str:
    """Return one line such as ``"ValueError: bad row"``; the type's name alone where there is no message.

    Never raises: an exception whose `__str__` and `__repr__` raise is described as such.
    """
    name = type_name(exception)
    text = message_of(exception)
    return f"{name}: {text}" if text else name


def type_name(exception: BaseException) -> str:
    """Return the name of the exception's type, for any type that a metaclass may have made."""
    try:
        return str(type(exception).__name__)
    except Exception:  # a metaclass may do anything
        return "exception"


def message_of(exception: BaseException) -> str:
    """Return the exception's text, with line ends replaced and its length capped. Never raises."""
    try:
        text = str(exception)
    except Exception as failure:  # user code
        return f"<its text cannot be had: __str__ raised {type_name(failure)}>"
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}... ({len(text) - LONGEST} more characters)"
    return " / ".join(text.splitlines()) if "\n" in text or "\r" in text else text


def traceback_text(exception: BaseException) -> str:
    """Return the traceback as Python prints it, causes and groups included. Never raises."""
    # Here and not above: only failures need it, and it loads a third of a millisecond of modules.
    import traceback

    try:
        return "".join(traceback.format_exception(exception))
    except Exception:  # `__str__`, `__notes__` or `__cause__` of a user's exception
        lines = ["Traceback (most recent call last):\n"]
        try:
            lines += traceback.format_tb(exception.__traceback__)
        except Exception:  # the source may be gone or unreadable
            lines.append("  (its frames cannot be shown)\n")
        return "".join([*lines, describe(exception), "\n"])
