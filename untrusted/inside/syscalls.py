"""The system calls that a confined process may make; all others are refused.

An allow list, because a deny list misses what the next kernel adds (io_uring, pidfd, memfd and more
bypass rules that name their predecessors). Imports the standard library only: it runs in the
sandbox's own interpreter.
"""

# Harmless with any arguments, given that no file can be opened that the tier does not show. The
# numbers are those of Linux, by machine.
ALLOWED = {
    "x86_64": """
        read=0 write=1 readv=19 writev=20 pread64=17 pwrite64=18 close=3 lseek=8 open=2 openat=257 stat=4 fstat=5
        lstat=6 newfstatat=262 access=21 faccessat=269 faccessat2=439 readlink=89 readlinkat=267 getdents=78
        getdents64=217 getcwd=79 chdir=80 fchdir=81 umask=95 dup=32 dup2=33 dup3=292 pipe=22 pipe2=293 fsync=74
        fdatasync=75 mmap=9 munmap=11 mprotect=10 mremap=25 madvise=28 brk=12 msync=26 mincore=27 futex=202
        set_robust_list=273 rseq=334 membarrier=324 set_tid_address=218 arch_prctl=158 rt_sigaction=13
        rt_sigprocmask=14 rt_sigreturn=15 rt_sigpending=127 rt_sigtimedwait=128 rt_sigsuspend=130 sigaltstack=131
        restart_syscall=219 pause=34 alarm=37 getitimer=36 setitimer=38 nanosleep=35 gettimeofday=96 time=201
        times=100 getrusage=98 getrlimit=97 uname=63 getrandom=318 getpid=39 gettid=186 getpgrp=111 getuid=102
        geteuid=107 getgid=104 getegid=108 getgroups=115 getresuid=118 getresgid=120 sched_yield=24
        sched_get_priority_max=146 sched_get_priority_min=147 getcpu=309 poll=7 ppoll=271 select=23 pselect6=270
        epoll_create=213 epoll_create1=291 epoll_ctl=233 epoll_wait=232 epoll_pwait=281 epoll_pwait2=441 eventfd=284
        eventfd2=290 timerfd_create=283 timerfd_settime=286 timerfd_gettime=287 recvfrom=45 shutdown=48 getsockname=51
        getpeername=52 exit=60 exit_group=231 fadvise64=221 futex_waitv=449 mkdir=83 mkdirat=258 unlink=87
        unlinkat=263 rmdir=84 rename=82 renameat=264 renameat2=316 ftruncate=77 creat=85 chmod=90 fchmodat=268
        symlink=88 symlinkat=266 link=86 truncate=76 flock=73
    """,
    "aarch64": """
        read=63 write=64 readv=65 writev=66 pread64=67 pwrite64=68 close=57 lseek=62 openat=56 fstat=80 newfstatat=79
        faccessat=48 faccessat2=439 readlinkat=78 getdents64=61 getcwd=17 chdir=49 fchdir=50 umask=166 dup=23 dup3=24
        pipe2=59 fsync=82 fdatasync=83 mmap=222 munmap=215 mprotect=226 mremap=216 madvise=233 brk=214 msync=227
        mincore=232 futex=98 set_robust_list=99 rseq=293 membarrier=283 set_tid_address=96 rt_sigaction=134
        rt_sigprocmask=135 rt_sigreturn=139 rt_sigpending=136 rt_sigtimedwait=137 rt_sigsuspend=133 sigaltstack=132
        restart_syscall=128 getitimer=102 setitimer=103 nanosleep=101 gettimeofday=169 times=153 getrusage=165
        getrlimit=163 uname=160 getrandom=278 getpid=172 gettid=178 getuid=174 geteuid=175 getgid=176 getegid=177
        getgroups=158 getresuid=148 getresgid=150 sched_yield=124 sched_get_priority_max=125
        sched_get_priority_min=126 getcpu=168 ppoll=73 pselect6=72 epoll_create1=20 epoll_ctl=21 epoll_pwait=22
        epoll_pwait2=441 eventfd2=19 timerfd_create=85 timerfd_settime=86 timerfd_gettime=87 recvfrom=207 shutdown=210
        getsockname=204 getpeername=205 exit=93 exit_group=94 fadvise64=223 futex_waitv=449 mkdirat=34 unlinkat=35
        renameat=38 renameat2=276 ftruncate=46 fchmodat=53 symlinkat=36 truncate=45 flock=32
    """,
}

