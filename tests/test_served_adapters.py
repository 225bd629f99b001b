"""Adapters that a request selects by its model name: answers of their own, from shared weights."""

import json
import threading
from dataclasses import replace

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("openai")

import jax
import openai
from cases.adapters import save_trained
from cases.server import OPTIONS, PROMPT, call, listening, started

from jax_lm.checkpoints.peft import CONFIG
from jax_lm.cli import main as cli
from jax_lm.host.compile_clock import compile_clock
from jax_lm.inference import DiffuCoderInference
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.serving.api import ServerSettings
from jax_lm.serving.slots import Slots

GREEDY = {"max_tokens": 24, "temperature": 0}
PROMPTS = (PROMPT, "class Stack:")
NAMES = ("", "first", "second", "third")


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tiny_folder):
    """Three adapters; the third has another rank."""
    root = tmp_path_factory.mktemp("adapters")
    for seed, (name, rank) in enumerate({"first": 2, "second": 2, "third": 3}.items()):
        save_trained(tiny_folder, root / name, rank=rank, seed=seed)
    return {name: root / name for name in NAMES[1:]}


@pytest.fixture(scope="module")
def expected(folders, tiny_folder):
    """Greedy texts by adapter, preset and prompt, of `generate` with that adapter alone."""
    texts = {}
    for name in NAMES:
        alone = DiffuCoderInference(tiny_folder, adapter=folders.get(name), verbose=False)
        for preset in ("exact", "fast"):
            options = GenerationOptions(
                max_new_tokens=24, temperature=0.0, decoding=Decoding(preset=preset)
            )
            for prompt in PROMPTS:
                texts[name, preset, prompt] = alone.complete([prompt], options)[0]
    assert len(set(texts.values())) > 12
    return texts


@pytest.fixture(scope="module")
def inference(folders, tiny_folder):
    return DiffuCoderInference(tiny_folder, adapters=folders, verbose=False)


@pytest.fixture(scope="module")
def address(inference, folders):
    settings = ServerSettings(model="tiny", adapters={name: f"me/{name}" for name in folders})
    with (
        started(inference, replace(OPTIONS, queue=16)) as engine,
        listening(engine, settings) as address,
    ):
        yield address


def ask(address, model, path="/v1/completions", **body):
    return call(address, "POST", path, {"model": model, **GREEDY, **body})


def test_weights_are_shared_and_equal_shapes_share_programs(inference):
    samplers = {"": inference.sampler, **inference.adapters}

    def pointers(name):
        return {part.unsafe_buffer_pointer() for part in jax.tree.leaves(samplers[name].params)}

    for name in NAMES[1:]:
        assert pointers("") < pointers(name)
    graphs = [samplers[name].graph for name in NAMES]
    assert graphs[1] is graphs[2] is graphs[3]
    assert graphs[0] != graphs[1]


def test_the_second_adapter_of_a_shape_compiles_nothing(address, expected):
    ask(address, "first", prompt=PROMPT)
    compiled = compile_clock().count
    answer = ask(address, "second", prompt=PROMPT)[2]
    assert answer["choices"][0]["text"] == expected["second", "exact", PROMPT]
    assert compile_clock().count == compiled


def test_concurrent_answers_are_those_of_each_adapter_alone(address, expected, monkeypatch):
    together = []

    def run(self, sequences, *arguments):
        together.append({each.adapter for each in sequences} | {self.sampler.adapter})
        return original(self, sequences, *arguments)

    original = Slots.run
    monkeypatch.setattr(Slots, "run", run)
    heard = {}

    def client(key):
        name, preset, prompt = key
        status, _, answer = ask(address, f"{name or 'tiny'}@{preset}", prompt=prompt)
        assert (status, answer["model"]) == (200, name or "tiny")
        heard[key] = answer["choices"][0]["text"]

    clients = [threading.Thread(target=client, args=(key,)) for key in expected]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    assert heard == expected
    assert together
    assert all(len(names) == 1 for names in together)
    metrics = call(address, "GET", "/metrics")[2]
    for name in NAMES:
        assert f'diffucoder_rows_total{{adapter="{name}",outcome="length"}}' in metrics


