"""Results and exceptions as bytes: made in the worker, which checks that the parent can load them."""

from __future__ import annotations

import _pickle as pickle
import functools

from procsched import _byvalue, _parcels
from procsched._core import failures
from procsched._core.failures import describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_BYTES = 16 << 20  # of one pickled exception: it is to tell what happened, and is kept with its record
_SMALL = frozenset({type(None), bool, int, float})
_name: Any = vars(type)["__name__"].__get__  # whatever a metaclass has made of it


def pack_result(result: Any) -> bytes | _parcels.Parcel:
    """Pickle a result so that the parent can load it; a large one becomes a parcel.

    Raises:
        TaskSerializationError: it cannot be pickled, or not be loaded again.
    """
    if type(result) in _SMALL or _parcels.are_small((result,)):
        return pickle.dumps(result, 5)
    foreign = False

    def dump(sink: _parcels.Sink, take: Any) -> pickle.Pickler:
        nonlocal foreign
        pickler = _Watcher(sink, 5, buffer_callback=take)
        pickler.dump(result)
        foreign = pickler.foreign
        return pickler

    try:
        data = _parcels.pack(dump)
    except Exception:
        foreign = True
        try:
            data = _parcels.pack(functools.partial(_byvalue.dump, result, homeward=True))
        except Exception as error:
            raise _refusal(result, f"cannot be pickled: {describe(error)}; {_advice(result)}") from error
    assert data is not None
    if foreign:
        try:
            if isinstance(data, bytes):
                pickle.loads(data)
            else:
                data.load()
        except Exception as error:
            raise _refusal(result, f"can be pickled but not loaded again: {describe(error)}") from error
    return data


def _refusal(result: Any, why: str) -> Exception:
    from procsched.errors import TaskSerializationError

    kind = type(result).__qualname__
    return TaskSerializationError(f"the result, of type {kind}, {why}", type_name=kind)


def _advice(result: Any) -> str:
    if type(result).__name__ in ("generator", "async_generator"):
        return "a generator cannot leave its process: return list(...) of it"
    return "return plain data, or something that pickle can take apart"


class _Watcher(pickle.Pickler):
    """Notices whether anything but exact builtin data is being pickled: only that needs a trial load."""

    foreign = False

    def reducer_override(self, obj: Any) -> Any:
        self.foreign = True
        return NotImplemented


def pack_failure(error: BaseException, stage: str, aside: str = "") -> bytes:
    """Describe an exception as text, and as parts from which the parent puts it together again.

    Returns:
        a pickled tuple: description, traceback, the parts pickled or None, and why the exception itself is not there.
    """
    try:
        return _pack_failure(error, stage, aside)
    except BaseException:  # no memory is left, say
        return pickle.dumps((_name(type(error)), None, None, "nothing more can be told of it"), 5)


def _pack_failure(error: BaseException, stage: str, aside: str) -> bytes:
    text = describe(error)
    if stage == "load":
        text = f"{text} (while loading the call in the worker)"
        _note_loading(error)
    text += aside
    carried: bytes | None = None
    try:
        parts, left_out = _take_apart(error)
        carried, obstacle = pickle.dumps((parts, left_out), 5), parts[0][-1]
    except BaseException as failure:  # nothing that is known; then the texts have to do
        obstacle = describe(failure)
    return pickle.dumps((text, failures.traceback_text(error), carried, obstacle), 5)


def _note_loading(error: BaseException) -> None:
    """Say in a note that it was not the function that raised, and what to do about a module that is not found."""
    note = "raised while the worker was loading the call: the function had not begun"
    try:
        if isinstance(error, ImportError):
            module = "it" if error.name is None else f"module {error.name!r}"
            note += (
                "; a worker imports the modules of the function and of its arguments by name, along the sys.path of "
                f"your program: put the directory of {module} there, or have functions of a module sent by value, "
                "with cloudpickle.register_pickle_by_value(module)"
            )
        error.add_note(note)
    except BaseException:  # a user's class, or what it has put in the place of its notes
        return


def _take_apart(error: BaseException) -> tuple[list[failures.Part], int]:
    """Return an exception and all that hang on it as plain data, and how many were too many to take along.

    Pickle alone would leave causes, contexts and tracebacks behind, and one that cannot be pickled would keep all the
    others of its group from travelling.
    """
    family, links, left_out = failures.family_of(error)
    parts = []
    for each, (cause, context, members) in zip(family, links, strict=True):
        failures.hide_worker_frames(each)
        data, obstacle = _pack_one(each)
        described = describe(each)
        notes, frames = failures.notes_of(each), failures.frames_of(each)
        suppresses = failures.suppresses_context(each)
        parts.append((described, frames, notes, cause, context, suppresses, members, data, obstacle))
    return parts, left_out


def _pack_one(error: BaseException) -> tuple[bytes | None, str]:
    """Pickle one exception; return None and the reason where it does not survive a round trip.

    Of a group it is what makes the group anew around its members: the type, the message and the attributes.
    """
    value: Any = error
    why = ""
    try:
        if failures.members_of(error) is not None:
            kind: Any = type(error)
            value = (kind, failures.message_of_group(error), error.__dict__)
            if kind not in (ExceptionGroup, BaseExceptionGroup):
                kind(value[1], [ValueError()])
        for dumps in (_by_reference, _by_value):
            try:
                data = dumps(value)
                loaded = pickle.loads(data)
            except BaseException as failure:
                why = describe(failure)
                continue
            if value is error and not isinstance(loaded, BaseException):
                why = f"it is loaded as {type(loaded).__name__}"
            elif len(data) > MOST_BYTES:
                why = f"it takes {len(data)} bytes, and {MOST_BYTES} at most may travel"
            else:
                return data, ""
    except BaseException as failure:  # whatever a user's constructor raises
        why = describe(failure)
    return None, why


def _by_reference(value: Any) -> bytes:
    return pickle.dumps(value, 5)


def _by_value(value: Any) -> bytes:
    return _byvalue.dumps(value, homeward=True)
