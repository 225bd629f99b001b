"""Stands in for the publisher's file of this name: a Qwen2 without a causal mask."""

from transformers import Qwen2ForCausalLM

from .configuration_dream import DreamConfig
from .generation_utils import DreamGenerationMixin


class DreamModel(DreamGenerationMixin, Qwen2ForCausalLM):
    config_class = DreamConfig

    def forward(self, input_ids, **options):
        for layer in self.model.layers:
            layer.self_attn.is_causal = False
        return super().forward(
            input_ids, attention_mask={"full_attention": None}, use_cache=False, **options
        )
