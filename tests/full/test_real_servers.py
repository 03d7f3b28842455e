"""All six protocols at two servers that were not written here, on a model of a few thousand random parameters.

The model is made on the spot. The servers are `transformers serve`, and llama.cpp's own, whose answers a grammar holds
to the decision format. Both have the chat template of Gemma 3: it refuses roles that do not alternate, and drops a
system message that stands alone. A proxy between notes each chat and what the server counted of it.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.support.claims import Claims
from tests.support.files import parquet_rows
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import command, environment

PROTOCOLS: Mapping[str, Sequence[str]] = {
    "nip": ("prover",), "adp": ("prover",), "debate": ("prover0", "prover1"), "merlin_arthur": ("prover0", "prover1"),
    "mnip": ("prover0", "prover1"), "solo_verifier": (),
}  # fmt: skip
SHORT = ("adp", "merlin_arthur", "solo_verifier")
"""Those whose verifier speaks once, and decides."""
TWO_CHANNELS = ("debate", "mnip")

DECISION = 'decision ::= "Decision: accept" | "Decision: reject"\n'
WORDS = "words ::= [a-z] [a-z ]{3,15}\n"

LLAMA = """
import sys, xllamacpp
chosen = xllamacpp.CommonParams()
chosen.model.path = sys.argv[1]
chosen.hostnames, chosen.port = ["127.0.0.1"], 0
chosen.n_ctx, chosen.n_parallel, chosen.cpuparams.n_threads = 65536, 2, 2
chosen.use_jinja, chosen.endpoint_metrics, chosen.warmup = True, True, False
chosen.cache_prompt = False  # the counts of /metrics leave out what was cached
server = xllamacpp.Server(chosen)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


GAMES = 10
"""Games of each protocol at llama.cpp."""


def test_all_protocols_play_at_servers_that_were_not_written_here(tmp_path: Path, claims: Claims) -> None:
    model, packed = tmp_path / "model", tmp_path / "tiny.gguf"
    parameters = make_model(model)
    pack(model, packed)
    claims(parameters < 10_000, f"a model of {parameters} random parameters, with the chat template of Gemma 3")
    with llama_server(packed) as address, noted(address) as proxy:
        decided = [at_llama(claims, tmp_path / "llama.cpp", proxy, name, GAMES) for name in PROTOCOLS]
        by_two = at_llama(claims, tmp_path / "llama.cpp, two processes", proxy, "debate", GAMES, processes=2)
        claims(by_two >= 0.9 * GAMES, f"llama.cpp: {by_two} of {GAMES} debates by two processes decided")
        share, total = sum(decided) / (len(decided) * GAMES), counted_by_llama(address)
        claims(share >= 0.9, f"llama.cpp: {share:.0%} of {len(decided) * GAMES} games decided")
        claims(
            total == tuple(f"{tokens:.6g}" for tokens in proxy.totals()),
            f"llama.cpp: its own totals are {total[0]} + {total[1]} tokens, as its answers say",
        )
        claims(*whole(proxy, model, "llama.cpp"))
    with transformers_server(model) as address, noted(address) as proxy:
        for name in PROTOCOLS:
            at_transformers(claims, tmp_path / "transformers serve", proxy, name, model)
        claims(*whole(proxy, model, "transformers serve"))


# The model


def make_model(place: Path) -> int:
    """A Llama of one small layer that reads bytes, with weights drawn at random; how many it has."""
    import torch
    from tokenizers import Tokenizer, decoders, models
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    texts = ["<|pad|>", "<|end|>", *sorted(ByteLevel.alphabet()), "th"]  # llama.cpp wants one merge
    bytes_ = Tokenizer(models.BPE(vocab={text: number for number, text in enumerate(texts)}, merges=[("t", "h")]))
    bytes_.pre_tokenizer, bytes_.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trl = importlib.util.find_spec("trl")
    assert trl is not None
    assert trl.submodule_search_locations
    template = (Path(trl.submodule_search_locations[0]) / "chat_templates" / "gemma3.jinja").read_text("utf-8")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytes_, pad_token="<|pad|>", bos_token="<|end|>", eos_token="<|end|>", chat_template=template
    )
    shape = LlamaConfig(
        vocab_size=len(texts), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32768, pad_token_id=0, bos_token_id=1, eos_token_id=1, tie_word_embeddings=True,
        initializer_range=0.3,
    )  # fmt: skip
    made = LlamaForCausalLM(shape)
    made.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return sum(weights.numel() for weights in made.parameters())


