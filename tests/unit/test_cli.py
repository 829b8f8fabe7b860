"""The command line: what it accepts, what it refuses, its exit codes, and the pure parts of the demo."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import procsched
from procsched import (
    ExecutionRecord,
    FakeClock,
    InlinePool,
    Outcome,
    RetryPolicy,
    ScheduledTask,
    Scheduler,
    SqlTaskStore,
    Task,
)
from procsched.cli import __main__ as cli
from procsched.cli import demo, demo_jobs, demo_report, demo_view, tables
from procsched.cli.demo_cast import Act
from procsched.cli.quiet import only_errors_logged
from procsched.schedules import OneTime

PROCSCHED = [sys.executable, "-m", "procsched"]


# --- the command line ----------------------------------------------------------------------------------


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command the list of commands is on standard error, and the exit code says so."""
    assert cli.main([]) == cli.EXIT_USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert all(f"\n    {name} " in err for name in cli.COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` says which version it is and exits 0."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == cli.EXIT_OK
    assert capsys.readouterr().out == f"procsched {procsched.__version__}\n"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_of_each_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`procsched COMMAND --help` shows the command's own options."""
    with pytest.raises(SystemExit) as caught:
        cli.main([name, "--help"])
    assert caught.value.code == cli.EXIT_OK
    assert f"usage: procsched {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["--nonsense"], "unrecognized arguments"),
        (["demo", "--workers", "0"], "argument --workers: invalid positive number value: '0'"),
        (["demo", "--workers", "two"], "argument --workers: invalid positive number value: 'two'"),
        (["demo", "--seconds", "nan"], "argument --seconds: invalid positive number value: 'nan'"),
        (["demo", "one", "two"], "procsched demo: error: unrecognized arguments: two"),
        (["doctor", "--xml"], "procsched doctor: error: unrecognized arguments: --xml"),
        (["cron", "@daily", "--xml"], "usage: procsched cron "),
        (["cron"], "the following arguments are required: EXPRESSION"),
        (["cron", "0", "0", "CHANGELOG.md", "docs", "*"], "put all fields between quotes"),
        (["cron", "0", "0", "*", "*", "*", "--tz", "Europe/Berlin"], "put all fields between quotes"),
        (["cron", "0"], "'0' is no cron expression; put all fields between quotes"),
        (["cron", ""], "'' is no cron expression; put all fields between quotes"),
        (["cron", "@daily", "--from", "soon"], "--from 'soon' is no ISO date or time; write for example"),
    ],
)
def test_wrong_words_are_refused(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A word that makes no sense is named on standard error, with the exit code for it."""
    with pytest.raises(SystemExit) as caught:
        code = cli.main(words)
        raise SystemExit(code)
    assert caught.value.code == cli.EXIT_USAGE
    err = capsys.readouterr().err
    assert complaint in err or (words == ["--nonsense"] and "usage: procsched" in err)


def test_command_runs_and_its_code_is_returned(capsys: pytest.CaptureFixture[str]) -> None:
    """A command's exit code is that of the program."""
    assert cli.main(["cron", "0 3 * * *", "--from", "2026-01-01T00:00Z", "--next", "1"]) == cli.EXIT_OK
    assert capsys.readouterr().out == "2026-01-01T03:00:00+00:00  2026-01-01T03:00:00Z\n"
    assert cli.main(["cron", "0 25 * * *"]) == cli.EXIT_USAGE


@pytest.mark.parametrize(
    ("start", "due"),
    [
        ("2026-03-28", "2026-03-28T03:00:00+01:00  2026-03-28T02:00:00Z"),
        ("2026-03-28T03:00", "2026-03-29T03:00:00+02:00  2026-03-29T01:00:00Z"),
        ("2026-03-28T03:00Z", "2026-03-29T03:00:00+02:00  2026-03-29T01:00:00Z"),
        ("2026-03-28T03:00+02:00", "2026-03-28T03:00:00+01:00  2026-03-28T02:00:00Z"),
    ],
)
def test_start_without_offset_is_in_the_zone(
    start: str, due: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--from` is what the clock on the wall of `--tz` shows, unless it has an offset of its own."""
    words = ["cron", "0 3 * * *", "--tz", "Europe/Berlin", "--next", "1", "--from", start]
    assert cli.main(words) == cli.EXIT_OK
    assert capsys.readouterr().out == f"{due}\n"


def test_interrupt_has_its_own_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C is said in one line, without a traceback."""

    def interrupted(_arguments: object) -> int:
        raise KeyboardInterrupt

    module = types.ModuleType("interrupted")
    module.add_parser = lambda subparsers: subparsers.add_parser("stop").set_defaults(run=interrupted)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "interrupted", module)
    monkeypatch.setitem(cli.COMMANDS, "stop", ("interrupted", "stop"))  # type: ignore[arg-type]
    assert cli.main(["stop"]) == cli.EXIT_INTERRUPTED == 130
    assert capsys.readouterr().err == "procsched: interrupted\n"


