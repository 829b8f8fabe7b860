"""What ran and what it raised as text for a person, and taken apart for a journey. The same in parent and child."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Any, Final

    # What a frame leaves of itself: how often in a row, file, name, qualified name, module, and the position of what it
    # was at: line, last line, column, last column, each but the first None where unknown.
    Frame = tuple[int, str, str, str, str, int, int | None, int | None, int | None]
    # One exception: its text, frames, notes, cause, context and members as numbers of others, whether the context is
    # suppressed, its pickle, and why there is none.
    Part = tuple[str, list[Frame], list[str], int, int, bool, list[int] | None, bytes | None, str]

LONGEST: Final = 10_000  # characters of a message that are kept: an error is read by a person
LONGEST_TRACEBACK: Final = 64 << 10  # characters of a traceback that are kept, a quarter of them its head
MOST_PARTS: Final = 100  # exceptions of one chain or group that travel, the nearest
MOST_FRAMES: Final = 500  # of one exception, those that follow upon their like counted once
MOST_NOTES: Final = 100  # of one exception
NOBODY: Final = -1  # in the place of a number: there is no such exception
LEFT_OUT: Final = -2  # ... or it was one too many

_told: type[BaseException] = Exception  # see `tell_of_all`


def tell_of_all() -> None:
    """Have whatever a user's exception raises when it is asked about itself told, and go no further: in a child.

    In the parent what is no Exception goes through, for a signal handler may have raised it just then: Ctrl-C.
    """
    global _told
    _told = BaseException


def describe(exception: BaseException) -> str:
    """Return one line such as ``"ValueError: bad row"``; the type's name alone where there is no message.

    Raises nothing, in a child: an exception whose `__str__` and `__repr__` raise is described as such.
    """
    name = type_name(exception)
    text = message_of(exception)
    return f"{name}: {text}" if text else name


def describe_schedule(exception: BaseException) -> str:
    """Return the same of what a schedule has raised, with the method that did: ``"Mine.next_run raised ..."``."""
    raised = exception.__traceback__
    while raised is not None:
        frame = raised.tb_frame
        if frame.f_code.co_name in ("first_run", "next_run"):
            owner = frame.f_code.co_qualname
            return f"{owner} raised {describe(exception)}"
        raised = raised.tb_next
    return describe(exception)


def type_name(exception: BaseException) -> str:
    """Return the name of the exception's type, for any type that a metaclass may have made."""
    try:
        return str.__str__(str(type(exception).__name__))
    except _told:  # a metaclass may do anything
        return "exception"


def name_of(function: Any) -> str:
    """Return what a call of a function is called where nobody has given it a name."""
    name: str = getattr(function, "__qualname__", "") or getattr(function, "__name__", "")
    return name or type(function).__qualname__


def message_of(exception: BaseException) -> str:
    """Return the exception's text, with line ends replaced and its length capped. Raises nothing, in a child."""
    try:
        text = str.__str__(str(exception))  # `str` alone may return a subclass, which may do anything
    except _told as failure:  # user code
        return f"<its text cannot be had: __str__ raised {type_name(failure)}>"
    text = shorten(text, LONGEST)
    return " / ".join(text.splitlines()) if "\n" in text or "\r" in text else text


def shorten(text: str, longest: int, head: int | None = None) -> str:
    """Return a text of about `longest` characters at most, the first `head` and the last of it, saying what is missing.

    Without `head` its beginning alone is kept.
    """
    missing = len(text) - longest
    if missing <= 0:
        return text
    if head is None:
        return f"{text[:longest]}... ({missing} more characters)"
    return f"{text[:head]}\n... ({missing} characters left out) ...\n{text[head + missing :]}"


