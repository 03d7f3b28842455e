"""The arguments of the commands that look at what was played: shown, asked, compared, exported."""

from __future__ import annotations

import argparse
from pathlib import Path

from runner.cli.arguments import RUN, OldName, folder, shard, specs

EXPORT_NAMES = ("every-eval-ever", "hf-eval-results", "inspect", "scout")
"""The formats of other tools, for results, logs and transcripts: those of `runner.exports`."""

MLFLOW = "mlflow"
"""What is no format of files: a tracking server is sent to."""


def runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--status",
        choices=("running", "done", "incomplete", "failed", "interrupted"),
        help="only runs with this status",
    )


def sweep(parser: argparse.ArgumentParser) -> None:
    specs(parser)
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="METRIC",
        help="a column of its own, beside accuracy; of an agent: AGENT.METRIC; may be given several times",
    )


def show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="?", default="last", help=f"{RUN}; default: last, the newest run")
    parser.add_argument(
        "rollout", metavar="ROLLOUT", nargs="?", help="a rollout id, the start of one, or a datapoint's id"
    )
    parser.add_argument(
        "other", metavar="RUN ROLLOUT", nargs="*", help="another run and a rollout of it, shown after the first"
    )
    shard(parser, "of a run that is played in shards: the part K of N")
    parser.add_argument("--wrong", action="store_true", help="only rollouts with a wrong verdict")
    parser.add_argument("--undecided", action="store_true", help="only rollouts without a verdict")
    parser.add_argument("--repeat", type=int, metavar="N", help="only this repeat of each datapoint, from 0")
    parser.add_argument("--limit", type=int, metavar="N", help="how many rollouts are listed; default: 20")
    parser.add_argument("--all", action="store_true", help="list all of them")
    parser.add_argument(
        "--prompt", metavar="AGENT", help="with ROLLOUT: the chats that this agent's model got, as they were sent"
    )
    parser.add_argument("--round", type=int, metavar="N", help="with ROLLOUT: only this round, from 0")


def leaderboard(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("benchmark", nargs="?", metavar="BENCHMARK", help="only this benchmark")
    parser.add_argument("--rebuild", action="store_true", help="make the file again from the run folders")
    parser.add_argument(
        "--from",
        dest="where",
        metavar="WHERE",
        help="rank what is published there instead: a folder, git:URL, hf:OWNER/NAME or https://HOST; "
        "only what is new is read",
    )


def compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help=f"{RUN}; RUN,RUN,... are pooled as the repeats of one system, such as one spec by several seeds",
    )
    parser.add_argument(
        "--metric",
        default="accuracy",
        metavar="NAME",
        help="accuracy (the default), accuracy_0, balanced_accuracy, soundness_error, decided, tokens, cost, "
        "AGENT.reward, ...; a wrong name lists them",
    )
    parser.add_argument(
        "--by", metavar="COLUMN", help="compare each value of this column of the dataset, too, or label"
    )
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help="compare each with this: a run, or a protocol, whose run of the same task and verifier is found",
    )
    parser.add_argument(
        "--assert",
        dest="asserts",
        action="append",
        default=[],
        metavar="EXPR",
        help="METRIC >= NUMBER, or METRIC >= base - NUMBER, where base is the baseline or else the first; one RUN "
        "will do without base; exit 1 where it does not hold, 5 where the data cannot tell, 2 where a run cannot be "
        "read; may be given again",
    )
    parser.add_argument(
        "--worst",
        action="store_true",
        help="say, too, which run is the worst by the metric, such as of one verifier beside several provers, with an "
        "interval that holds for all at once",
    )
    parser.add_argument("--flips", type=int, default=10, metavar="N", help="how many flips are listed; default: 10")


def sql(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sql",
        nargs="?",
        metavar="QUESTION",
        help="SELECT, FROM, WITH, PIVOT, DESCRIBE, SHOW or SUMMARIZE; @NAME asks one that is kept, @ lists them; `-` "
        "reads it from standard input; without one: the tables, their columns, and examples",
    )
    parser.add_argument(
        "parameters", nargs="*", metavar="NAME=VALUE", help="values of the question's parameters, $NAME in its text"
    )
    parser.add_argument("--list", action="store_true", help="list the questions that are kept, as @ does")
    parser.add_argument("--file", type=Path, metavar="FILE", help="read the question from a file")
    parser.add_argument(
        "--format",
        choices=("table", "csv", "json", "markdown", "parquet"),
        help="default: by the ending of --out, else table, which shows the first 1,000 rows",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="write the answer to a file (behind a link: to that which it leads to); parquet needs one",
    )


def export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="+", help=f"{RUN}; several with --format mlflow")
    parser.add_argument(
        "--format",
        required=True,
        choices=("openai", "trl", "verl", *EXPORT_NAMES, MLFLOW),
        help="fine-tune files: openai, trl, verl; runs in full on a tracking server: mlflow; results, logs and "
        "transcripts: the others",
    )
    parser.add_argument(
        "--method",
        choices=("sft", "dpo", "rl"),
        help="the training method; default: sft, and rl for verl, its only one",
    )
    parser.add_argument(
        "--chat-format", choices=("openai", "alternating"), help="of the chats; default: the format they were played in"
    )
    parser.add_argument(
        "--out", type=folder, metavar="DIR", help="default: the run's folder, fine_tune/export-FORMAT or exports/FORMAT"
    )
    parser.add_argument("--agent", action="append", metavar="NAME", help="only this agent; may be given again")
    parser.add_argument("--only-correct", action="store_true", help="only rollouts with a right verdict")
    parser.add_argument(
        "--true-labels", action="store_true", help="put the label in the place of the verifier's last message"
    )
    parser.add_argument("--subject", metavar="AGENT", help="whose model a record of one model is of")
    parser.add_argument("--organization", metavar="NAME", help="every-eval-ever: who ran the evaluation")
    parser.add_argument(
        "--relationship",
        choices=("first_party", "third_party", "collaborative", "other"),
        help="every-eval-ever: of who ran it to who made the model",
    )
    parser.add_argument("--hf-dataset", metavar="ID", help="the benchmark's dataset on the Hugging Face Hub")
    parser.add_argument("--task-id", metavar="TASK", help="hf-eval-results: the task of that benchmark")
    parser.add_argument("--source-url", metavar="URL", help="hf-eval-results: where the result can be read")
    parser.add_argument(
        "--tracking-uri", metavar="URI", help="mlflow: the tracking server; default: $MLFLOW_TRACKING_URI"
    )
    parser.add_argument(
        "--experiment",
        metavar="NAME",
        help="mlflow: the experiment, made where there is none; default: $MLFLOW_EXPERIMENT_NAME, else nip-run",
    )
    parser.add_argument("--follow", action="store_true", help="mlflow: send while the run plays, and end with it")
    parser.add_argument(
        "--journal",
        action="store_true",
        help="mlflow: send the journal and the rows of the dataset, too, from which a run is made again",
    )


def explain_misses(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("--cache", type=Path, metavar="FILE", help="default: the cache that the run used")
    parser.add_argument("--max", type=int, default=5, metavar="N", help="how many misses to explain; default: 5")
    parser.add_argument("--most", type=int, dest="max", action=OldName, new="--max")


def completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="whose script to print")
