"""The C library, called without `ctypes`: what a fresh process needs that is to confine itself, and little else."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Library:
    """A library of C functions, as attributes. They take integers, bytes, None and pointers, and return a C int.

    What `ctypes.CDLL` does, or `ctypes.PyDLL` where the calls are to hold the GIL, by the half of ctypes that is
    written in C: the other half takes two milliseconds to import, before the first worker can be forked.

    Raises:
        OSError: there is no such library, or no descriptor to load it with; or this interpreter has no ctypes.
    """

    def __init__(self, name: str | None, *, holding: bool = False) -> None:
        try:
            import _ctypes
        except ImportError as error:
            raise OSError(str(error)) from error

        class Function(_ctypes.CFuncPtr):
            _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
            if holding:
                _flags_ |= _ctypes.FUNCFLAG_PYTHONAPI

        self._function: Any = Function
        # `Function` asks for it under this name. No name: what is linked into the interpreter.
        self._handle = _ctypes.dlopen(name, 0)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        """Look a function up, once; an AttributeError where the library has none of that name."""
        function = self._function((name, self))
        setattr(self, name, function)
        return function


_loaded_libc: Any = None
_types: dict[str, Any] = {}


def libc() -> Any:
    """Return the C library, which is loaded at the first call."""
    global _loaded_libc
    if _loaded_libc is None:
        _loaded_libc = Library(None)
    return _loaded_libc


def c_type(code: str) -> Any:
    """Return the ctypes class for one C type, by the code that ctypes has for it."""
    made = _types.get(code)
    if made is None:
        import _ctypes

        made = _types[code] = type("Simple", (_ctypes._SimpleCData,), {"_type_": code})
    return made
