"""Arguments of `diffucoder completion`. Imports no JAX."""

from dataclasses import dataclass
from typing import Literal

from jax_lm.host.declared import Positional


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Print the completion script of a shell.

    Examples:
        diffucoder completion bash > ~/.local/share/bash-completion/completions/diffucoder
        diffucoder completion zsh > ~/.zfunc/_diffucoder               (with fpath+=~/.zfunc before compinit)
        diffucoder completion fish > ~/.config/fish/completions/diffucoder.fish

    Attributes:
        shell: the shell to complete in.
    """

    shell: Positional[Literal["bash", "zsh", "fish"]]
