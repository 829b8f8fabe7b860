"""How the parts of schedulers and executors are: values that say who is stuck, for how long, and where. Pure."""

from __future__ import annotations

from procsched._core.frozen import frozen

STUCK_AFTER = 1.0  # seconds in the same piece of work from which on a part counts as stuck
_WELL = frozenset({"idle", "busy", "starting"})


@frozen
class PartHealth:
    """One thread or process of a scheduler or an executor, and how it is.

    Args:
        owner: ``"scheduler"`` or ``"executor"``, numbered where the process has several.
        name: ``"timer"``, ``"I/O thread"``, ``"callback thread"``, ``"store"`` and ``"listener"`` with the name of
            their classes, ``"helper"``, ``"guard"``, ``"worker starts"``, ``"worker"`` with a pid, ``"lock"``.
        state: ``"idle"``; ``"busy"`` with something, or ``"starting"``; ``"stuck"``: in the same piece of work for
            too long; ``"failing"``: what it tries fails again and again; ``"held"``: a lock, by another thread at this
            moment; ``"gone"``: the thread has ended and should not have.
        seconds: for how long it has been in this piece of work, or fails; 0.0 where it is idle.
        where: the function it is in, with file and line, or None where nobody can see that.
        detail: what else there is to say; mostly empty.
    """

    owner: str
    name: str
    state: str
    seconds: float = 0.0
    where: str | None = None
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is nothing wrong with it."""
        return self.state in _WELL

    def __str__(self) -> str:
        text = f"{self.owner}, {self.name}: {self.state}"
        if self.seconds:
            text += f" for {self.seconds:.1f} s"
        if self.where:
            text += f" in {self.where}"
        return f"{text}; {self.detail}" if self.detail else text


@frozen
class Health:
    """How schedulers and executors are at one moment. ``print(procsched.health())`` is for a person.

    Args:
        parts: their threads and processes. One that was not needed yet is not there.
        problems: what went wrong lately, in words, as in `Stats.problems`; not part of `ok`.
    """

    parts: tuple[PartHealth, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is stuck, fails or is gone."""
        return all(part.ok for part in self.parts)

    @property
    def troubled(self) -> tuple[PartHealth, ...]:
        """The parts with which something is wrong."""
        return tuple(part for part in self.parts if not part.ok)

    def __str__(self) -> str:
        if not self.parts:
            return "no scheduler and no executor is running in this process"
        troubled = self.troubled
        verdict = "all is well" if not troubled else f"{len(troubled)} of {len(self.parts)} parts in trouble"
        lines = [verdict, *map(str, troubled), *(str(part) for part in self.parts if part.ok)]
        return "\n".join([*lines, *(f"lately: {text}" for text in self.problems)])


def decide_state(since: float, now: float, stuck_after: float) -> tuple[str, float]:
    """Return the state of a part, and for how long it has been in it.

    Args:
        since: steady seconds since when it is in the same piece of work; 0.0, or a time to come, while it waits.
        now: steady seconds.
        stuck_after: seconds from which on that is too long.
    """
    seconds = now - since
    if not since or seconds < 0.0:
        return "idle", 0.0
    return ("stuck" if seconds >= stuck_after else "busy"), seconds
