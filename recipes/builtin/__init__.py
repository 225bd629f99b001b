"""The built-in model's recipe: the corpus of small Python tasks that it learns from, and its training run.

    python -m recipes.builtin.train --out out/builtin       # the model, from nothing
    python -m recipes.builtin.measure --out measured.json   # what its card says, beside `diffucoder eval builtin`
    python -m recipes.builtin.overlap                       # what of the held-out tasks training may have seen
    python -m recipes.builtin.export                        # the tasks that ship with it

from the repository's root. It imports the package; the package knows nothing of it.
"""
