"""Pretrain a verifier and a prover, in chats that are byte for byte those of the games.

python pretrain.py verifier models/0/verifier.pt --protocols adp --seed 0 --until 0.75
python pretrain.py prover models/0/prover.pt --protocols adp --seed 0 --steps 1500
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import jinja2
import torch
from claims import BASE, DIGITS, Claim, draw_claim, mark_steps, prove, recompute, text
from torch.nn import functional
from transformer import END, SHAPES, Chat, Sampling, Transformer, decode, encode, encode_chat, generate, load, save

Example = tuple[Chat, str]
"""A chat and the answer to learn."""

PROMPTS = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent / "prompts"), autoescape=False)  # noqa: S701
HALF = DIGITS // 2
ASK_FIRST, ASK_SECOND = "Sums 1 to 6?", "Sums 7 to 12?"
DECIDE = "\n\nInstructions: Decide now."


def prompt(path: str, claim: Claim, stance: str = "accept") -> str:
    return PROMPTS.get_template(f"{path}.jinja").render(
        claim=str(claim), true_sum=claim.true_sum, stance=stance, accept="Decision: accept", reject="Decision: reject"
    )


def chat_of(*turns: str) -> Chat:
    """Return a chat that begins with the user's turn."""
    return [{"role": ("user", "assistant")[number % 2], "content": turn} for number, turn in enumerate(turns)]


def verdict(accepts: bool) -> str:
    return f"Decision: {'accept' if accepts else 'reject'}"


def checked(claim: Claim, sums: Sequence[int], side: str = "") -> str:
    """Return recomputed sums, marks and the verdict for a proof, which is right if no step is wrong.

    The side is `+` for a proof of the claim and `-` for a proof of another sum, or empty if only the first is possible.
    """
    marks = mark_steps(claim.digits, sums)
    accepts = ("!" not in marks) == (side != "-")
    return f"{text(recompute(claim.digits, sums))}\n{marks}{side}\n{verdict(accepts)}"


def draw_proof(random: Random, claim: Claim, result: int | None = None, right: int = 0) -> tuple[int, ...]:
    """Draw a proof that the claim is right, or of another result. Half of the proofs are random after `right` steps.

    Random numbers have many wrong steps. Without them, the verifier learns for very long that all steps are right.
    """
    if random.random() < 0.5:
        honest = prove(claim.digits, claim.true_sum, DIGITS)
        return (*honest[:right], *(random.randrange(BASE) for _ in range(DIGITS - right)))
    return prove(claim.digits, claim.claimed if result is None else result, random.randrange(DIGITS))


def other_result(random: Random, claim: Claim) -> int:
    """Return the sum that somebody proves who argues against the claim."""
    return (claim.claimed + random.randrange(1, BASE)) % BASE if claim.is_right else claim.true_sum


def dispute(random: Random, claim: Claim, sums: Sequence[int]) -> str:
    """Return marks with one `!`: at a wrong step or, if all steps are right, anywhere."""
    marks = mark_steps(claim.digits, sums)
    wrong = [step for step, mark in enumerate(marks) if mark == "!"] or range(DIGITS)
    disputed = random.choice(wrong)
    return "".join("!" if step == disputed else "." for step in range(DIGITS))


def solo_verifier(_random: Random, claim: Claim) -> Example:
    return chat_of(prompt("solo_verifier/verifier", claim)), verdict(claim.is_right)


def adp_chat(claim: Claim, sums: Sequence[int]) -> Chat:
    return chat_of(f"{prompt('adp/verifier', claim)}\n\nExpert: {text(sums)}")


def adp_verifier(random: Random, claim: Claim) -> Example:
    sums = draw_proof(random, claim)
    return adp_chat(claim, sums), checked(claim, sums)


def merlin_arthur_verifier(random: Random, claim: Claim) -> Example:
    sums = draw_proof(random, claim, claim.claimed if random.random() < 0.5 else other_result(random, claim))
    chat = chat_of(f"{prompt('merlin_arthur/verifier', claim)}\n\nAnonymous: {text(sums)}")
    return chat, checked(claim, sums, "+" if sums[-1] == claim.claimed else "-")


def debate_verifier(random: Random, claim: Claim) -> Example:
    sums = draw_proof(random, claim)
    debate = f"\n\nExpert_2: {text(sums)}\n\nExpert_1: {dispute(random, claim, sums)}"
    chat = chat_of(f"{prompt('debate/verifier', claim)}{debate}{DECIDE}")
    return chat, checked(claim, sums)


def nip_verifier(random: Random, claim: Claim) -> Example:
    question, turn = prompt("nip/verifier", claim), random.randrange(5)
    sums = draw_proof(random, claim, right=HALF if turn > 2 else 0)
    marks, recomputed = mark_steps(claim.digits, sums), text(recompute(claim.digits, sums))
    first, second = (f"{recomputed[half]}\n{marks[half]}\n" for half in (slice(HALF), slice(HALF, None)))
    if turn == 0:
        return chat_of(question), ASK_FIRST
    chat = [question, ASK_FIRST, f"Expert: {text(sums[:HALF])}"]
    if turn < 3 or "!" in first:
        return chat_of(*chat), first + (verdict(False) if "!" in first else ASK_SECOND)
    chat += [first + ASK_SECOND, f"Expert: {text(sums[HALF:])}{DECIDE}"]
    return chat_of(*chat), second + verdict("!" not in marks)


def adp_prover(random: Random, claim: Claim) -> Example:
    sums = prove(claim.digits, claim.claimed, random.randrange(DIGITS))
    return chat_of(prompt("adp/prover", claim)), text(sums)


