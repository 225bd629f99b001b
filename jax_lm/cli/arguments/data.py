"""Arguments of the commands about data: `data prepare-acecode`, `data show`, `data tokenize`. Imports no JAX."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from jax_lm.cli.declared import Positional


@dataclass(frozen=True, kw_only=True)
class PrepareAcecode:
    """Choose problems of AceCode-89K by difficulty, as prompts for coupled-GRPO.

    Example:
        diffucoder data prepare-acecode --data acecode.jsonl --out hard.jsonl --difficulty hard

    Attributes:
        data: JSONL file with AceCode's rows: id, source, question, test_cases, inferences.
        out: JSONL file to write: prompt (chat messages), test_cases, id, source.
        difficulty: hard is what DiffuCoder was trained on; medium and easy lie above.
    """

    data: Path
    out: Path
    difficulty: Literal["hard", "medium", "easy"] = "hard"


Kind = Literal["text", "conversations"]


@dataclass(frozen=True, kw_only=True)
class DatasetPart:
    """Which part of a data set of `datasets` is read.

    Attributes:
        split: of a hub id, of a folder in the hub's layout, or of one with train.jsonl and test.jsonl; a file of JSON
            has none.
        subset: of a data set that has several.
    """

    split: str = "train"
    subset: str | None = None


@dataclass(frozen=True, kw_only=True)
class ConversationColumns:
    """What the columns of conversations are called, where that is not messages, or prompt and response.

    Attributes:
        messages_column: turns with role and content, or with from and value.
        prompt_column: what the user says.
        response_column: what is learnt.
    """

    messages_column: str | None = None
    prompt_column: str | None = None
    response_column: str | None = None

    def __post_init__(self) -> None:
        if (self.prompt_column is None) != (self.response_column is None):
            name = "prompt_column" if self.response_column is None else "response_column"
            raise ValueError(f"{name}={getattr(self, name)!r}: prompt_column and response_column need each other")
        if self.messages_column is not None and self.prompt_column is not None:
            raise ValueError(f"messages_column={self.messages_column!r}: excludes prompt_column and response_column")

    @property
    def given(self) -> tuple[tuple[str, str], ...]:
        """Our names of columns, and theirs."""
        names = ("messages", "prompt", "response")
        return tuple((name, column) for name in names if (column := getattr(self, f"{name}_column")) is not None)


@dataclass(frozen=True, kw_only=True)
class TextColumn:
    """What the column of texts is called.

    Attributes:
        text_column: where a row has its text.
    """

    text_column: str = "text"

    @property
    def given(self) -> tuple[tuple[str, str], ...]:
        """Our name of the column and theirs, where they differ."""
        return () if self.text_column == "text" else (("text", self.text_column),)


@dataclass(frozen=True, kw_only=True)
class PromptColumns:
    """What the columns of prompts with tests are called, where that is not prompt and test_cases.

    Attributes:
        prompt_column: text, or chat messages.
        test_cases_column: what the rewards for code read.
    """

    prompt_column: str | None = None
    test_cases_column: str | None = None

    @property
    def given(self) -> tuple[tuple[str, str], ...]:
        """Our names of columns, and theirs."""
        names = ("prompt", "test_cases")
        return tuple((name, column) for name in names if (column := getattr(self, f"{name}_column")) is not None)


@dataclass(frozen=True, kw_only=True)
class AnyColumns:
    """Columns of both kinds of data."""

    text: TextColumn = field(default_factory=TextColumn)
    conversations: ConversationColumns = field(default_factory=ConversationColumns)

    def of(self, kind: Kind) -> tuple[tuple[str, str], ...]:
        """Our names and theirs, for data of this kind; ValueError if one of the other kind is named."""
        other = self.conversations if kind == "text" else self.text
        for name, column in other.given:
            raise ValueError(f"{name}_column={column!r}: kind={kind} has no such column")
        return (self.text if kind == "text" else self.conversations).given


ONE_SPLIT, OUR_COLUMNS = DatasetPart(), AnyColumns()


@dataclass(frozen=True, kw_only=True)
class Show:
    """Print samples as the model will see them: what stays visible, what is learnt, and one draw of masks.

    Examples:
        diffucoder data show train.jsonl
        diffucoder data show train.parquet --model ./DiffuCoder-7B-Base --limit 10
        diffucoder data show owner/name --kind text --split test

    Attributes:
        data: JSONL file, or folder of them; JSON file with an array; or what the library `datasets` loads (its extra):
            hub id, a folder that it saved, Parquet.
        model: folder or hub id whose tokenizer and template are used; the built-in model if not given.
        kind: conversations for `sft`, text for `adapt`.
        limit: number of samples, refused lines among them.
        mask_ratio: share of what is learnt that is masked; training draws it anew for every sample and step.
        max_length: longest conversation in tokens, and length of a piece of a text.
        seed: of the masks.
        part: of a data set of `datasets`.
        columns: what they are called.
    """

    data: Positional[str]
    model: str | None = None
    kind: Kind = "conversations"
    limit: int = 3
    mask_ratio: float = 0.5
    max_length: int = 2048
    seed: int = 0
    part: DatasetPart = ONE_SPLIT
    columns: AnyColumns = OUR_COLUMNS

    def __post_init__(self) -> None:
        for name in ("limit", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if not 0 <= self.mask_ratio <= 1:
            raise ValueError(f"mask_ratio={self.mask_ratio}: must lie in [0, 1]")


@dataclass(frozen=True, kw_only=True)
class Tokenize:
    """Tokenise a data set once, for `adapt` and `sft` to read from disk, also where it is larger than the memory.

    Killed at any moment, the same command goes on with the shards that are missing, with any number of workers.

    Examples:
        diffucoder data tokenize --data corpus/ --model Qwen/Qwen2.5-Coder-7B --out tokens/
        diffucoder data tokenize --data chats.jsonl --kind conversations --model ./DiffuCoder-7B-Base --out chats/
        diffucoder data tokenize --data owner/name --streaming --num-shards 512 --model ./7B-Base --out tokens/

    Attributes:
        data: JSONL file, or folder of them; JSON file with an array; or what the library `datasets` loads (its extra):
            hub id, a folder that it saved, Parquet.
        model: folder or hub id whose tokenizer is used.
        out: folder to write.
        kind: text for `adapt`, conversations for `sft`, with rows as these commands take them.
        max_length: longest conversation in tokens; longer ones are refused, and counted. Texts have any length.
        workers: processes; as many as there are cores if not given.
        num_shards: files; of 256 MiB of JSONL each, of 131,072 rows, or one per file that is streamed if not given.
        part: of a data set of `datasets`.
        columns: what they are called.
        streaming: read a data set of `datasets` from where it lies, without a copy of it in the cache.
    """

    data: str
    model: str
    out: Path
    kind: Kind = "text"
    max_length: int = 2048
    workers: int | None = None
    num_shards: int | None = None
    part: DatasetPart = ONE_SPLIT
    columns: AnyColumns = OUR_COLUMNS
    streaming: bool = False

    def __post_init__(self) -> None:
        for name in ("max_length", "workers", "num_shards"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")

    @property
    def processes(self) -> int:
        """Workers, of which there is at least one."""
        return self.workers or os.cpu_count() or 1
