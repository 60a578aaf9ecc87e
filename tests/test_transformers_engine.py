"""The transformers engine: numbers, publishing, bad requests, closing."""

import asyncio
import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_parts import changed, gap, load, prompts, run, sampling
from llm_arena.engines.transformers_engine import TransformersEngine
from llm_arena.errors import EngineError, UnknownName, UsageError
from llm_arena.models import random_model


@pytest.fixture(scope="module")
def model(tiny_model):
    return load(tiny_model)


# Numbers


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_logprobs_equal_a_plain_forward_pass(tiny_model, model, temperature):
    sent = [prompt for prompt in prompts(6) for _ in range(3)]
    stop = tuple(range(100, 120))

    async def work(engine):
        calls = (engine.generate(p, sampling(i, 12, stop, temperature), "p") for i, p in enumerate(sent))
        return await asyncio.gather(*calls)

    completions = run(tiny_model, work)
    assert max(gap(model, p, c, temperature) for p, c in zip(sent, completions, strict=True)) < 2e-5
    assert len({len(c.token_ids) for c in completions}) > 3, "rows of different lengths, so that some leave the batch"


@pytest.mark.parametrize("kind", ["gpt2", "sliding", "softcap"])
def test_other_architectures(tmp_path, kind):
    """Learned positions with a tied head; a sliding window shorter than the prompts; capped logits."""
    import transformers

    sizes = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 64, "num_key_value_heads": 2, "eos_token_id": None, "pad_token_id": None}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "gpt2":
            config = transformers.GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64)
            made = transformers.GPT2LMHeadModel(config)
        elif kind == "sliding":
            made = transformers.MistralForCausalLM(transformers.MistralConfig(**sizes, sliding_window=8))
        else:
            config = transformers.Gemma2Config(**sizes, head_dim=8, sliding_window=8, final_logit_softcapping=3.0)
            made = transformers.Gemma2ForCausalLM(config)
    made.save_pretrained(tmp_path)
    sent = [prompt for prompt in prompts(6) for _ in range(2)]

    async def work(engine):
        calls = (engine.generate(p, sampling(i, 16, tuple(range(90, 100))), "p") for i, p in enumerate(sent))
        return await asyncio.gather(*calls)

    completions = run(tmp_path, work)
    model = load(tmp_path)
    assert max(gap(model, p, c) for p, c in zip(sent, completions, strict=True)) < 2e-5


def test_real_model_logprobs_equal_a_plain_forward_pass(smollm2):
    sent = [prompt for prompt in prompts(3, longest=40) for _ in range(2)]

    async def work(engine):
        return await asyncio.gather(*(engine.generate(p, sampling(i, new=8), "p") for i, p in enumerate(sent)))

    completions = run(smollm2, work)
    model = load(smollm2)
    assert max(gap(model, p, c) for p, c in zip(sent, completions, strict=True)) < 1e-4


def test_logprob_is_that_of_the_sampled_id_at_the_sampling_temperature(tiny_model, tmp_path):
    # A model whose logits are (2, 1, 0, ...) whatever it reads.
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    weights = load_file(folder / "model.safetensors")
    vocabulary = weights["lm_head.weight"].shape[0]
    for name, tensor in weights.items():
        tensor.zero_()
        if name.endswith("norm.weight"):
            tensor.fill_(1.0)
    # The residual stream is (1, 1, ...) / norm 1, so each logit is the sum of its row of the head.
    weights["model.embed_tokens.weight"].fill_(1.0)
    weights["lm_head.weight"].fill_(-60.0 / weights["lm_head.weight"].shape[1])
    for token, logit in enumerate((2.0, 1.0, 0.0)):
        weights["lm_head.weight"][token] = logit / weights["lm_head.weight"].shape[1]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert vocabulary > 3

    async def work(engine):
        calls = (engine.generate([5], sampling(seed, 1, (), temperature=0.5), "p") for seed in range(40))
        hot = await engine.generate([5], sampling(0, 1, (), temperature=0.0), "p")
        return await asyncio.gather(*calls), hot

    completions, greedy = run(folder, work)
    expected = torch.log_softmax(torch.tensor([4.0, 2.0, 0.0]), -1).tolist()
    assert expected[0] == pytest.approx(-0.142932, abs=1e-6)
    for completion in completions:
        assert completion.logprobs[0] == pytest.approx(expected[completion.token_ids[0]], abs=1e-4)
    assert {completion.token_ids[0] for completion in completions} >= {0, 1}
    assert greedy.token_ids == [0]
    assert greedy.logprobs[0] == pytest.approx(-0.407606, abs=1e-4), "greedy records the plain softmax"


