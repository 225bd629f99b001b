"""DreamConfig: the shape and the rules of a model, and the families that are supported.

A family is a row of families.toml: what its published code does differently from Dream. Which row
describes a checkpoint follows from its own files (`find_family`), and no other module names a
family. docs/families.md describes each, with its sources.
"""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

# A JSON object: values by name.
Fields = dict[str, Any]
# Any number of texts, integers, floats.
Texts = tuple[str, ...]
Ints = tuple[int, ...]
Floats = tuple[float, ...]
# Texts by name; also our names by those of the published code.
Names = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How the decoder of a published model differs from a Llama.

    Attributes:
        has_bias: whether q_proj, k_proj and v_proj have biases.
        has_qk_norm: whether each head of queries and keys is normalized before the rotation.
        fields: names of config.json that differ from ours.
        tensors: prefixes of tensor names that differ from ours; `{}` is the number of a layer.
        fixed: further fields of config.json that change the computation, and their supported values.
    """

    has_bias: bool = False
    has_qk_norm: bool = False
    fields: Names = field(default_factory=dict)
    tensors: Names = field(default_factory=dict)
    fixed: Fields = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Family:
    """What the models of one kind have in common, apart from their sizes.

    Attributes:
        name: name in messages and in docs/families.md.
        types: architecture of each `model_type` of config.json.
        classes: class that config.json names, by `model_type`.
        shifts: whether row p of the logits predicts the token at p + 1 (models that were adapted
            from a causal one), or the token at p.
        attention: which keys a position attends to: `full` (all), `block_causal` (those of its own
            and of earlier blocks of `block_size`), or `causal` (those up to itself).
        prompt: where blocks are counted from: `start` (of the text), or `answer` (the prompt is cut
            backwards from its end).
        block_size: length of a block if config.json names none; None without blocks.
        block_field: field of config.json that names the length of a block.
        mark: text in `architectures`, or in the name of the checkpoint, that distinguishes this
            family from others with the same `model_type`.
        mask_token: text of the mask token, for checkpoints whose files do not name it.
        is_diffusion: whether the model predicts masked tokens; False is an autoregressive one.
        settings: the authors' settings of decoding, by the names of our options.
    """

    name: str
    types: Mapping[str, Architecture]
    classes: Names
    shifts: bool = True
    attention: str = "full"
    prompt: str = "start"
    block_size: int | None = None
    block_field: str = "block_size"
    mark: str | None = None
    mask_token: str | None = None
    is_diffusion: bool = True
    settings: Fields = field(default_factory=dict)

    @property
    def is_causal(self) -> bool:
        """Whether these are diffusion models that attend causally."""
        return self.is_diffusion and self.attention == "causal"


def pairs(table: str) -> Names:
    """Read pairs of names, one to a line."""
    words = table.split()
    return dict(zip(words[::2], words[1::2], strict=True))


def read_table(module: str, name: str) -> Fields:
    """Read a TOML file next to a module."""
    return tomllib.loads(Path(module).with_name(name).read_text(encoding="utf-8"))


def counted(count: int, noun: str) -> str:
    """Format a number of things: 1 row, 2 rows."""
    return f"{count} {noun}{'s' * (count != 1)}"


TABLE = read_table(__file__, "families.toml")


def read_families() -> tuple[Family, ...]:
    """Read the table of families."""

    def types(names: Names) -> Mapping[str, Architecture]:
        return {kind: Architecture(**TABLE["architectures"][name]) for kind, name in names.items()}

    return tuple(Family(**row | {"types": types(row["types"])}) for row in TABLE["families"])


FAMILIES = read_families()
# Types of models that `adapt` can turn into a diffusion model.
CAUSAL_TYPES = next(row.types for row in FAMILIES if not row.is_diffusion)
# `model_type` of a model after training with blocks, by its type before.
BLOCK_TYPES = {"Dream": "Fast_dLLM_Qwen", "qwen2": "Fast_dLLM_Qwen", "qwen3": "qwen3"}
# The same with causal attention: the type of the autoregressive model.
CAUSAL_BLOCK_TYPES = {"Dream": "qwen2"} | {kind: kind for kind in CAUSAL_TYPES}


def find_family(
    model_type: str,
    mask_token_id: int | None,
    block_size: int | None,
    *,
    is_causal: bool | None,
    marks: str = "",
) -> Family:
    """Return the row of the table that describes a model with these fields of config.json.

    Args:
        model_type: as in config.json.
        mask_token_id: as in config.json, or that of the tokenizer; None for an autoregressive
            model.
        block_size: length of a block; None without blocks.
        is_causal: whether a diffusion model attends causally.
        marks: class and name of the checkpoint.

    Raises:
        ValueError: no row describes it.
    """
    rows = [row for row in FAMILIES if model_type in row.types]
    if not rows:
        known = "; ".join(f"{row.name}: {', '.join(row.types)}" for row in FAMILIES)
        raise ValueError(
            f"config model_type={model_type!r} ({marks or 'no architectures'}): of no known family; "
            f"known are {known}"
        )
    marked = [row for row in rows if row.mark and row.mark in marks]
    has_causal_blocks = bool(is_causal and block_size)
    rows = [row for row in rows if row.is_causal == has_causal_blocks] or rows
    fitting = [row for row in rows if (row.block_size is None) == (block_size is None)]
    # A Dream without a mask token is an incomplete Dream; a qwen2 is an autoregressive model.
    by_mask = [row for row in fitting if row.is_diffusion == (mask_token_id is not None)]
    return (marked or by_mask or fitting or rows)[0]


def translate(name: str, names: Names) -> str:
    """Replace the prefix of a tensor's name according to the first pair that matches."""
    # {"blocks.{}.up.": "layers.{}.mlp.up."}: "blocks.3.up.weight" -> "layers.3.mlp.up.weight"
    for theirs, ours in names.items():
        if match := re.match(re.escape(theirs).replace(r"\{\}", r"(\d+)"), name):
            return ours.format(*match.groups()) + name[match.end() :]
    return name


