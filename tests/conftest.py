"""Fixtures: the recorded reference, and models that are small enough to be built per session."""

import contextlib
import ctypes
import dataclasses
import gc
import json
import os
import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    # Compiled programs survive a run. Processes share them: pytest-xdist's workers and child
    # processes inherit this.
    compiled = Path(__file__).parent.parent / ".pytest_cache" / "xla"
    if sum(path.stat().st_size for path in compiled.glob("*")) > 2**30:
        shutil.rmtree(compiled, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(compiled)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

# Tests compile much and run little: plain code, from the older emitters of loops, is compiled in
# half the time. .ci/run repeats the recorded reference, the examples and the meshes as users
# compile them (an empty XLA_FLAGS).
if version("jaxlib").startswith("0.10."):
    # Later ones have no older emitters, and end the process for a flag that they do not know.
    # A program in one part, not 32 that threads compile side by side: the workers share the cores.
    flags = (
        "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
        " --xla_cpu_parallel_codegen_split_count=1"
    )
    os.environ.setdefault("XLA_FLAGS", flags)
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

# Of the stack of each operation, which is deep under pytest, the programs keep nothing: lowering
# them takes an eighth less.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

import jax
import jax.numpy as jnp
import pytest
from cases.reference import GOLDEN
from cases.written_folders import adapted_folders, published_folder, written_folders  # noqa: F401 (fixtures)
from flax import nnx
from safetensors.numpy import load_file

from builtin_model.bpe import train_bpe
from jax_lm.diffusion.sampler import Sampler
from jax_lm.host import terminal
from jax_lm.inference import BUILTIN_MODEL, DiffuCoderInference
from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.tokenizer import DIFFUSION_PAD, END_OF_TEXT, END_OF_TURN, MASK, START_OF_TURN

SLOW = Path(__file__).parent / "slow.txt"
"""Tests that a run of all tests leaves to --release: 7 % of the cases take three quarters of the time.

tools/slow_tests.py writes it. A run of named files runs them.
"""
SKIPS_SLOW = "DIFFUCODER_TESTS_SKIP_SLOW"

MAX_MEMORY_MAPS = 40_000
"""Linux grants a process 65,530; a large compiled program takes some 250."""

LONGEST = (
    "served_devices", "drafts", "sandbox_cases", "response_format", "sampler", "sandbox", "block_pipeline", "sft",
    "multi_block", "grammar", "autoregressive", "attention", "sandbox_trials", "inference", "slots", "full_size", "gguf",
    "sandbox_containment", "cli", "lookahead", "serve", "estimators", "families", "convert", "coupled_grpo",
    "masked_diffusion", "regular_grammar", "speed", "full_width", "interruption", "engine", "dream", "expansion",
    "explanation", "growing_server", "variable_length", "api", "trainer", "block_training", "sharding", "frontier",
    "push", "chat_command", "every_family",
)  # fmt: skip
"""Modules that take longest. Some compute and some wait for time limits, so that workers share the cores."""


def pytest_addoption(parser):
    parser.addoption(
        "--full",
        action="store_true",
        help="whole benchmark files instead of samples (many minutes)",
    )
    parser.addoption(
        "--release",
        action="store_true",
        help="all tests: slow ones, and what a release needs: wheel, examples, meshes and hosts",
    )
    parser.addoption(
        "--fuzz-cases", type=int, default=10, help="generated requests per endpoint and kind"
    )


def pytest_xdist_auto_num_workers():
    """One more than cores: the tests of the sandbox wait for time limits."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config):
    config.addinivalue_line("markers", "for_release: takes minutes, and runs with --release")
    # the workers of pytest-xdist are told by the environment, which they inherit
    if not hasattr(config, "workerinput"):
        is_whole = config.args_source is config.ArgsSource.TESTPATHS
        os.environ[SKIPS_SLOW] = str(int(is_whole and not config.getoption("--release")))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Begin with the longest modules, skip slow tests, and mark those that take `for_release`.

    Begun last, one of these modules would keep a worker busy while the others are done.
    """
    slow = pytest.mark.skip(reason="slow: runs with --release, or where its file is named")
    slow_cases = {line.partition(" ")[2] for line in SLOW.read_text("utf-8").splitlines()}
    rank = {f"test_{name}": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))
    for item in items:
        names = {item.nodeid, item.nodeid.partition("[")[0]}
        if os.environ[SKIPS_SLOW] == "1" and names & slow_cases:
            item.add_marker(slow)
        # `-m for_release` runs them alone, where the others have run already.
        if "for_release" in item.fixturenames:
            item.add_marker("for_release")


