"""`diffucoder sandbox serve`: run programs for others."""

from jax_lm.arguments.sandbox import SandboxServe
from jax_lm.sandbox.http import Worker


def run(arguments: SandboxServe) -> int:
    worker = Worker(
        (arguments.host, arguments.port),
        workers=arguments.workers,
        queue_size=arguments.queue_size,
        executor=arguments.executor,
        allow_unsafe=arguments.allow_unsafe_exec,
    )
    host, port = worker.server_address[:2]
    print(f"running programs in {worker.pool.tier} for http://{host}:{port}; Ctrl-C ends it", flush=True)
    try:
        worker.serve_forever()
    finally:
        worker.server_close()
    return 0
