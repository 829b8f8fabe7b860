"""The worker: takes calls from its socket, runs them one after another, answers each with one frame.

    parent == socket pair ==> main thread: read call -> unpickle -> run -> pickle -> answer -> tidy up
           -- signals -----> SIGTERM: stop (deadline, kill); SOFT_SIGNAL: soft timeout; DUMP_SIGNAL: stack
           -- shared page -> number of the run that a signal is meant for
    kernel timer -- SIGKILL -> the backstop, should the parent be stuck

Nothing here ever waits for the parent except the read of the next call, which ends when the parent is gone.
"""

from __future__ import annotations

import _pickle as pickle
import _signal as signal  # type: ignore[import-not-found]
import _socket as socket
import errno
import faulthandler
import os
import resource
import sys
from time import monotonic  # by name: a run may have put something in the place of the module's

from procsched import _parcels, _system
from procsched._core import wire
from procsched._core.failures import TRACEBACK, name_of, tell_of_all, type_name
from procsched.child import current, forks, references
from procsched.child.answers import pack_failure, pack_result
from procsched.child.channel import Channel
from procsched.child.protocol import (
    ANSWERED,
    ASK_NUMBER,
    ASK_REASON,
    CHILD_PEAK_BEFORE,
    DUMP_SIGNAL,
    REASON_KILL,
    REASON_SOFT,
    RESIDENT_BEFORE,
    SOFT_SIGNAL,
    STARTED,
    STARTED_AT,
    USED_BEFORE,
)
from procsched.child.surroundings import (
    Surroundings,
    copy_of,
    flush_streams,
    is_collecting,
    out_of_the_way,
    profile,
    recursion_limit,
    trace,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from procsched.child.limiting import Limiting

_getsignal: Any = signal.getsignal

BACKSTOP_SLACK = 0.01  # seconds by which the backstop may be late
WORTH_ASKING = 0.001  # seconds; shorter attempts are not asked for their CPU time and memory
ASK_EVERY = 0.01  # seconds until they are all the same, between runs
_TIMERS = tuple(getattr(signal, name) for name in ("ITIMER_VIRTUAL", "ITIMER_PROF") if hasattr(signal, name))


class Worker:
    """State of a worker process."""

    def __init__(
        self, channel_fd: int, side_fd: int, token_fd: int, parcel_fd: int, page: memoryview
    ) -> None:
        self.channel = Channel(channel_fd)
        self.side_fd = side_fd
        self.token_fd = token_fd
        self.parcels = socket.socket(fileno=parcel_fd)
        self.token = 0  # the last one that we took: the number of a call
        self.page = page.cast("Q")
        self.times = page.cast("d")  # the same memory
        self.pid = os.getpid()
        self.number = 0  # of the run that is going on, 0 between runs
        self.last = 0  # of the run before
        self.armed = False  # whether an asking signal may raise: only while user code runs
        self.raised: BaseException | None = None  # the soft timeout that was raised in this run
        self.cancel: Callable[[], object] | None = None  # how to stop an `async def` action
        self.timer = _system.open_kernel_timer()
        self.backstop = 0.0  # steady time for which the timer is armed, 0 when it is not
        self.surroundings: Surroundings  # from `start` on
        self.handlers: tuple[tuple[int, Callable[[int, FrameType | None], None]], ...] = ()
        self.frame: wire.Frame  # of the run that is going on, or was last
        self.function: Any = None  # that the run calls, once that is loaded
        self.began = 0.0  # steady time
        self.limits: Limiting | None = None  # of the run that is going on, or comes next
        self.ask_at = 0.0  # steady time from which on the usage is asked for after a short run too
        self.keeps_dumps = False  # whether `faulthandler` is ours, and no initializer may have set it
        self.is_fork = False  # set in a process that a run has forked

    # -- starting ------------------------------------------------------------------------------------------

    def start(self, options: dict[str, Any]) -> None:
        """Become what the pool wants its workers to be. Raises what the initializer raises."""
        if options["path"] is not None:
            sys.path[:] = options["path"]
        sys.argv[:] = options["argv"]
        if options["environ"] is not None:
            os.environ.clear()
            os.environ.update(options["environ"])
        if options["cwd"] is not None:
            os.chdir(options["cwd"])
        if options["umask"] is not None:
            os.umask(options["umask"])
        if options["nice"]:
            os.nice(options["nice"])
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (options["descriptors"], hard))
        self.install_signals()
        _reseed()
        self.keeps_dumps = options["initializer"] is None
        if options["initializer"] is not None:
            from procsched.child import initializing

            initializing.run(options["initializer"])
        for name in options["modules"]:
            try:
                __import__(name)
            except BaseException:  # the call that needs it will raise the same
                continue
        # What has been started so far belongs to the worker and not to a run.
        started = bool(options["initializer"] is not None or options["modules"])
        self.surroundings = Surroundings(started=started)

    def install_signals(self) -> None:
        """Take the signals that are ours. Put back before each run, for a run may have taken them."""
        self.handlers = ((signal.SIGTERM, self.on_term), (SOFT_SIGNAL, self.on_soft))
        for signum, handler in self.handlers:
            signal.signal(signum, handler)
        self.install_dumps()

    def install_dumps(self) -> None:
        """Have stacks written where the parent reads them. Put back after runs, which may use `faulthandler`."""
        faulthandler.enable(self.side_fd)
        faulthandler.register(DUMP_SIGNAL, self.side_fd, all_threads=False)

    # -- being asked to stop -------------------------------------------------------------------------------

    def on_term(self, signum: int, _frame: FrameType | None) -> None:
        """SIGTERM: ours if the page names this run; else it has its default effect."""
        asked, reason = self.page[ASK_NUMBER], self.page[ASK_REASON]
        if not asked or asked not in (self.number, self.last) or reason == REASON_SOFT:
            self.default_effect(signum)
        elif asked == self.number and self.armed:
            from procsched import errors  # here, because it takes the first worker five milliseconds

            if reason == REASON_KILL:
                self.stop(errors.TaskKilledError("the run was asked to stop"))
            else:
                self.stop(errors.TaskTimeoutError("the run is out of time"))

    def default_effect(self, signum: int) -> None:  # pragma: no cover - the process ends, and writes nothing
        """Do what the signal does to a process that does not handle it."""
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)

    def on_soft(self, _signum: int, _frame: FrameType | None) -> None:
        """The soft timeout of the run that the page names; one that ended meanwhile is none of our business."""
        asked = self.page[ASK_NUMBER] == self.number and self.page[ASK_REASON] == REASON_SOFT
        if asked and self.armed and self.raised is None:
            from procsched import errors

            self.raised = errors.TaskTimeoutError("the run is over its soft limit")
            self.stop(self.raised)

    def stop(self, error: BaseException) -> None:
        """Raise `error` in the action, or cancel it where it is a coroutine."""
        if self.cancel is not None:
            try:
                self.cancel()
                return
            except RuntimeError:  # its loop is closed: it is on its way out
                pass
        raise error

    # -- running -------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Run calls until the parent has gone."""
        channel = self.channel
        clean = True
        while True:
            if self.backstop and not channel.frames:
                self.disarm()  # what was to come next has been taken back
            frame = channel.read()
            if frame is None:
                return
            if frame.kind == wire.CALL:
                if frame.number <= self.page[STARTED]:
                    continue  # sent twice: a signal handler of the parent's raised just when it had been sent
                # After a run that left something behind nothing is run any more: the parent ends this process.
                if clean and (not frame.flags & wire.AHEAD or self.has_token(frame.number)):
                    clean = self.run(frame)
            elif frame.kind == wire.PATH:
                sys.path[:] = pickle.loads(frame.payload)
            elif frame.kind == wire.LIMITS:
                from procsched.child.limiting import Limiting  # here, for most workers never need it

                self.limits = Limiting(frame)
            else:
                raise wire.WireError(f"the parent sends no frames of kind {frame.kind}")

    def has_token(self, number: int) -> bool:
        """Take the token of a call that was sent ahead; False where the parent took it back. See `tokens.py`."""
        while self.token < number:
            try:
                data = os.read(self.token_fd, wire.TOKEN.size)
            except BlockingIOError:
                return False
            if not data:
                return False
            mark, token = wire.TOKEN.unpack(data) if len(data) == wire.TOKEN.size else (0, 0)
            if mark != wire.TOKEN_MARK:
                raise wire.WireError(
                    f"{data!r} is no token: the run has written, or read, where it should not"
                )
            self.token = token
        return self.token == number

    def run(self, frame: wire.Frame) -> bool:
        """Run one call and answer it; return whether it left nothing behind."""
        parts, clean = self.perform(frame)
        # Where more calls wait here the next one begins at once, and has the backstop set.
        ends = self.backstop and not self.channel.frames
        self.channel.write(parts, self if ends else None)
        self.page[ANSWERED] = frame.number
        if self.began >= self.ask_at:  # so that what short runs use is not counted for a long one behind them
            self.usage()
        return clean

    def rehearse(self) -> None:
        """Go through a call of no consequence.

        The first call in a new process touches pages that it shared with the helper until then, and each costs a
        fault: a millisecond in all, which a spare can spend before anybody waits for it.
        """
        data = b"".join(wire.encode(wire.CALL, 0, pickle.dumps((bool, (), {}), 5), second=-1.0))
        for frame in wire.Decoder().feed(data):
            self.perform(frame)

    def perform(self, frame: wire.Frame) -> tuple[list[bytes | bytearray], bool]:
        """Run one call; return its answer as a frame, and whether it left nothing behind."""
        limits = self.limits
        if limits is not None:
            limits = self.begin_limits(frame.number)
        self.began = began = monotonic()
        if frame.first:
            self.set_backstop(frame.first + began if frame.flags & wire.AHEAD else frame.first)
        elif self.backstop:
            self.disarm()
        for signum, handler in self.handlers:
            if _getsignal(signum) is not handler:
                signal.signal(signum, handler)
        capturing = frame.flags & wire.CAPTURE
        saved = self.capture() if capturing else None
        self.raised = None
        self.frame = frame
        current._begin(self.describe_run)
        kind, flags, payload = self.attempt(frame)
        if self.is_fork:
            os._exit(0)  # a fork that the action made came back through it: there is one worker only
        current._end()
        surroundings = self.surroundings
        unsettled = surroundings.settle_streams()  # here, for what the run had may write while it goes
        if saved is not None:
            self.release(saved)
            unsettled = unsettled or -1 in saved
        end = monotonic()
        third = 0
        if limits is not None:
            asked, third, self.limits = True, limits.third, None
        else:
            asked = end - began >= WORTH_ASKING
        dirty = surroundings.tidy(end - began)
        cpu, peak = self.usage() if asked else (-1.0, 0)  # now, for what was reaped just now is this run's
        if flags & wire.SOFT:
            dirty.append("what the soft limit interrupted")
        if asked or unsettled:
            if self.keeps_dumps:
                self.install_dumps()
            if surroundings.have_changed():
                dirty.append("settings of the process")
        facts = b""
        if asked or dirty:
            facts = wire.FACTS.pack(cpu, peak) + ", ".join(dirty).encode()
        flags |= wire.DIRTY if dirty else 0
        return wire.encode(kind, frame.number, payload, flags, end, began, third, facts), not dirty

    def usage(self) -> tuple[float, int]:
        """Return CPU seconds and peak memory since the last call, and begin anew."""
        usage = self.surroundings.usage()
        self.times[USED_BEFORE] = self.surroundings.used
        self.page[CHILD_PEAK_BEFORE] = self.surroundings.child_peak
        self.ask_at = self.began + ASK_EVERY
        return usage

    def begin_limits(self, number: int) -> Limiting | None:
        """Set the limits of the run that begins now, if those that have come are its own."""
        limits = self.limits
        if limits is None or limits.number != number:
            self.limits = None  # its call was taken back
            return None
        from procsched.child.limiting import resident

        self.usage()  # what was used so far is not this run's
        self.page[RESIDENT_BEFORE] = resident()
        limits.begin(resource.getrusage(resource.RUSAGE_SELF))
        return limits

    def describe_run(self) -> current.CurrentRun:
        """Return what `current_run()` answers now."""
        frame = self.frame
        task_id, _zero, name = frame.meta.decode("utf-8", "surrogatepass").partition("\0")
        if not name and self.function is not None:
            name = name_of(self.function)
        timeout = None if frame.second < 0 else frame.second
        attempt, run = frame.third & 0xFFFFFFFF, frame.third >> 32
        return current.CurrentRun(task_id, name, attempt, run, timeout, self.began, self.tell)

    def set_backstop(self, due: float) -> None:
        """Have the kernel end this process at steady time `due`, or somewhat later where more calls wait here.

        Then it is still right for those of them that begin soon, with the same limit: to arm it for each would cost
        as much as a brief call does.
        """
        if self.timer is None or due <= self.backstop <= due + BACKSTOP_SLACK:
            return
        self.arm(due + BACKSTOP_SLACK if self.channel.frames else due)

    def arm(self, due: float) -> None:
        """Have the kernel end this process at steady time `due`."""
        assert self.timer is not None
        self.backstop = due
        self.timer.arm(due)

    def disarm(self) -> float:
        """Take back the backstop; return for when it was set."""
        assert self.timer is not None
        due = self.backstop
        self.timer.disarm()
        self.backstop = 0.0
        return due

    def attempt(self, frame: wire.Frame) -> tuple[int, int, bytes | bytearray]:
        """Load the call, run it, and return its answer as kind, flags and payload."""
        stage = "load"
        data: bytes | _parcels.Parcel = b""
        failure: BaseException | None = None
        surroundings = self.surroundings
        try:
            try:
                self.times[STARTED_AT] = self.began
                self.page[STARTED] = self.number = frame.number
                parcel = self.receive_parcel(frame) if frame.flags & wire.PARCEL else None
                self.armed = True
                if self.page[ASK_NUMBER] == frame.number:  # its signal came before it could be heard
                    self.on_soft(SOFT_SIGNAL, None)
                kwargs = None
                if parcel is not None:
                    function, args, kwargs = _parcels.load(parcel)
                    parcel = None  # only what was made of it keeps it alive
                elif frame.payload[0] == references.MARK:
                    function, args = references.load(bytes(frame.payload))
                else:
                    function, args, kwargs = pickle.loads(frame.payload)
                stage = "run"
                surroundings.recursion_limit = recursion_limit()
                self.function = function
                result = function(*args, **kwargs) if kwargs else function(*args)
                if hasattr(type(result), "__await__"):  # as `await` asks; the object may answer anything
                    result = self.run_coroutine(result)
                stage = "send"
            finally:
                self.armed = False
                self.function = None
                self.last, self.number = self.number, 0
                if self.limits is not None:
                    self.limits.lift()
            if (
                recursion_limit() != surroundings.recursion_limit
                or profile() is not surroundings.profile
                or trace() is not surroundings.trace
                or is_collecting() is not surroundings.collects
            ):
                surroundings.settle_interpreter()
            data = pack_result(result)
            if self.limits is not None:
                self.limits.check_result(len(data))
        except BaseException as error:
            # Nothing is called before the timers are off: at a call the handler of a signal may run, and raise.
            failure = error
            self.armed = False
            self.last, self.number = self.number or self.last, 0
        while True:
            try:
                signal.alarm(0)  # the third, ITIMER_REAL, in half the time
                for which in _TIMERS:
                    signal.setitimer(which, 0)
                break
            except BaseException:  # what a timer of the run raises now belongs to nobody
                continue
        if failure is None:
            if type(data) is bytes:
                return wire.DONE, 0, data
            assert isinstance(data, _parcels.Parcel)
            if data.fd >= 0 and self.send_parcel(frame.number, data.fd):
                return wire.DONE, wire.APART, b""
            return wire.DONE, wire.WHOLE, data.in_band()
        for _ in range(3):
            try:
                surroundings.settle_interpreter()
                break
            except BaseException:  # the run's profile and trace functions may raise in it, and are off then
                continue
        entry = TRACEBACK.__get__(failure)
        if entry is not None:
            TRACEBACK.__set__(failure, entry.tb_next)  # without this frame
        flags = 0
        if self.raised is not None and (failure is self.raised or type_name(failure) == "CancelledError"):
            flags |= wire.SOFT
        stored = sys.modules.get("procsched.child.stored")
        if stored is not None and type(failure) is stored.Unloadable:
            flags |= wire.UNLOADABLE
        aside = ""
        if self.limits is not None:
            self.limits.lift()  # should a signal have come in between
            aside = self.limits.note(failure)
            flags |= self.limits.flags
        return wire.RAISED, flags, pack_failure(failure, stage, aside)

    def receive_parcel(self, frame: wire.Frame) -> Any:
        """Return the memory that a large call came in."""
        if frame.flags & wire.WHOLE:
            data = frame.payload
            return data if type(data) is bytearray else bytearray(data)  # arrays are to be written into
        return _parcels.open_memory(_parcels.receive(self.parcels, frame.number))[0]

    def send_parcel(self, number: int, fd: int) -> bool:
        """Send the descriptor of a large result, before the answer that says so; return whether it went."""
        try:
            _parcels.send(self.parcels, number, fd)
        except OSError:  # the run has filled the socket, or closed it
            return False
        return True

    def run_coroutine(self, coroutine: Any) -> Any:
        """Run an awaitable that the action returned in an event loop of its own."""
        import asyncio

        async def main() -> Any:
            loop = asyncio.get_running_loop()
            task = asyncio.current_task()
            assert task is not None
            self.cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            return await coroutine

        try:
            return asyncio.run(main())
        finally:
            self.cancel = None

    def tell(self, done: float, total: float | None, note: str) -> None:
        """Send progress of the run that is going on."""
        number = self.number
        if number and os.getpid() == self.pid:
            # Exact, as the numbers are: what is read is no class of the run's.
            text = str.__str__(str(note))[:1000]
            payload = wire.progress(_number(done), None if total is None else _number(total), text)
            self.channel.write(wire.encode(wire.PROGRESS, number, payload))

    # -- output --------------------------------------------------------------------------------------------

    def capture(self) -> tuple[int, int]:
        """Point stdout and stderr at the parent; return copies of where they pointed, -1 for what was closed."""
        saved = (copy_of(1), copy_of(2))
        os.dup2(self.side_fd, 1)
        os.dup2(self.side_fd, 2)
        return saved

    def release(self, saved: tuple[int, int]) -> None:
        """Put stdout and stderr back."""
        for fd, copy in zip((1, 2), saved, strict=True):
            if copy < 0:
                os.closerange(fd, fd + 1)  # should this run have closed it too
            else:
                os.dup2(copy, fd)
                os.close(copy)


