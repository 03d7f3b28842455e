"""Runs of all six protocols with the servers `transformers serve` and llama.cpp, and a tiny model with random weights.

The answers of llama.cpp follow a grammar for the format of decisions. Both servers use the chat template of Gemma 3,
which rejects roles that do not alternate, and drops a system message that is the only message. A proxy records each
chat with the number of tokens that the server reports.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.support.files import parquet_rows
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import command, environment
from tests.support.soft_assertions import SoftAssertions
from tests.support.threaded_server import serve_in_thread

PROTOCOLS: Mapping[str, Sequence[str]] = {
    "nip": ("prover",), "adp": ("prover",), "debate": ("prover0", "prover1"), "merlin_arthur": ("prover0", "prover1"),
    "mnip": ("prover0", "prover1"), "solo_verifier": (),
}  # fmt: skip
ONE_ROUND = ("adp", "merlin_arthur", "solo_verifier")
"""Protocols whose verifier speaks once and decides."""
TWO_CHANNELS = ("debate", "mnip")

DECISION_RULE = 'decision ::= "Decision: accept" | "Decision: reject"\n'
WORDS_RULE = "words ::= [a-z] [a-z ]{3,15}\n"

LLAMA_SERVER_SCRIPT = """
import sys, xllamacpp
chosen = xllamacpp.CommonParams()
chosen.model.path = sys.argv[1]
chosen.hostnames, chosen.port = ["127.0.0.1"], 0
chosen.n_ctx, chosen.n_parallel, chosen.cpuparams.n_threads = 65536, 2, 2
chosen.use_jinja, chosen.endpoint_metrics, chosen.warmup = True, True, False
chosen.cache_prompt = False  # /metrics does not count cached tokens
server = xllamacpp.Server(chosen)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


GAMES = 10
"""Games of each protocol, so that the six protocols play 60 games at each server."""


def test_all_protocols_run_with_servers_of_other_projects(tmp_path: Path, check: SoftAssertions) -> None:
    model, gguf_file = tmp_path / "model", tmp_path / "tiny.gguf"
    parameters = make_model(model)
    write_gguf(model, gguf_file)
    check(parameters < 10_000, f"the model is tiny: {parameters} parameters")
    with llama_server(gguf_file) as address, run_counting_proxy(address) as proxy:
        decided = [play_at_llama(check, tmp_path / "llama.cpp", proxy, name, GAMES) for name in PROTOCOLS]
        decided_by_two = play_at_llama(
            check, tmp_path / "llama.cpp, two processes", proxy, "debate", GAMES, processes=2
        )
        check(
            decided_by_two >= 0.9 * GAMES,
            f"llama.cpp: most debates of two processes are decided: {decided_by_two} of {GAMES}",
        )
        share, total = sum(decided) / (len(decided) * GAMES), read_llama_totals(address)
        check(share >= 0.9, f"llama.cpp: most games are decided: {share:.0%} of {len(decided) * GAMES}")
        check(
            total == tuple(f"{tokens:.6g}" for tokens in proxy.totals()),
            f"llama.cpp: its metrics {total} equal the totals of its answers {proxy.totals()}",
        )
        check_complete_chats(check, proxy, model, "llama.cpp")
    with transformers_server(model) as address, run_counting_proxy(address) as proxy:
        for name in PROTOCOLS:
            play_at_transformers(check, tmp_path / "transformers serve", proxy, name, model)
        check_complete_chats(check, proxy, model, "transformers serve")


# The model


def make_model(folder: Path) -> int:
    """Save a Llama with one small layer, a byte tokenizer and random weights; return the number of parameters."""
    import torch
    from tokenizers import Tokenizer, decoders, models
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    texts = ["<|pad|>", "<|end|>", *sorted(ByteLevel.alphabet()), "th"]  # llama.cpp requires a merge
    byte_tokenizer = Tokenizer(
        models.BPE(vocab={text: number for number, text in enumerate(texts)}, merges=[("t", "h")])
    )
    byte_tokenizer.pre_tokenizer, byte_tokenizer.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trl = importlib.util.find_spec("trl")
    assert trl is not None
    assert trl.submodule_search_locations
    template = (Path(trl.submodule_search_locations[0]) / "chat_templates" / "gemma3.jinja").read_text("utf-8")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer,
        pad_token="<|pad|>",
        bos_token="<|end|>",
        eos_token="<|end|>",
        chat_template=template,
    )
    config = LlamaConfig(
        vocab_size=len(texts), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32768, pad_token_id=0, bos_token_id=1, eos_token_id=1, tie_word_embeddings=True,
        initializer_range=0.3,
    )  # fmt: skip
    network = LlamaForCausalLM(config)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(weights.numel() for weights in network.parameters())


