"""Stands in for the publisher's file of this name."""

from transformers import Qwen2Tokenizer


class DreamTokenizer(Qwen2Tokenizer):
    pass
