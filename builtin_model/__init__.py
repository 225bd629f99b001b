"""The built-in model's recipe: the corpus of small Python tasks that it learns from, and its
training run.

    python -m builtin_model.train --out out/builtin       # the model, from nothing
    python -m builtin_model.measure --out measured.json   # what its card says, beside `diffucoder eval builtin`
    python -m builtin_model.overlap                       # what of the held-out tasks training may have seen
    python -m builtin_model.export                        # the tasks that ship with it

from the repository's root. It imports the package; the package knows nothing of it.
"""
