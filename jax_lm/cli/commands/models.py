"""`diffucoder models`: lists and deletes models in the hub's cache."""

import json

from rich.console import Console
from rich.table import Table

from jax_lm.cli.arguments.models import Models
from jax_lm.conversion.hub_cache import model_repositories, models_of, plan_deletion


def run_models(arguments: Models) -> int:
    repositories = model_repositories()
    if arguments.delete is not None:
        deletion = plan_deletion(repositories, arguments.delete)
        size = gigabytes(deletion.expected_freed_size)
        if arguments.yes:
            deletion.execute()
            print(f"deleted {arguments.delete}: {size} freed")
        else:
            print(f"would free {size}: --yes deletes {arguments.delete}")
        return 0
    models = [model for repository in repositories for model in models_of(repository)]
    if arguments.json:
        print(json.dumps(models, indent=1))
        return 0
    if not models:
        print("no model in the hub's cache: --model OWNER/NAME downloads one")
        return 0
    table = Table("model", "what it is", "on disk", box=None, padding=(0, 2, 0, 0))
    for model in models:
        table.add_row(model["model"], model["what"], gigabytes(model["bytes"]))
    Console(highlight=False).print(table)
    print(f"{gigabytes(sum(repository.size_on_disk for repository in repositories))} in all")
    return 0


def gigabytes(count: int) -> str:
    return f"{count / 1e9:,.2f} GB"
