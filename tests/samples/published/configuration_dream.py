"""Stands in for the publisher's file of this name: the configuration of a Qwen2 under Dream's name."""

from transformers import Qwen2Config


class DreamConfig(Qwen2Config):
    model_type = "Dream"

    def __init__(self, mask_token_id=None, **fields):
        super().__init__(**fields)
        self.mask_token_id = mask_token_id
