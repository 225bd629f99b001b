"""Families on dictionaries."""

import random

from builtin_model.tasks import Family


def _scores(rng: random.Random, least: int = 0) -> dict[str, int]:
    keys = rng.sample("abcdefgh", rng.randint(least, 5))
    return dict(zip(keys, rng.sample(range(-5, 26), len(keys)), strict=True))


FAMILIES: tuple[Family, ...] = (
    Family(
        name="merge_dicts",
        names=(
            "merge_dicts",
            "combine_dicts",
            "merge_dictionaries",
            "dict_merge",
            "join_dicts",
            "update_dict",
        ),
        params=("a: dict", "b: dict"),
        alternatives=(
            ("d1", "d2"),
            ("dict1", "dict2"),
            ("first", "second"),
            ("x", "y"),
            ("left", "right"),
            ("dict_a", "dict_b"),
        ),
        returns="dict",
        docs=(
            "Merge two dictionaries, where $b wins on common keys.",
            "Return a new dict with the entries of $a and $b, the second taking precedence.",
            "Given two dictionaries, combine them into one.",
            "This function merges $b into a copy of $a.",
        ),
        body="return {**$a, **$b}",
        inputs=lambda rng: (_scores(rng), _scores(rng)),
        oracle=lambda a, b: {
            key: b[key] if key in b else a[key] for key in list(a) + [k for k in b if k not in a]
        },
    ),
    Family(
        name="invert_dict",
        names=(
            "invert_dict",
            "reverse_dict",
            "swap_keys_values",
            "flip_dict",
            "invert_dictionary",
            "swap_dict",
        ),
        params=("d: dict",),
        returns="dict",
        docs=(
            "Swap the keys and values of a dictionary.",
            "Return a dict that maps the values of $d to its keys.",
            "Given a dictionary, return its inverse.",
            "This function inverts the dictionary $d.",
        ),
        body="return {value: key for key, value in $d.items()}",
        inputs=lambda rng: (_scores(rng),),
        oracle=lambda d: dict(zip(d.values(), d.keys(), strict=True)),
    ),
    Family(
        name="dict_from_lists",
        names=(
            "dict_from_lists",
            "lists_to_dict",
            "make_dict",
            "zip_dict",
            "zip_to_dict",
            "create_dict",
        ),
        params=("keys: list", "values: list"),
        alternatives=(
            ("names", "values"),
            ("a", "b"),
            ("list1", "list2"),
            ("keys", "vals"),
            ("xs", "ys"),
            ("names", "scores"),
        ),
        returns="dict",
        docs=(
            "Return a dictionary with the given $keys and $values.",
            "Make a dict from a list of keys and a list of values.",
            "Given two lists, return a dictionary that maps the first to the second.",
            "This function builds a dictionary from $keys and $values.",
        ),
        body="return dict(zip($keys, $values))",
        inputs=lambda rng: tuple(map(list, (lambda d: (d.keys(), d.values()))(_scores(rng)))),
        oracle=lambda keys, values: {keys[i]: values[i] for i in range(len(keys))},
    ),
    Family(
        name="sum_dict_values",
        names=(
            "sum_dict_values",
            "sum_values",
            "sum_dict",
            "total_values",
            "dict_sum",
            "sum_of_values",
        ),
        params=("d: dict[str, int]",),
        alternatives=(
            ("data",),
            ("scores",),
            ("dictionary",),
            ("mapping",),
            ("my_dict",),
            ("prices",),
        ),
        returns="int",
        docs=(
            "Return the sum of the values of a dictionary.",
            "Add up all values of $d.",
            "Given a dictionary with numbers as values, return the sum of the values.",
            "This function sums the values of the dictionary $d.",
        ),
        body="return sum($d.values())",
        inputs=lambda rng: (_scores(rng),),
        oracle=lambda d: sum(d[key] for key in d),
    ),
    Family(
        name="key_of_max",
        names=(
            "key_of_max",
            "max_key",
            "key_with_max_value",
            "best_key",
            "get_max_key",
            "key_with_highest_value",
        ),
        params=("d: dict[str, int]",),
        alternatives=(
            ("data",),
            ("scores",),
            ("dictionary",),
            ("mapping",),
            ("my_dict",),
            ("counts",),
        ),
        returns="str",
        docs=(
            "Return the key with the largest value in $d.",
            "Find the key of the maximum value of a dictionary.",
            "Given a dictionary, return the key whose value is the highest.",
            "This function returns the key that has the biggest value.",
        ),
        body="return max($d, key=$d.get)",
        inputs=lambda rng: (_scores(rng, 1),),
        oracle=lambda d: sorted(d.items(), key=lambda pair: pair[1])[-1][0],
    ),
    Family(
        name="sort_dict_by_value",
        names=(
            "sort_dict_by_value",
            "sort_by_value",
            "sort_by_values",
            "order_by_value",
            "sort_dict_by_values",
        ),
        params=("d: dict[str, int]",),
        alternatives=(
            ("data",),
            ("scores",),
            ("dictionary",),
            ("mapping",),
            ("my_dict",),
            ("counts",),
        ),
        returns="list[str]",
        docs=(
            "Return the keys of $d sorted by their values.",
            "Sort the keys of a dictionary by value in ascending order.",
            "Given a dictionary, return its keys ordered from the smallest to the largest value.",
            "This function lists the keys of $d by increasing value.",
        ),
        body="return sorted($d, key=$d.get)",
        inputs=lambda rng: (_scores(rng),),
        oracle=lambda d: [key for _, key in sorted((value, key) for key, value in d.items())],
    ),
    Family(
        name="filter_dict_above_k",
        names=(
            "filter_dict_above_$k",
            "dict_values_above_$k",
            "keep_values_above_$k",
            "entries_above_$k",
        ),
        params=("d: dict[str, int]",),
        alternatives=(
            ("data",),
            ("scores",),
            ("dictionary",),
            ("mapping",),
            ("my_dict",),
            ("counts",),
        ),
        constants={"k": (10, *range(1, 10), *range(11, 21))},
        returns="dict[str, int]",
        docs=(
            "Return a dictionary of the entries of $d whose value is greater than $k.",
            "Keep only the entries of a dictionary with a value above $k.",
            "Given a dictionary, return the entries with values greater than $k.",
            "This function drops all entries of $d whose value is $k or less.",
        ),
        body="return {key: value for key, value in $d.items() if value > $k}",
        inputs=lambda rng: (_scores(rng),),
        oracle=lambda d, k: dict(filter(lambda pair: pair[1] > k, d.items())),
    ),
)