def traceback_text(exception: BaseException) -> str:
    """Return the traceback as Python prints it, causes and groups included, its length capped.

    Raises nothing, in a child.
    """
    # Here and not above: only failures need it, and it loads a third of a millisecond of modules.
    import traceback

    try:
        text = "".join(traceback.format_exception(exception))
    except _told:  # `__str__`, `__notes__` or `__cause__` of a user's exception
        lines = ["Traceback (most recent call last):\n"]
        try:
            lines += traceback.format_tb(TRACEBACK.__get__(exception))
        except _told:  # the source may be gone or unreadable
            lines.append("  (its frames cannot be shown)\n")
        text = "".join([*lines, describe(exception), "\n"])
    return shorten(text, LONGEST_TRACEBACK, LONGEST_TRACEBACK // 4)


# -- taking apart ----------------------------------------------------------------------------------------------------


def family_of(
    exception: BaseException,
) -> tuple[list[BaseException], list[tuple[int, int, list[int] | None]], int]:
    """Return an exception with all that hang on it, the nearest first; how; and how many were too many.

    Returns:
        the exceptions; for each the numbers of its cause, its context and its members; the count.
    """
    everybody: list[BaseException] = [exception]
    numbers = {id(exception): 0}
    links: list[tuple[int, int, list[int] | None]] = []

    def number_of(other: BaseException | None) -> int:
        if other is None:
            return NOBODY
        number = numbers.get(id(other))
        if number is None:
            number = len(everybody) if len(everybody) < MOST_PARTS else LEFT_OUT
            numbers[id(other)] = number
            everybody.append(other)
        return number

    for each in everybody:  # it grows
        members = members_of(each)
        inner = None if members is None else [number_of(member) for member in members]
        links.append((number_of(_cause(each)), number_of(_context(each)), inner))
    return everybody[:MOST_PARTS], links[:MOST_PARTS], max(0, len(everybody) - MOST_PARTS)


# Not as attributes: a user's class may have made anything of the names; a frozen dataclass refuses to have them set.
TRACEBACK: Any = vars(BaseException)["__traceback__"]
_cause: Any = vars(BaseException)["__cause__"].__get__
_context: Any = vars(BaseException)["__context__"].__get__
suppresses_context: Any = vars(BaseException)["__suppress_context__"].__get__
_members: Any = vars(BaseExceptionGroup)["exceptions"].__get__
message_of_group: Any = vars(BaseExceptionGroup)["message"].__get__


def members_of(exception: BaseException) -> tuple[BaseException, ...] | None:
    """Return what is in an exception group, or None for what is none."""
    if not issubclass(type(exception), BaseExceptionGroup):
        return None
    members: tuple[BaseException, ...] = _members(exception)
    return members


def notes_of(exception: BaseException) -> list[str]:
    """Return the notes of an exception that are texts, capped in number and length. Raises nothing, in a child."""
    try:
        found = exception.__notes__
        if not isinstance(found, (list, tuple)):
            return []
        notes = [
            shorten(str.__str__(note), LONGEST) for note in found[:MOST_NOTES] if issubclass(type(note), str)
        ]
        if len(found) > MOST_NOTES:
            notes.append(f"({len(found) - MOST_NOTES} more notes)")
    except _told:  # none, or a user's attribute
        return []
    return notes


def frames_of(exception: BaseException) -> list[Frame]:
    """Return the frames of an exception's traceback, outermost first. Raises nothing, in a child."""
    frames: list[Frame] = []
    try:
        for frame in _frames(TRACEBACK.__get__(exception)):
            if frames and frames[-1][1:] == frame[1:]:
                frame = (frames[-1][0] + 1, *frame[1:])
                frames.pop()
            frames.append(frame)
    except _told:  # a file name or a module name of somebody's invention
        pass
    missing = len(frames) - MOST_FRAMES
    if missing > 0:
        half = MOST_FRAMES // 2
        count = sum(frame[0] for frame in frames[half : half + missing])
        gap = (1, "<procsched>", f"{count} frames left out", "", "procsched", 1, None, None, None)
        frames[half : half + missing] = [gap]
    return frames


def _frames(entry: TracebackType | None) -> Iterator[Frame]:
    while entry is not None:
        code = entry.tb_frame.f_code
        module = str.__str__(str(entry.tb_frame.f_globals.get("__name__", "")))
        line, last, column, last_column = _position(code, entry.tb_lasti)
        if line is None:
            line, last, column, last_column = entry.tb_lineno, None, None, None
        yield 1, code.co_filename, code.co_name, code.co_qualname, module, line, last, column, last_column
        entry = entry.tb_next


def _position(code: Any, offset: int) -> tuple[int | None, ...]:
    if offset >= 0:
        for number, position in enumerate(code.co_positions()):
            if number == offset // 2:  # an instruction has two bytes
                return position  # type: ignore[no-any-return]
    return None, None, None, None


def hide_worker_frames(exception: BaseException) -> None:
    """Take what is ours out of a traceback, so that it reads as that of a plain call.

    That is the frames of the worker wherever they are (below those of asyncio, say), and any others of procsched
    through which the action was called.
    """
    entries: list[TracebackType] = []
    entry = TRACEBACK.__get__(exception)
    while entry is not None:
        module = entry.tb_frame.f_globals.get("__name__")
        prefix = "procsched.child." if entries else "procsched."
        if not (isinstance(module, str) and module.startswith(prefix)):
            entries.append(entry)
        entry = entry.tb_next
    kept = None
    for entry in reversed(entries):
        entry.tb_next = kept
        kept = entry
    TRACEBACK.__set__(exception, kept)
