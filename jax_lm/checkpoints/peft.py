"""Low-rank adapters in PEFT's layout: adapter_config.json and adapter_model.safetensors.

Files are compatible with the library peft in both directions. A configuration that computes
anything but y = W x + scale B A x is refused, with an error that names the field. Knows names and
shapes, but not the model.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from pathlib import Path
from typing import Any, TypeVar

from jax_lm.checkpoints import huggingface
from jax_lm.checkpoints.stored import CheckpointError, HostArrays, StoredTensors, save_tensors
from jax_lm.config import Fields, Ints, Texts
from jax_lm.host.files import atomic_write, write_json_whole

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
FILES = (CONFIG, WEIGHTS)

# A key in the metadata of the safetensors file. adapter_config.json has no such field, because peft
# warns about fields that it does not know.
FINGERPRINT = "base_fingerprint"

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
LINEAR = ATTENTION + FEED_FORWARD
# base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight has the root "model.". The name of
# the adapter, "default", is part of the path in files that were not written by save_pretrained.
TENSOR = re.compile(
    r"base_model\.model\.(?P<root>(?:\w+\.)*?)(?P<layer>layers\.\d+\.\w+\.\w+)"
    r"\.lora_(?P<matrix>[AB])(?:\.default)?\.weight"
)

READ_FIELDS = frozenset(
    """
    r lora_alpha target_modules exclude_modules use_rslora rank_pattern alpha_pattern
    layers_to_transform base_model_name_or_path revision on_masks
    """.split()  # noqa: SIM905 (a table, not a list)
)
# Fields of adapter_config.json that do not change what is computed.
INERT_FIELDS = frozenset(
    """
    auto_mapping corda_config eva_config inference_mode loftq_config lora_dropout lora_ga_config
    megatron_config megatron_core peft_version qalora_group_size runtime_config task_type
    """.split()  # noqa: SIM905 (a table, not a list)
)

# Fields that change what is computed, with the values that are supported. A field in none of these
# three tables must be off.
FIXED_FIELDS: dict[str, tuple] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "layers_pattern": (None, "", [], "layers", ["layers"]),
    # Other initializations also change the weights of the base model.
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),
}

# PEFT's defaults for fields that an adapter_config.json may lack.
PEFT_DEFAULTS = {"r": 8, "lora_alpha": 8}
Value = TypeVar("Value")
# Names of layers, or a regular expression for their paths.
LayerNames = Texts | str


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Rank, scale and layers of adapters; the fields correspond to PEFT's class of the same name.

    Attributes:
        rank: rank of the product B A.
        alpha: the product is scaled by alpha / rank; None is twice the rank.
        targets: the layers that carry an adapter: their names or the ends of their paths, or a
            regular expression that matches whole paths.
        use_rslora: scale by alpha / sqrt(rank) instead of alpha / rank.
        rank_pattern: ranks of particular layers, by a regular expression for the end of the path.
        alpha_pattern: alphas of particular layers, by a regular expression for the end of the path.
        exclude_modules: layers that carry no adapter, in the form of `targets`.
        layers_to_transform: numbers of the decoder layers that carry adapters; None is all.
        on_masks: whether the adapters act on masks alone, so that all other tokens are computed as
            without them (arXiv 2507.11851). PEFT has no such field.
        root: prefix of the paths, before `layers.`, in the model that PEFT wrapped.
    """

    rank: int
    alpha: float | None = None
    targets: LayerNames = LINEAR
    use_rslora: bool = False
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    exclude_modules: LayerNames = ()
    layers_to_transform: Ints | None = None
    on_masks: bool = False
    root: str = "model."

    def __post_init__(self):
        for name, rank in {"lora_rank": self.rank, **self.rank_pattern}.items():
            if type(rank) is not int or rank < 1:
                raise ValueError(f"{name}={rank!r}: a rank must be at least 1")
        for name, alpha in {"lora_alpha": self.alpha, **self.alpha_pattern}.items():
            if alpha is not None and not (type(alpha) in (int, float) and 0 < alpha < inf):
                raise ValueError(f"{name}={alpha!r}: an alpha must be positive")
        names = () if isinstance(self.targets, str) else self.targets
        if not self.targets or not all(map(is_linear, names)):
            raise ValueError(f"lora_targets={self.targets}: must be some of {', '.join(LINEAR)}")
        patterns = [name for name in (self.targets, self.exclude_modules) if isinstance(name, str)]
        for pattern in (*patterns, *self.rank_pattern, *self.alpha_pattern):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"pattern {pattern!r} of layers is not a regular expression: {error}"
                ) from None

    def carries(self, path: str) -> bool:
        """Whether the linear layer at a path carries an adapter.

        Args:
            path: dotted path, such as model.layers.0.self_attn.q_proj.
        """
        if self.layers_to_transform and int(path.split(".")[2]) not in self.layers_to_transform:
            return False
        name = self.peft_path(path)
        return is_named(name, self.targets) and not is_named(name, self.exclude_modules)

    def rank_of(self, path: str) -> int:
        """Return the rank of the adapter at a path."""
        return first_match(self.rank_pattern, self.peft_path(path), self.rank)

    def scale_of(self, path: str) -> float:
        """Return the factor of the product B A at a path."""
        # rank 8 and no alpha: 16 / 8 = 2, or 16 / sqrt(8) with rsLoRA
        rank = self.rank_of(path)
        alpha = 2.0 * self.rank if self.alpha is None else self.alpha
        alpha = first_match(self.alpha_pattern, self.peft_path(path), alpha)
        return alpha / (sqrt(rank) if self.use_rslora else rank)

    def peft_path(self, path: str) -> str:
        """Return the path of a layer in the model that PEFT wrapped."""
        return self.root + path.removeprefix("model.")