# Allowed only with the arguments that `conditions` lists.
GUARDED = {
    "x86_64": """
        ioctl=16 fcntl=72 prctl=157 prlimit64=302 kill=62 tgkill=234 clone=56 socketpair=53 sendto=44 getsockopt=55
        getpgid=121 getsid=124 getpriority=140 sched_getaffinity=204 sched_getparam=143 sched_getscheduler=145
        clock_gettime=228 clock_getres=229 clock_nanosleep=230 close_range=436 linkat=265 utimensat=280
    """,
    "aarch64": """
        ioctl=29 fcntl=25 prctl=167 prlimit64=261 kill=129 tgkill=131 clone=220 socketpair=199 sendto=206 getsockopt=209
        getpgid=155 getsid=156 getpriority=141 sched_getaffinity=123 sched_getparam=121 sched_getscheduler=120
        clock_gettime=113 clock_getres=114 clock_nanosleep=115 close_range=436 linkat=37 utimensat=88
    """,
}

# Reported as unknown (ENOSYS), so that libc falls back to older calls: the flags of clone3 lie in
# memory, which a filter cannot read.
ABSENT = {"x86_64": "clone3=435 statx=332", "aarch64": "clone3=435 statx=291"}

# Reported as unsupported by the file system (EOPNOTSUPP), which `shutil.copy2` expects if there are
# no extended attributes.
UNSUPPORTED = {
    "x86_64": """
        setxattr=188 lsetxattr=189 fsetxattr=190 getxattr=191 lgetxattr=192 fgetxattr=193 listxattr=194
        llistxattr=195 flistxattr=196 removexattr=197 lremovexattr=198 fremovexattr=199
    """,
    "aarch64": """
        setxattr=5 lsetxattr=6 fsetxattr=7 getxattr=8 lgetxattr=9 fgetxattr=10 listxattr=11 llistxattr=12
        flistxattr=13 removexattr=14 lremovexattr=15 fremovexattr=16
    """,
}

# Answered with 0, as if the parent process were outside of the namespace.
ZERO = {"x86_64": "getppid=110", "aarch64": "getppid=173"}

# Calls that take or depend on a name of a file or of the machine. Where no namespace hides the
# host's other names, `broker` answers them.
NAMING = """
    open openat creat stat lstat newfstatat access faccessat faccessat2 readlink readlinkat getcwd chdir fchdir mkdir
    mkdirat unlink unlinkat rmdir rename renameat renameat2 uname chmod fchmodat symlink symlinkat link linkat truncate
    utimensat
"""

# Older calls, each with the newer call that does the same and its arguments: `.` is the working directory,
# a digit the argument of that place, another number itself.
OLDER = """
    open openat . 0 1 2
    # O_CREAT, O_WRONLY and O_TRUNC.
    creat openat . 0 0o1101 1
    stat newfstatat . 0 1 0x0
    # AT_SYMLINK_NOFOLLOW.
    lstat newfstatat . 0 1 0x100
    access faccessat2 . 0 1 0x0
    faccessat faccessat2 0 1 2 0x0
    readlink readlinkat . 0 1 2
    mkdir mkdirat . 0 1
    unlink unlinkat . 0 0x0
    # AT_REMOVEDIR.
    rmdir unlinkat . 0 0x200
    rename renameat2 . 0 . 1 0x0
    renameat renameat2 0 1 2 3 0x0
    chmod fchmodat . 0 1
    symlink symlinkat 0 . 1
    link linkat . 0 . 1 0x0
"""

