"""The attacks, as source texts: each tries a number of things and returns what came of each.

`attack(t)` gets a dictionary of what it might want to hurt (`Canaries.arguments`) and returns pairs: what it tried, and
"worked" or the name of an error. Without a sandbox (`control.py`) the things that `Attack.works` names must work, or
else the test proves nothing; in a sandbox nothing may work but what `Attack.allowed` names.
"""

from __future__ import annotations

from typing import NamedTuple

PRELUDE = '''
import ctypes, errno, fcntl, mmap, os, resource, signal, socket, struct, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"

def call(number, *arguments):
    """Make a system call, by its number on x86_64."""
    if not X86:
        raise OSError(errno.ENOSYS, "no numbers for this machine")
    libc.syscall.restype = ctypes.c_long
    made = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    answer = libc.syscall(ctypes.c_long(number), *made)
    if answer == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    if answer == 0 and number in (56, 435):  # clone, clone3: this is the child
        os._exit(0)
    return answer

def name_of(error):
    if isinstance(error, OSError) and error.errno in errno.errorcode:
        return errno.errorcode[error.errno]
    return type(error).__name__

def tried(what, function, *arguments):
    """Return what was tried, and what came of it."""
    try:
        function(*arguments)
    except Exception as error:
        return [what, name_of(error)]
    return [what, "worked"]

def read(path):
    with open(path, "rb") as file:
        return file.read(4096)

def write(path, data):
    with open(path, "wb", buffering=0) as file:
        file.write(data)

def fork():
    """Fork, and let the child exit."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
'''


class Attack(NamedTuple):
    """One attack.

    Attributes:
        name: what it is about.
        body: the source of `attack(t)`, and what it needs.
        works: what must work without a sandbox.
        allowed: what may work in one, because it does no harm.
        killed: whether the kernel may end it for the attempt.
    """

    name: str
    body: str
    works: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    killed: bool = False

    @property
    def source(self) -> str:
        return PRELUDE + self.body