def invert(names: Names) -> Names:
    return {ours: theirs for theirs, ours in names.items()}


# Fields of config.json that change the computation, with the only values that are supported.
FIXED_FIELDS: dict[str, tuple] = {
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "rope_interleaved": (False, None),
    "pretraining_tp": (1, None),
    "use_sliding_window": (False, None),
    "use_mrope": (False, None),
    "attention_dropout": (0, 0.0),
    "mlp_bias": (False,),
    "multi_query_attention": (None,),
    "quantization_config": (None,),
}

# Fields of config.json that do not change the computation.
INERT_FIELDS = frozenset(
    """
    _name_or_path architectures auto_map dtype full_attn_mask_ratio id2label label2id
    max_window_layers sliding_window torch_dtype transformers_version unsloth_version use_cache
    _attn_implementation _attn_implementation_autoset is_llama_config transformers.js_config
    alibi_bias_max attention_layer_norm_with_affine flash_attention init_cutoff_factor init_device
    init_fn mlp_ratio precision
    """.split()  # noqa: SIM905 (a table, not a list)
)


# Fields of DreamConfig that are positive integers.
SIZES = """
    vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
    num_key_value_heads max_position_embeddings
""".split()  # noqa: SIM905 (a table, not a list)
# A vocabulary grows to a multiple of this number of rows, so that meshes still divide it.
VOCABULARY_STEP = 64
# Limit of the number of layers, above that of any model: a config.json with a huge number would
# exhaust memory, because layers are built before the weights are opened.
MAX_LAYERS = 1000


