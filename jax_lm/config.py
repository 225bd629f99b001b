"""DreamConfig: the shape of a Dream model, and the rules for a supported config.json."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, replace
from typing import Any

MODEL_TYPES = ("Dream", "qwen2")
# Fields of config.json that change the computation, with the only values that are supported.
FIXED_FIELDS: dict[str, tuple] = {
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "use_sliding_window": (False, None),
    "use_mrope": (False, None),
    "attention_dropout": (0, 0.0),
    "attention_bias": (True,),
    "mlp_bias": (False,),
    "quantization_config": (None,),
}

# The classes that the published checkpoints name.
ARCHITECTURES = {"Dream": ["DreamModel"], "qwen2": ["Qwen2ForCausalLM"]}

# Fields of config.json that do not change the computation.
INERT_FIELDS = frozenset(
    """
    _name_or_path architectures auto_map dtype full_attn_mask_ratio id2label label2id
    max_window_layers sliding_window torch_dtype transformers_version unsloth_version use_cache
    _attn_implementation _attn_implementation_autoset
    """.split()  # noqa: SIM905 (a table, not a list)
)


# Limit of the number of layers, above that of any model: a config.json with a huge number would
# exhaust memory, because layers are built before the weights are opened.
MAX_LAYERS = 1000


@dataclass(frozen=True, kw_only=True)
class DreamConfig:
    """The shape of a Dream model, with the field names of config.json.

    Sizes have no defaults, because the class defaults of the published code differ from the values
    of the published models.
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
    model_type: str = "Dream"

    def __post_init__(self) -> None:
        sizes = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
        )
        for name in (*sizes, "num_key_value_heads", "max_position_embeddings"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"config {name}={value!r}: must be a positive integer")
        if self.num_hidden_layers > MAX_LAYERS:
            raise ValueError(
                f"config num_hidden_layers={self.num_hidden_layers}: must be at most {MAX_LAYERS}"
            )
        for name in ("rope_theta", "rms_norm_eps"):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 < value < float("inf")
            ):
                raise ValueError(f"config {name}={value!r}: must be a positive number")
        if not isinstance(self.tie_word_embeddings, bool):
            raise ValueError(
                f"config tie_word_embeddings={self.tie_word_embeddings!r}: must be true or false"
            )
        # The rotary embedding splits a head into two halves, so its dimension must be even.
        heads, groups = f"num_attention_heads={self.num_attention_heads}", self.num_key_value_heads
        if self.hidden_size % self.num_attention_heads or self.head_dim % 2:
            raise ValueError(
                f"config hidden_size={self.hidden_size}: "
                f"must be {heads} times an even head dimension"
            )
        if self.num_attention_heads % groups:
            raise ValueError(f"config num_key_value_heads={groups}: must divide {heads}")
        # Special tokens.
        mask_id = self.mask_token_id
        if mask_id is not None and (type(mask_id) is not int or not 0 <= mask_id < self.vocab_size):
            raise ValueError(
                f"config mask_token_id={mask_id!r}: must be an id below {self.vocab_size}"
            )
        expand_id = self.expand_token_id
        others = (mask_id, self.eos_token_id)
        if expand_id is not None and (
            type(expand_id) is not int or not 0 <= expand_id < self.vocab_size
        ):
            raise ValueError(
                f"config expand_token_id={expand_id!r}: must be an id below {self.vocab_size}"
            )
        if expand_id is not None and expand_id in others:
            raise ValueError(
                f"config expand_token_id={expand_id}: "
                "must differ from mask_token_id and eos_token_id"
            )
        if self.model_type not in MODEL_TYPES:
            raise ValueError(
                f"config model_type={self.model_type!r}: must be one of {', '.join(MODEL_TYPES)}"
            )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "DreamConfig":
        """Convert the fields of a config.json.

        Raises:
            ValueError: a size is missing, or a field is unknown or has an unsupported value.
        """
        fields = dict(fields)
        if (kind := fields.get("model_type", "Dream")) not in MODEL_TYPES:
            raise ValueError(
                f"config model_type={kind!r}: only {' and '.join(MODEL_TYPES)} are supported"
            )
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
        for name, allowed in FIXED_FIELDS.items():
            if name in fields and (value := fields.pop(name)) not in allowed:
                raise ValueError(
                    f"config {name}={value!r}: only {' or '.join(map(repr, allowed))} is supported"
                )
        head_dim = fields.pop("head_dim", None)
        known = set(cls.__dataclass_fields__)
        # An unknown field may change the computation, so it is an error, not a warning.
        if unknown := sorted(set(fields) - known - INERT_FIELDS):
            raise ValueError(
                f"config field {unknown[0]!r} is not known and may change the model; not loading it"
            )
        required = [
            field.name for field in cls.__dataclass_fields__.values() if field.default is MISSING
        ]
        if missing := [name for name in required if name not in fields]:
            raise ValueError(f"config.json lacks {', '.join(missing)}")
        config = cls(**{name: value for name, value in fields.items() if name in known})
        if head_dim not in (None, config.head_dim):
            raise ValueError(
                f"config head_dim={head_dim}: only hidden_size / num_attention_heads is supported"
            )
        return config

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of a config.json for `from_dict` and the PyTorch implementation."""
        fixed = {
            name: FIXED_FIELDS[name][0]
            for name in ("hidden_act", "rope_scaling", "use_sliding_window")
        }
        # expand_token_id is our extension; it is only written for models that have the token.
        fields = {
            name: value
            for name, value in asdict(self).items()
            if name != "expand_token_id" or value is not None
        }
        return {"architectures": ARCHITECTURES[self.model_type]} | fixed | fields

    def update_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
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
        before = asdict(DreamConfig.from_dict(fields))
        return fields | {
            name: value for name, value in asdict(self).items() if value != before[name]
        }


def set_dtype(fields: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Return the fields of a config.json with the dtype of the weights.

    The dtype is stored under the names that the fields use: `torch_dtype`, or `dtype` in newer
    versions of transformers.
    """
    names = [name for name in ("torch_dtype", "dtype") if name in fields] or ["torch_dtype"]
    return dict(fields) | dict.fromkeys(names, dtype)


# The shape of the published 7B models, for measurements without their weights.
DIFFUCODER_7B = DreamConfig(
    vocab_size=152064,
    hidden_size=3584,
    intermediate_size=18944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    max_position_embeddings=131072,
    rope_theta=1e6,
    rms_norm_eps=1e-6,
    mask_token_id=151666,
)

SMALL = replace(
    DIFFUCODER_7B,
    hidden_size=512,
    intermediate_size=2048,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=2,
    max_position_embeddings=4096,
)
# Shapes for random weights: the one of DiffuCoder, and a small one with its vocabulary, which a CPU
# computes quickly.
SHAPES = {"small": SMALL, "7b": DIFFUCODER_7B}