def test_each_command_loads_only_itself() -> None:
    """Listing due times does not import the demo, nor what runs processes."""
    program = (
        "import sys; from procsched.cli.__main__ import main; main(['cron', '@daily', '--next', '1'])\n"
        "print(*[name for name in sys.modules if name.startswith('procsched.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert "procsched.cli.cron" in loaded
    assert not [name for name in loaded if "demo" in name or "doctor" in name or "workers" in name]


def test_output_that_nobody_reads() -> None:
    """`procsched ... | head -1` ends quietly."""
    with subprocess.Popen(
        [*PROCSCHED, "cron", "* * * * *", "--next", "200000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.readline()
        program.stdout.close()
        assert program.stderr.read() == b""
    assert program.returncode == cli.EXIT_NO_READER


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_demo_without_files(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path without Python files is named, and nothing is started."""
    (tmp_path / "empty").mkdir()
    assert cli.main(["demo", str(tmp_path / name)]) == demo.EXIT_USAGE
    assert f"no Python file in {tmp_path / name}" in capsys.readouterr().out


def test_commands_leave_the_logger_as_it_was(tmp_path: Path) -> None:
    """While the demo runs procsched logs errors only; afterwards, also after an interrupt, it logs as before."""
    logger = logging.getLogger("procsched")
    before = logger.level
    assert cli.main(["demo", str(tmp_path)]) == demo.EXIT_USAGE
    assert logger.level == before
    with pytest.raises(KeyboardInterrupt), only_errors_logged():
        assert logger.level == logging.ERROR
        raise KeyboardInterrupt
    assert logger.level == before


# --- the jobs of the demo ------------------------------------------------------------------------------

SAMPLE = '''\
"""See PEP 8 and https://example.org/style."""
import os.path
from collections import abc
from . import sibling

class Thing:
    def short(self): pass

async def long():
    # TODO: nothing
    return 1
'''


def test_analyse(tmp_path: Path) -> None:
    """The analysis counts what is in a file."""
    file = tmp_path / "sample.py"
    file.write_text(SAMPLE)
    assert demo_jobs.analyse(str(file)) == demo_jobs.FileReport(
        parsed=True,
        lines=11,
        functions=2,
        classes=1,
        longest=(3, "long"),
        modules=("collections", "os"),
        markers=1,
        links=1,
        peps=("8",),
    )


@pytest.mark.parametrize("data", [b"def f(:\n", b"x = 1\0\n", b"\xff\xfe = 1\n"])
def test_analyse_what_does_not_parse(data: bytes, tmp_path: Path) -> None:
    """A file that is no Python is counted as such, and is no failure."""
    file = tmp_path / "broken.py"
    file.write_bytes(data)
    report = demo_jobs.analyse(str(file))
    assert not report.parsed
    assert report.lines == 1


def test_tempting_line_is_found(tmp_path: Path) -> None:
    """The first line of words that ends in something else is found; where there is none, the module has one."""
    file = tmp_path / "file.py"
    file.write_text("x = 1\n# one two three four five six seven eight nine ten eleven, and so on\n")
    assert demo_jobs.find_tempting_line([str(tmp_path / "missing.py"), str(file)]) == (str(file), 2)
    file.write_text("x = 1\n")
    assert demo_jobs.find_tempting_line([str(file)])[0] == demo_jobs.__file__


def test_flaky_counts_outside_the_process(tmp_path: Path) -> None:
    """It fails twice and then succeeds, whatever process it is in."""
    file = str(tmp_path / "attempts")
    for _ in range(demo_jobs.FAILURES):
        with pytest.raises(ConnectionError):
            demo_jobs.flaky(file)
    assert demo_jobs.flaky(file) == "answered at try 3"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii:strict", "utf-8"])
def test_any_name_is_shown_on_any_terminal(tmp_path: Path, encoding: str) -> None:
    """What the encoding lacks comes as codes, and the rows behind it come as well; JSON is ASCII."""
    pytest.importorskip("sqlalchemy")
    url = f"sqlite:///{tmp_path}/jobs.db"
    with Scheduler(pool=InlinePool(), clock=FakeClock(0.0), store=SqlTaskStore(url)) as scheduler:
        for name in ("日本", "café", "last"):
            scheduler.schedule(name, print, OneTime(1000.0))
        scheduler.shutdown(drain=False)
    said = {
        as_json: subprocess.run(
            [*PROCSCHED, "ps", "--store", url, *(["--json"] if as_json else [])],
            capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": encoding},
            timeout=60,
        )
        for as_json in (False, True)
    }
    assert [done.stderr for done in said.values()] == [b"", b""]
    assert [done.returncode for done in said.values()] == [0, 0]
    table = said[False].stdout.decode(encoding.partition(":")[0])
    assert "last" in table
    assert ("日本" if encoding == "utf-8" else "\\u65e5\\u672c") in table
    assert ("caf\\xe9" if encoding == "ascii:strict" else "café") in table
    assert said[True].stdout.isascii()
    assert {task["name"] for task in json.loads(said[True].stdout)} == {"日本", "café", "last"}


# --- what it tells -------------------------------------------------------------------------------------


def act(*records: ExecutionRecord, expected: tuple[Outcome, ...], **fields: object) -> Act:
    """Return an act named `act` with a timeout of 1.5 s and a grace of 0.25 s."""
    task = Task("task-1", "act", print, retry=RetryPolicy(), timeout=1.5, grace=0.25)
    return Act(ScheduledTask(task, OneTime(0)), "acts", expected, records=list(records), **fields)  # type: ignore[arg-type]


def record(outcome: Outcome = Outcome.SUCCEEDED, seconds: float = 1.0, **fields: object) -> ExecutionRecord:
    """Return a record of an attempt that took `seconds`."""
    ok, timed_out = outcome is Outcome.SUCCEEDED, outcome is Outcome.TIMED_OUT
    return ExecutionRecord(1, 0.0, seconds, ok, None, timed_out, outcome=outcome, **fields)  # type: ignore[arg-type]


def test_verdict_of_an_act() -> None:
    """What came is compared with what was foretold, in words."""
    done, failed = record(), record(Outcome.FAILED)
    assert act(failed, done, expected=(Outcome.FAILED, Outcome.SUCCEEDED)).verdict() == []
    assert act(done, done, done, expected=(Outcome.SUCCEEDED,), recurs=True).verdict() == []
    assert act(done, expected=(Outcome.TIMED_OUT,)).verdict() == [
        "act: foretold was timed_out, it came out succeeded"
    ]
    assert act(expected=(Outcome.KILLED,)).verdict() == ["act: foretold was killed, it came out nothing"]
    crashed = record(Outcome.CRASHED, signal="SIGABRT")
    assert act(crashed, expected=(Outcome.CRASHED,), signal="SIGSEGV").verdict() == [
        "act: foretold was SIGSEGV, it died by SIGABRT"
    ]


def test_lateness_counts_from_deadline_and_grace() -> None:
    """How late a kill was is what lies between the end of the grace and the end of the run."""
    hung = act(record(Outcome.TIMED_OUT, 1.752), expected=(Outcome.TIMED_OUT,))
    assert hung.lateness() == pytest.approx(0.002)
    assert hung.verdict() == []
    assert act(record(), expected=()).lateness() is None
    late = act(record(Outcome.TIMED_OUT, 4.0), expected=(Outcome.TIMED_OUT,))
    assert late.verdict() == ["act: it was ended 2.2 s too late"]


def test_kill_lines() -> None:
    """Each kill has a line that says how late it was."""
    hung = act(record(Outcome.TIMED_OUT, 1.7521), expected=(Outcome.TIMED_OUT,))
    assert demo_report.kill_lines({"act": hung}, 0.0013, "process 5 is gone") == [
        "  act        its whole tree was dead 2.1 ms after its deadline and 0.25 s of grace",
        "  cancelled  dead 1.3 ms after the call that cancelled it",
        "  daemon     process 5 is gone",
    ]


def test_table_rows() -> None:
    """All files are one row, the slowest have their own, and so has each troublemaker."""
    files = [
        (f"{n}.py", record(seconds=n / 10, cpu_seconds=0.5, peak_rss=n * 1_000_000)) for n in range(1, 6)
    ]
    troubles = {"act": act(record(Outcome.FAILED), record(), expected=())}
    rows = demo_report.table_rows(files, troubles)
    assert rows[0][:6] == ("5 files", "5", "5 x succeeded", "1.50 s", "2.50 s", "5.0 MB")
    assert [row.task for row in rows[1:4]] == ["  5.py", "  4.py", "  3.py"]
    assert rows[4] == ("act", "2", "failed, succeeded", "2.00 s", "", "", "")


def test_findings() -> None:
    """The findings sum up the reports, and leave out files that were not analysed."""
    report = demo_jobs.FileReport(True, 10, 2, 1, (5, "f"), ("os", "re"), 1, 1, ("8",))
    files = [
        ("a.py", record(result=report)),
        ("b.py", record(result=report._replace(longest=(7, "g"), modules=("os",)))),
        ("c.py", record(result=demo_jobs.FileReport(lines=1))),
        ("d.py", record(Outcome.TIMED_OUT)),
    ]
    assert demo_report.finding_lines(files) == [
        "  21 lines, 4 functions, 2 classes",
        "  longest function: g, 7 lines, in b.py",
        "  most imported: os (2), re (1)",
        "  most mentioned: PEP 8 (2)",
        "  2 marks such as FIXME, 2 links",
        "  1 do not parse, such as c.py",
    ]


def test_plain_view_says_at_most_one_line_a_second(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However often the demo moves, the log of a run without a terminal stays short."""
    now = 100.0
    monkeypatch.setattr(demo_view.time, "monotonic", lambda: now)
    view = demo_view.PlainView()
    for step in range(41):
        now = 100.0 + step * 0.05
        view.progress(step, 1000, "beat")
    assert capsys.readouterr().out == "  1.0 s    20/1000 files  beat\n  2.0 s    40/1000 files  beat\n"


def test_plain_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    """The columns of the table stand below each other, numbers to the right."""
    demo_view.PlainView().table([demo_view.Row("a", "1", "failed", "1.00 s", "", "2.0 MB", "why")])
    assert capsys.readouterr().out.splitlines() == [
        "task  attempts  outcome  duration  CPU  peak memory",
        "a            1  failed     1.00 s            2.0 MB  why",
    ]


def test_view_without_a_terminal_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output that is no terminal gets plain lines, whether `rich` is there or not."""
    assert isinstance(demo_view.open_view(plain=False), demo_view.PlainView)


def test_view_on_a_terminal_is_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets the moving view if `rich` is installed, and plain lines otherwise or where asked for."""
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert isinstance(demo_view.open_view(plain=False), demo_view.RichView)
    assert isinstance(demo_view.open_view(plain=True), demo_view.PlainView)
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert isinstance(demo_view.open_view(plain=False), demo_view.PlainView)


def test_rich_view_moves_and_stops(capsys: pytest.CaptureFixture[str]) -> None:
    """The moving view writes news, a bar and a table, and leaves no thread behind."""
    pytest.importorskip("rich")
    view = demo_view.RichView()
    view.progress(1, 2, "beat")
    view.say("news [not markup]")
    view.close()
    view.table([demo_view.Row("a", "1", "failed", "1.00 s", "", "2.0 MB", "[why]")])
    out = capsys.readouterr().out
    assert "news [not markup]" in out
    assert "[why]" in out
    assert "1/2" in out


@pytest.mark.parametrize("width", [80, 160])
def test_times_are_whole_on_any_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time is on one line. Where there is no room for its offset it goes without."""
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    heads = ("id", "name", "status", "next run", "attempt", "pid", "last", "schedule")
    at = tables.when(1_800_000_000.0)
    tables.print_table(
        heads, [("task-1", "report", "scheduled", at, 1, 12345, "succeeded", "0 3 * * * Europe/Berlin")]
    )
    out = capsys.readouterr().out
    assert (at in out, at[:19] in out) == (width == 160, True)


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_rich_table_is_readable(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    """No word of the table is cut off, also on a terminal of 80 columns."""
    pytest.importorskip("rich")
    path, text = (
        "  test/...fication.py",
        "exceeded its 1.5 s budget, the text to match was line 24 of __future__.py",
    )
    rows = [
        demo_view.Row(
            "1,786 files", "1,786", "1,786 x succeeded", "102.11 s", "651.90 s", "1520.1 MB", "one each"
        ),
        demo_view.Row(path, "1", "succeeded", "2.11 s", "2.90 s", "52.1 MB", "among the slowest"),
        demo_view.Row("backtrack", "1", "timed_out", "1.50 s", "1.49 s", "20.1 MB", text),
        demo_view.Row("flaky", "3", "failed, failed, succeeded", "1.1 ms", "", "20.1 MB", ""),
    ]
    view = demo_view.RichView()
    view._bar.console.width = width  # type: ignore[attr-defined]
    view.table(rows)
    out = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)  # without colours
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= width
    for word in " ".join(" ".join(row) for row in rows).split():
        assert word in out