def test_streams_grammars_scores_and_conversations_have_the_adapter(address, expected):
    client = openai.OpenAI(base_url=f"http://{address[0]}:{address[1]}/v1", api_key="none")
    chunks = list(client.completions.create(model="second", prompt=PROMPT, stream=True, **GREEDY))
    assert "".join(each.choices[0].text for each in chunks) == expected["second", "exact", PROMPT]
    assert {each.model for each in chunks} == {"second"}
    scored = [
        ask(address, name, prompt=PROMPT, echo=True, logprobs=0, max_tokens=0)[2]["choices"][0]
        for name in ("tiny", "first", "second", "third")
    ]
    assert len({str(each["logprobs"]["token_logprobs"]) for each in scored}) == 4
    met = [
        ask(address, name, prompt=PROMPT, grammar="regex:[a-z]{6}[0-9]")[2]["choices"][0]["text"]
        for name in ("tiny", "first", "second", "third")
    ]
    assert all(len(text) == 7 and text[:6].islower() and text[6].isdigit() for text in met)
    assert len(set(met)) > 1


def test_models_are_listed_with_their_base(address):
    data = {each["id"]: each for each in call(address, "GET", "/v1/models")[2]["data"]}
    assert list(data)[:4] == ["tiny", "first", "second", "third"]
    assert (data["tiny"]["root"], data["tiny"]["parent"]) == ("tiny", None)
    assert (data["third@fast"]["root"], data["third@fast"]["parent"]) == ("me/third", "tiny")
    assert data["third@fast"]["preset"] == "fast"
    assert call(address, "GET", "/v1/models/second@turbo")[2]["preset"] == "turbo"


@pytest.mark.parametrize("name", ["fourth", "first@slow", "@fast", "first@fast@fast", "tiny@first"])
def test_a_name_that_is_not_offered_is_404(address, name):
    status, _, answer = ask(address, name, prompt=PROMPT)
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (
        404,
        "model_not_found",
        "model",
    )
    assert (
        "this server offers 'tiny', 'first', 'second', 'third', also with @exact"
        in answer["error"]["message"]
    )
    assert call(address, "GET", f"/v1/models/{name}")[0] == 404


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["first"], "adapters='first': must be name=folder, with a new name without @"),
        (["a@b=x"], "adapters='a@b=x': must be name=folder"),
        (["builtin=x"], "adapters='builtin=x': must be name=folder, with a new name"),
        (["a=x", "a=y"], "adapters='a=y': must be name=folder, with a new name"),
        (["a={first}", "--adapter", "{first}", "--model", "{tiny}"], "adapter, adapters: give one of them"),
        (["a=absent"], "adapter 'absent'"),
        (["a={first}"], "adapter '{first}' was trained on"),
        (["a={dora}", "--model", "{tiny}"], "use_dora=True: it is not supported"),
    ],
)  # fmt: skip
def test_wrong_adapters_are_refused_before_weights_are_read(
    arguments, message, folders, tiny_folder, tmp_path, capsys, monkeypatch
):
    places = {"first": folders["first"], "tiny": tiny_folder}
    for name, change in (("dora", {"use_dora": True}),):
        places[name] = tmp_path / name
        places[name].mkdir()
        for path in folders["first"].iterdir():
            (places[name] / path.name).write_bytes(path.read_bytes())
        fields = json.loads((places[name] / CONFIG).read_text()) | change
        (places[name] / CONFIG).write_text(json.dumps(fields))
    monkeypatch.setattr(DreamForCausalLM, "from_pretrained", None)
    arguments = [each.format(**places) for each in arguments]
    assert cli.main(["serve", "--port", "0", "--adapters", *arguments]) == 2
    assert message.format(**places) in capsys.readouterr().err.splitlines()[-1]
