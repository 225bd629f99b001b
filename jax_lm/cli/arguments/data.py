"""Arguments of the commands about data: `data prepare-acecode`, `data show`, `data tokenize`.

Imports no JAX.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from jax_lm.data.columns import PLAIN_FORM, Columns, ConversationForm, Kind
from jax_lm.host.declared import Positional
from jax_lm.options import require_shares, require_sizes


@dataclass(frozen=True, kw_only=True)
class PrepareAcecode:
    """Select problems of AceCode-89K by difficulty, as prompts for coupled-GRPO.

    Example:
        diffucoder data prepare-acecode --data acecode.jsonl --out hard.jsonl --difficulty hard

    Attributes:
        data: JSONL file of AceCode rows: id, source, question, test_cases, inferences.
        out: JSONL file to write; rows have prompt (chat messages), test_cases, id and source.
        difficulty: DiffuCoder was trained on hard; medium and easy are easier.
    """

    data: Path
    out: Path
    difficulty: Literal["hard", "medium", "easy"] = "hard"


@dataclass(frozen=True, kw_only=True)
class DatasetPart:
    """Which part of a data set of `datasets` is read.

    Attributes:
        split: split to read, of a hub id, a folder in the hub's layout, or a folder with
            train.jsonl and test.jsonl. JSON files have no splits.
        subset: name of the subset, if the data set has several.
    """

    split: str = "train"
    subset: str | None = None


@dataclass(frozen=True, kw_only=True)
class NamedColumns:
    """Columns of a data set that have other names than ours."""

    @property
    def given(self) -> Columns:
        """Pairs of our name and the data set's name, for each column that the user has named."""
        # only what differs from the default: (("text", "content"),) for --text-column content
        return tuple(
            (field.name.removesuffix("_column"), column)
            for field in fields(self)
            if (column := getattr(self, field.name)) != field.default
        )


@dataclass(frozen=True, kw_only=True)
class ConversationColumns(NamedColumns):
    """Columns of conversations, by default messages, or prompt and response.

    Attributes:
        messages_column: column of turns, with role and content or with from and value.
        prompt_column: column of the user's messages.
        response_column: column of the answers to learn.
    """

    messages_column: str | None = None
    prompt_column: str | None = None
    response_column: str | None = None

    def __post_init__(self):
        if (self.prompt_column is None) != (self.response_column is None):
            name, column = self.given[-1]
            raise ValueError(
                f"{name}_column={column!r}: prompt_column and response_column need each other"
            )
        if self.messages_column is not None and self.prompt_column is not None:
            raise ValueError(
                f"messages_column={self.messages_column!r}: excludes prompt_column and response_column"
            )


@dataclass(frozen=True, kw_only=True)
class TextColumn(NamedColumns):
    """The column of texts.

    Attributes:
        text_column: column of the texts.
    """

    text_column: str = "text"


@dataclass(frozen=True, kw_only=True)
class PromptColumns(NamedColumns):
    """Columns of prompts with tests, by default prompt and test_cases.

    Attributes:
        prompt_column: column of the prompts: text, or chat messages.
        test_cases_column: column of the tests that code rewards run.
    """

    prompt_column: str | None = None
    test_cases_column: str | None = None


@dataclass(frozen=True, kw_only=True)
class AnyColumns(TextColumn, ConversationColumns):
    """Columns of texts, by default text, or of conversations.

    Attributes:
        text_column: column of the texts.
        messages_column: column of turns, with role and content or with from and value.
        prompt_column: column of the user's messages.
        response_column: column of the answers to learn.
    """

    def of(self, kind: Kind) -> Columns:
        """Return the named columns. Raises ValueError for a column of the other kind."""
        for name, column in self.given:
            if (name == "text") != (kind == "text"):
                raise ValueError(f"{name}_column={column!r}: kind={kind} has no such column")
        return self.given


def require_conversations(kind: Kind, form: ConversationForm):
    """Raise ValueError if the form of conversations is given for texts."""
    if kind == "text" and form != PLAIN_FORM:
        raise ValueError("template, turns: texts are learnt whole; they need --kind conversations")


@dataclass(frozen=True, kw_only=True)
class Show:
    """Print samples as the model sees them: visible tokens, learned tokens, and one draw of masks.

    Examples:
        diffucoder data show train.jsonl
        diffucoder data show train.parquet --model ./DiffuCoder-7B-Base --limit 10
        diffucoder data show owner/name --kind text --split test

    Attributes:
        data: JSONL file or folder of JSONL files, JSON file with an array, or, with the extra
            `datasets`, a hub id, a folder saved by `datasets` or Parquet.
        model: folder or hub id of the tokenizer and chat template; the built-in model by default.
        kind: conversations for `sft`, text for `adapt`.
        limit: number of samples to print, including refused lines.
        mask_ratio: share of the learned tokens that is masked. Training draws a ratio per sample
            and step.
        max_length: maximum length of a conversation in tokens, and length of the pieces of a text.
        seed: random seed of the masks.
        part: which part of a data set is read.
        columns: names of the columns.
        form: what is seen and learnt of a conversation.
    """

    data: Positional[str]
    model: str | None = None
    kind: Kind = "conversations"
    limit: int = 3
    mask_ratio: float = 0.5
    max_length: int = 2048
    seed: int = 0
    part: DatasetPart
    columns: AnyColumns
    form: ConversationForm

    def __post_init__(self):
        require_sizes(self, "limit", "max_length")
        require_shares(self, "mask_ratio")
        require_conversations(self.kind, self.form)


@dataclass(frozen=True, kw_only=True)
class Tokenize:
    """Tokenise a data set once, so that `adapt` and `sft` can read it from disk, even if it exceeds
    memory.

    If the command is killed, the same command writes the missing shards, with any number of
    workers.

    Examples:
        diffucoder data tokenize --data corpus/ --model Qwen/Qwen2.5-Coder-7B --out tokens/
        diffucoder data tokenize --data chats.jsonl --kind conversations --model ./DiffuCoder-7B-Base --out chats/
        diffucoder data tokenize --data owner/name --streaming --num-shards 512 --model ./7B-Base --out tokens/

    Attributes:
        data: JSONL file or folder of JSONL files, JSON file with an array, or, with the extra
            `datasets`, a hub id, a folder saved by `datasets` or Parquet.
        model: folder or hub id of the tokenizer.
        out: output folder.
        kind: text for `adapt`, conversations for `sft`, with the rows that these commands take.
        max_length: maximum length of a conversation in tokens; longer ones are refused and counted.
            Texts may have any length.
        workers: number of processes; the number of cores by default.
        num_shards: number of output files; by default one per 256 MiB of JSONL, per 131,072 rows,
            or per file that is streamed.
        part: which part of a data set is read.
        columns: names of the columns.
        form: what is seen and learnt of a conversation.
        streaming: read a data set of `datasets` without copying it into the cache.
    """

    data: str
    model: str
    out: Path
    kind: Kind = "text"
    max_length: int = 2048
    workers: int | None = None
    num_shards: int | None = None
    part: DatasetPart
    columns: AnyColumns
    form: ConversationForm
    streaming: bool = False

    def __post_init__(self):
        require_sizes(self, "max_length", "workers", "num_shards")
        require_conversations(self.kind, self.form)