def _reseed() -> None:
    """Give numpy's global generator a state of its own where `preload` has imported it.

    All the workers would draw the same numbers, being forks of one process. Python's own `random` sees to it itself.
    """
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        try:
            numpy_random.seed()
        except Exception:  # another version, or another module of that name
            return


def _number(value: Any) -> float:
    """Return a count as an exact int, and what else is like a number as an exact float."""
    return int.__int__(value) if issubclass(type(value), int) else float(value)


def run_worker(
    channel_fd: int, side_fd: int, token_fd: int, parcel_fd: int, page: memoryview, options: dict[str, Any]
) -> None:
    """Be a worker. Returns never."""
    try:
        os.setsid()
    except PermissionError:  # already a leader: a worker that was started by exec
        pass
    _system.become_subreaper()
    tell_of_all()
    fds = [out_of_the_way(fd) for fd in (channel_fd, side_fd, token_fd, parcel_fd)]
    worker = Worker(fds[0], fds[1], fds[2], fds[3], page)
    forks.follow(worker)
    code = 1
    try:
        frame = worker.channel.read()
        if frame is None or frame.kind != wire.START:
            os._exit(1)
        try:
            for name in options.get("preload", ()):
                __import__(name)
            worker.start(pickle.loads(frame.payload))
        except BaseException as error:
            flush_streams()
            if worker.is_fork:
                os._exit(0)
            worker.channel.write(wire.encode(wire.START_FAILED, 0, pack_failure(error, "start")))
            os._exit(1)
        if worker.is_fork:
            os._exit(0)  # a fork that the initializer made came back through it, as in `perform`
        if options["spare"]:
            worker.rehearse()
        worker.channel.write(wire.encode(wire.READY, second=worker.usage()[0]))
        worker.serve()
        code = 0
    except OSError as error:
        # The parent has gone in the middle of something: nobody is left to tell.
        if error.errno not in (errno.EPIPE, errno.ECONNRESET):
            raise
    finally:
        if os.getpid() == worker.pid:
            _leave(code)


def _leave(code: int) -> None:
    """Exit as an interpreter would, without the parts that wait for ever."""
    import atexit

    try:
        atexit._run_exitfuncs()
    except BaseException:  # pragma: no cover - coverage has ended, being among these functions
        code = 1
    flush_streams()  # pragma: no cover - likewise
    os._exit(code)  # pragma: no cover - likewise
