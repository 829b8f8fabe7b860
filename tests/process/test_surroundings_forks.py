"""Forks of the program: each process uses its own pools, whatever threads of the parent held at that moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.test_surroundings import HEAD, KINDS, cases, host

pytestmark = pytest.mark.slow

FORKS = (
    HEAD
    + """
def make(): return ProcessExecutor(2) if KIND == "executor" else Scheduler(2)

def use_once(user):
    if KIND == "executor": assert user.submit(abs, -1).result(30) == 1
    else: assert user.wait(user.schedule("t", abs, OneTime(0), args=(-1,)), 30).result == 1

def started():
    user = make()
    if KIND == "scheduler": user.start()
    use_once(user)
    return user

def check_refused(user):
    if KIND == "executor":
        questions = [lambda: user.submit(abs, 1), lambda: list(user.map(abs, [1]))]
    else:
        questions = [
            lambda: user.schedule("t", abs, OneTime(0)), user.start, user.stats, user.tasks, user.pending,
            user.dead_letter, user.wake, user.wait_idle, lambda: user.add_listener(EventLog()),
        ]
        requests = (user.wait, user.cancel, user.kill, user.pause, user.resume, user.revive, user.task)
        questions += [lambda request=request: request("task-1") for request in requests]
    for question in questions:
        try: question()
        except SchedulerStateError as error: assert "fork" in str(error), error
        else: raise AssertionError(question)

def fork(function):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function(); code = 0
        except BaseException: sys.excepthook(*sys.exc_info())
        finally: sys.stderr.flush(); os._exit(code)
    assert support.process_gone(pid, 30)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pool_that_was_started_before_the_fork(kind: str) -> None:
    """A child's copy refuses, its shutdown does nothing, its own pool works; the parent's workers live on."""
    script = FORKS + (
        "user = started()\n"
        "def child():\n"
        "    check_refused(user)\n"
        "    assert hosts.use(KIND) == hosts.USED\n"
        "    user.shutdown()\n"
        "    check_refused(user)\n"
        "for _ in range(2): fork(child)\n"
        "use_once(user); user.shutdown(); print('over')\n"
    )
    assert host(script, kind) == "over"


@pytest.mark.parametrize("end", ["return", "sys.exit(3)", "raise ValueError"])
def test_a_fork_that_an_initializer_makes_is_no_worker(end: str) -> None:
    """However it comes back through the initializer: it ends, and says nothing."""
    script = HEAD + (
        "def initialize():\n"
        "    child = os.fork()\n"
        f"    if child == 0: {end}\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "with ProcessExecutor(1, initializer=initialize) as executor:\n"
        "    print(executor.submit(abs, -1).result(30))\n"
    )
    assert host(script, "executor") == "1"


@pytest.mark.parametrize("kind", KINDS)
def test_a_pool_that_was_only_made_before_the_fork(kind: str) -> None:
    """What was not used by then belongs to each of the processes."""
    script = FORKS + (
        "user = make()\n"
        "def child(): assert hosts.USES[KIND](user) == hosts.USED\n"
        "for _ in range(2): fork(child)\n"
        "child(); print('over')\n"
    )
    assert host(script, kind) == "over"


def test_a_scheduler_that_had_tasks_before_the_fork() -> None:
    """As where it is made when a server's program is loaded, and started in its workers: listeners and store hear."""
    script = FORKS + (
        "class Listener:\n"
        "    def __init__(self): self.told = []\n"
        "    def on_task_event(self, event): self.told.append(event.status.value)\n"
        "class Written(InMemoryTaskStore): pass\n"
        "listener, store = Listener(), Written()\n"
        "user = Scheduler(1, listeners=[listener], store=store)\n"
        "task = user.schedule('t', abs, OneTime(0), args=(-1,))\n"
        "support.eventually(lambda: listener.told and store.load_all())\n"
        "def child():\n"
        "    user.start()\n"
        "    assert user.wait(task, 30).result == 1 and user.wait_idle(30)\n"
        "    user.shutdown()\n"
        "    assert listener.told == ['scheduled', 'running', 'succeeded'], listener.told\n"
        "    assert [each.status for each in store.load_all()] == ['succeeded']\n"
        "fork(child); child(); print('over')\n"
    )
    assert host(script, "scheduler") == "over"


def test_a_scheduler_that_had_its_store_open_before_the_fork(tmp_path: Path) -> None:
    """It is the parent's, who has the store: the child is told, and does not wait for a store that nobody writes to."""
    script = FORKS + (
        "from procsched import FixedRate, SqlTaskStore\n"
        f"url = 'sqlite:///{tmp_path}/jobs.db'\n"
        "user = Scheduler(1, store=SqlTaskStore(url))\n"
        "user.schedule('t', abs, FixedRate(1e6, start_delay=1e6), args=(-1,), key='k')\n"
        "def child(): check_refused(user)\n"
        "fork(child); user.start(); use_once(user); user.shutdown()\n"
        "user = Scheduler(1, store=SqlTaskStore(url))\n"
        "def child(): user.start(); use_once(user); user.shutdown()\n"
        "fork(child); child(); print('over')\n"
    )
    assert host(script, "scheduler") == "over"


ENDS = {"plain": "pass", "collected": "del user; gc.collect()", "with a pool of its own": "own = started()"}