@dataclass(frozen=True)
class NamedBase:
    """The model that an adapter was trained on.

    Attributes:
        name: folder, hub id or `builtin`; None if the adapter does not state it.
        revision: revision of a hub id.
        fingerprint: digest of its weights (see `jax_lm.checkpoints.fingerprint`); None in adapters
            that were not written by this package.
    """

    name: str | None = None
    revision: str | None = None
    fingerprint: str | None = None

    @property
    def place(self) -> str:
        """The folder or hub id, with its revision."""
        return f"{self.name}@{self.revision}" if self.revision else str(self.name)

    def __str__(self) -> str:
        return repr(self.place) if self.name else "a model that it does not name"


@dataclass(frozen=True)
class StoredAdapter:
    """An adapter that has not been loaded yet.

    Attributes:
        folder: folder of its files.
        config: rank, scale and layers.
        tensors: stored tensors by our names: `<layer>.lora_a` [rank, in] and `<layer>.lora_b`
            [out, rank].
        base: the model that it was trained on.
    """

    folder: Path
    config: LoraConfig
    tensors: StoredTensors
    base: NamedBase

    @property
    def files(self) -> list[Path]:
        """The paths of its configuration and its weights."""
        return [self.folder / name for name in FILES]


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter alone. A merged model may have both configurations."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def read_adapter(folder: Path) -> StoredAdapter:
    """Read the description of an adapter; its tensors are not loaded.

    Raises:
        CheckpointError: a file is absent or damaged, or the configuration is not supported.
    """
    fields = huggingface.read_json(folder, CONFIG)
    if not (folder / WEIGHTS).is_file():
        raise CheckpointError(
            f"{folder} has no {WEIGHTS}; an adapter_model.bin is a pickle, which is never read"
        )
    # Read before the tensors, for better errors: the configuration names DoRA, for example, which
    # the names of tensors only hint at.
    config = read_config(fields, folder / CONFIG)
    tensors, root = rename_tensors(folder / WEIGHTS)
    _, metadata, _ = huggingface.read_header(folder / WEIGHTS)
    name = fields.get("base_model_name_or_path")
    revision = fields.get("revision")
    if not isinstance(name, str | None) or not isinstance(revision, str | None):
        raise CheckpointError(
            f"{folder / CONFIG}: base_model_name_or_path and revision must be text"
        )
    return StoredAdapter(
        folder,
        replace(config, root=root),
        tensors,
        NamedBase(name or None, revision or None, metadata.get(FINGERPRINT)),
    )


def rename_tensors(path: Path) -> tuple[StoredTensors, str]:
    """Return the tensors of an adapter by our names, and the root of their paths.

    Raises:
        CheckpointError: a tensor does not belong to a linear layer of the decoder, occurs twice, or
            has another root than the others.
    """
    tensors = {}
    roots = set()
    for tensor in huggingface.headers(path):
        match = TENSOR.fullmatch(tensor.name)
        if not match:
            raise CheckpointError(
                f"{path} holds {tensor.name!r}, which is not an adapter of a linear decoder layer"
            )
        # base_model.model.model.layers.0.mlp.up_proj.lora_A.weight
        # -> model.layers.0.mlp.up_proj.lora_a
        name = f"model.{match['layer']}.lora_{match['matrix'].lower()}"
        if name in tensors:
            raise CheckpointError(
                f"{path} holds {tensor.name!r} twice, once with the name of an adapter"
            )
        tensors[name] = replace(tensor, name=name)
        roots.add(match["root"])
    if len(roots) != 1:
        raise CheckpointError(f"{path} holds layers of {len(roots)} models; expected one")
    return tensors, roots.pop()