ATTACKS = [
    # -- secrets and files (16 to 20 of the list) --------------------------------------------------------
    Attack(
        "read files",
        """
def attack(t):
    paths = ["/etc/passwd", "/etc/shadow", "/etc/hostname", "/etc/ssl/private", "/root/.bashrc", t["file"], "/proc/self/environ",
             "/proc/self/maps", "/proc/self/mem", "/proc/cpuinfo", "/sys/kernel/uevent_seqnum", "/dev/mem", "/dev/tty",
             "/dev/kmsg", "/var/log/dpkg.log", "/run/utmp", "/dev/shm/.", "/usr/share/doc"]
    found = [tried(path, read, path) for path in paths]
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_PATH | os.O_DIRECTORY):
        found.append(tried(f"open canary with {flags}", lambda: os.open(t["file"], flags)))
    return found
""",
        works=("/etc/passwd", "canary", "/proc/self/environ", "/proc/self/maps"),
    ),
    Attack(
        "look into the parent",
        """
def attack(t):
    p = t["parent"]
    found = [tried(f"{name}", read, f"/proc/{p}/{name}") for name in ("environ", "cmdline", "maps", "status")]
    found.append(tried("fd", os.listdir, f"/proc/{p}/fd"))
    found.append(tried("mem", lambda: os.open(f"/proc/{p}/mem", os.O_RDWR)))
    found.append(tried("processes", os.listdir, "/proc"))
    found.append(tried("own descriptors", os.listdir, "/dev/fd"))
    return found
""",
        works=("environ", "cmdline", "maps", "fd", "mem", "processes"),
    ),
    Attack(
        "list directories",
        """
def attack(t):
    paths = ["/", "/tmp", "/home", "/dev", "/sys", "/proc", "/etc", "/root", "/var", "/run", "/opt", "/srv", "/boot", t["directory"],
             "..", "/mnt"]
    return [tried(path, os.listdir, path) for path in paths]
""",
        works=("/", "/tmp", "/etc", "/dev"),
    ),
    Attack(
        "write",
        """
def attack(t):
    import sysconfig
    places = ["/tmp", "/dev/shm", "/var/tmp", "/", os.path.dirname(sys.executable or "/usr/bin/x"), os.path.dirname(os.__file__),
              sysconfig.get_path("purelib"), t["directory"], os.getcwd(), "/run/user", "/usr/lib"]
    found = []
    for place in places:
        path = os.path.join(place, f"written-{os.getpid()}")
        found.append(tried(f"create in {place}", lambda: os.open(path, os.O_CREAT | os.O_WRONLY)))
        found.append(tried(f"mkdir in {place}", os.mkdir, path + "-d"))
        try:
            os.unlink(path); os.rmdir(path + "-d")
        except OSError:
            pass
    found.append(tried("truncate", os.truncate, t["file"], 0))
    found.append(tried("unlink", os.unlink, t["file"]))
    found.append(tried("rename", os.rename, t["file"], t["file"] + "2"))
    found.append(tried("O_TMPFILE", lambda: os.open("/tmp", os.O_TMPFILE | os.O_RDWR)))
    found.append(tried("append", lambda: os.open(t["file"], os.O_APPEND | os.O_WRONLY)))
    return found
""",
        works=("create in /tmp", "mkdir in /tmp", "truncate", "O_TMPFILE"),
    ),
    Attack(
        "change metadata",
        """
def attack(t):
    path = t["file"]
    found = [
        tried("chmod", os.chmod, path, 0o666),
        tried("utime", os.utime, path, (1, 1)),
        tried("setxattr", os.setxattr, path, b"user.evil", b"1"),
        tried("listxattr", os.listxattr, path),
        tried("chown", os.chown, path, os.getuid(), os.getgid()),
        tried("link", os.link, path, path + "-link"),
        tried("symlink", os.symlink, path, path + "-symlink"),
        tried("mkfifo", os.mkfifo, path + "-fifo"),
        tried("mknod", os.mknod, path + "-socket", 0o140600),
        tried("inotify", call, 254, (libc.inotify_init1(0)), path.encode(), 0xFFF),
        tried("fchmod a readable file", lambda: os.fchmod(os.open(os.__file__, os.O_RDONLY), 0o777)),
    ]
    for name in ("-link", "-symlink", "-fifo", "-socket"):
        try:
            os.unlink(path + name)
        except OSError:
            pass
    return found
""",
        works=("chmod", "utime", "chown", "link", "symlink", "mkfifo"),
    ),
    # -- the parent and siblings (24 to 29) --------------------------------------------------------------
    Attack(
        "send signals",
        """
def attack(t):
    found = []
    for which in ("parent", "sibling"):
        pid = t[which]
        found += [
            tried(f"kill {which} with 0", os.kill, pid, 0),
            tried(f"tkill {which}", call, 200, pid, 0),
            tried(f"tgkill {which}", call, 234, pid, pid, 0),
            tried(f"rt_sigqueueinfo {which}", call, 129, pid, signal.SIGCONT, struct.pack("iiiiQ", 18, 0, -1, 0, 0) + bytes(104)),
            tried(f"rt_tgsigqueueinfo {which}", call, 297, pid, pid, signal.SIGCONT, struct.pack("iiiiQ", 18, 0, -1, 0, 0) + bytes(104)),
            tried(f"pidfd_open {which}", lambda: signal.pidfd_send_signal(os.pidfd_open(pid), 0)),
            tried(f"stop {which}", os.kill, pid, signal.SIGSTOP),
            tried(f"let {which} go on", os.kill, pid, signal.SIGCONT),
        ]
    found += [tried("kill a group", os.kill, -os.getppid(), 0), tried("kill the own group", os.kill, 0, 0), tried("kill init", os.kill, 1, 0)]
    found.append(tried("kill everything", os.kill, -1, 0))
    found.append(tried("kill sibling", os.kill, t["sibling"], 9))
    return found
""",
        works=("kill parent with 0", "tgkill parent", "pidfd_open sibling", "stop sibling", "kill sibling"),
    ),
    Attack(
        "limit and slow down others",
        """
def attack(t):
    found = []
    for which in ("sibling", "parent"):
        pid = t[which]
        found += [
            tried(f"limit {which}", resource.prlimit, pid, resource.RLIMIT_CORE, (0, 0)),
            tried(f"CPU of {which}", resource.prlimit, pid, resource.RLIMIT_CPU, (3000, 3000)),
            tried(f"files of {which}", resource.prlimit, pid, resource.RLIMIT_NOFILE, (100, 100)),
            tried(f"read limits of {which}", resource.prlimit, pid, resource.RLIMIT_CPU),
            tried(f"priority of {which}", os.setpriority, os.PRIO_PROCESS, pid, 19),
            tried(f"processor of {which}", os.sched_setaffinity, pid, {min(os.sched_getaffinity(0))}),
            tried(f"scheduler of {which}", os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0)),
            tried(f"sched_setattr of {which}", call, 314, pid, struct.pack("IIQiIQQQ", 48, 5, 0, 0, 0, 0, 0, 0), 0),
            tried(f"I/O class of {which}", call, 251, 1, pid, 3 << 13),
            tried(f"priority of the user of {which}", os.setpriority, os.PRIO_USER, os.getuid(), 19),
        ]
    return found
""",
        works=(
            "limit parent",
            "CPU of parent",
            "priority of parent",
            "processor of parent",
            "scheduler of parent",
            "I/O class of parent",
        ),
    ),
    Attack(
        "have the kernel send signals",
        """
def attack(t):
    ours, theirs = socket.socketpair()
    pid = t["sibling"]
    found = [
        tried("F_SETOWN", fcntl.fcntl, ours, fcntl.F_SETOWN, pid),
        tried("F_SETOWN_EX", fcntl.fcntl, ours, 15, struct.pack("ii", 1, pid)),
        tried("F_SETSIG", fcntl.fcntl, ours, 10, 9),
        tried("O_ASYNC", fcntl.fcntl, ours, fcntl.F_SETFL, os.O_ASYNC),
        tried("FIOSETOWN", fcntl.ioctl, ours, 0x8901, struct.pack("i", pid)),
        tried("SIOCSPGRP", fcntl.ioctl, ours, 0x8902, struct.pack("i", pid)),
        tried("FIOASYNC", fcntl.ioctl, ours, 0x5452, struct.pack("i", 1)),
        tried("F_NOTIFY", fcntl.fcntl, os.open(os.path.dirname(os.__file__), os.O_RDONLY), 1026, 16),
        tried("timer", call, 222, 0, struct.pack("Pii48x", 0, 9, 4) , bytes(8)),
    ]
    theirs.send(b"x")
    return found
""",
        works=("F_SETOWN", "F_SETSIG", "O_ASYNC"),
    ),
    Attack(
        "trace others",
        """
def attack(t):
    found = []
    for which in ("parent", "sibling"):
        pid = t[which]
        room = ctypes.create_string_buffer(64)
        part = struct.pack("PQ", ctypes.addressof(room), 64)
        found += [
            tried(f"ptrace seize {which}", call, 101, 0x4206, pid, 0, 0),
            tried(f"ptrace attach {which}", call, 101, 16, pid, 0, 0),
            tried(f"read memory of {which}", call, 310, pid, part, 1, part, 1, 0),
            tried(f"write memory of {which}", call, 311, pid, part, 1, part, 1, 0),
            tried(f"pidfd_getfd {which}", lambda: call(438, os.pidfd_open(pid), 0, 0)),
            tried(f"kcmp {which}", call, 312, os.getpid(), pid, 0, 0, 0),
            tried(f"process_madvise {which}", lambda: call(440, os.pidfd_open(pid), part, 1, 21, 0)),
            tried(f"move_pages {which}", call, 279, pid, 0, 0, 0, 0, 0),
            tried(f"robust list of {which}", call, 274, pid, bytes(8), bytes(8)),
        ]
    found.append(tried("trace itself", call, 101, 0, 0, 0, 0))
    return found
""",
        works=("ptrace seize sibling", "pidfd_getfd parent"),
    ),
    Attack(
        "outlive the parent",
        """
def attack(t):
    return [
        tried("clear the parent-death signal", call, 157, 1, 0, 0, 0, 0),
        tried("become a subreaper", call, 157, 36, 1, 0, 0, 0),
        tried("be dumpable", call, 157, 4, 1, 0, 0, 0),
        tried("a session of its own", os.setsid),
        tried("a group of its own", os.setpgid, 0, 0),
        tried("let anybody trace it", call, 157, 0x59616D61, -1, 0, 0, 0),
        tried("keep capabilities", call, 157, 8, 1, 0, 0, 0),
        tried("personality", call, 135, 0x0040000),
    ]
""",
        works=("clear the parent-death signal", "become a subreaper", "be dumpable"),
    ),
    # -- network (31, 32) --------------------------------------------------------------------------------
    Attack(
        "make sockets",
        """
def connected(family, kind, address):
    made = socket.socket(family, kind)
    made.connect(address)
    made.send(b"x")

def attack(t):
    found = []
    for family in ("AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG", "AF_BLUETOOTH"):
        for kind in ("SOCK_STREAM", "SOCK_DGRAM", "SOCK_RAW"):
            found.append(tried(f"{family} {kind}", socket.socket, getattr(socket, family, 99), getattr(socket, kind)))
    found += [
        tried("connect by TCP", connected, socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", t["tcp"])),
        tried("connect by UDP", connected, socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", t["udp"])),
        tried("connect to a path", connected, socket.AF_UNIX, socket.SOCK_DGRAM, t["path"]),
        tried("connect to a path by a stream", connected, socket.AF_UNIX, socket.SOCK_STREAM, t["path"] + "-stream"),
        tried("connect to an abstract name", connected, socket.AF_UNIX, socket.SOCK_DGRAM, "\\0" + t["abstract"]),
        tried("look up a name", socket.getaddrinfo, "localhost", 80),
    ]
    return found
""",
        works=(
            "AF_INET SOCK_STREAM",
            "connect by TCP",
            "connect by UDP",
            "connect to a path",
            "connect to a path by a stream",
            "connect to an abstract name",
        ),
    ),
    Attack(
        "send through pairs of sockets",
        """
def pair(kind, send):
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    send(ours)

def header(address):
    room = ctypes.create_string_buffer(struct.pack("H", 1) + address + b"\\0")
    data = ctypes.create_string_buffer(b"x")
    part = ctypes.create_string_buffer(struct.pack("PQ", ctypes.addressof(data), 1))
    keep.extend((room, data, part))
    return struct.pack("PIxxxxPQPQi4x", ctypes.addressof(room), len(address) + 2, ctypes.addressof(part), 1, 0, 0, 0)

keep = []

def attack(t):
    found = []
    for name, kind in (("DGRAM", socket.SOCK_DGRAM), ("SEQPACKET", socket.SOCK_SEQPACKET), ("STREAM", socket.SOCK_STREAM)):
        for what, address in (("path", t["path"]), ("abstract name", "\\0" + t["abstract"])):
            found.append(tried(f"{name} to a {what}", pair, kind, lambda s: s.sendto(b"x", address)))
            found.append(tried(f"{name} connects to a {what}", pair, kind, lambda s: s.connect(address)))
            found.append(tried(f"{name} sendmsg to a {what}", pair, kind, lambda s: call(46, s.fileno(), header(address.encode()), 0)))
    def descriptors(s):
        s.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", 0))])
    found.append(tried("send descriptors", pair, socket.SOCK_STREAM, descriptors))
    found.append(tried("larger buffers", pair, socket.SOCK_STREAM, lambda s: s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)))
    def plain(s):
        s.send(b"x")
    found.append(tried("a plain pair", pair, socket.SOCK_STREAM, plain))
    return found
""",
        works=("DGRAM to a path", "DGRAM to a abstract name", "send descriptors", "a plain pair"),
        allowed=("a plain pair",),
    ),
    # -- kernel surface (43, 44) -------------------------------------------------------------------------
    Attack(
        "execute programs",
        """
def spawned(*arguments):
    import subprocess
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)

def from_memory():
    fd = os.memfd_create("x")
    with open("/bin/true", "rb") as file:
        os.write(fd, file.read())
    call(322, fd, b"", 0, 0, 0x1000)

def system():
    if os.system("true"):
        raise PermissionError(errno.EPERM, "the shell did not run")

def replaced():
    os.execv(sys.executable or "/usr/bin/env", ["x"])

def attack(t):
    found = [
        tried("subprocess", spawned, "/usr/bin/env"),
        tried("posix_spawn", lambda: os.waitpid(os.posix_spawn("/usr/bin/env", ["env", "true"], {}), 0)),
        tried("fork", fork),
        tried("system", system),
        tried("multiprocessing", processes),
    ]
    if t.get("confined"):
        found += [tried("memfd", from_memory), tried("exec", replaced), tried("exec nothing", lambda: os.execv("/nowhere", ["x"]))]
    else:
        found.append(tried("memfd", lambda: os.memfd_create("x")))
    return found

def processes():
    import multiprocessing
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
""",
        works=("subprocess", "posix_spawn", "fork", "memfd"),
        allowed=("fork",),  # where several processes are allowed; see the tests of the tree
    ),
    Attack(
        "reach for the kernel",
        """
CALLS = {
    "io_uring_setup": (425, 1, bytes(120)), "keyctl read": (250, 11, 0, 0, 0), "keyctl session": (250, 0, -3, 0),
    "add_key": (248, b"user", b"x", b"y", 1, -3), "request_key": (249, b"user", b"canary", 0, -3),
    "userfaultfd": (323, 1), "bpf": (321, 0, bytes(72), 72), "perf_event_open": (298, bytes(112), 0, -1, -1, 0),
    "unshare user": (272, 0x10000000), "unshare mount": (272, 0x20000), "setns": (308, 0, 0), "mount": (165, b"x", b"/", b"tmpfs", 0, 0),
    "umount2": (166, b"/", 0), "pivot_root": (155, b"/", b"/"), "chroot": (161, b"/"),
    "clone3": (435, bytes(88), 88), "fanotify_init": (300, 0, 0), "shmget": (29, 0, 4096, 0o1600), "semget": (64, 0, 1, 0o1600),
    "msgget": (68, 0, 0o1600), "mq_open": (240, b"canary", 0o102, 0o600, 0), "memfd_create": (319, b"x", 0),
    "memfd_secret": (447, 0), "syslog": (103, 10, 0, 0), "swapon": (167, b"/x", 0), "swapoff": (168, b"/x"),
    "name_to_handle_at": (303, -100, b"/usr", struct.pack("Ii", 128, 0) + bytes(128), bytes(8), 0),
    "open_by_handle_at": (304, 3, struct.pack("Ii", 8, 1) + bytes(8), 0), "reboot": (169, 0, 0, 0, 0),
    "init_module": (175, bytes(8), 8, b""), "finit_module": (313, 0, b"", 0), "kexec_load": (246, 0, 0, 0, 0),
    "settimeofday": (164, 0, 0), "clock_settime": (227, 0, 0), "adjtimex": (159, bytes(208)), "sethostname": (170, b"x", 1),
    "iopl": (172, 3), "ioperm": (173, 0, 1, 1), "modify_ldt": (154, 0, bytes(16), 16), "acct": (163, 0), "quotactl": (179, 0, 0, 0, 0),
    "setuid 0": (105, 0), "setresuid": (117, 0, 0, 0), "setgroups": (116, 0, 0), "capset": (126, struct.pack("Ii", 0x20080522, 0), b"\\xff" * 24),
    "mlock": (149, 0, 4096), "mlockall": (151, 1), "sync": (162,), "syncfs": (306, 0), "vmsplice": (278, 1, 0, 0, 0),
    "splice": (275, 0, 0, 1, 0, 1, 0), "tee": (276, 0, 1, 1, 0), "landlock": (444, 0, 0, 1), "seccomp": (317, 2, 0, b"\\0\\0\\xff\\x7f"),
    "prctl seccomp": (157, 22, 2, 0, 0, 0), "fsopen": (430, b"tmpfs", 0), "open_tree": (428, -100, b"/", 1), "move_mount": (429, -100, b"/", -100, b"/", 0),
    "migrate_pages": (256, 0, 0, 0, 0), "set_mempolicy": (238, 0, 0, 0), "lookup_dcookie": (212, 0, 0, 0), "timer_create": (222, 0, 0, bytes(8)),
    "nfsservctl": (180, 0, 0, 0), "cachestat": (451, 0, 0, 0, 0), "map_shadow_stack": (453, 0, 0, 0), "statmount": (457, 0, 0, 0, 0),
    "listmount": (458, 0, 0, 0, 0), "lsm_get_self_attr": (459, 0, 0, 0, 0), "beyond": (900,),
}

def attack(t):
    key = t["key"]
    found = [
        tried("read the canary's key", call, 250, 11, key, ctypes.create_string_buffer(256), 256),
        tried("link the key elsewhere", call, 250, 8, key, -2),
        tried("let all use the key", call, 250, 5, key, 0x3F3F3F3F),
        tried("change the key", call, 250, 2, key, b"evil", 4),
    ]
    found += [tried(name, call, *arguments) for name, arguments in CALLS.items()]
    found.append(tried("revoke the key", call, 250, 3, key))
    return found
""",
        works=(
            *("shmget", "semget", "memfd_create", "keyctl session", "request_key", "sync", "landlock"),
            *("read the canary's key", "let all use the key", "change the key", "revoke the key"),
        ),
    ),
    # -- ours: not on the list ---------------------------------------------------------------------------
    Attack(
        "make the host wait for a file",
        """
def attack(t):
    path = os.__file__
    fd = os.open(path, os.O_RDONLY)
    mine = t["file"]
    found = [
        tried("flock", fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB),
        tried("lock for reading", fcntl.lockf, fd, fcntl.LOCK_SH | fcntl.LOCK_NB),
        tried("lock an open file", fcntl.fcntl, fd, 37, struct.pack("hhqqi4x", 0, 0, 0, 1, 0)),
        tried("lease", fcntl.fcntl, fd, 1024, 0),
        tried("lease of the canary", lambda: fcntl.fcntl(os.open(mine, os.O_RDONLY), 1024, 0)),
        tried("delegation", fcntl.fcntl, fd, 1024, 1),
    ]
    os.close(fd)
    return found
""",
        works=("flock", "lock for reading", "lease of the canary"),
    ),
    Attack(
        "be somebody else's child",
        """
def cloned(flags):
    pid = call(56, flags, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)

def attack(t):
    found = [
        tried("clone with CLONE_PARENT", cloned, 0x8000 | 17),
        tried("clone with CLONE_PTRACE", cloned, 0x2000 | 17),
        tried("clone into a cgroup", cloned, 0x2000000 | 17),
        tried("clone without a signal", cloned, 0),
        tried("clone with a user namespace", cloned, 0x10000000 | 17),
        tried("clone with a pid namespace", cloned, 0x20000000 | 17),
    ]
    return found
""",
        works=("clone with CLONE_PARENT", "clone without a signal"),
        allowed=("clone without a signal",),  # as fork
    ),
    Attack(
        "enter the kernel by another door",
        """
def run(code):
    room = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    room.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    keep.append(room)
    return ctypes.CFUNCTYPE(ctypes.c_long)(address)()

keep = []

def attack(t):
    # mov eax, 20 (getpid for 32 bits); int 0x80; ret
    found = [tried("int 0x80", run, bytes.fromhex("b814000000cd80c3"))]
    # mov eax, 0x40000027 (getpid of x32); syscall; ret
    found.append(tried("x32", run, bytes.fromhex("b8270000400f05c3")))
    return found
""",
        works=("int 0x80",),
        killed=True,
    ),
    Attack(
        "raise its own limits",
        """
def attack(t):
    found = []
    for name in ("AS", "CPU", "NOFILE", "FSIZE", "CORE", "NPROC", "MEMLOCK", "MSGQUEUE", "NICE", "RTPRIO"):
        which = getattr(resource, "RLIMIT_" + name)
        soft, hard = resource.getrlimit(which)
        if hard != resource.RLIM_INFINITY:
            found.append(tried(name, resource.setrlimit, which, (soft, hard + 1)))
            found.append(tried(name + " to infinity", resource.setrlimit, which, (-1, -1)))
    own = os.getpriority(os.PRIO_PROCESS, 0)
    found.append(tried("nice", os.nice, -1))
    for which in ("PROCESS", "PGRP", "USER"):
        found.append(tried("priority by " + which, os.setpriority, getattr(os, "PRIO_" + which), 0, own - 1))
    found.append(tried("a priority", call, 314, 0, struct.pack("IIQiIQQQ", 48, 0, 0, own - 1, 0, 0, 0, 0), 0))
    found.append(tried("a shorter slice", call, 314, 0, struct.pack("IIQiIQQQ", 48, 0, 0, own, 0, 100_000, 0, 0), 0))
    found.append(tried("priority of the session", write, "/proc/self/autogroup", b"-1"))
    found.append(tried("batch", os.sched_setscheduler, 0, os.SCHED_BATCH, os.sched_param(0)))
    found.append(tried("all processors", os.sched_setaffinity, 0, range(os.cpu_count())))
    found.append(tried("less priority", os.setpriority, os.PRIO_PROCESS, 0, own + 1))
    found.append([f"niceness of {own}", "worked" if os.getpriority(os.PRIO_PROCESS, 0) < own else "EPERM"])
    found.append(tried("real time", os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)))
    found.append(tried("I/O class", call, 251, 1, 0, 1 << 13))
    found.append(tried("a larger pipe", lambda: fcntl.fcntl(os.pipe()[0], 1031, 1 << 20)))
    return found
""",
        works=("a larger pipe", "less priority"),
    ),
    Attack(
        "use the wire for something else",
        """
def attack(t):
    found = [] if not t.get("confined") else [
        tried("read another task", os.read, 3, 1),
        tried("read the answers", os.read, 4, 1),
        tried("read the output", os.read, 1, 1),
    ]
    found += [
        tried("write into the task pipe", os.write, 3, b"x"),
        tried("open its answers again", lambda: os.open("/proc/self/fd/4", os.O_RDWR)),
        tried("seek", os.lseek, 4, 0, 0),
        tried("own the answers", fcntl.fcntl, 4, fcntl.F_SETOWN, os.getpid()),
        tried("a terminal", os.open, "/dev/tty", os.O_RDWR),
        tried("TIOCSTI", fcntl.ioctl, 1, 0x5412, b"x"),
    ]
    found += [tried(f"descriptor {fd}", os.fstat, fd) for fd in range(5, 64)]
    return found
""",
        works=("descriptor 5",),
        # Its own end of its own pipe, where that is its user's: it could write there before.
        allowed=("open its answers again",),
    ),
    Attack(
        "leave traps for the host",
        """
def attack(t):
    made = []
    for place in (os.getcwd(), os.environ.get("TMPDIR", "/tmp"), t["directory"], "/dev/shm"):
        for name, function in (
            ("symlink", lambda path: os.symlink("/etc/shadow", path)),
            ("hard link", lambda path: os.link(os.__file__, path)),
            ("fifo", os.mkfifo),
            ("device", lambda path: os.mknod(path, 0o20600, os.makedev(1, 3))),
            ("socket", lambda path: socket.socket(socket.AF_UNIX).bind(path)),
            ("setuid file", lambda path: os.fchmod(os.open(path, os.O_CREAT | os.O_WRONLY), 0o4777)),
        ):
            path = os.path.join(place, f"trap-{os.getpid()}-{len(made)}")
            made.append(tried(f"{name} in {place}", function, path))
            try:
                os.unlink(path)
            except OSError:
                pass
    return made
""",
        works=("symlink in /tmp", "fifo in /tmp", "socket in /tmp", "setuid file in /tmp"),
        allowed=(),
    ),
]