# AUDIT_ARCH_* of linux/audit.h: what a filter sees as the architecture.
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# The conditions of each guarded call, which all must hold: "0 = pid" says that word 0 of the arguments is
# the process's own id, "2 & 0xf = 1 5" that word 2, masked, is one of these values. Arguments have 64
# bits, a filter reads words of 32: word 2 * i is the low half of argument i.
CONDITIONS = """
    # A process may send signals to itself only.
    kill tgkill: 0 = pid
    # Asked about another process, each of these would reveal whether it exists. 0 is oneself.
    getpgid getsid sched_getaffinity sched_getparam sched_getscheduler: 0 = 0 pid
    getpriority: 0 = 0, 2 = 0 pid
    # Negative numbers are the processor clocks of any process.
    clock_gettime clock_getres clock_nanosleep: 0 & 0x80000000 = 0
    # SOL_SOCKET: REUSEADDR, TYPE, ERROR, SNDBUF, RCVBUF, PROTOCOL, DOMAIN. Not PEERCRED and PEERPIDFD, which
    # identify the parent.
    getsockopt: 2 = 1, 4 = 2 3 4 7 8 38 39
    # Flags: none or CLOEXEC. Not UNSHARE: there must be one table of descriptors.
    close_range: 4 = 0 4
    # A new thread (CLONE_THREAD), never a new process or namespace (CLONE_NEWCGROUP, NEWUTS, NEWIPC, NEWUSER,
    # NEWPID, NEWNET, NEWNS and NEWTIME).
    clone: 0 & 0x7e030080 = 0x10000
    # Limits of the process itself, and no other.
    prlimit64: 0 = 0
    # PR_SET_NAME, PR_GET_NAME, PR_SET_VMA.
    prctl: 0 = 15 16 0x53564d41
    # DUPFD, GETFD, SETFD, GETFL, SETFL, locks (GETLK, SETLK, SETLKW, and the same of open files),
    # DUPFD_CLOEXEC. F_SETOWN and F_SETSIG could send SIGKILL to anyone.
    fcntl: 2 = 0 1 2 3 4 5 6 7 36 37 38 1030
    # By a name seen from the working directory (AT_FDCWD), never of a descriptor: what is inherited belongs to
    # the host. AT_SYMLINK_NOFOLLOW or none.
    utimensat: 0 = 0xffffff9c, 6 = 0 0x100
    # AT_SYMLINK_FOLLOW or none. Not AT_EMPTY_PATH, which makes a descriptor of the name.
    linkat: 8 = 0 0x400
    # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX.
    ioctl: 2 = 0x5401 0x5413 0x541b 0x5421 0x5450 0x5451
    # asyncio needs a pair of streams (AF_UNIX, SOCK_STREAM). A datagram pair could send to any address.
    socketpair: 0 = 1, 2 & 0xf = 1
    # Without an address (a pointer, so both halves are 0): only to the connected peer.
    sendto: 8 = 0, 9 = 0
"""


Condition = tuple[int, int, tuple[int, ...]]
"""Word of an argument, mask, and the values that it may then have."""


def rows_of(table: str) -> list[list[str]]:
    """Return the words of each line of a table, without its comments."""
    rows = [line.partition("#")[0].split() for line in table.splitlines()]
    return [row for row in rows if row]


def parse_table(table: str) -> dict[str, int]:
    """Read `name=number` pairs into a dictionary: "read=0 write=1" -> {"read": 0, "write": 1}."""
    pairs = (pair.partition("=") for pair in table.split())
    return {name: int(number) for name, _, number in pairs}


def conditions(pid: int) -> dict[str, list[Condition]]:
    """Return the conditions of each guarded call: (argument word, mask, allowed values)."""
    found = {}
    for line in CONDITIONS.splitlines():
        names, _, rules = line.partition("#")[0].partition(":")
        for name in names.split():
            found[name] = [parse_condition(rule, pid) for rule in rules.split(",")]
    return found


def parse_condition(rule: str, pid: int) -> Condition:
    """Read a condition: "2 & 0xf = 1 5" -> (2, 0xf, (1, 5))."""
    subject, _, values = rule.partition("=")
    word, _, mask = subject.partition("&")
    allowed = tuple(pid if value == "pid" else int(value, 0) for value in values.split())
    return int(word), int(mask or "0xffffffff", 0), allowed