def pytest_collection_finish():
    """Look for unreachable objects less often: what is imported and collected stays, and tracing
    makes many small objects, all of which a full collection visits.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


@pytest.fixture(scope="session")
def for_release(request):
    """Skips a test that takes minutes, unless a release is being checked."""
    if not request.config.getoption("--release"):
        pytest.skip("runs with --release")


def count_memory_maps():
    """Return the number of memory maps of this process; 0 where the system does not list them."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            return sum(1 for _ in maps)
    except OSError:
        return 0


@pytest.fixture(autouse=True)
def plain_lines(monkeypatch):
    """A test that serves leaves the lines of later commands as they were."""
    monkeypatch.setattr(terminal.LINES, "handlers", [*terminal.LINES.handlers])


@pytest.fixture(scope="module", autouse=True)
def few_executables():
    """Forget compiled programs before they reach the limit of memory maps."""
    yield
    if count_memory_maps() > MAX_MEMORY_MAPS:
        jax.clear_caches()


@pytest.fixture(scope="module", autouse=True)
def little_memory():
    """Return what compiling has freed to the system: glibc keeps it, several GiB in a whole run."""
    yield
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@pytest.fixture(scope="session")
def golden():
    """Recorded tensors by name."""
    return load_file(GOLDEN / "golden.safetensors")


@pytest.fixture(scope="session")
def cases():
    """Settings of the recorded generations."""
    return json.loads((GOLDEN / "cases.json").read_text())["generate"]


@pytest.fixture(scope="session")
def fast_cases():
    """Settings of Fast-dLLM's recorded generations."""
    return json.loads((GOLDEN / "cases.json").read_text())["fast"]


@pytest.fixture(scope="session")
def golden_model():
    """The recorded checkpoint in float32."""
    return DreamForCausalLM.from_pretrained(GOLDEN / "checkpoint")


@pytest.fixture(scope="session")
def golden_sampler(golden_model):
    return Sampler(golden_model)


@pytest.fixture(scope="session")
def tiny_config():
    """A shape with grouped queries and untied head, in milliseconds."""
    return DreamConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rope_theta=1e4,
        rms_norm_eps=1e-6,
        mask_token_id=95,
    )


@pytest.fixture(scope="session")
def tiny_model(tiny_config):
    return DreamForCausalLM(tiny_config, rngs=nnx.Rngs(0))


@pytest.fixture(scope="session")
def letters():
    """A tokenizer of single bytes with the special tokens of chat."""
    tokens = (END_OF_TEXT, START_OF_TURN, END_OF_TURN, MASK, DIFFUSION_PAD)
    template = (BUILTIN_MODEL / "chat_template.jinja").read_text(encoding="utf-8")
    return train_bpe(
        [], vocab_size=256 + len(tokens), special_tokens=tokens, chat_template=template
    )


@pytest.fixture(scope="session")
def policy(tiny_config, letters):
    """A model over the letters that writes digits nine times out of ten."""
    # Room for a vocabulary that eight devices can split.
    config = dataclasses.replace(tiny_config, vocab_size=264, mask_token_id=letters.mask_id)
    model = DreamForCausalLM(config, rngs=nnx.Rngs(0))
    digits = jnp.array([letters.encode(digit)[0] for digit in "0123456789"])
    # The first hidden unit is large for every token, and only the digits' logits look at it.
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    embedding[...] = embedding[...].at[:, 0].set(1.0)
    head[...] = head[...].at[:, 0].set(0.0).at[digits, 0].set(1.0)
    return model


@pytest.fixture(scope="session")
def engine():
    """The built-in model, as a user gets it."""
    return DiffuCoderInference(verbose=False)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """The built-in tokenizer with a model of random weights that are large enough for decided
    preferences.
    """
    folder = tmp_path_factory.mktemp("tiny")
    shutil.copytree(BUILTIN_MODEL, folder, dirs_exist_ok=True)
    config = DreamForCausalLM.read_config(BUILTIN_MODEL)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "initializer_range": 0.4,
    }
    DreamForCausalLM(replace(config, **sizes), rngs=nnx.Rngs(0)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_inference(tiny_folder):
    return DiffuCoderInference(tiny_folder, verbose=False)


@pytest.fixture
def broken_sampler():
    """Makes a sampler of the same shapes in which a part of the weights is NaN."""

    def broken(sampler, name, row=...):
        def change(path, leaf):
            return leaf.at[row].set(jnp.nan) if name in jax.tree_util.keystr(path) else leaf

        return sampler.changed(params=jax.tree_util.tree_map_with_path(change, sampler.params))

    return broken


@pytest.fixture(scope="session")
def builtin_folder():
    return BUILTIN_MODEL


@pytest.fixture(scope="module")
def address(engine):
    """Host and port of the module's engine; the libraries of the server are no part of every
    installation.
    """
    from cases.server import listening

    with listening(engine) as address:
        yield address


@pytest.fixture(scope="module")
def client(address):
    """The official client of that server."""
    import openai

    return openai.OpenAI(base_url="http://{}:{}/v1".format(*address), api_key="none", max_retries=0)
