"""Answer a request on standard input by results on standard output, both JSON: for hosts behind a
command line.

echo '{"executor": "auto", "jobs": [{"code": "x = 1", "tests": ["assert x == 1"]}]}' | python -m
untrusted
"""

import sys

from untrusted.runner import answer_request

if __name__ == "__main__":
    sys.stdout.write(answer_request(sys.stdin.read()))
