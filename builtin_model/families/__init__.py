"""The families of the built-in corpus, by topic.

A seed draws families by their position, so another order of `FAMILIES` is another training stream.
"""

from builtin_model.families import (
    arithmetic,
    containers,
    dictionaries,
    dynamic_programming,
    encodings,
    everyday_objects,
    formulas,
    graphs,
    list_filters,
    list_statistics,
    list_structure,
    lists,
    matrices,
    number_properties,
    number_rules,
    number_theory,
    puzzles,
    recursion,
    scans,
    shapes,
    sorting,
    text,
    words,
)
from builtin_model.tasks import Family

FAMILIES: tuple[Family, ...] = (
    *number_theory.FAMILIES,
    *number_properties.FAMILIES,
    *arithmetic.FAMILIES,
    *number_rules.FAMILIES,
    *formulas.FAMILIES,
    *text.FAMILIES,
    *words.FAMILIES,
    *encodings.FAMILIES,
    *lists.FAMILIES,
    *list_filters.FAMILIES,
    *list_structure.FAMILIES,
    *list_statistics.FAMILIES,
    *dictionaries.FAMILIES,
    *sorting.FAMILIES,
    *matrices.FAMILIES,
    *scans.FAMILIES,
    *dynamic_programming.FAMILIES,
    *recursion.FAMILIES,
    *graphs.FAMILIES,
    *puzzles.FAMILIES,
    *containers.FAMILIES,
    *shapes.FAMILIES,
    *everyday_objects.FAMILIES,
)
"""All families in the order of training."""