def test_sampling_follows_the_distribution(tiny_model, model):
    """The share of each first id over 4,000 draws; four standard errors leave one false alarm in 16,000 ids."""
    prompt = [5, 9, 11]
    with torch.inference_mode():
        probabilities = torch.softmax(model(torch.tensor([prompt])).logits[0, -1] / 0.2, -1)

    async def work(engine):
        calls = (engine.generate(prompt, sampling(seed, 1, temperature=0.2), "p") for seed in range(4000))
        return await asyncio.gather(*calls)

    completions = run(tiny_model, work, max_batch_rows=1000)
    shares = torch.bincount(torch.tensor([c.token_ids[0] for c in completions]), minlength=len(probabilities)) / len(
        completions
    )
    errors = (probabilities * (1 - probabilities) / len(completions)).sqrt()
    assert ((shares - probabilities).abs() <= 4 * errors + 1 / len(completions)).all()
    assert probabilities.max() > 0.02, "a distribution that is not flat"


def test_ids_do_not_depend_on_the_batch_or_the_order(tiny_model):
    sent = list(enumerate([prompt for prompt in prompts(5) for _ in range(3)]))

    def together(order, rows):
        async def work(engine):
            found = await asyncio.gather(*(engine.generate(p, sampling(i), "p") for i, p in order))
            return {i: c for (i, _), c in zip(order, found, strict=True)}

        return run(tiny_model, work, max_batch_rows=rows)

    reference = together(sent, 64)
    for order, rows in ((sent[::-1], 64), (sent, 4), (sent[3:7], 64), (sent, 1)):
        for index, completion in together(order, rows).items():
            assert completion.token_ids == reference[index].token_ids
            assert completion.logprobs == pytest.approx(reference[index].logprobs, abs=2e-5)


def test_equal_batches_give_equal_numbers(tiny_model):
    sent = prompts(8)

    def once(order):
        async def work(engine):
            return await asyncio.gather(*(engine.generate(sent[i], sampling(i), "p") for i in order))

        return dict(zip(order, run(tiny_model, work), strict=True))

    forward, backward = once(range(8)), once(range(7, -1, -1))
    assert all(forward[i].logprobs == backward[i].logprobs for i in range(8)), "to the last bit"


def test_finish_and_stop_ids(tiny_model):
    async def work(engine):
        long = await engine.generate([4], sampling(3, 20, stop=()), "p")
        stop = long.token_ids[5]
        cut = long.token_ids.index(stop) + 1
        return (
            long,
            cut,
            await engine.generate([4], sampling(3, 20, stop=(stop,)), "p"),
            await engine.generate([4], sampling(3, cut, stop=(stop,)), "p"),
        )

    long, cut, stopped, at_the_cap = run(tiny_model, work)
    assert (long.finish, len(long.token_ids), len(long.logprobs)) == ("length", 20, 20)
    assert stopped.finish == "stop"
    assert stopped.token_ids == long.token_ids[:cut], "the stop id is kept"
    assert len(stopped.logprobs) == cut
    assert at_the_cap.finish == "stop", "a stop id in the last place is still a stop"
    assert (long.min_version, long.max_version) == (7, 7)