def pack(model: Path, packed: Path) -> None:
    """The model as llama.cpp reads it."""
    import gguf
    from transformers import AutoModelForCausalLM, AutoTokenizer

    made, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    shape, vocabulary = made.config, tokenizer.get_vocab()
    out = gguf.GGUFWriter(str(packed), "llama")
    out.add_context_length(shape.max_position_embeddings)
    out.add_embedding_length(shape.hidden_size)
    out.add_block_count(shape.num_hidden_layers)
    out.add_feed_forward_length(shape.intermediate_size)
    out.add_head_count(shape.num_attention_heads)
    out.add_head_count_kv(shape.num_attention_heads)
    out.add_layer_norm_rms_eps(shape.rms_norm_eps)
    out.add_rope_dimension_count(shape.hidden_size // shape.num_attention_heads)
    out.add_vocab_size(len(vocabulary))
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(sorted(vocabulary, key=vocabulary.__getitem__))
    out.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(vocabulary) - 2))
    out.add_token_merges(["t h"])
    out.add_bos_token_id(1)
    out.add_eos_token_id(1)
    out.add_pad_token_id(0)
    out.add_add_bos_token(value=False)
    out.add_chat_template(tokenizer.chat_template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, shape.num_hidden_layers)
    for name, weights in made.state_dict().items():
        if name != "lm_head.weight":  # tied to the embedding
            values = weights.float().numpy()
            if name.endswith(("q_proj.weight", "k_proj.weight")):  # its rotation pairs neighbours, not halves
                halves = values.reshape(shape.num_attention_heads, 2, -1, shape.hidden_size)
                values = halves.swapaxes(1, 2).reshape(values.shape).copy()
            out.add_tensor(names.get_name(name, try_suffixes=(".weight",)), values)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


# The servers


@contextmanager
def process(words: Sequence[str], log: Path = Path(os.devnull)) -> Iterator[subprocess.Popen[str]]:
    # Its check for updates would write a file in the home folder.
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1"}
    with (
        log.open("w") as err,
        subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True, env=variables
        ) as running,
    ):
        try:
            yield running
        finally:
            running.terminate()


@contextmanager
def llama_server(packed: Path) -> Iterator[str]:
    with process([sys.executable, "-c", LLAMA, str(packed)]) as running:
        assert running.stdout is not None
        yield running.stdout.readline().strip()