@dataclass(frozen=True, kw_only=True)
class DreamConfig:
    """The shape of a model, with the field names of Dream's config.json.

    Sizes have no defaults, because the class defaults of the published code differ from the values
    of the published models.

    Attributes:
        head_size: dimension of a head (`head_dim` in config.json) where it is not hidden_size /
            num_attention_heads.
        block_size: length of the blocks that are decoded one after another.
        is_causal: whether a model with blocks attends causally; else it attends to whole blocks.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool = False
    mask_token_id: int | None = None
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    expand_token_id: int | None = None
    initializer_range: float = 0.02
    head_size: int | None = None
    block_size: int | None = None
    is_causal: bool | None = None
    model_type: str = "Dream"

    def __post_init__(self):
        def require(name: str, holds: bool, rule: str):
            if not holds:
                raise ValueError(f"config {name}={getattr(self, name)!r}: must {rule}")

        # JSON's true and false are not numbers, although bool is a subclass of int.
        block = self.block_size
        for name in SIZES if block is None else [*SIZES, "block_size"]:
            value = getattr(self, name)
            require(name, type(value) is int and value > 0, "be a positive integer")
        require(
            "num_hidden_layers", self.num_hidden_layers <= MAX_LAYERS, f"be at most {MAX_LAYERS}"
        )
        for name in ("rope_theta", "rms_norm_eps"):
            value = getattr(self, name)
            is_positive = type(value) in (int, float) and 0 < value < math.inf
            require(name, is_positive, "be a positive number")
        require(
            "tie_word_embeddings", isinstance(self.tie_word_embeddings, bool), "be true or false"
        )
        # The rotary embedding splits a head into two halves, so its dimension must be even.
        heads = self.num_attention_heads
        shown = f"num_attention_heads={heads}"
        head = self.head_size
        if head is None:
            is_even = not (self.hidden_size % heads or self.head_dim % 2)
            require("hidden_size", is_even, f"be {shown} times an even head dimension")
        elif type(head) is not int or head < 2 or head % 2:
            raise ValueError(f"config head_dim={head!r}: must be an even positive integer")
        require("num_key_value_heads", heads % self.num_key_value_heads == 0, f"divide {shown}")
        # Special tokens.
        for name in ("mask_token_id", "expand_token_id"):
            if (value := getattr(self, name)) is not None:
                is_id = type(value) is int and 0 <= value < self.vocab_size
                require(name, is_id, f"be an id below {self.vocab_size}")
        if self.expand_token_id is not None:
            is_own = self.expand_token_id not in (self.mask_token_id, self.eos_token_id)
            require("expand_token_id", is_own, "differ from mask_token_id and eos_token_id")
        if (block is None) != (self.family.block_size is None):
            kind = "needs" if block is None else "has no"
            raise ValueError(f"config block_size={block}: {self.family.name} {kind} blocks")
        require("is_causal", self.is_causal in (None, self.family.is_causal), "fit its family")

    def require_context(self, name: str, tokens: int):
        """Raise ValueError if a setting asks for more tokens than the model holds."""
        if tokens > self.max_position_embeddings:
            raise ValueError(
                f"{name}={tokens}: must be at most {self.max_position_embeddings}, the model's context"
            )

    @property
    def head_dim(self) -> int:
        return self.head_size or self.hidden_size // self.num_attention_heads

    @property
    def family(self) -> Family:
        """The row of the table of families that describes this model."""
        return find_family(
            self.model_type, self.mask_token_id, self.block_size, is_causal=self.is_causal
        )

    @property
    def is_autoregressive(self) -> bool:
        """Whether the model predicts only the token after given text, and no masked tokens."""
        return not self.family.is_diffusion

    @property
    def is_unidirectional(self) -> bool:
        """Whether a token attends to those before it alone; a server decodes it from left to right."""
        return self.family.attention == "causal"

    @property
    def architecture(self) -> Architecture:
        return self.family.types[self.model_type]

    def for_diffusion(self, mask_token_id: int, pad_token_id: int, tokens: int) -> "DreamConfig":
        """Return the configuration of the diffusion model that a causal model becomes.

        If it already is a diffusion model, return it unchanged.

        Args:
            mask_token_id: id of the mask token.
            pad_token_id: id of the pad token.
            tokens: size of the tokenizer; a vocabulary that lacks rows grows to a multiple of 64.
        """
        is_other = self.model_type not in CAUSAL_TYPES or self.block_size is not None
        if is_other and self.mask_token_id is not None:
            return self
        # 49,154 tokens and 49,152 rows: 49,216 rows. Meshes still divide them.
        rows = -(-tokens // VOCABULARY_STEP) * VOCABULARY_STEP
        return replace(
            self,
            # a Dream is a Qwen2, the one architecture with biases
            model_type="Dream" if self.architecture.has_bias else self.model_type,
            mask_token_id=mask_token_id,
            pad_token_id=pad_token_id,
            vocab_size=rows if tokens > self.vocab_size else self.vocab_size,
        )

    def with_blocks(self, length: int, is_causal: bool | None = None) -> "DreamConfig":
        """Return the configuration of this model with blocks, and the shift kept.

        Args:
            length: of a block.
            is_causal: whether attention is causal, or to the whole block and those before it; None
                is the latter, or what the model has.

        Raises:
            ValueError: the model has other blocks, or no family has its architecture and blocks.
        """
        if self.block_size is not None:
            if length != self.block_size:
                raise ValueError(
                    f"block_length={length}: must be {self.block_size}, the blocks of "
                    f"{self.family.name}, or not given"
                )
            if is_causal not in (None, bool(self.is_causal)):
                own, other = ("causal", "blocks") if self.is_causal else ("blocks", "causal")
                raise ValueError(
                    f"attention={other!r}: must be {own!r}, as {self.family.name} has it"
                )
            return self
        types = CAUSAL_BLOCK_TYPES if is_causal else BLOCK_TYPES
        if self.model_type not in types:
            raise ValueError(
                f"block_length={length}: must not be given for a model of type {self.model_type}; "
                f"blocks are for {', '.join(types)}"
            )
        return replace(
            self, model_type=types[self.model_type], block_size=length, is_causal=is_causal or None
        )

    @property
    def attention_block(self) -> int | None:
        """Length of the blocks that attention is causal over: 1 is causal, None is full."""
        return {"full": None, "causal": 1, "block_causal": self.block_size}[self.family.attention]

    @property
    def decoding_block(self) -> int | None:
        """Length of the blocks that are decoded one after another; None if any will do."""
        return self.block_size or self.attention_block

    @classmethod
    def from_dict(cls, fields: Fields, name: str = "") -> "DreamConfig":
        """Convert the fields of a config.json.

        Args:
            fields: the fields.
            name: name of the checkpoint, which distinguishes some families.

        Raises:
            ValueError: a size is missing, or a field is unknown or has an unsupported value.
        """
        kind = fields.get("model_type", "Dream")
        marks = " ".join(filter(None, (*(fields.get("architectures") or ()), name)))
        family = find_family(
            kind,
            fields.get("mask_token_id"),
            fields.get("block_size"),
            is_causal=fields.get("is_causal"),
            marks=marks,
        )
        architecture = family.types[kind]
        fields = {
            architecture.fields.get(name, name): value
            for name, value in fields.items()
            if name not in INERT_FIELDS
        }
        # If the family has blocks, store their length under our name.
        if family.block_size is not None:
            fields["block_size"] = fields.pop(family.block_field, None) or family.block_size
        # transformers 5 writes the fields of the rotary embedding into an object.
        rope = fields.pop("rope_parameters", None) or {}
        if rope.get("rope_type", "default") != "default":
            raise ValueError(
                f"config rope_parameters={rope!r}: only rope_type 'default' is supported"
            )
        if "rope_theta" in rope:
            fields.setdefault("rope_theta", rope["rope_theta"])
        if set(fields.pop("layer_types", None) or ()) - {"full_attention"}:
            raise ValueError("config layer_types: only full_attention is supported")
        # LLaDA states the size of its vocabulary twice.
        own = {"attention_bias": architecture.has_bias, "embedding_size": fields.get("vocab_size")}
        own |= architecture.fixed
        fixed = FIXED_FIELDS | {name: (value,) for name, value in own.items()}
        for name, allowed in fixed.items():
            if name in fields and (value := fields.pop(name)) not in allowed:
                raise ValueError(
                    f"config {name}={value!r}: only {' or '.join(map(repr, allowed))} is supported"
                )
        if head_dim := fields.pop("head_dim", None):
            heads = fields.get("num_attention_heads")
            is_usual = heads and head_dim == fields.get("hidden_size") / heads
            fields["head_size"] = None if is_usual else head_dim
        # Llama 3 lists several tokens that end a text; the tokenizer knows them all.
        if isinstance(ends := fields.get("eos_token_id"), list):
            fields["eos_token_id"] = ends[0] if ends else None
        # An unknown field may change the computation, so it is an error, not a warning.
        known = cls.__dataclass_fields__
        if unknown := sorted(fields.keys() - known.keys()):
            raise ValueError(
                f"config field {unknown[0]!r} is not known and may change the model; not loading it"
            )
        required = [name for name, each in known.items() if each.default is MISSING]
        if missing := [name for name in required if name not in fields]:
            raise ValueError(f"config.json lacks {', '.join(missing)}")
        # JSON may have 1000000 for 1000000.0, which formats with types write differently.
        for name in ("rope_theta", "rms_norm_eps"):
            if type(value := fields.get(name)) is int:
                # as text, because a number beyond all floats is infinite then
                fields[name] = float(str(value))
        return cls(**fields)

    def to_dict(self) -> Fields:
        """Return the fields of a config.json for `from_dict` and the PyTorch implementation."""
        names = invert(self.architecture.fields)
        usual = ("hidden_act", "rope_scaling", "use_sliding_window")
        fixed = {name: FIXED_FIELDS[name][0] for name in usual} | self.architecture.fixed
        return {
            "architectures": [self.family.classes[self.model_type]],
            **{names.get(name, name): value for name, value in fixed.items()},
            **self.to_published_fields(),
        }

    def to_published_fields(self) -> Fields:
        """Return the fields of this configuration under the names of the published config.json."""
        names = {
            **invert(self.architecture.fields),
            "head_size": "head_dim",
            "block_size": self.family.block_field,
        }
        # These fields are written only if they are set.
        optional = ("expand_token_id", "head_size", "block_size", "is_causal")
        return {
            names.get(name, name): value
            for name, value in asdict(self).items()
            if name not in optional or value is not None
        }

    def update_fields(self, fields: Fields) -> Fields:
        """Return the fields of a source's config.json, updated to this configuration.

        Fields that are unknown here are kept. If the architecture changes, only fields that do not
        change the computation are kept.

        Args:
            fields: the config.json of the model that this one was derived from.
        """
        fields = {name: value for name, value in fields.items() if name != "quantization_config"}
        if fields.get("model_type") != self.model_type:
            inert = INERT_FIELDS - {"architectures", "auto_map"}
            return {name: value for name, value in fields.items() if name in inert} | self.to_dict()
        # Only changed values are written, so that all other fields stay as the source has them.
        before = DreamConfig.from_dict(fields).to_published_fields()
        for name, value in self.to_published_fields().items():
            if value != before.get(name):
                fields[name] = value
        if "embedding_size" in fields:
            fields["embedding_size"] = self.vocab_size
        return fields


def set_dtype(fields: Fields, dtype: str) -> Fields:
    """Return the fields of a config.json with the dtype of the weights.

    The dtype is stored under the names that the fields use: `torch_dtype`, or `dtype` in newer
    versions of transformers.
    """
    names = {"torch_dtype", "dtype"} & fields.keys() or ["torch_dtype"]
    return fields | dict.fromkeys(names, dtype)


# Shapes for measurements without weights: the one of DiffuCoder, and a small one.
SHAPES = {name: DreamConfig(**shape) for name, shape in TABLE["shapes"].items()}
DIFFUCODER_7B = SHAPES["7b"]