def test_global_random_state_is_left_alone(tiny_model):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    run(tiny_model, lambda engine: engine.generate([4], sampling(), "p"))
    assert torch.equal(before, torch.get_rng_state())


# Publishing


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("size", [32, 256])
def test_publish_takes_the_new_weights_whole(tmp_path, tied, size):
    """Also the head of a model with tied embeddings, which other engines have kept from before."""
    first = random_model(tmp_path / "a", words=list("abcdefgh"), tie_word_embeddings=tied, seed=1, hidden_size=size)
    second = random_model(tmp_path / "b", words=list("abcdefgh"), tie_word_embeddings=tied, seed=2, hidden_size=size)

    async def work(engine):
        found = []
        for version, folder in enumerate([first, second, first, second]):
            await engine.publish("p", folder, version)
            found.append(await engine.generate([4, 5, 6], sampling(1, 8, ()), "p"))
        return found

    found = run(first, work)
    for version, (completion, folder) in enumerate(zip(found, [first, second, first, second], strict=True)):
        assert completion.min_version == completion.max_version == version
        assert gap(load(folder), [4, 5, 6], completion) < 2e-5
    assert found[0].logprobs == found[2].logprobs
    assert found[0].logprobs != found[1].logprobs


def test_publish_of_another_shape_and_another_config(tmp_path):
    small = random_model(tmp_path / "a", words=list("abcdefgh"), seed=1)
    wide = random_model(tmp_path / "b", words=list("abcdefghij"), hidden_size=32, seed=2)
    turned = tmp_path / "c"
    shutil.copytree(small, turned)
    config = json.loads((turned / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 3.0}
    (turned / "config.json").write_text(json.dumps(config))

    async def work(engine):
        found = []
        for folder in (wide, turned, small):
            await engine.publish("p", folder, 1)
            found.append(await engine.generate([4, 5, 6], sampling(1, 8, ()), "p"))
        return found

    for completion, folder in zip(run(small, work), (wide, turned, small), strict=True):
        assert gap(load(folder), [4, 5, 6], completion) < 2e-5


def test_engine_shares_nothing_with_the_folder_or_the_learner(tiny_model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)

    async def work(engine):
        before = await engine.generate([4, 5], sampling(1, 8, ()), "p")
        # Overwritten in place, as no well-behaved writer does: the engine must not see it.
        size = (folder / "model.safetensors").stat().st_size
        with open(folder / "model.safetensors", "r+b") as file:
            file.seek(size // 2)
            file.write(b"\x11" * (size - size // 2))
        return before, await engine.generate([4, 5], sampling(1, 8, ()), "p")

    before, after = run(folder, work)
    assert before == after


@pytest.mark.parametrize("damage", ["missing", "torn", "no config", "key", "head", "shard", "adapter"])
@pytest.mark.parametrize("fresh", [False, True])
def test_half_written_folder_is_refused_and_the_old_weights_serve_on(tiny_model, tmp_path, damage, fresh):
    bad = tmp_path / "bad"
    shutil.copytree(tiny_model, bad)
    weights = bad / "model.safetensors"
    if damage == "missing":
        weights.unlink()
    elif damage == "torn":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "no config":
        (bad / "config.json").unlink()
    elif damage in ("key", "head"):
        tensors = load_file(weights)
        del tensors["model.norm.weight" if damage == "key" else "lm_head.weight"]
        save_file(tensors, weights, metadata={"format": "pt"})
    elif damage == "shard":
        index = {"metadata": {}, "weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
        (bad / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        (bad / "adapter_config.json").write_text("{}")

    async def work(engine):
        before = await engine.generate([4, 5], sampling(1), "p")
        with pytest.raises(EngineError, match="bad"):
            await engine.publish("q" if fresh else "p", bad, 9)
        if fresh:
            with pytest.raises(UnknownName):
                await engine.generate([4], sampling(), "q")
        return before, await engine.generate([4, 5], sampling(1), "p")

    before, after = run(tiny_model, work)
    assert before == after
    assert after.max_version == 7


def test_several_policies_at_once(tmp_path):
    folders = [random_model(tmp_path / str(seed), words=list("abcdefgh"), seed=seed) for seed in (1, 2)]

    async def work(engine):
        await engine.publish("other", folders[1], 3)
        return await asyncio.gather(
            *(engine.generate([4, 5], sampling(seed, 6), ("p", "other")[seed % 2]) for seed in range(6))
        )

    for seed, completion in enumerate(run(folders[0], work)):
        assert gap(load(folders[seed % 2]), [4, 5], completion) < 2e-5
        assert completion.min_version == (7, 3)[seed % 2]


def test_publishing_while_sampling_changes_no_completion_halfway(tiny_model, tmp_path):
    other = changed(tiny_model, tmp_path / "other", 1.5)
    models = {7: load(tiny_model), 8: load(other)}

    async def work(engine):
        first = [asyncio.create_task(engine.generate([4, 5], sampling(seed, 40, ()), "p")) for seed in range(4)]
        await asyncio.sleep(0.01)
        await engine.publish("p", other, 8)
        return await asyncio.gather(*first, engine.generate([4, 5], sampling(9), "p"))

    found = run(tiny_model, work)
    assert found[-1].min_version == 8
    for completion in found:
        assert completion.min_version == completion.max_version
        assert gap(models[completion.min_version], [4, 5], completion) < 2e-5


# Bad requests, closing


@pytest.mark.parametrize(
    ("prompt", "settings", "policy", "error"),
    [
        ([], {}, "p", EngineError),
        ([4, 10_000], {}, "p", EngineError),
        ([-1], {}, "p", EngineError),
        ([4], {"new": 0}, "p", EngineError),
        ([4], {"new": 100_000}, "p", EngineError),
        ([4], {"temperature": -1.0}, "p", EngineError),
        ([4], {"temperature": math.nan}, "p", EngineError),
        ([4], {}, "pp", UnknownName),
    ],
)
def test_bad_request_is_refused_alone(tiny_model, prompt, settings, policy, error):
    async def work(engine):
        return await asyncio.gather(
            engine.generate([4], sampling(1), "p"),
            engine.generate(prompt, sampling(**settings), policy),
            return_exceptions=True,
        )

    good, bad = run(tiny_model, work)
    assert good.token_ids
    assert type(bad) is error


def test_unknown_dtype_and_rows():
    with pytest.raises(UsageError, match="float32, bfloat16"):
        TransformersEngine(dtype="fp8")
    with pytest.raises(UsageError, match="max_batch_rows"):
        TransformersEngine(max_batch_rows=0)


def test_weights_that_are_not_finite_are_an_error(tiny_model, tmp_path):
    broken = changed(tiny_model, tmp_path / "broken", math.nan)
    with pytest.raises(EngineError, match="not finite"):
        run(broken, lambda engine: engine.generate([4], sampling(), "p"))


def test_close_stops_a_long_completion_early(tiny_model):
    async def work(engine):
        task = asyncio.create_task(engine.generate([4], sampling(0, 2000, ()), "p"))
        await asyncio.sleep(0.1)
        began = asyncio.get_running_loop().time()
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await task
        return asyncio.get_running_loop().time() - began

    assert run(tiny_model, work) < 1.0


def test_cancelling_frees_the_worker_soon(tiny_model):
    async def work(engine):
        task = asyncio.create_task(engine.generate([4], sampling(0, 2000, ()), "p"))
        await asyncio.sleep(0.1)
        task.cancel()
        began = asyncio.get_running_loop().time()
        await engine.generate([4], sampling(0, 1), "p")
        return asyncio.get_running_loop().time() - began

    assert run(tiny_model, work) < 1.0
