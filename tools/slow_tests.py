"""Writes tests/slow.txt, the tests that a plain `pytest` leaves to `pytest --release`.

    pytest --release --durations=0 --durations-min=0.3 > times.txt    # on an idle machine
    python tools/slow_tests.py times.txt

A case that takes more than LONG seconds is slow. The quickest case of a test function may take
LONGEST. Times count the fixtures that a case is the first to need. Lines of the file that the report
does not time stay: they may also name a function, for all of its cases.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

SLOW = Path(__file__).parent.parent / "tests" / "slow.txt"
# Seconds of a case, and of the quickest case of a function.
LONG = 2.0
LONGEST = 6.0
# "  12.34s call     tests/test_cli.py::test_x[a b]"
LINE = re.compile(r"^ *([\d.]+)s (?:setup|call|teardown) +(tests/\S+?\.py::.*)$", re.MULTILINE)


def slow_cases(report: str, known: dict[str, float]) -> dict[str, float]:
    """Return the slow cases of a report by pytest, and known ones that it does not time."""
    seconds = defaultdict(float)
    for spent, case in LINE.findall(report):
        seconds[case] += float(spent)
    quickest = {}
    for case, spent in seconds.items():
        function = case.partition("[")[0]
        quickest[function] = min(spent, quickest.get(function, spent))
    untimed = {case: spent for case, spent in known.items() if case not in seconds}
    return untimed | {
        case: spent
        for case, spent in seconds.items()
        if spent > (LONGEST if spent == quickest[case.partition("[")[0]] else LONG)
    }


def main():
    lines = (line.split(" ", 1) for line in SLOW.read_text(encoding="utf-8").splitlines())
    known = {case: float(spent) for spent, case in lines}
    cases = slow_cases(Path(sys.argv[1]).read_text(encoding="utf-8"), known)
    SLOW.write_text(
        "".join(f"{cases[case]:.0f} {case}\n" for case in sorted(cases)), encoding="utf-8"
    )
    print(f"{SLOW}: {len(cases)} cases, {sum(cases.values()) / 60:.0f} minutes")


if __name__ == "__main__":
    main()