@contextmanager
def transformers_server(model: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as free:
        port = free.server_port
    words = ["serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with process([str(Path(sys.executable).with_name("transformers")), *words], model.with_suffix(".log")) as running:
        address = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                with urlopen(f"{address}/health", timeout=HANG_SECONDS):
                    break
            except OSError:
                assert running.poll() is None, model.with_suffix(".log").read_text()[-3000:]
                time.sleep(0.2)
        yield address


@dataclass
class Proxy:
    """Passes requests on, and notes each chat with what the server said that it counted."""

    address: str = ""
    noted: list[tuple[list[dict[str, str]], dict[str, int]]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def totals(self, since: int = 0) -> tuple[int, int]:
        counts = [usage for _, usage in self.noted[since:]]
        return sum(c["prompt_tokens"] for c in counts), sum(c["completion_tokens"] for c in counts)


@contextmanager
def noted(server: str) -> Iterator[Proxy]:
    proxy = Proxy()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with closing(http.client.HTTPConnection(server.removeprefix("http://"), timeout=600)) as connection:
                connection.request("POST", self.path, body, {"content-type": "application/json"})
                answer = connection.getresponse()
                data = answer.read()
            if answer.status == 200:
                proxy.noted.append((json.loads(body)["messages"], json.loads(data)["usage"]))
            else:
                proxy.refused.append(f"{answer.status} {data.decode('utf-8', 'replace')[:300]}")
            self.send_response(answer.status)
            self.send_header("content-type", answer.headers.get("content-type", "application/json"))
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        proxy.address = f"http://127.0.0.1:{listening.server_port}/v1"
        yield proxy
        listening.shutdown()


def counted_by_llama(address: str) -> tuple[str, str]:
    """The tokens of all prompts and of all answers by the server's own metrics, which print six digits."""
    with urlopen(f"{address}/metrics", timeout=HANG_SECONDS) as answer:
        text = answer.read().decode()
    found = [
        re.search(rf"^llamacpp:{name}_total (\S+)", text, re.MULTILINE)
        for name in ("prompt_tokens", "tokens_predicted")
    ]
    return found[0][1], found[1][1]  # type: ignore[index]


# The games


def at_llama(claims: Claims, here: Path, proxy: Proxy, protocol: str, games: int, *, processes: int = 1) -> int:
    """Play a protocol with answers that follow its format; how many games were decided."""
    if protocol in SHORT:
        question = ""
    elif protocol in TWO_CHANNELS:
        question = ' | "Question for Expert_1: " words "\\nQuestion for Expert_2: " words'
    else:
        question = ' | "Question: " words'
    # At this temperature a random model decides about every other time that it may.
    hot = {"temperature": 4.0, "model": "tiny", "max_tokens": 80}
    verifier = f"root ::= decision{question}\n" + DECISION + (WORDS if question else "")
    grammars = {"prover": "root ::= words\n" + WORDS, "verifier": verifier}
    models = {name: {**hot, "extra_body": {"grammar": grammar}} for name, grammar in grammars.items()}
    rounds = {"min_message_rounds": 5, "max_message_rounds": 24}
    return played(claims, here / protocol, proxy, models, rounds=rounds, games=games, processes=processes)


def at_transformers(claims: Claims, here: Path, proxy: Proxy, protocol: str, model: Path) -> int:
    """Play one game of a protocol with whatever a random model says."""
    either = {"model": str(model), "max_tokens": 24}
    return played(
        claims,
        here / protocol,
        proxy,
        {"prover": either, "verifier": either},
        rounds={"max_message_rounds": 4},
        games=1,
    )


def played(
    claims: Claims,
    here: Path,
    proxy: Proxy,
    models: Mapping[str, Any],
    *,
    rounds: Mapping[str, int],
    games: int,
    processes: int = 1,
) -> int:
    """Play a protocol by the command line; how many games were decided."""
    here.mkdir(parents=True)
    protocol, server = here.name, {"provider": "openai", "base_url": proxy.address}
    provers = PROTOCOLS[protocol]
    spec = {
        "extends": f"specs/{protocol}.yaml",
        "dataset": {"limit": games},
        "models": {name: {**server, **models[name]} for name in ("verifier", *(["prover"] if provers else []))},
        "agents": {"verifier": {"model": "verifier"}, **{name: {"model": "prover"} for name in provers}},
        "rollouts": {"concurrency": 4},
        "execution": {"processes": processes},
        "fine_tune": None,
        **({} if protocol in SHORT else {"protocol": dict(rounds)}),
    }
    (here / "spec.yaml").write_text(json.dumps(spec))
    before, refused = len(proxy.noted), len(proxy.refused)
    done = subprocess.run(
        command("spec.yaml", "~models.offline", "-q", "--json"), cwd=here, env=environment(), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    name = f"{here.parent.name}: {protocol}"
    said = (done.stderr[-2000:] + " ".join(proxy.refused[refused : refused + 2])).strip()
    claims(done.returncode == 0, f"{name}: exit code {done.returncode} {said}")
    runs = list(here.glob("results/runs/*"))
    if done.returncode or len(runs) != 1:
        return 0
    outcomes = [row["outcome"] for row in parquet_rows(runs[0] / "rollouts.parquet")]
    rows = parquet_rows(runs[0] / "completions.parquet")
    ours = sum(row["prompt_tokens"] for row in rows), sum(row["completion_tokens"] for row in rows)
    theirs = proxy.totals(before)
    decided: int = sum(outcome == "decided" for outcome in outcomes)
    claims(
        len(outcomes) == games and ours == theirs and len(rows) == len(proxy.noted) - before,
        f"{name}: {decided} of {games} games decided; {len(rows)} answers, {ours[0]} + {ours[1]} tokens here and there",
    )
    return decided


def whole(proxy: Proxy, model: Path, name: str) -> tuple[bool, str]:
    """Whether each prompt had as many tokens as its whole chat has in the model's template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    count: Callable[..., Any] = partial(tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=False)
    lost = 0
    for messages, usage in proxy.noted:
        text = count(messages)
        wanted = len(tokenizer(text, add_special_tokens=False)["input_ids"])
        lost += wanted != usage["prompt_tokens"] or not all(m["content"].strip() in text for m in messages)
    return not lost and bool(proxy.noted), f"{name}: {len(proxy.noted)} prompts held the whole chat, {lost} did not"
