"""Read a request from standard input and write the results to standard output, both as JSON.

For hosts that are reached by a command line:

    echo '{"jobs": [{"code": "x = 1", "tests": ["assert x == 1"]}]}' | python -m untrusted
"""

import sys

from untrusted.runner import answer_request

if __name__ == "__main__":
    sys.stdout.write(answer_request(sys.stdin.read()))
