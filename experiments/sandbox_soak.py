"""Many mixed candidates in a row: nothing may be left behind, memory must stay flat. Prints runs
per second.

    python experiments/sandbox_soak.py --runs 2000

Each candidate has two tests. The mix: four parts each that pass and that fail, one part of each
that raises, leaves, crashes, does not parse, floods, starts threads, forks, hogs memory, or loops
(limit: 0.3 s per test). The exit status is 1 if a process, zombie, open file, thread, mount or
temporary file is left, or memory grows by more than 5 MiB after the first tenth of the runs.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from untrusted import Limits, Local, Program
from untrusted.runner import why_not
from untrusted.tiers import SAFE

TESTS = ("assert f(1) == 2", "assert abs(f(2) - 4) < 1e-6")
CANDIDATES = {
    "passes": "def f(x): return 2 * x",
    "fails": "def f(x): return x + 5",
    "raises": "def f(x): return 1 / 0",
    "leaves": "import os\ndef f(x): os._exit(0)",
    "crashes": "import os\ndef f(x): os.abort()",
    "does not parse": "def f(x)",
    "floods": "print('x' * 10_000_000)\ndef f(x): return 2 * x",
    "threads": "import threading, time\nfor _ in range(3): threading.Thread(target=time.sleep, args=(60,)).start()\n"
    "def f(x): return 2 * x",
    "forks": "import os\nos.fork()\ndef f(x): return 2 * x",
    "hogs memory": "data = [bytearray(2**20) for _ in range(10**5)]",
    "loops": "def f(x):\n    while True: pass",
}


def processes() -> set[str]:
    """Our children, zombies included, and what a sandbox may have orphaned."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue
        state, parent = stat.rpartition(")")[2].split()[:2]
        command = stat[stat.find("(") + 1 : stat.rfind(")")]
        if int(parent) == os.getpid() or command.startswith("bwrap"):
            found.add(f"{name} {command} {state}")
    return found


def remains() -> dict[str, set[str]]:
    """What a run could leave behind."""
    return {
        "processes": processes(),
        "descriptors": set(os.listdir("/proc/self/fd")),
        "threads": {str(thread.ident) for thread in threading.enumerate()},
        "mounts": set(Path("/proc/self/mounts").read_text().splitlines()),
        "temporary files": {
            name for name in os.listdir(tempfile.gettempdir()) if "diffucoder" in name
        },
    }


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--tier", choices=SAFE)
    options = parser.parse_args()
    limits = Limits(seconds=0.3, memory_bytes=128 * 2**20)
    mix = [*CANDIDATES, *["passes", "fails"] * 3]
    names = (mix * (options.runs // len(mix) + 1))[: options.runs]
    jobs = [Program(CANDIDATES[name], TESTS, limits) for name in names]
    worst = 0
    for tier in [options.tier] if options.tier else SAFE:
        if reason := why_not(tier):
            print(f"{tier}: not available: {reason}")
            continue
        warm = len(jobs) // 10
        local = Local(tier)
        results = local.run_many(jobs[:warm])
        before, memory, start = remains(), resident_mib(), time.perf_counter()
        results += local.run_many(jobs[warm:])
        seconds = time.perf_counter() - start
        after, growth = remains(), resident_mib() - memory
        left = {name: more for name in before if (more := after[name] - before[name])}
        print(f"{tier}: {len(jobs)} runs")
        counts = Counter(
            (name, result.outcome) for name, result in zip(names, results, strict=True)
        )
        for (name, outcome), count in sorted(counts.items()):
            print(f"  {count:5d} {name}: {outcome}")
        print(
            f"  {(len(jobs) - warm) / seconds:.1f} runs/s with {os.cpu_count()} cores; memory {growth:+.1f} MiB"
        )
        print(f"  left behind: {left or 'nothing'}")
        worst |= bool(left) or growth > 5
    return worst


if __name__ == "__main__":
    sys.exit(main())
