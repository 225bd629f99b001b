"""Run the commands on random weights of every family, at the size of Qwen2.5-Coder-0.5B.

    python experiments/families_at_size.py --tokenizer FOLDER --out families    # 8 GB of memory, an hour

FOLDER holds the tokenizer of Qwen2.5-Coder. Each row of `families.toml` gets weights of 24 layers of
width 896 with a vocabulary of 151,936, in bfloat16, the real tokenizer and the mask token of the
family. No command knows a family; the commands of all rows are the same:

    verify, info, generate (a completion, and a gap or its refusal), eval builtin, serve

The weights are removed at the end. Texts of random weights mean nothing; that the server answers what
`generate` prints is a test of small ones (tests/test_every_family.py).
"""

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from flax import nnx

from jax_lm.config import FAMILIES, DreamConfig
from jax_lm.host.declared import run_main
from jax_lm.models.dream import DreamForCausalLM

SIZE = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
}
# The ids of the tokenizer have no gap: the family's mask token takes the place of DiffuCoder's.
MASK_ID = 151_666
END_ID = 151_643
PROMPT = "def fibonacci(n):\n"
NEW = ("--temperature", "0", "--max-new-tokens", "16")
# A task has some 150 tokens, and its program does not matter here.
FEW = ("--temperature", "0", "--max-new-tokens", "2")
PORT = 8765


@dataclass
class Arguments:
    """Folders of the experiment.

    Attributes:
        tokenizer: folder with vocab.json, merges.txt and added_tokens.json of Qwen2.5-Coder.
        out: folder for the weights of one family at a time, and for families.json.
        limit: tasks of `eval builtin`.
        only: names of families; all of them if empty.
    """

    tokenizer: Path
    out: Path
    limit: int = 20
    only: tuple[str, ...] = ()


def write_model(folder, family, tokenizer):
    """Write random weights with the files of a row of families.toml."""
    kind, architecture = next(iter(family.types.items()))
    mask = (family.mask_token or "<M>") if family.is_diffusion else None
    config = DreamConfig(
        model_type=kind,
        block_size=family.block_size,
        is_causal=family.is_causal or None,
        head_size=128 if architecture.has_qk_norm else None,
        eos_token_id=END_ID,
        pad_token_id=END_ID,
        mask_token_id=MASK_ID if mask else None,
        **SIZE,
    )
    model = DreamForCausalLM(config, rngs=nnx.Rngs(0))
    model.save_pretrained(folder, dtype="bfloat16")
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(tokenizer / name, folder)
    added = json.loads((tokenizer / "added_tokens.json").read_text())
    added = {token: number for token, number in added.items() if number != MASK_ID}
    added[mask or "<|unused|>"] = MASK_ID
    settings = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    if mask:
        settings["mask_token"] = mask
    (folder / "added_tokens.json").write_text(json.dumps(added))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def run(*words, status=0):
    """Run a command; returns its seconds, and what it printed."""
    start = time.monotonic()
    command = [sys.executable, "-m", "jax_lm", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != status:
        raise SystemExit(
            f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return time.monotonic() - start, done.stdout if status == 0 else done.stderr.strip()


def ask(body):
    """Return the text of a completion from the server."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)["choices"][0]["text"]


def serve(folder):
    """Start a server, ask it once, and end it; returns the seconds until it was ready, and the text."""
    start = time.monotonic()
    command = [sys.executable, "-m", "jax_lm", "serve", "-m", folder, "--port", str(PORT)]
    command += ["--slots", "1", "--context", "384"]
    with open(folder / "serve.log", "w") as log, subprocess.Popen(command, stderr=log) as server:
        try:
            while True:
                if server.poll() is not None:
                    raise SystemExit((folder / "serve.log").read_text()[-2000:])
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/ready", timeout=5):
                        break
                except OSError:
                    time.sleep(1)
            ready = time.monotonic() - start
            text = ask({"prompt": PROMPT, "max_tokens": 16, "temperature": 0})
        finally:
            server.terminate()
    return ready, text


def try_family(folder, family, limit):
    """Run the commands; returns seconds and what they said."""
    row = {}
    row["verify"], verified = run("verify", folder)
    row["family"] = next(line for line in verified.splitlines() if "family: " in line)
    run("info", "-m", folder)
    row["generate"], answer = run("generate", "-m", folder, *NEW, "--json", PROMPT)
    answer = json.loads(answer)
    assert len(answer["token_ids"]) == 16, answer
    assert answer["holes"][0], answer
    fills = family.attention == "full" or not family.is_diffusion
    gap = ("--prefix", PROMPT, "--suffix", "\nprint(fibonacci(9))\n")
    row["gap"], said = run("generate", "-m", folder, *NEW, *gap, status=0 if fills else 2)
    row["gap_said"] = "filled" if fills else said
    tasks = folder / "eval"
    row["eval"], _ = run("eval", "builtin", "-m", folder, *FEW, "--limit", limit, "--out", tasks)
    attempts = (tasks / "attempts.jsonl").read_text().splitlines()
    assert len(attempts) == limit
    row["judged"] = sum(json.loads(line)["outcome"] in ("passed", "failed") for line in attempts)
    row["ready"], row["served"] = serve(folder)
    return row


def main(arguments: Arguments) -> int:
    """Try the families one after another, and write what was found after each."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "families.json"
    rows = json.loads(path.read_text()) if path.exists() else {}
    for family in FAMILIES:
        if family.name in rows or (arguments.only and family.name not in arguments.only):
            continue
        folder = arguments.out / "model"
        shutil.rmtree(folder, ignore_errors=True)
        write_model(folder, family, arguments.tokenizer)
        rows[family.name] = try_family(folder, family, arguments.limit)
        path.write_text(json.dumps(rows, indent=1))
        print(family.name, json.dumps(rows[family.name]), flush=True)
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(run_main(Arguments)))