@pytest.mark.parametrize(("end", "kind"), cases(*ENDS))
def test_a_child_that_ends_as_any_program(kind: str, end: str) -> None:
    """The exit of a forked child, also with a pool of its own, waits for nothing of its parent's and ends nothing."""
    script = FORKS + (
        "import atexit, weakref\n"
        "user = started()\n"
        "end = weakref.WeakMethod(user.shutdown)\n"
        "atexit.register(lambda: end() and end()())\n"
        "pid = os.fork()\n"
        f"if pid == 0: {ENDS[end]}; sys.exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
        "use_once(user); print('over')\n"
    )
    assert host(script, kind) == "over"


@pytest.mark.parametrize("kind", KINDS)
def test_forks_in_the_midst_of_calls(kind: str) -> None:
    """Forks while other threads submit and wait without a pause: each child can use a pool of its own."""
    script = FORKS + (
        "user, over = started(), threading.Event()\n"
        "def busy():\n"
        "    while not over.is_set(): use_once(user)\n"
        "threads = [threading.Thread(target=busy) for _ in range(3)]\n"
        "for thread in threads: thread.start()\n"
        "def child():\n"
        "    check_refused(user); user.shutdown(); own = started(); own.shutdown()\n"
        "for _ in range(5): fork(child)\n"
        "over.set()\n"
        "for thread in threads: thread.join()\n"
        "user.shutdown(); print('over')\n"
    )
    assert host(script, kind) == "over"


def test_locks_that_other_threads_hold_at_the_fork() -> None:
    """Every lock of ours that a thread holds at a fork, and that of a log handler: in the child nobody waits for it."""
    script = FORKS + (
        "import contextlib, io, logging\n"
        "from procsched import _clock_watch, shared\n"
        "class Written(InMemoryTaskStore): pass\n"
        "log, ids, store, clock = EventLog(), SequentialIdGenerator(), InMemoryTaskStore(), FakeClock(0.0)\n"
        "torn = Scheduler(pool=ThreadPool(1), listeners=[EventLog()], store=Written())\n"
        "fresh = Scheduler(2, listeners=[EventLog()], store=Written())\n"
        "quiet = Scheduler(pool=InlinePool())\n"
        "executor = ProcessExecutor(1)\n"
        "handler = logging.StreamHandler(io.StringIO())\n"
        "logging.getLogger('procsched').addHandler(handler)\n"
        "unwatch = _clock_watch.watch_clock(int) if _clock_watch._timerfd.available() else int\n"
        "locks = [log._lock, ids._lock, store._lock, clock._lock, torn._lock, torn.pool._lock, fresh.delivery.lock,\n"
        "         fresh.writer._lock, fresh.pool.lock, fresh.pool.reading, quiet.pool._lock, executor._core.lock,\n"
        "         _clock_watch._watch_lock, shared._lock, handler.lock]\n"
        "held, go_on = threading.Event(), threading.Event()\n"
        "def hold():\n"
        "    with contextlib.ExitStack() as stack:\n"
        "        for lock in locks: stack.enter_context(lock)\n"
        "        held.set(); go_on.wait(60)\n"
        "thread = threading.Thread(target=hold, daemon=True); thread.start(); held.wait()\n"
        "def child():\n"
        "    log.on_task_event(object()); assert len(log.events) == 1 and not log.wait_for(lambda _: False, 0)\n"
        "    assert ids.next_id() == 'task-1' and store.load_all() == []\n"
        "    clock.advance(1); assert clock.now() == 1.0\n"
        "    check_refused(torn); assert torn.shutdown() == ShutdownReport()\n"
        "    assert hosts.use_scheduler(fresh) == hosts.USED and len(fresh.tasks()) == 4\n"
        "    assert quiet.stats() and quiet.schedule('t', abs, OneTime(9e9), args=(1,))\n"
        "    logging.getLogger('procsched').error('said'); assert 'said' in handler.stream.getvalue()\n"
        "    assert hosts.use_executor(executor) == hosts.USED\n"
        "    assert run(abs, -1, timeout=30) == 1\n"
        "    assert hosts.use('executor') == hosts.use('scheduler') == hosts.USED\n"
        "KIND = 'scheduler'\n"
        "fork(child)\n"
        "go_on.set(); thread.join(); unwatch(); print('over')\n"
    )
    assert host(script, "scheduler") == "over"


@pytest.mark.parametrize("kind", KINDS)
def test_a_child_of_multiprocessing_by_fork(kind: str) -> None:
    """It has the parent's pools as copies that refuse, and may end without shutting its own down."""
    script = FORKS + (
        "import multiprocessing\n"
        "context = multiprocessing.get_context('fork')\n"
        "user, queue = started(), context.SimpleQueue()\n"
        "def child():\n"
        "    check_refused(user)\n"
        "    own = started()\n"
        "    path = tempfile.mktemp()\n"
        "    if KIND == 'scheduler':\n"
        "        own.schedule('t', faults.sleep, OneTime(0), args=(path,))\n"
        "        queue.put(int(support.wait_for_file(path))); os.unlink(path)\n"
        "    else: queue.put(own.submit(os.getpid).result(30))\n"
        "process = context.Process(target=child, daemon=True)\n"
        "process.start(); worker = queue.get(); process.join(60)\n"
        "assert process.exitcode == 0, process.exitcode\n"
        "support.assert_gone(worker)\n"
        "use_once(user); user.shutdown(); print('over')\n"
    )
    assert host(script, kind) == "over"