def read_config(fields: Fields, path: Path) -> LoraConfig:
    """Convert the fields of an adapter_config.json.

    Raises:
        CheckpointError: a field is missing, malformed or not supported; the message names it.
    """
    if "peft_type" not in fields:
        raise CheckpointError(f"{path} has no peft_type: it is not a PEFT adapter")
    for name, value in fields.items():
        allowed = FIXED_FIELDS.get(name)
        # An unknown field, of a later version of PEFT, changes nothing as long as it is off.
        if value not in allowed if allowed else value and name not in READ_FIELDS | INERT_FIELDS:
            only = f"only {' or '.join(map(repr, allowed))} is" if allowed else "it is not"
            raise CheckpointError(f"{path}: {name}={value!r}: {only} supported")
    settings: Fields = {**PEFT_DEFAULTS, **fields}
    try:
        return LoraConfig(
            rank=as_number("r", settings["r"], int),
            alpha=as_number("lora_alpha", settings["lora_alpha"], float),
            targets=targets_of(settings.get("target_modules")),
            use_rslora=bool(settings.get("use_rslora")),
            rank_pattern=as_numbers(settings.get("rank_pattern"), int),
            alpha_pattern=as_numbers(settings.get("alpha_pattern"), float),
            exclude_modules=as_names(settings.get("exclude_modules")),
            layers_to_transform=layer_numbers(settings.get("layers_to_transform")),
            on_masks=bool(settings.get("on_masks")),
        )
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def targets_of(value) -> LayerNames:
    """Convert target_modules: a regular expression, `all-linear`, or names."""
    if value == "all-linear":
        return LINEAR
    names = as_names(value)
    # A configuration written for several architectures may name layers that Dream does not have.
    # Ignoring them is safe: if the adapter had tensors for them, `rename_tensors` would refuse it.
    return names if isinstance(names, str) else tuple(name for name in names if is_linear(name))


def as_number(name: str, value, kind: Callable[[Any], Value]) -> Value:
    """Convert a number to int or float. Raises ValueError for anything else."""
    if type(value) is not int and (kind is int or type(value) is not float):
        raise ValueError(f"{name}={value!r}: must be a {'whole ' if kind is int else ''}number")
    return kind(value)


def as_numbers(values, kind: Callable[[Any], Value]) -> dict[str, Value]:
    """Convert the numbers of a pattern, which may be absent."""
    return {name: as_number(name, value, kind) for name, value in dict(values or {}).items()}


def layer_numbers(value) -> Ints | None:
    """Convert layers_to_transform: a number, or a list of numbers of which an empty one is all."""
    numbers = [value] if isinstance(value, int) else value or []
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise ValueError(f"layers_to_transform={value!r}: must be numbers of layers")
    return tuple(numbers) or None


def as_names(value) -> LayerNames:
    """Convert a string or a list of strings, or None; raises ValueError for anything else."""
    if isinstance(value, str):
        return value
    names = value or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{value!r}: must be names of layers")
    return tuple(names)


def is_linear(name: str) -> bool:
    """Whether a name, or the last part of a path, is that of a linear layer of the decoder."""
    return name.rpartition(".")[2] in LINEAR


def is_named(path: str, names: LayerNames) -> bool:
    """Whether a path matches a regular expression as a whole, or ends with one of several names."""
    if isinstance(names, str):
        return re.fullmatch(names, path) is not None
    return any(path == name or path.endswith(f".{name}") for name in names)


def first_match(patterns: Mapping[str, Value], path: str, otherwise: Value) -> Value:
    """Return the value of the first pattern that matches the end of a path, beginning at a dot."""
    # The pattern "q_proj" matches "model.layers.0.self_attn.q_proj", but not "….my_q_proj".
    return next(
        (value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", path)), otherwise
    )


def save(folder: Path, tensors: HostArrays, config: LoraConfig, base: NamedBase):
    """Write an adapter that `read_adapter` and peft can read; each file is written atomically.

    Args:
        folder: where to write.
        tensors: values by our names.
        config: rank, scale and layers.
        base: the model that it was trained on.
    """
    metadata = {"format": "pt"} | ({FINGERPRINT: base.fingerprint} if base.fingerprint else {})
    with atomic_write(folder / WEIGHTS) as path:
        save_tensors(
            path, {peft_name(name, config.root): value for name, value in tensors.items()}, metadata
        )
    write_json_whole(folder / CONFIG, peft_fields(config, base), 2)


def peft_name(name: str, root: str) -> str:
    """Translate our name of a tensor to PEFT's, the inverse of `rename_tensors`."""
    # model.layers.0.mlp.up_proj.lora_a
    # -> base_model.model.model.layers.0.mlp.up_proj.lora_A.weight
    layer, _, matrix = name.rpartition(".")
    return f"base_model.model.{root}{layer.removeprefix('model.')}.lora_{matrix[-1].upper()}.weight"


def peft_fields(config: LoraConfig, base: NamedBase) -> Fields:
    """Return the fields of an adapter_config.json, in which tuples become lists."""
    return {
        "peft_type": "LORA",
        # With task_type CAUSAL_LM, peft wraps the model in a class that calls methods which Dream's
        # published class does not have.
        "task_type": None,
        "base_model_name_or_path": base.name,
        "revision": base.revision,
        "inference_mode": True,
        "r": config.rank,
        "lora_alpha": 2 * config.rank if config.alpha is None else config.alpha,
        "use_rslora": config.use_rslora,
        "target_modules": config.targets,
        "exclude_modules": config.exclude_modules or None,
        "layers_to_transform": config.layers_to_transform,
        "rank_pattern": dict(config.rank_pattern),
        "alpha_pattern": dict(config.alpha_pattern),
        "lora_dropout": 0.0,
        "fan_in_fan_out": False,
        "bias": "none",
        "modules_to_save": None,
        "init_lora_weights": True,
        "use_dora": False,
        # absent where PEFT computes the same
        **({"on_masks": True} if config.on_masks else {}),
    }
