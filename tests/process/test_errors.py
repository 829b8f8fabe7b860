"""What an error tells: where it was, why it died, and what to do about a call that was wrong."""

from __future__ import annotations

import dataclasses
import gc
import os
import pickle
import subprocess
import sys
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from procsched import (
    Limits,
    Outcome,
    ProcessExecutor,
    RemoteError,
    SchedulerStateError,
    TaskSerializationError,
    TaskTimeoutError,
    ValidationError,
    WorkerCrashedError,
    run,
    shutdown_shared,
)
from procsched._core import wire
from procsched._core.failures import describe
from procsched.child import answers
from tests import failing, faults, support
from tests.pools import ROOT, Bench, Parent, only_record

THE_LINE = "return sum(value + 1 for value in values)  # the line that raises"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 1) as it:
        yield it


def failure_of(bench: Bench, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return what `result` raises, and see that no test hangs."""
    with pytest.raises(BaseException) as caught:
        bench.submit(function, *args, **options).result(support.TIMEOUT)
    return caught.value


def shown(error: BaseException) -> str:
    """Return what the interpreter would print."""
    return "".join(traceback.format_exception(error))


def locally(function: Callable[..., Any], *args: Any) -> BaseException:
    """Return what a plain call raises, without the frame of this one."""
    with pytest.raises(BaseException) as caught:
        function(*args)
    return caught.value.with_traceback(caught.tb.tb_next)


# --- as if it were local ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        failing.with_cause,
        failing.with_context,
        failing.with_suppressed_context,
        failing.circle,
        failing.descend,
        failing.from_exec,
    ],
)
def test_an_error_reads_as_that_of_a_plain_call(bench: Bench, function: Callable[[], None]) -> None:
    """Frames with source lines and marks, notes, cause and context are those that a call here would have shown."""
    future = bench.submit(function)
    error = future.exception(support.TIMEOUT)
    assert error is not None
    here = shown(locally(function))
    # How deep a recursion gets depends on how deep it was when it began.
    assert _without_counts(shown(error)) == _without_counts(here)
    assert _without_counts(only_record(future, Outcome.FAILED).traceback or "") == _without_counts(here)


def _without_counts(text: str) -> list[str]:
    return [line for line in text.splitlines() if "more times" not in line]


def test_result_raises_it_below_the_frames_of_the_caller(bench: Bench) -> None:
    """The traceback goes from the caller through `result` to the line in the worker, in one block."""
    text = shown(failure_of(bench, failing.add_up, ["x"]))
    assert text.count("Traceback") == 1
    order = ["in failure_of", "in result", "in add_up", THE_LINE, "TypeError: can only concatenate str"]
    assert [text.index(word) for word in order] == sorted(text.index(word) for word in order)
    assert "procsched/child" not in text


def test_the_cause_chain_survives(bench: Bench) -> None:
    """Cause and context are exceptions of their own, with attributes, notes and frames."""
    error = failure_of(bench, failing.with_cause)
    assert (type(error), error.args, error.code) == (failing.Rich, ("no sum",), 7)
    assert error.__notes__ == ["the first of two notes", "the second\nof two lines"]
    assert error.__suppress_context__
    assert error.__context__ is error.__cause__
    assert type(error.__cause__) is TypeError
    assert error.__cause__.__notes__ == ["while adding up"]
    assert [frame.name for frame in traceback.extract_tb(error.__cause__.__traceback__)][-1] == "<genexpr>"
    error = failure_of(bench, failing.with_context)
    assert error.__cause__ is None
    assert type(error.__context__) is TypeError
    assert not error.__suppress_context__
    error = failure_of(bench, failing.with_suppressed_context)
    assert (error.__cause__, type(error.__context__), error.__suppress_context__) == (None, TypeError, True)


def test_what_cannot_travel_stands_alone(bench: Bench) -> None:
    """A cause that cannot be pickled is a `RemoteError` with its frames; what it is the cause of travels."""
    error = failure_of(bench, failing.with_cause_that_stays)
    assert type(error) is failing.Rich
    cause = error.__cause__
    assert isinstance(cause, RemoteError)
    assert (cause.type_name, cause.message) == ("Holds", "stays")
    assert "cannot pickle '_thread.lock' object" in cause.__notes__[0]
    assert "in with_cause_that_stays" in shown(cause)


def test_a_group_survives_with_its_members(bench: Bench) -> None:
    """A group has its type, attributes and notes; each member its own chain; one that stays behind is told apart."""
    error = failure_of(bench, failing.group)
    assert type(error) is failing.Ours
    assert (error.message, error.tag, error.__notes__) == ("several", "kept", ["a note on the group"])
    first, second, inner = error.exceptions
    assert (type(first), first.code, type(first.__cause__)) == (failing.Rich, 7, TypeError)
    assert type(second.__context__) is TypeError
    assert isinstance(inner, ExceptionGroup)
    assert isinstance(inner.exceptions[0], RemoteError)
    assert (type(inner.exceptions[1]), inner.exceptions[1].errno) == (FileNotFoundError, 2)
    text = shown(error)
    assert text.count(f"in add_up\n    |     {THE_LINE}") == 2
    matched, rest = error.split(KeyError)
    assert matched is not None
    assert [type(member) for member in matched.exceptions] == [KeyError]
    assert rest is not None


def test_a_group_that_cannot_be_made_again_is_a_plain_one(bench: Bench) -> None:
    """Where the type of a group cannot be made, its members travel in a plain group that says so."""
    error = failure_of(bench, failing.particular_group)
    assert type(error) is ExceptionGroup
    assert [type(member) for member in error.exceptions] == [ValueError, KeyError]
    assert "the Particular itself could not travel" in error.__notes__[0]


def test_circles_arrive_as_circles(bench: Bench) -> None:
    """Exceptions that are each other's cause, and a group that is its member's cause, are no trap."""
    error = failure_of(bench, failing.circle)
    assert error.__cause__.__cause__ is error
    error = failure_of(bench, failing.group_that_is_its_own_cause)
    assert error.exceptions[0].__cause__ is error
    bench.assert_usable()


@pytest.mark.parametrize(("function", "left_out"), [(failing.long_chain, 900), (failing.wide_group, 901)])
def test_of_very_many_exceptions_the_nearest_travel(
    bench: Bench, function: Callable[[int], None], left_out: int
) -> None:
    """A hundred exceptions of a chain or a group arrive; how many did not is said."""
    error = failure_of(bench, function, 1000)
    found = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in found:
            found.add(id(each))
            last = each if isinstance(each, RemoteError) else None
            waiting += [each.__cause__, *getattr(each, "exceptions", ())]
            if last is not None:
                assert str(last) == f"{left_out} more exceptions of this chain did not travel"
    assert len(found) == 101
    assert len(only_record(bench.submit(function, 1000), Outcome.FAILED).traceback or "") < 70_000


def test_deep_recursion_is_cut_in_the_middle(bench: Bench) -> None:
    """Of very many different frames the outermost and the innermost are kept, and how many are missing is said."""
    error = failure_of(bench, failing.ping, 400)
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert names[-1] == "<genexpr>"
    assert len(names) < 510
    assert [name for name in names if "left out" in name] == ["303 frames left out"]


def test_huge_texts_are_cut_where_they_are_copies(bench: Bench) -> None:
    """The exception arrives whole; the texts made from it are cut, and say so."""
    future = bench.submit(failing.huge, 3_000_000, 3)
    error = future.exception(support.TIMEOUT)
    assert isinstance(error, ValueError)
    assert len(error.args[0]) == 3_000_000
    record = only_record(future, Outcome.FAILED)
    assert "more characters)" in (record.error or "")
    assert "characters left out" in (record.traceback or "")
    assert len(record.traceback or "") < 70_000


def test_an_exception_of_very_many_bytes_stays_behind(bench: Bench) -> None:
    """More than 16 MiB do not travel: a `RemoteError` says so."""
    error = failure_of(bench, failing.huge, 17 << 20, 0)
    assert isinstance(error, RemoteError)
    assert error.type_name == "ValueError"
    assert len(error.message) < 11_000
    assert "at most may travel" in error.__notes__[0]
    bench.assert_usable()


def test_notes_that_are_no_texts_harm_nothing(bench: Bench) -> None:
    """What somebody put among the notes is no reason to lose the exception."""
    error = failure_of(bench, failing.with_odd_notes)
    assert isinstance(error, (ValueError, RemoteError))
    assert "a text" in error.__notes__


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """Refuses every attribute, and so those that are set when an exception is raised anew."""

    code: int


def raise_frozen() -> None:
    raise Frozen(7)


def test_an_exception_that_refuses_attributes_is_told_of(bench: Bench) -> None:
    """It is the error of its run, and its worker goes on."""
    pid = bench.submit(os.getpid).result(support.TIMEOUT)
    future = bench.submit(raise_frozen)
    record = only_record(future, Outcome.FAILED)
    assert "Frozen: 7" in (record.error or "")
    assert "in raise_frozen" in (record.traceback or "")
    assert "Frozen: 7" in shown(future.exception(support.TIMEOUT) or Exception())
    assert bench.submit(os.getpid).result(support.TIMEOUT) == pid


def raise_from_frozen() -> None:
    raise ValueError("the outer one") from Frozen(7)


def test_an_exception_that_refuses_attributes_keeps_no_other_from_travelling(bench: Bench) -> None:
    """The exception that it is the cause of arrives as itself, with its frames, and the cause as its text."""
    error = failure_of(bench, raise_from_frozen)
    assert type(error) is ValueError
    assert "in raise_from_frozen" in shown(error)
    assert type(error.__cause__) is RemoteError
    assert error.__cause__.type_name == "Frozen"


def test_a_coroutine_shows_its_own_frames(bench: Bench) -> None:
    """The frames of the worker that runs the event loop are not shown, those of asyncio and of the action are."""
    text = shown(failure_of(bench, failing.from_coroutine))
    assert "procsched/child" not in text
    assert "in from_coroutine" in text
    assert THE_LINE in text


def test_an_error_of_an_executor_in_an_action_shows_both_journeys(bench: Bench) -> None:
    """An exception that came through two executors has the frames of all three processes and its cause."""
    error = failure_of(bench, failing.nested)
    assert isinstance(error, failing.Rich)
    assert type(error.__cause__) is TypeError
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert names == ["failure_of", "result", "nested", "result", "with_cause"]


def test_frames_keep_nothing_alive() -> None:
    """The frames have no locals and no caller, and the exception goes when the future does, without a collection."""
    with ProcessExecutor(1) as executor:
        future = executor.submit(failing.with_cause)
        error = future.exception(support.TIMEOUT)
        assert error is not None
        entry: types.TracebackType | None = error.__traceback__
        while entry is not None:
            assert entry.tb_frame.f_back is None
            assert entry.tb_frame.f_locals == {}
            assert entry.tb_frame.f_globals["__name__"] == "tests.failing"
            entry = entry.tb_next
        traceback.clear_frames(error.__traceback__)
        assert "in with_cause" in shown(error)
        seen = weakref.ref(error)
        gc.disable()
        try:
            del error, future, entry
            support.eventually(lambda: seen() is None)  # the thread that settled it may not be done with it
        finally:
            gc.enable()


def test_classes_of_the_main_script_arrive_as_themselves(tmp_path: Path) -> None:
    """`except MyError` works for classes of the script, causes and groups included, with its source lines."""
    with Parent(
        tmp_path,
        """
import traceback
from procsched import ProcessExecutor

class MyError(Exception):
    def __init__(self, text, *, code):
        super().__init__(text)
        self.code = code
    def __reduce__(self):
        return remake, (type(self), self.args[0], self.code)

def remake(cls, text, code):
    return cls(text, code=code)

class MyGroup(ExceptionGroup):
    pass

def work():
    try:
        raise MyError("cause", code=3)  # first line
    except MyError as error:
        error.add_note("a note")
        raise MyGroup("several", [error]) from error  # second line

with ProcessExecutor(1) as executor:
    try:
        executor.submit(work).result()
    except* MyError as group:
        text = "".join(traceback.format_exception(group))
        member, = group.exceptions
        print(type(group) is MyGroup, type(member) is MyError, member.code, member is group.__cause__,
              member.__notes__, "# first line" in text, "# second line" in text)
""",
    ) as parent:
        # `except*` derives a plain group.
        assert parent.output() == "False True 3 True ['a note'] True True\n"


# --- why did it die? ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("captures", [True, False])
@pytest.mark.parametrize(
    ("end", "signal", "code"), [("abort", "SIGABRT", None), ("exit", None, 5), ("kill", "SIGKILL", None)]
)
def test_a_crash_says_why(
    bench: Bench, end: str, signal: str | None, code: int | None, captures: bool
) -> None:
    """Signal or exit code, memory, output and stack are attributes, and in what is printed."""
    error = failure_of(bench, failing.say_and, end, capture_output=captures)
    assert type(error) is WorkerCrashedError
    assert (error.signal, error.exit_code) == (signal, code)
    assert error.peak_rss > 50 << 20
    assert error.cpu_seconds >= 0
    text = shown(error)
    assert f"worker died: {signal or 'exit code 5'}\n" in text
    assert (
        f"its process {error.pid} {'was ended by ' + signal if signal else 'left with exit code 5'}, had "
        in text
    )
    assert "MiB of memory at most" in text
    assert ("in say_and" in text) == (end == "abort")  # only a fatal error leaves time for a stack
    assert ("Fatal Python error: Aborted" in text) == (end == "abort")
    assert ("out of memory" in text or "memory runs out" in text) == (end == "kill")
    assert ("what it wrote to stdout and stderr:\nto stdout\nto stderr" in text) == captures
    assert ("capture_output=True" in text) == (not captures)
    assert (error.output or "").splitlines() == (["to stdout", "to stderr"] if captures else [])
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize("captures", [True, False])
def test_a_timeout_says_where_it_was(bench: Bench, captures: bool) -> None:
    """The limit, the signal, memory, output and stack are attributes, and in what is printed."""
    error = failure_of(bench, failing.say_and, "hang", timeout=1.0, capture_output=captures)
    assert type(error) is TaskTimeoutError
    assert (error.timeout, error.signal, error.exit_code) == (1.0, "SIGKILL", None)
    assert error.peak_rss > 50 << 20
    assert str(error) == "exceeded its 1.0 s budget"
    text = shown(error)
    assert f"its process {error.pid} was ended by SIGKILL, had " in text
    if error.stack is not None:  # it has half a millisecond to answer
        assert "where it was:\n" in text
        assert "failing.py" in text
    assert ("what it wrote to stdout and stderr:\nto stdout\nto stderr" in text) == captures
    assert "capture_output" not in text


def test_of_much_output_the_end_is_shown(bench: Bench) -> None:
    """A traceback shows two thousand characters of the output; the attribute has all that was kept."""
    error = failure_of(bench, failing.flush_and_hang, 50_000, timeout=1.0, capture_output=True)
    assert len(error.output) > 50_000
    text = shown(error)
    assert "the end of what it wrote to stdout and stderr:\nzzz" in text
    assert "the last words" in text
    assert len(text) < 10_000


def test_a_soft_timeout_has_the_actions_own_frames_as_its_cause(bench: Bench) -> None:
    """Where the action gave way to its soft limit, the cause says what it made of that."""
    future = bench.submit(faults.sleep, bench.path(), soft_timeout=0.3)
    error = future.exception(support.TIMEOUT)
    assert type(error) is TaskTimeoutError
    cause = error.__cause__
    assert isinstance(cause, TaskTimeoutError)
    assert "in sleep" in shown(cause)
    record = future.record
    assert record is not None
    assert record.stack is None
    assert "\nprocsched.TaskTimeoutError: " in str(record.traceback)  # its public name, in the worker as well


def test_errors_of_ended_runs_survive_pickling(bench: Bench) -> None:
    """Attributes and notes are there after a journey of their own."""
    error = failure_of(bench, failing.say_and, "exit", capture_output=True)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is WorkerCrashedError
    assert again.__dict__ == error.__dict__
    assert again.__notes__


# --- calls that are wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_worker": 2}, "unknown option 'max_worker'; did you mean 'max_workers'?"),
        ({"processes": 2}, "'processes'; did you mean 'max_workers'?"),
        ({"maxtasksperchild": 2}, "'maxtasksperchild'; did you mean 'max_tasks_per_child'?"),
        ({"max_runs_per_worker": 2}, "did you mean 'max_tasks_per_child'?"),
        ({"mp_context": None}, "'mp_context'; leave it out: workers always come from a clean process"),
        ({"timeuot": 2}, "did you mean 'timeout'?"),
        ({"max_workers": 0}, "max_workers must be greater than 0, a whole number, not 0"),
        ({"max_workers": "2"}, "max_workers must be greater than 0, a whole number, not '2'"),
        ({"timeout": "2"}, "timeout must be"),
        ({"capture_output": "no"}, "capture_output must be True or False, not 'no'"),
        ({"initializer": failing.add_up([1])}, "initializer must be callable, not int 2: pass the function"),
        (
            {"initializer": print, "initargs": 3},
            r"initargs must be a tuple or a list, not int 3: write \(value,\)",
        ),
        ({"preload": 3}, "preload must be a sequence of module names, not 3"),
        ({"preload": None}, "preload must be a sequence of module names, not None"),
        ({"env": 3}, "env must be a mapping of texts to texts, or None, not int 3"),
        ({"env": {"": "x"}}, "a name in env must not be empty or have a '=' in it, not ''"),
        ({"env": {"A=B": "x"}}, "a name in env must not be empty or have a '=' in it, not 'A=B'"),
        ({"env": {"A": "x\0"}}, "env must be without NUL characters: 'A' is"),
        ({"env": {"A": "\ud800"}}, "in env cannot be put into an environment"),
        ({"cwd": 3}, "cwd must be a path, not int 3"),
        ({"retry": 3}, r"retry must be a RetryPolicy, not int 3: RetryPolicy\(max_attempts=...\)"),
    ],
)
def test_a_wrong_option_of_the_executor_says_what_to_write(options: dict[str, Any], words: str) -> None:
    """Names that nobody knows get the nearest, or what to do instead; values get what is expected."""
    with pytest.raises(ValidationError, match=words):
        ProcessExecutor(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeuot": 2}, "unknown option 'timeuot'; did you mean 'timeout'?"),
        ({"retries": 2}, "unknown option 'retries'; did you mean 'retry'?"),
        ({"max_workers": 2}, "unknown option 'max_workers'; .*known are capture_output"),
        ({"priority": "HIGH"}, "priority must be Priority.HIGH, NORMAL or LOW"),
        ({"capture_output": 1}, "capture_output must be True or False, not 1"),
    ],
)
def test_a_wrong_option_of_a_call_says_what_to_write(
    bench: Bench, options: dict[str, Any], words: str
) -> None:
    """The same for `options`."""
    with pytest.raises(ValidationError, match=words):
        bench.executor.options(**options)


def test_a_call_instead_of_a_function_is_refused(bench: Bench) -> None:
    """A coroutine, or the result of a call, gets the advice to pass the function."""
    called = failing.coroutine()
    with pytest.raises(
        ValidationError, match=r"not coroutine .*: pass the `async def` function itself, without \(\)"
    ):
        bench.executor.submit(called)  # type: ignore[arg-type]
    called.close()
    with pytest.raises(ValidationError, match=r"not NoneType None: pass the function itself, without \(\)"):
        bench.executor.submit(None)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="must be callable, not str 'len'"):
        bench.executor.map("len", [""])  # type: ignore[arg-type]


def test_a_generator_is_no_result(bench: Bench) -> None:
    """A generator function as action is told to return a list."""
    error = failure_of(bench, failing.numbers)
    assert isinstance(error, TaskSerializationError)
    assert "of type generator, cannot be pickled" in str(error)
    assert "return list(...)" in str(error)


def test_a_method_of_what_cannot_be_pickled_names_it(bench: Bench) -> None:
    """The error of a bound method says what of its object is in the way."""
    error = failure_of(bench, failing.Unpicklable().method)
    assert isinstance(error, TaskSerializationError)
    assert (error.path, error.type_name) == ("action.__self__.lock", "lock")
    assert "create it inside the action" in str(error)


def test_a_call_that_could_not_be_sent_has_no_record(bench: Bench) -> None:
    """Who waits for its record is told why."""
    future = bench.submit(failing.Unpicklable().method)
    with pytest.raises(TaskSerializationError, match="create it inside the action"):
        future.wait_record(support.TIMEOUT)
    assert future.record is None


def test_an_option_among_the_arguments_is_explained(bench: Bench) -> None:
    """submit(fn, timeout=5) passes timeout to fn; the TypeError that follows says where it belongs."""
    with pytest.raises(TypeError, match="timeout") as caught:
        bench.executor.submit(faults.add, 1, 2, timeout=5).result(support.TIMEOUT)
    assert any("executor.options(timeout=...)" in note for note in caught.value.__notes__)
    try:
        with pytest.raises(TypeError, match="retry") as caught:
            run(faults.add, 1, 2, retry=3)
    finally:
        shutdown_shared()
    (note,) = caught.value.__notes__
    assert "to a ProcessExecutor: executor.options(retry=...)" in note
    assert "submit(fn, ..., retry=...)" not in note, "who called run() has not called submit()"
    with pytest.raises(TypeError) as caught:
        bench.executor.submit(faults.add, 1, 2, colour=5).result(support.TIMEOUT)
    assert not hasattr(caught.value, "__notes__")


def test_after_a_shutdown_it_says_so(tmp_path: Path) -> None:
    """submit, map and a view refuse after a shutdown, with the library's words and the remedy."""
    with Bench(tmp_path, 1) as bench:
        view = bench.executor.options(timeout=3)
        bench.executor.shutdown()
        for use in (bench.executor.submit, bench.executor.map, view.submit, view.map):
            with pytest.raises(
                SchedulerStateError, match="cannot schedule new futures after shutdown: make a new"
            ):
                use(abs, [-1])  # type: ignore[operator]


def test_at_the_end_of_the_interpreter_it_says_so(tmp_path: Path) -> None:
    """What is submitted when the interpreter has begun to end is told that it came too late."""
    with Parent(
        tmp_path,
        """
import atexit
from procsched import ProcessExecutor
executor = ProcessExecutor(1)
print(executor.submit(abs, -1).result())
import procsched.exits
@atexit.register
def late():
    procsched.exits._at_exit()
    try:
        executor.submit(abs, -1)
    except RuntimeError as error:
        print(error)
""",
    ) as parent:
        assert parent.output().splitlines() == [
            "1",
            "cannot schedule new futures after shutdown: the interpreter is ending; submit before the end of the main "
            "script, and wait for the results there",
        ]


def test_an_executor_at_import_of_the_main_script_works(tmp_path: Path) -> None:
    """A script without a guard may use it, also where multiprocessing imports that script anew in a child."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import multiprocessing
from procsched import ProcessExecutor

executor = ProcessExecutor(1)
print(__name__, executor.submit(lambda: 3).result(30), flush=True)

def child():
    print("child", executor.submit(abs, -4).result(30), flush=True)

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    print("exit code", process.exitcode)
""",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines() == ["__main__ 3", "__mp_main__ 3", "child 4", "exit code 0"], done.stderr
    assert not done.stderr


class Asked(Exception):
    """Raises where it is asked for what it has not."""

    def __getattr__(self, name: str) -> object:
        raise ValueError(f"no {name}")


def test_an_exception_that_raises_when_asked_arrives(bench: Bench) -> None:
    """What hangs on it is put there by the base class."""
    failure = bench.submit(_raise_asked).exception(support.TIMEOUT)
    assert type(failure) is Asked
    assert str(failure) == "words"
    assert failure.__traceback__ is not None


def _raise_asked() -> NoReturn:
    raise Asked("words")


class Unwilling(Exception):
    """Ends whoever asks it for its text."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class Unnoted(Exception):
    """Ends whoever asks it for its notes."""

    @property
    def __notes__(self) -> list[str]:
        raise SystemExit(3)


class Mute(Exception):
    """Ends whoever asks it for anything."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(name)


class Shade(str):
    """A text that ends whoever looks into it or loads it."""

    __slots__ = ()

    def __getitem__(self, key: object) -> str:
        raise SystemExit

    def __len__(self) -> int:
        raise SystemExit

    def __reduce__(self) -> NoReturn:
        raise SystemExit


class Shaded(Exception):
    """Has such texts."""

    __notes__ = (Shade("a note"),)

    def __str__(self) -> str:
        return Shade("words")


class Anonymous(type):
    """Of such a class even the name ends who asks for it."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise SystemExit


class Nobody(Exception, metaclass=Anonymous):
    """Has no name."""


def _raise(kind: str) -> NoReturn:
    raise globals()[kind]("the words")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Unwilling", "Unwilling: <its text cannot be had: __str__ raised KeyboardInterrupt>"),
        ("Unnoted", "Unnoted: the words"),
        ("Mute", "Mute: the words"),
        ("Shaded", "Shaded: words"),
        ("Nobody", "exception: the words"),
    ],
)
@pytest.mark.parametrize("limits", [None, Limits(open_files=100)])
def test_an_exception_that_ends_who_asks_it_ends_no_worker(
    bench: Bench, kind: str, words: str, limits: Limits | None
) -> None:
    """It is told of as far as it can be, and its worker lives on."""
    first = bench.submit(os.getpid).result(support.TIMEOUT)
    future = bench.submit(_raise, kind, limits=limits)
    assert only_record(future, Outcome.FAILED).error == words
    assert bench.submit(os.getpid).result(support.TIMEOUT) == first


def test_where_nothing_can_be_told_of_an_exception_its_type_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory is left, say."""
    monkeypatch.setattr(answers, "describe", _raise)
    told = wire.open_failure(answers.pack_failure(ValueError("words"), "run"))
    assert told == ("ValueError", None, None, "nothing more can be told of it")
    told = wire.open_failure(answers.pack_failure(Nobody("words"), "run"))
    assert told[0] == "Nobody"


def test_in_the_parent_what_a_signal_handler_raises_goes_through() -> None:
    """It is Ctrl-C, which came when an exception was asked for its text."""
    with pytest.raises(KeyboardInterrupt):
        describe(Unwilling())
