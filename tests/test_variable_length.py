"""Holes that find their own length: expanding and deleting against lists, limits, what stays,
counts, refusals.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases.generation import greedy
from cases.published_model import publish_growing
from flax import nnx
from rich.text import Text

from jax_lm.cli.commands.watching import canvas_text
from jax_lm.cli.main import main
from jax_lm.diffusion.canvas import Block, Canvas
from jax_lm.diffusion.sampler import Sampler, run
from jax_lm.diffusion.state import Hooks
from jax_lm.diffusion.variable_length import Extent, VariableLength, resize
from jax_lm.inference import DiffuCoderInference
from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.serving.sequence import Sequence
from jax_lm.templates import INITIAL_MASKS, Template
from jax_lm.tokenizer import TokenizerError

MASK, EXPAND, DELETE = 95, 94, 93
LETTERS = (7, 8, 9)
GROWTH = VariableLength(EXPAND, DELETE)
OPEN = None
WIDTH = 48


def saying(**likings):
    """A model whose logits for the named tokens are nearly these, wherever it looks; others are far
    below.
    """
    config = DreamConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, rope_theta=1e4, rms_norm_eps=1e-6, mask_token_id=MASK,
        eos_token_id=DELETE, expand_token_id=EXPAND,
    )  # fmt: skip
    model = DreamForCausalLM(config, rngs=nnx.Rngs(0))
    ids = {"expand": [EXPAND], "delete": [DELETE], "letters": list(LETTERS)}
    head = jnp.full((96, 1), -4.0)
    for name, liking in likings.items():
        head = head.at[jnp.array(ids[name])].set(liking)
    # The first hidden unit is large for every token; the others still tell contexts apart.
    embedding, weight = model.model.embed_tokens.weight, model.lm_head.weight
    embedding[...] = embedding[...].at[:, 0].set(1.0)
    weight[...] = weight[...].at[:, :1].set(head)
    return Sampler(model)


@pytest.fixture(scope="module")
def undecided():
    return saying(expand=0.8, delete=0.5, letters=1.0)


def canvas(rows, new_tokens, width=WIDTH):
    """Rows of ids with OPEN for masks; each hole may grow to `new_tokens`."""
    tokens, holes, present = (
        np.zeros((len(rows), width), np.int32),
        *np.zeros((2, len(rows), width), bool),
    )
    room = []
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = [0 if each is OPEN else each for each in row]
        holes[number, : len(row)] = [each is OPEN for each in row]
        present[number, : len(row)] = True
        starts = sum(
            each is OPEN and (not place or row[place - 1] is not OPEN)
            for place, each in enumerate(row)
        )
        room.append(len(row) - int(holes[number].sum()) + starts * new_tokens)
    return Canvas(tokens, holes, present, np.array(room))


def parts(state, row=0):
    """The tokens of a row, and the number of the hole that each is of."""
    length = int(state.extra.length[row])
    return np.asarray(state.tokens)[row, :length].tolist(), np.asarray(state.extra.hole)[
        row, :length
    ].tolist()


def given(state, row=0):
    return [token for token, hole in zip(*parts(state, row), strict=True) if hole < 0]


def filling(state, hole=0, row=0):
    return [token for token, number in zip(*parts(state, row), strict=True) if number == hole]


def drawn(**settings):
    return GenerationOptions(**{"temperature": 1.0, "top_p": None, "top_k": None} | settings)


def resized_list(row):
    """What becomes of a row of (token, is masked, is decided, hole), told with lists."""
    swept, kept = set(), []
    for token, is_masked, is_decided, hole in row:
        if is_decided and token == DELETE:
            swept.add(hole)
        elif is_masked and hole in swept:
            continue
        elif is_decided and token == EXPAND:
            kept += [(None, hole)] * 2
        else:
            kept.append((token, hole))
    return kept


def test_resizing_equals_a_model_of_lists():
    rng = np.random.default_rng(0)
    batch, width = 1000, 40
    length = rng.integers(1, 21, batch)
    hole = np.where(
        np.arange(width) < length[:, None], rng.integers(-1, 2, (batch, width)).cumsum(axis=1), -1
    )
    # Holes are runs of columns, with given text in between.
    hole = np.where(hole % 4 == 3, -1, hole // 4)
    tokens = rng.choice([*LETTERS, DELETE, EXPAND], (batch, width)).astype(np.int32)
    masked = (hole >= 0) & (rng.random((batch, width)) < 0.5)
    decided = (hole >= 0) & ~masked & (rng.random((batch, width)) < 0.5)
    runs = np.concatenate([np.ones((batch, 1), bool), hole[:, 1:] != hole[:, :-1]], axis=1).cumsum(
        axis=1
    )
    hole = np.where(hole >= 0, runs, -1).astype(np.int32)
    full = np.full(batch, width, np.int32)
    extent = Extent(
        jnp.asarray(length, jnp.int32), jnp.asarray(full), jnp.asarray(full), jnp.asarray(hole)
    )
    move = resize(extent, jnp.asarray(tokens), jnp.asarray(masked), jnp.asarray(decided), GROWTH)
    moved, is_open = np.asarray(move.gather(jnp.asarray(tokens), -1)), np.asarray(move.is_new)
    seen = {"longer": 0, "shorter": 0}
    for row in range(batch):
        columns = zip(tokens[row], masked[row], decided[row], hole[row], strict=True)
        wanted = resized_list(list(columns)[: length[row]])
        count = int(move.extent.length[row])
        found = [None if is_open[row, place] else moved[row, place] for place in range(count)]
        assert found == [token for token, _ in wanted]
        assert np.asarray(move.extent.hole)[row, :count].tolist() == [
            number for _, number in wanted
        ]
        assert (moved[row, count:] == -1).all()
        assert not is_open[row, count:].any()
        added = int(width - move.extent.budget[row])
        assert added == int((decided & (tokens == EXPAND))[row].sum())
        seen["longer"] += count > length[row]
        seen["shorter"] += count < length[row]
    assert min(seen.values()) > 100


@pytest.mark.parametrize("tokens_per_step", [1, 3])
def test_a_model_that_always_expands_stops_at_the_limit(tokens_per_step):
    state = saying(expand=2.0, letters=1.0).generate(
        canvas([[1, 2, OPEN, 3]], 20), greedy(tokens_per_step=tokens_per_step)
    )
    assert given(state) == [1, 2, 3]
    assert len(state.extra.hole[0]) == WIDTH
    assert set(filling(state)) <= set(LETTERS)
    # All that a step decides must find room.
    assert 20 - (tokens_per_step - 1) <= len(filling(state)) <= 20
    assert not np.asarray(state.masked).any()
    if tokens_per_step == 1:
        assert int(state.forwards) == 20 + 19


def test_the_budget_bounds_what_is_added():
    sampler, rows = saying(expand=2.0, letters=1.0), canvas([[1, 2, OPEN, 3]], 20)
    start = sampler.start(rows, 0)
    state = sampler.generate(
        rows, greedy(), state=start._replace(extra=Extent.of(rows)._replace(budget=jnp.array([5])))
    )
    assert len(filling(state)) == 6
    assert int(state.extra.budget[0]) == 0


def test_a_model_that_always_deletes_leaves_an_empty_hole():
    state = saying(delete=2.0).generate(
        canvas([[1, 2, *[OPEN] * 8, 3]], 20), greedy(alg="left_to_right")
    )
    assert parts(state)[0] == [1, 2, 3]
    assert int(state.forwards) == 1


@pytest.mark.parametrize("seed", range(6))
def test_given_text_stays_and_evaluations_are_as_counted(undecided, seed):
    rows, events, before = (
        canvas([[1, 2, *[OPEN] * 6, 3, 4]], 24),
        {"fill": 0, "expand": 0, "delete": 0},
        10,
    )
    state = None
    for number, state in enumerate(undecided.stream(rows, drawn(alg="random"), seed=seed), 1):
        assert given(state) == [1, 2, 3, 4]
        length = int(state.extra.length[0])
        assert length <= rows.room[0]
        events["expand" if length > before else "delete" if length < before else "fill"] += 1
        assert length - before <= 1
        assert int(state.forwards) == number
        before = length
    assert state is not None
    assert int(state.forwards) == len(filling(state)) + events["expand"] + events["delete"]
    assert events["fill"] == len(filling(state))
    assert int(state.extra.budget[0]) == 2 * (rows.room[0] - 2) - events["expand"]
    assert set(filling(state)).isdisjoint({MASK, EXPAND, DELETE})
    whole = undecided.generate(rows, drawn(alg="random"), seed=seed)
    assert parts(whole) == parts(state)


def test_steps_and_confidence_move_with_their_tokens(undecided):
    rows, told = canvas([[1, *[OPEN] * 6, 3]], 24), {}
    state = None
    for state in undecided.stream(rows, drawn(alg="random"), seed=3):
        step, confidence = np.asarray(state.commit_step[0]), np.asarray(state.confidence[0])
        place = np.flatnonzero(step == int(state.step) - 1)
        if len(place):
            told[int(step[place[0]])] = (
                int(state.tokens[0, place[0]]),
                float(confidence[place[0]]),
            )
    assert state is not None
    decided = np.flatnonzero(np.asarray(state.extra.hole[0]) >= 0)
    steps = np.asarray(state.commit_step[0])[decided].tolist()
    assert {
        step: (int(state.tokens[0, p]), float(state.confidence[0, p]))
        for step, p in zip(steps, decided, strict=True)
    } == told
    assert steps != sorted(steps)


def test_only_decided_masks_are_expanded_or_deleted():
    prefix = [1, DELETE, EXPAND, 2]
    state = saying(letters=2.0).generate(
        canvas([[*prefix, OPEN, OPEN, EXPAND, DELETE]], 8), greedy()
    )
    assert given(state) == [*prefix, EXPAND, DELETE]
    assert len(filling(state)) == 2


def test_two_holes_have_lengths_of_their_own(undecided):
    lengths = set()
    for seed in range(6):
        rows = canvas([[1, *[OPEN] * 4, 2, 3, *[OPEN] * 4, 4]], 10)
        state = undecided.generate(rows, drawn(alg="random"), seed=seed)
        assert given(state) == [1, 2, 3, 4]
        holes = [number for number in parts(state)[1] if number >= 0]
        assert holes == sorted(holes)
        lengths.add((len(filling(state, 0)), len(filling(state, 1))))
        text = [token for token, hole in zip(*parts(state), strict=True) if hole != 1]
        assert text[-3:] == [2, 3, 4]
    assert len({first for first, _ in lengths}) > 1
    assert len({second for _, second in lengths}) > 1


def test_deleting_ends_with_its_hole():
    state = saying(delete=2.0).generate(
        canvas([[1, *[OPEN] * 4, 2, *[OPEN] * 4, 3]], 10), greedy(alg="left_to_right")
    )
    assert parts(state)[0] == [1, 2, 3]
    assert int(state.forwards) == 2


def test_a_ragged_batch_equals_its_rows_alone(undecided):
    rows = [
        [1, *[OPEN] * 6, 3],
        [1, 2, 5, 6, 4, *[OPEN] * 2, 3, 3],
        [1, *[OPEN] * 3, 2, *[OPEN] * 3, 2],
    ]
    keys = jax.vmap(jax.random.key)(jnp.arange(3) + 11)
    together = undecided.generate(canvas(rows, 16), drawn(alg="maskgit_plus"), seed=keys)
    most = 0
    for number, row in enumerate(rows):
        alone = undecided.generate(
            canvas([row], 16, width=40), drawn(alg="maskgit_plus"), seed=keys[number][None]
        )
        assert parts(alone) == parts(together, number)
        most = max(most, int(alone.forwards))
    assert int(together.forwards) == most


def test_other_lengths_compile_nothing(undecided):
    undecided.generate(canvas([[1, 2, *[OPEN] * 6, 3]], 16), drawn())
    compiled = run.parallel._cache_size()
    for row, new_tokens in (
        ([1, OPEN, 3, 4, 5], 30),
        ([*[OPEN] * 20, 1], 24),
        ([1, OPEN, 2, OPEN, OPEN, 3], 9),
    ):
        undecided.generate(
            canvas([row], new_tokens), drawn(max_new_tokens=new_tokens, temperature=0.5)
        )
    assert run.parallel._cache_size() == compiled


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"draft": 2}, "draft=2"),
        ({"grammar": "python"}, "grammar='python'"),
        ({"num_steps": 8}, "num_steps=8"),
        ({"alg": "origin"}, "alg='origin'"),
        ({"decoding": Decoding(preset="turbo")}, "commit='threshold'"),
        ({"decoding": Decoding(preset="fast")}, "cache='window'"),
        ({"decoding": Decoding(block_length=8)}, "block_length=8"),
    ],
)
def test_what_does_not_go_with_growth_is_named(undecided, settings, named):
    with pytest.raises(ValueError, match=named):
        GenerationOptions(growth="on", **settings)
    with pytest.raises(ValueError, match=named):
        undecided.generate(canvas([[1, OPEN, 2]], 4), GenerationOptions(**settings))


def test_refusals(undecided, golden_sampler, engine):
    with pytest.raises(ValueError, match="growth='maybe'"):
        GenerationOptions(growth="maybe")
    with pytest.raises(ValueError, match="hooks, strict_reference"):
        undecided.generate(
            canvas([[1, OPEN, 2]], 4),
            greedy(),
            hooks=Hooks(logits=lambda step, tokens, logits: logits),
        )
    with pytest.raises(ValueError, match="no <|expand|> token".replace("|", r"\|")):
        golden_sampler.generate(canvas([[1, OPEN, 2]], 4), greedy())
    with pytest.raises(ValueError, match="growth='on': this checkpoint has no"):
        engine.infill("a", "b", 4, options=GenerationOptions(growth="on"))
    with pytest.raises(ValueError, match="expand_token_id=95"):
        DreamConfig(**{**vars(undecided.config), "expand_token_id": MASK})
    endless = DreamConfig(**{**vars(undecided.config), "eos_token_id": None})
    with pytest.raises(ValueError, match="needs eos_token_id"):
        Sampler(DreamForCausalLM(endless, rngs=nnx.Rngs(0)))


def test_the_server_refuses_what_it_does_not_do():
    start, options = (
        np.array([1, 0, 0, 2], np.int32),
        GenerationOptions(max_new_tokens=2, growth="on"),
    )
    with pytest.raises(ValueError, match="growth='on'"):
        Sequence(
            tokens=start, hole=Block(1, 3), options=options, stop_ids=(), key=np.zeros(2, np.uint32)
        )


def test_without_growth_the_token_for_expanding_is_no_candidate():
    sampler = saying(expand=2.0, letters=1.0)
    rows = Canvas(np.ones((1, 8), np.int32), np.arange(8)[None] > 2, np.ones((1, 8), bool))
    assert set(np.asarray(sampler.generate(rows, greedy()).tokens)[0, 3:].tolist()) <= set(LETTERS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return publish_growing(tmp_path_factory.mktemp("dreamon"))


@pytest.fixture(scope="module")
def growing(folder):
    return DiffuCoderInference(folder, verbose=False)


def test_the_width_of_a_template_is_that_of_its_canvas(growing, engine):
    options = GenerationOptions(max_new_tokens=24)
    template = growing.template("def f(x):\n    <|hole|>\n", options)
    assert growing.width(template, options) == growing.canvas([template], options).room[0]
    plain = engine.template("def f(x):\n    <|hole|>\n", options)
    assert engine.width(plain, options) == engine.canvas([plain], options).tokens.shape[1]


def test_a_published_checkpoint_fills_holes_by_their_own_length(growing, folder):
    expand = json.loads((folder / "added_tokens.json").read_text())["<|expand|>"]
    assert growing.config.expand_token_id == expand
    options, lengths = drawn(max_new_tokens=24), set()
    for seed in range(4):
        (row,) = growing.decode_hole("def f(x):\n", "\n", [8], options, seed=seed).rows
        lengths.add(len(row.token_ids))
        assert len(row.token_ids) <= 24
        assert len(row.holes) == 1
        assert expand not in row.token_ids
    assert len(lengths) > 1
    one = growing.infill("def f(x):\n", "\n", 24, middle_length=8, options=drawn(), seed=1)
    assert one == growing.decode_hole("def f(x):\n", "\n", [8], options, seed=1).rows[0].text
    fixed = growing.decode_hole(
        "def f(x):\n", "\n", [8], drawn(growth="off", early_stop=False), seed=1
    )
    assert fixed.forwards <= 8
    assert len(fixed.rows[0].token_ids) <= 8
    assert expand not in fixed.rows[0].token_ids
    with pytest.raises(ValueError, match="a completion has the length"):
        growing.complete(["def f"], drawn(growth="on"))
    with pytest.raises(ValueError, match="middle_length='auto'"):
        growing.infill("a", "b", middle_length="auto")


def test_the_canvas_stands_between_the_tokens_of_a_text(growing):
    tokenizer = growing.tokenizer
    template = growing.template("a<|hole|>b<|hole:3|>", drawn(max_new_tokens=20))
    assert template.lengths == [INITIAL_MASKS, 3]
    rows = growing.canvas([template, Template.infilling("", 2, "")], drawn(max_new_tokens=20))
    end = tokenizer.token_id("<|endoftext|>")
    ids = [*tokenizer.encode("a"), *[tokenizer.mask_id] * INITIAL_MASKS, *tokenizer.encode("b")]
    assert rows.tokens[0, rows.attention_mask[0]].tolist() == [*ids, *[tokenizer.mask_id] * 3, end]
    assert rows.tokens[1, :3].tolist() == [tokenizer.mask_id, tokenizer.mask_id, end]
    assert rows.room.tolist() == [len(tokenizer.encode("a")) + len(tokenizer.encode("b")) + 41, 21]
    assert rows.tokens.shape[1] % 32 == 0


def test_empty_holes_are_told(growing):
    template = Template.parse("a<|hole:3|>b<|hole:3|>c", 3)
    rows = growing.canvas([template], drawn(max_new_tokens=6))
    start = growing.sampler.start(rows, 0)
    first = np.flatnonzero(rows.holes[0])[:3]
    decided = jnp.zeros_like(start.masked).at[0, first[0]].set(True)
    tokens = start.tokens.at[0, first[0]].set(growing.sampler.growth.delete_id)
    move = resize(Extent.of(rows), tokens, start.masked & ~decided, decided, growing.sampler.growth)
    closed = start._replace(
        tokens=move.gather(tokens, 0),
        masked=move.gather(start.masked, False),
        commit_step=move.gather(start.commit_step, -1),
        extra=move.extent,
    )
    state = growing.sampler.generate(rows, drawn(max_new_tokens=6), state=closed, seed=0)
    (row,) = growing.generations(rows, state)
    assert row.holes[0] == ""
    assert len(row.holes) == 2
    assert template.fill(row.holes).startswith("ab")


def test_a_growing_canvas_is_streamed(growing):
    template = Template.infilling("ab", 4, "cd")
    rows, seen = growing.canvas([template], drawn(max_new_tokens=12)), set()
    state = None
    for state in growing.states(rows, drawn(max_new_tokens=12), seed=2):
        shown = canvas_text(state, growing.tokenizer, rows, shows_given=True)
        assert isinstance(shown, Text)
        assert shown.plain.startswith("ab")
        assert shown.plain.endswith("cd")
        assert shown.plain.count("░") == int(np.asarray(state.masked).sum())
        present, holes, _ = rows.layout(state.extra)[:3]
        assert (present | ~holes).all()
        seen.add(int(holes.sum()))
    assert len(seen) > 1


def test_progress_counts_masks_that_came_later(growing):
    told = []
    growing.decode(
        [Template.infilling("ab", 4, "cd")],
        drawn(max_new_tokens=12),
        on_progress=lambda done, all_, _: told.append((done, all_)),
    )
    assert told[-1][0] == told[-1][1]
    assert all(0 <= done <= all_ for done, all_ in told)


def test_the_command_grows_by_itself_unless_told_not_to(folder, capsys):
    call = [
        "generate",
        "--model",
        str(folder),
        "--prefix",
        "def f",
        "--suffix",
        "\n",
        "--max-new-tokens",
        "12",
        "--json",
    ]
    call += ["--temperature", "1", "--middle-length", "5"]
    assert main([*call, "--growth", "on"]) == 0
    grown = json.loads(capsys.readouterr().out)
    assert main(call) == 0
    by_itself = json.loads(capsys.readouterr().out)
    assert (by_itself["text"], by_itself["token_ids"]) == (grown["text"], grown["token_ids"])
    assert main([*call, "--growth", "off"]) == 0
    fixed = json.loads(capsys.readouterr().out)
    assert fixed["forwards"] <= 5
    assert len(fixed["token_ids"]) <= 5


def test_config_and_tokenizer_must_agree(folder, tmp_path):
    fields = json.loads((folder / "config.json").read_text())
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    expand = json.loads((folder / "added_tokens.json").read_text())["<|expand|>"]
    (tmp_path / "config.json").write_text(json.dumps(fields | {"expand_token_id": expand}))
    assert DiffuCoderInference(tmp_path, verbose=False).sampler.growth == VariableLength(
        expand, fields["eos_token_id"]
    )
    (tmp_path / "config.json").write_text(json.dumps(fields | {"expand_token_id": expand + 1}))
    with pytest.raises(
        TokenizerError, match=f"at {expand}, the model's expand_token_id is {expand + 1}"
    ):
        DiffuCoderInference(tmp_path, verbose=False)
