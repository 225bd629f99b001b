"""Jobs as JSON on standard input, results as JSON on standard output: for places reached by a command line.

echo '{"executor": "auto", "jobs": [{"code": "x = 1", "tests": ["assert x == 1"]}]}' | python -m jax_lm.sandbox
"""

import json
import sys

from jax_lm.sandbox.results import job_from_json, result_to_json
from jax_lm.sandbox.runner import Local


def main() -> int:
    """Run what standard input asks for."""
    request = json.load(sys.stdin)
    local = Local(request.get("executor", "auto"), allow_unsafe=request.get("allow_unsafe") is True)
    results = local.run_many([job_from_json(job) for job in request["jobs"]])
    json.dump({"results": [result_to_json(result) for result in results]}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