def write_gguf(model: Path, gguf_file: Path) -> None:
    """Convert the model to the format of llama.cpp."""
    import gguf
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    config, vocabulary = network.config, tokenizer.get_vocab()
    out = gguf.GGUFWriter(str(gguf_file), "llama")
    out.add_context_length(config.max_position_embeddings)
    out.add_embedding_length(config.hidden_size)
    out.add_block_count(config.num_hidden_layers)
    out.add_feed_forward_length(config.intermediate_size)
    out.add_head_count(config.num_attention_heads)
    out.add_head_count_kv(config.num_attention_heads)
    out.add_layer_norm_rms_eps(config.rms_norm_eps)
    out.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
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
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weights in network.state_dict().items():
        if name != "lm_head.weight":  # tied to the embedding
            values = weights.float().numpy()
            if name.endswith(("q_proj.weight", "k_proj.weight")):  # llama.cpp rotates pairs of neighbors, not halves
                halves = values.reshape(config.num_attention_heads, 2, -1, config.hidden_size)
                values = halves.swapaxes(1, 2).reshape(values.shape).copy()
            out.add_tensor(names.get_name(name, try_suffixes=(".weight",)), values)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


# The servers


@contextmanager
def run_process(arguments: Sequence[str], log: Path = Path(os.devnull)) -> Iterator[subprocess.Popen[str]]:
    # The check for updates would write to the home folder.
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1"}
    with (
        log.open("w") as err,
        subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True, env=variables
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def llama_server(gguf_file: Path) -> Iterator[str]:
    with run_process([sys.executable, "-c", LLAMA_SERVER_SCRIPT, str(gguf_file)]) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


@contextmanager
def transformers_server(model: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as listener:
        port = listener.server_port
    arguments = ["serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with run_process(
        [str(Path(sys.executable).with_name("transformers")), *arguments], model.with_suffix(".log")
    ) as process:
        address = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                with urlopen(f"{address}/health", timeout=HANG_SECONDS):
                    break
            except OSError:
                assert process.poll() is None, model.with_suffix(".log").read_text()[-3000:]
                time.sleep(0.2)
        yield address


@dataclass
class CountingProxy:
    """Forwards requests, and records each chat with the number of tokens that the server reports."""

    address: str = ""
    chats: list[tuple[list[dict[str, str]], dict[str, int]]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def totals(self, since: int = 0) -> tuple[int, int]:
        counts = [usage for _, usage in self.chats[since:]]
        return sum(c["prompt_tokens"] for c in counts), sum(c["completion_tokens"] for c in counts)


@contextmanager
def run_counting_proxy(server: str) -> Iterator[CountingProxy]:
    proxy = CountingProxy()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with closing(http.client.HTTPConnection(server.removeprefix("http://"), timeout=600)) as connection:
                connection.request("POST", self.path, body, {"content-type": "application/json"})
                response = connection.getresponse()
                data = response.read()
            if response.status == 200:
                proxy.chats.append((json.loads(body)["messages"], json.loads(data)["usage"]))
            else:
                proxy.errors.append(f"{response.status} {data.decode('utf-8', 'replace')[:300]}")
            self.send_response(response.status)
            self.send_header("content-type", response.headers.get("content-type", "application/json"))
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serve_in_thread(listener):
        proxy.address = f"http://127.0.0.1:{listener.server_port}/v1"
        yield proxy


def read_llama_totals(address: str) -> tuple[str, str]:
    """Return the tokens of all prompts and answers from the metrics of the server, which print six digits."""
    with urlopen(f"{address}/metrics", timeout=HANG_SECONDS) as response:
        text = response.read().decode()
    matches = [
        re.search(rf"^llamacpp:{name}_total (\S+)", text, re.MULTILINE)
        for name in ("prompt_tokens", "tokens_predicted")
    ]
    return matches[0][1], matches[1][1]  # type: ignore[index]


# The games


def play_at_llama(
    check: SoftAssertions, folder: Path, proxy: CountingProxy, protocol: str, games: int, *, processes: int = 1
) -> int:
    """Run a protocol with answers that follow its format; return the number of decided games."""
    if protocol in ONE_ROUND:
        question_rule = ""
    elif protocol in TWO_CHANNELS:
        question_rule = ' | "Question for Expert_1: " words "\\nQuestion for Expert_2: " words'
    else:
        question_rule = ' | "Question: " words'
    # At this temperature a random model decides at about half of its opportunities.
    sampling = {"temperature": 4.0, "model": "tiny", "max_tokens": 80}
    verifier = f"root ::= decision{question_rule}\n" + DECISION_RULE + (WORDS_RULE if question_rule else "")
    grammars = {"prover": "root ::= words\n" + WORDS_RULE, "verifier": verifier}
    models = {name: {**sampling, "extra_body": {"grammar": grammar}} for name, grammar in grammars.items()}
    rounds = {"min_message_rounds": 5, "max_message_rounds": 24}
    return play_games(check, folder / protocol, proxy, models, rounds=rounds, games=games, processes=processes)


def play_at_transformers(check: SoftAssertions, folder: Path, proxy: CountingProxy, protocol: str, model: Path) -> int:
    """Run a protocol with the unconstrained answers of a random model."""
    settings = {"model": str(model), "max_tokens": 24}
    return play_games(
        check,
        folder / protocol,
        proxy,
        {"prover": settings, "verifier": settings},
        rounds={"max_message_rounds": 4},
        games=GAMES,
    )


def play_games(
    check: SoftAssertions,
    folder: Path,
    proxy: CountingProxy,
    models: Mapping[str, Any],
    *,
    rounds: Mapping[str, int],
    games: int,
    processes: int = 1,
) -> int:
    """Run a protocol with the command line; return the number of decided games."""
    folder.mkdir(parents=True)
    protocol, server = folder.name, {"provider": "openai", "base_url": proxy.address}
    provers = PROTOCOLS[protocol]
    spec = {
        "extends": f"specs/{protocol}.yaml",
        "dataset": {"limit": games},
        "models": {name: {**server, **models[name]} for name in ("verifier", *(["prover"] if provers else []))},
        "agents": {"verifier": {"model": "verifier"}, **{name: {"model": "prover"} for name in provers}},
        "rollouts": {"concurrency": 4},
        "execution": {"processes": processes},
        "fine_tune": None,
        **({} if protocol in ONE_ROUND else {"protocol": dict(rounds)}),
    }
    (folder / "spec.yaml").write_text(json.dumps(spec))
    chats_before, errors_before = len(proxy.chats), len(proxy.errors)
    done = subprocess.run(
        command("spec.yaml", "~models.offline", "-q", "--json"), cwd=folder, env=environment(), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    name = f"{folder.parent.name}: {protocol}"
    error = (done.stderr[-2000:] + " ".join(proxy.errors[errors_before : errors_before + 2])).strip()
    check(done.returncode == 0, f"{name}: exit code 0: {done.returncode} {error}")
    runs = list(folder.glob("results/runs/*"))
    if done.returncode or len(runs) != 1:
        return 0
    outcomes = [row["outcome"] for row in parquet_rows(runs[0] / "rollouts.parquet")]
    rows = parquet_rows(runs[0] / "completions.parquet")
    recorded_tokens = sum(row["prompt_tokens"] for row in rows), sum(row["completion_tokens"] for row in rows)
    proxy_tokens = proxy.totals(chats_before)
    decided: int = sum(outcome == "decided" for outcome in outcomes)
    check(
        len(outcomes) == games and recorded_tokens == proxy_tokens and len(rows) == len(proxy.chats) - chats_before,
        f"{name}: {len(rows)} answers have {recorded_tokens} tokens, and {proxy_tokens} at the proxy; "
        f"{decided} of {games} games are decided",
    )
    return decided


def check_complete_chats(check: SoftAssertions, proxy: CountingProxy, model: Path, name: str) -> None:
    """Check that each prompt had as many tokens as its complete chat has in the model's template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    count: Callable[..., Any] = partial(tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=False)
    incomplete = 0
    for messages, usage in proxy.chats:
        text = count(messages)
        expected = len(tokenizer(text, add_special_tokens=False)["input_ids"])
        incomplete += expected != usage["prompt_tokens"] or not all(m["content"].strip() in text for m in messages)
    check(
        not incomplete and proxy.chats,
        f"{name}: each of {len(proxy.chats)} prompts has the complete chat (except {incomplete})",
    )
