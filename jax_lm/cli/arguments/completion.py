"""Arguments of `diffucoder completion`. Imports no JAX."""

from dataclasses import dataclass
from typing import Literal

from jax_lm.host.declared import Positional


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Print the completion script of a shell.

    Examples:
        source <(diffucoder completion bash)
        mkdir -p ~/.zfunc && diffucoder completion zsh > ~/.zfunc/_diffucoder    # fpath+=~/.zfunc before compinit
        diffucoder completion fish | source

    Attributes:
        shell: the shell to complete in.
    """

    shell: Positional[Literal["bash", "zsh", "fish"]]
