"""System call numbers of the two machines for which there is a sandbox, of all calls that a filter names. Pure data.

Source: Linux, arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (which is that of arm64).
A call that a machine does not have is not in its table.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final


def _table(text: str) -> dict[str, int]:
    return {name: int(number) for name, _, number in (word.partition("=") for word in text.split())}


X86_64: Final = _table("""
    read=0 write=1 readv=19 writev=20 pread64=17 pwrite64=18 preadv=295 pwritev=296 preadv2=327
    pwritev2=328 lseek=8 close=3 close_range=436 dup=32 dup2=33 dup3=292 pipe=22 pipe2=293 poll=7
    ppoll=271 select=23 pselect6=270 epoll_create=213 epoll_create1=291 epoll_ctl=233 epoll_wait=232
    epoll_pwait=281 epoll_pwait2=441 eventfd=284 eventfd2=290 signalfd4=289 timerfd_create=283
    timerfd_settime=286 timerfd_gettime=287 open=2 openat=257 creat=85 openat2=437 stat=4 fstat=5
    lstat=6 newfstatat=262 statx=332 access=21 faccessat=269 faccessat2=439 readlink=89 readlinkat=267
    getdents=78 getdents64=217 getcwd=79 chdir=80 fchdir=81 statfs=137 fstatfs=138 fadvise64=221
    sendfile=40 fsync=74 fdatasync=75 umask=95 mkdir=83 mkdirat=258 rmdir=84 unlink=87 unlinkat=263
    rename=82 renameat=264 renameat2=316 truncate=76 ftruncate=77 fallocate=285 flock=73 mmap=9
    munmap=11 mprotect=10 mremap=25 madvise=28 brk=12 msync=26 mincore=27 membarrier=324 rt_sigaction=13
    rt_sigprocmask=14 rt_sigreturn=15 rt_sigpending=127 rt_sigtimedwait=128 rt_sigsuspend=130
    sigaltstack=131 pause=34 alarm=37 setitimer=38 getitimer=36 nanosleep=35 clock_nanosleep=230
    clock_gettime=228 clock_getres=229 gettimeofday=96 time=201 times=100 getrandom=318
    restart_syscall=219 getpid=39 getppid=110 gettid=186 getuid=102 geteuid=107 getgid=104 getegid=108
    getresuid=118 getresgid=120 getgroups=115 getpgrp=111 getpgid=121 getsid=124 uname=63 sysinfo=99
    getcpu=309 getrusage=98 getrlimit=97 setrlimit=160 prlimit64=302 getpriority=140 sched_yield=24
    sched_getaffinity=204 sched_setaffinity=203 sched_getparam=143 sched_getscheduler=145
    sched_get_priority_max=146 sched_get_priority_min=147 futex=202 set_robust_list=273
    set_tid_address=218 rseq=334 exit=60 exit_group=231 wait4=61 waitid=247 socketpair=53 sendto=44
    recvfrom=45 recvmsg=47 shutdown=48 getsockopt=55 getsockname=51 getpeername=52 clone=56 clone3=435
    fork=57 vfork=58 prctl=157 ioctl=16 fcntl=72 kill=62 tgkill=234 tkill=200 rt_sigqueueinfo=129
    rt_tgsigqueueinfo=297 socket=41 connect=42 bind=49 listen=50 accept=43 accept4=288 sendmsg=46
    sendmmsg=307 recvmmsg=299 setsockopt=54 execve=59 execveat=322 ptrace=101 process_vm_readv=310
    process_vm_writev=311 kcmp=312 pidfd_open=434 pidfd_getfd=438 pidfd_send_signal=424 setpriority=141
    sched_setscheduler=144 sched_setparam=142 sched_setattr=314 ioprio_set=251 setsid=112 setpgid=109
    chmod=90 fchmod=91 fchmodat=268 fchmodat2=452 chown=92 fchown=93 lchown=94 fchownat=260 utime=132
    utimes=235 utimensat=280 futimesat=261 setxattr=188 lsetxattr=189 fsetxattr=190 getxattr=191
    lgetxattr=192 fgetxattr=193 listxattr=194 llistxattr=195 flistxattr=196 removexattr=197
    lremovexattr=198 fremovexattr=199 link=86 linkat=265 symlink=88 symlinkat=266 mknod=133 mknodat=259
    memfd_create=319 memfd_secret=447 mount=165 umount2=166 unshare=272 setns=308 pivot_root=155
    chroot=161 seccomp=317 setuid=105 setgid=106 setreuid=113 setregid=114 setresuid=117 setresgid=119
    setgroups=116 setfsuid=122 setfsgid=123 capset=126 personality=135 landlock_create_ruleset=444
    landlock_add_rule=445 landlock_restrict_self=446 io_uring_setup=425 io_uring_enter=426
    io_uring_register=427 keyctl=250 add_key=248 request_key=249 userfaultfd=323 bpf=321
    perf_event_open=298 fanotify_init=300 fanotify_mark=301 inotify_init=253 inotify_init1=294
    inotify_add_watch=254 shmget=29 shmat=30 shmctl=31 semget=64 semctl=66 msgget=68 mq_open=240
    mq_unlink=241 syslog=103 swapon=167 swapoff=168 reboot=169 name_to_handle_at=303
    open_by_handle_at=304 mlock=149 mlock2=325 mlockall=151 sync=162 syncfs=306 acct=163 quotactl=179
    init_module=175 finit_module=313 kexec_load=246 clock_settime=227 settimeofday=164 clock_adjtime=305
    adjtimex=159 sethostname=170 setdomainname=171 vhangup=153 iopl=172 ioperm=173 modify_ldt=154
    splice=275 tee=276 vmsplice=278 process_madvise=440 move_pages=279 migrate_pages=256 mbind=237
    set_mempolicy=238 lookup_dcookie=212 uselib=134 timer_create=222 fsopen=430 fsmount=432
    move_mount=429 open_tree=428 mount_setattr=442 process_mrelease=448