def contrary_prover(random: Random, claim: Claim) -> Example:
    sums = prove(claim.digits, other_result(random, claim), random.randrange(DIGITS))
    return chat_of(prompt("merlin_arthur/prover0", claim, "reject")), text(sums)


def disputing_prover(random: Random, claim: Claim) -> Example:
    sums = prove(claim.digits, claim.claimed, random.randrange(DIGITS))
    chat = chat_of(f"{prompt('debate/prover0', claim)}\n\nExpert_2: {text(sums)}")
    return chat, dispute(random, claim, sums)


def nip_prover(random: Random, claim: Claim) -> Example:
    sums = prove(claim.digits, claim.claimed, random.randrange(DIGITS))
    chat = [f"{prompt('nip/prover', claim)}\n\nVerifier: {ASK_FIRST}"]
    if random.random() < 0.5:
        return chat_of(*chat), text(sums[:HALF])
    chat += [text(sums[:HALF]), f"Verifier: {text(sums[:HALF])}\n{'.' * HALF}\n{ASK_SECOND}"]
    return chat_of(*chat), text(sums[HALF:])


Lesson = Callable[[Random, Claim], Example]
LESSONS: dict[str, dict[str, list[Lesson]]] = {
    "verifier": {
        "solo_verifier": [solo_verifier],
        "adp": [adp_verifier],
        "merlin_arthur": [merlin_arthur_verifier],
        "debate": [debate_verifier],
        "nip": [nip_verifier],
    },
    "prover": {
        "adp": [adp_prover],
        "merlin_arthur": [adp_prover, contrary_prover],
        "debate": [adp_prover, disputing_prover],
        "nip": [nip_prover],
    },
}
"""The lessons of each model for each protocol."""


def batch_loss(model: Transformer, rows: Sequence[tuple[list[int], list[int]]]) -> torch.Tensor:
    """Return the mean loss of the tokens of the answers; a row is the tokens of a chat and of its answer."""
    length = max(len(chat) + len(answer) for chat, answer in rows)
    tokens, targets = torch.full((len(rows), length), END), torch.full((len(rows), length), -100)
    for row, (chat, answer) in enumerate(rows):
        tokens[row, : len(chat) + len(answer)] = torch.tensor(chat + answer)
        targets[row, len(chat) - 1 : len(chat) + len(answer) - 1] = torch.tensor(answer)
    logits, _ = model(tokens)
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def tokens_of(example: Example) -> tuple[list[int], list[int]]:
    chat, answer = example
    return encode_chat(chat), [*encode(answer), END]


def measure_in_adp(model: Transformer, random: Random, count: int = 200) -> dict[str, float]:
    """Let a verifier judge the proofs of new claims at temperature 0, and return the shares of right verdicts."""
    claims = [draw_claim(random, "pretrain") for _ in range(count)]
    chats = [adp_chat(claim, prove(claim.digits, claim.claimed, random.randrange(DIGITS))) for claim in claims]
    answers = generate(model, [encode_chat(chat) for chat in chats], [Sampling(32, 0, 0)] * count)
    right: dict[bool, list[bool]] = {True: [], False: []}
    for claim, answer in zip(claims, answers, strict=True):
        right[claim.is_right].append(decode(answer.tokens).endswith(verdict(claim.is_right)))
    return {
        "accuracy": sum(map(sum, right.values())) / count,
        "completeness": sum(right[True]) / len(right[True]),
        "soundness": sum(right[False]) / len(right[False]),
    }


def train(
    model: Transformer, role: str, protocols: Sequence[str], seed: int, steps: int
) -> Iterator[tuple[int, float]]:
    """Pretrain a model, and yield the number of steps and the loss every 5 steps."""
    random = Random(f"{role} {seed}")
    lessons = [lesson for name in protocols for lesson in LESSONS[role][name]]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = 2e-3 * min(1, step / 50)
        claims = [draw_claim(random, "pretrain") for _ in range(64)]
        chosen = random.choices(lessons, k=len(claims))
        rows = [tokens_of(lesson(random, claim)) for lesson, claim in zip(chosen, claims, strict=True)]
        loss = batch_loss(model, rows)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
        if step % 5 == 0:
            yield step, loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Pretrain a model for the games.")
    parser.add_argument("role", choices=sorted(SHAPES))
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--start", type=Path, help="the checkpoint to start from; default: a new model")
    parser.add_argument("--protocols", nargs="+", choices=list(LESSONS["verifier"]), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000, help="maximum number of steps")
    parser.add_argument("--until", type=float, help="stop once a verifier has this accuracy in adp")
    args = parser.parse_args()
    if args.until and (args.role != "verifier" or "adp" not in args.protocols):
        parser.error("--until is for a verifier that learns adp")
    torch.set_num_threads(1)
    start, random = time.monotonic(), Random(args.seed)
    model = load(args.start) if args.start else Transformer(SHAPES[args.role], args.seed)
    for step, loss in train(model, args.role, args.protocols, args.seed, args.steps):
        if step % 25 and not (args.until and loss < 0.2):  # the skill comes within 25 steps, once the loss falls
            continue
        facts: dict[str, float] = {"step": step, "loss": round(loss, 4), "seconds": round(time.monotonic() - start, 1)}
        if args.role == "verifier" and "adp" in args.protocols:
            facts |= measure_in_adp(model, random)
        print(json.dumps(facts), flush=True)
        if args.until and facts["accuracy"] >= args.until:
            break
    save(model, args.checkpoint)  # only at the end, so that prepare.sh knows a finished model


if __name__ == "__main__":
    main()