""")

AARCH64: Final = _table("""
    read=63 write=64 readv=65 writev=66 pread64=67 pwrite64=68 preadv=69 pwritev=70 preadv2=286
    pwritev2=287 lseek=62 close=57 close_range=436 dup=23 dup3=24 pipe2=59 ppoll=73 pselect6=72
    epoll_create1=20 epoll_ctl=21 epoll_pwait=22 epoll_pwait2=441 eventfd2=19 signalfd4=74
    timerfd_create=85 timerfd_settime=86 timerfd_gettime=87 openat=56 openat2=437 fstat=80 newfstatat=79
    statx=291 faccessat=48 faccessat2=439 readlinkat=78 getdents64=61 getcwd=17 chdir=49 fchdir=50
    statfs=43 fstatfs=44 fadvise64=223 sendfile=71 fsync=82 fdatasync=83 umask=166 mkdirat=34
    unlinkat=35 renameat=38 renameat2=276 truncate=45 ftruncate=46 fallocate=47 flock=32 mmap=222
    munmap=215 mprotect=226 mremap=216 madvise=233 brk=214 msync=227 mincore=232 membarrier=283
    rt_sigaction=134 rt_sigprocmask=135 rt_sigreturn=139 rt_sigpending=136 rt_sigtimedwait=137
    rt_sigsuspend=133 sigaltstack=132 setitimer=103 getitimer=102 nanosleep=101 clock_nanosleep=115
    clock_gettime=113 clock_getres=114 gettimeofday=169 times=153 getrandom=278 restart_syscall=128
    getpid=172 getppid=173 gettid=178 getuid=174 geteuid=175 getgid=176 getegid=177 getresuid=148
    getresgid=150 getgroups=158 getpgid=155 getsid=156 uname=160 sysinfo=179 getcpu=168 getrusage=165
    getrlimit=163 setrlimit=164 prlimit64=261 getpriority=141 sched_yield=124 sched_getaffinity=123
    sched_setaffinity=122 sched_getparam=121 sched_getscheduler=120 sched_get_priority_max=125
    sched_get_priority_min=126 futex=98 set_robust_list=99 set_tid_address=96 rseq=293 exit=93
    exit_group=94 wait4=260 waitid=95 socketpair=199 sendto=206 recvfrom=207 recvmsg=212 shutdown=210
    getsockopt=209 getsockname=204 getpeername=205 clone=220 clone3=435 prctl=167 ioctl=29 fcntl=25
    kill=129 tgkill=131 tkill=130 rt_sigqueueinfo=138 rt_tgsigqueueinfo=240 socket=198 connect=203
    bind=200 listen=201 accept=202 accept4=242 sendmsg=211 sendmmsg=269 recvmmsg=243 setsockopt=208
    execve=221 execveat=281 ptrace=117 process_vm_readv=270 process_vm_writev=271 kcmp=272
    pidfd_open=434 pidfd_getfd=438 pidfd_send_signal=424 setpriority=140 sched_setscheduler=119
    sched_setparam=118 sched_setattr=274 ioprio_set=30 setsid=157 setpgid=154 fchmod=52 fchmodat=53
    fchmodat2=452 fchown=55 fchownat=54 utimensat=88 setxattr=5 lsetxattr=6 fsetxattr=7 getxattr=8
    lgetxattr=9 fgetxattr=10 listxattr=11 llistxattr=12 flistxattr=13 removexattr=14 lremovexattr=15
    fremovexattr=16 linkat=37 symlinkat=36 mknodat=33 memfd_create=279 memfd_secret=447 mount=40
    umount2=39 unshare=97 setns=268 pivot_root=41 chroot=51 seccomp=277 setuid=146 setgid=144
    setreuid=145 setregid=143 setresuid=147 setresgid=149 setgroups=159 setfsuid=151 setfsgid=152
    capset=91 personality=92 landlock_create_ruleset=444 landlock_add_rule=445
    landlock_restrict_self=446 io_uring_setup=425 io_uring_enter=426 io_uring_register=427 keyctl=219
    add_key=217 request_key=218 userfaultfd=282 bpf=280 perf_event_open=241 fanotify_init=262
    fanotify_mark=263 inotify_init1=26 inotify_add_watch=27 shmget=194 shmat=196 shmctl=195 semget=190
    semctl=191 msgget=186 mq_open=180 mq_unlink=181 syslog=116 swapon=224 swapoff=225 reboot=142
    name_to_handle_at=264 open_by_handle_at=265 mlock=228 mlock2=284 mlockall=230 sync=81 syncfs=267
    acct=89 quotactl=60 init_module=105 finit_module=273 kexec_load=104 clock_settime=112
    settimeofday=170 clock_adjtime=266 adjtimex=171 sethostname=161 setdomainname=162 vhangup=58
    splice=76 tee=77 vmsplice=75 process_madvise=440 move_pages=239 migrate_pages=238 mbind=235
    set_mempolicy=237 lookup_dcookie=18 timer_create=107 fsopen=430 fsmount=432 move_mount=429
    open_tree=428 mount_setattr=442 process_mrelease=448
""")

# What `uname -m` says -> the table, and the number of the architecture in a filter (linux/audit.h, AUDIT_ARCH_*).
MACHINES: Final = {"x86_64": (X86_64, 0xC000003E), "aarch64": (AARCH64, 0xC00000B7)}
