"""Tournaments: pairings are ordinary runs, results choose rounds, and ratings match the planted players."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import pytest

from runner.base.errors import BudgetExhausted, SpecError, UsageError
from runner.base.exit_codes import ExitCode
from runner.results.leaderboard.results_folder import Results
from runner.runs.execution.spending import spent_on_parts
from runner.runs.finished.result import FinishedRun
from runner.runs.tournaments.plan import TournamentPlan
from runner.runs.tournaments.round_log import read_rounds
from runner.runs.tournaments.run import _cost_share
from runner.spec.loader import load_spec
from runner.spec.run_names import MAX_RUN_ID_LENGTH
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import nip_run_here
from tests.support.runs import derived_files, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.servers.judges_client import judged_spec, run_judge_server
from tests.support.tournaments import PLAYERS, tournament_spec


def list_parts(result: FinishedRun) -> list[Path]:
    return sorted(path for path in result.path.parent.iterdir() if path.name.startswith(f"{result.run_id}-p"))


def read_ratings(result: FinishedRun) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["player"], row["side"]): row for row in result.metrics["ratings"]}


@pytest.mark.gate
def test_a_round_robin_plays_every_pairing_on_the_same_datapoints(tmp_path: Path) -> None:
    result = run_spec(tournament_spec(tmp_path), tmp_path / "results")
    assert len(list_parts(result)) == 6
    agent_models = []
    for part in list_parts(result):
        rows = table(part, "rollouts")
        assert len({row["datapoint_id"] for row in rows}) == 6
        assert [row["stances_exchanged"] for row in rows].count(True) == 6
        manifest = json.loads((part / "manifest.json").read_text())
        assert (manifest["kind"], manifest["parent_run_id"]) == ("benchmark", result.run_id)
        models = {row["agent"]: row["model"] for row in manifest["agents"]}
        agent_models.append((models["prover0"], models["prover1"], models["verifier"]))
    expected = [
        (*pair, "judge") for first, second in combinations(PLAYERS, 2) for pair in ((first, second), (second, first))
    ]
    assert sorted(agent_models) == sorted(expected)
    assert [row["games"] for row in result.metrics["pairings"]] == [24, 24, 24]
    assert result.metrics["games"]["rollouts"] == 72


@pytest.mark.gate
def test_wins_in_the_cross_table_follow_from_the_games(tmp_path: Path) -> None:
    result = run_spec(tournament_spec(tmp_path), tmp_path / "results")
    for row in result.metrics["pairings"]:
        first_won = right_won = 0
        for name, first_seat_is_first in zip(row["runs"], (True, False), strict=True):
            for game in table(result.path.parent / name, "rollouts"):
                # prover0 argues for reject, unless the stances are exchanged.
                first_seat_stance = int(game["stances_exchanged"])
                right_won += game["decision"] == game["y"]
                first_won += (game["decision"] == first_seat_stance) == first_seat_is_first
        assert (row["first_won"], row["right_won"]) == (first_won, right_won)
        assert row["first_won"] + row["second_won"] == row["games"]


@pytest.mark.gate
def test_a_finished_tournament_is_not_played_again(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = tournament_spec(tmp_path, server.base_url, size=2)
        first = run_spec(path, tmp_path / "results")
        requests = server.requests
        second = run_spec(path, tmp_path / "results")
        from_folder = nip_run_here(f"results/runs/{first.run_id}", "-q", cwd=tmp_path)
        assert server.requests == requests
    assert second.was_finished
    assert second.metrics == first.metrics
    assert from_folder.returncode == 0, from_folder.stderr


@pytest.mark.full
def test_more_games_extend_the_runs_of_the_pairings(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = tournament_spec(tmp_path, server.base_url)
        run_spec(path, tmp_path / "results", "tournament.games=24")
        requests = server.requests
        longer = run_spec(path, tmp_path / "results", "tournament.games=48")
        extended = server.requests
        complete_run = run_spec(path, tmp_path / "whole", "tournament.games=48")
        assert server.requests - extended == extended
    assert requests < extended
    assert longer.run_id == complete_run.run_id
    assert {**longer.metrics, "games": None} == {**complete_run.metrics, "games": None}
    for part, complete_part in zip(list_parts(longer), list_parts(complete_run), strict=True):
        assert derived_files(part) == derived_files(complete_part)


@pytest.mark.gate
def test_a_tournament_shares_games_with_a_run_that_has_played_them(tmp_path: Path) -> None:
    two_players = {"players": {"medium": None}}
    with run_chat_server() as server:

        def count_requests(results: str, **changes: Any) -> int:
            requests_before = server.requests
            run_spec(tournament_spec(tmp_path, server.base_url, size=2, **changes), tmp_path / results)
            return server.requests - requests_before

        alone = count_requests("alone", tournament=two_players)
        benchmark = count_requests(
            "shared", kind="benchmark", tournament=None, stances="both", cache="cache.sqlite",
            agents={"prover0": {"model": "strong"}, "prover1": {"model": "weak"}},
        )  # fmt: skip
        # The pairing's other leg also shares requests, such as the judge's first question, which no player influences.
        assert count_requests("shared", tournament=two_players, cache="cache.sqlite") <= alone - benchmark


@pytest.mark.full
@pytest.mark.parametrize("pairing", ["swiss", "adaptive"])
def test_results_choose_the_same_rounds_each_time(tmp_path: Path, pairing: str) -> None:
    settings = {"pairing": pairing, "games": 48, "datapoints_per_round": 2}
    path = tournament_spec(tmp_path, tournament=settings)
    first, second = (run_spec(path, tmp_path / name) for name in ("first", "second"))
    rounds = read_rounds(first.path)
    assert rounds == read_rounds(second.path)
    assert len(rounds) > 3
    assert first.metrics["ratings"] == second.metrics["ratings"]
    assert sum(row["games"] for row in first.metrics["pairings"]) == 48


@pytest.mark.full
def test_results_choose_pairings_until_every_datapoint_is_played(tmp_path: Path) -> None:
    for pairing in ("swiss", "adaptive"):
        settings = {"pairing": pairing, "games": 10_000, "datapoints_per_round": 4}
        result = run_spec(tournament_spec(tmp_path, size=6, tournament=settings), tmp_path / "results")
        assert [row["games"] for row in result.metrics["pairings"]] == [24, 24, 24]


@pytest.fixture(scope="module")
def judges() -> Iterator[LoopbackServer]:
    with run_judge_server(
        seed=3,
        judges={"judge": {"sensitivity": 0.5}, "swayed": {"sensitivity": 0.0}},
        provers={"strong": 1.5, "medium": 0.8, "weak": 0.1},
    ) as server:
        yield server


@pytest.mark.gate
def test_the_planted_order_of_players_and_the_better_judge_are_found(tmp_path: Path, judges: LoopbackServer) -> None:
    server = {"base_url": judges.base_url, "timeout": 2 * HANG_SECONDS}
    path = judged_spec(
        tmp_path, judges.base_url, "debate", "judge", ("strong", "weak"), labels=[0, 1] * 15, kind="tournament",
        models={name: {"model": name, **server} for name in ("medium", "swayed")},
        tournament={"players": {name: {"model": name} for name in PLAYERS}, "judges": ["judge", "swayed"]},
    )  # fmt: skip
    result = run_spec(path, tmp_path / "results")
    rows = read_ratings(result)
    for better, worse in (("strong", "medium"), ("medium", "weak")):
        assert rows[better, "overall"]["ci_low"] > rows[worse, "overall"]["ci_high"]
    chances = {row["of"]: row for row in result.metrics["effects"] if row["effect"] == "right_side"}
    assert chances["judge"]["value"] > chances["swayed"]["value"]
    assert chances["swayed"]["ci_low"] < 0.5 < chances["swayed"]["ci_high"]
    compared = nip_run_here("compare", result.run_id, "--players", "strong", "weak", "--json", cwd=tmp_path)
    differences = json.loads(compared.stdout)["differences"]
    assert [row["side"] for row in differences] == ["overall", "right", "wrong"]
    assert differences[0]["p"] < 0.001
    assert differences[0]["ci_low"] > 0
    for assertion, code in (
        ("rating > base", ExitCode.DONE),
        ("rating.right <= base - 50", ExitCode.FAILED),
        (f"rating >= base + {round(differences[0]['value'])}", ExitCode.UNDECIDED),
        ("rating > 0", ExitCode.USAGE),
        ("accuracy > base", ExitCode.USAGE),
    ):
        arguments = ("compare", result.run_id, "--players", "strong", "weak", "--assert", assertion)
        done = nip_run_here(*arguments, cwd=tmp_path)
        assert done.returncode == code, (assertion, done.stderr)


@pytest.mark.full
@pytest.mark.parametrize("option", ["--metric=x", "--by=label", "--baseline=x", "--margin=1", "--flips=1", "--worst"])
def test_comparing_players_refuses_options_for_runs(option: str, tmp_path: Path) -> None:
    done = nip_run_here("compare", "run", "--players", "a", "b", option, cwd=tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert f"{option.partition('=')[0]} compares runs, not players" in done.stderr


@pytest.mark.gate
def test_games_without_a_verdict_have_no_winner_and_are_counted(tmp_path: Path) -> None:
    with run_chat_server(kind="bad_decision") as server:
        path = tournament_spec(tmp_path, server.base_url, size=2, retry={"invalid_response": {"attempts": 1}})
        result = run_spec(path, tmp_path / "results")
    assert [(row["games"], row["undecided"]) for row in result.metrics["pairings"]] == [(8, 8)] * 3
    assert {(row["value"], row["reason"], row["n"]) for row in result.metrics["ratings"]} == {(None, "no games", 0)}
    done = nip_run_here("show", result.run_id, cwd=tmp_path)
    assert "games that no rating uses: 24 without a verdict (undecided, or lost in transport)" in done.stdout
    assert [note.partition(": ")[0] for note in result.notes if "ended undecided" in note] == [f"{result.run_id}-p0a"]


@pytest.mark.full
def test_a_player_with_its_own_prompts_uses_them_in_both_seats(tmp_path: Path) -> None:
    prompts_folder = tmp_path / "careful"
    prompts_folder.mkdir()
    for seat in ("prover0", "prover1"):
        (prompts_folder / f"{seat}.jinja").write_text("Careful. {{ question }} {{ solution }} Argue for {{ stance }}.")
    players = {"careful": {"model": "weak", "prompts": "careful"}}
    path = tournament_spec(tmp_path, size=2, tournament={"players": players})
    result = run_spec(path, tmp_path / "results")
    seats = []
    for part in list_parts(result):
        texts = {name: (part / "inputs" / "prompts" / f"{name}.jinja").read_text() for name in ("prover0", "prover1")}
        seats += [name for name, text in texts.items() if text.startswith("Careful.")]
    assert sorted(seats) == ["prover0"] * 3 + ["prover1"] * 3
    resumed = nip_run_here(f"results/runs/{result.run_id}", "-q", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr


@pytest.mark.gate
def test_ratings_are_in_a_table_of_the_leaderboard(tmp_path: Path) -> None:
    result = run_spec(tournament_spec(tmp_path, size=3), tmp_path / "results")
    sql = "SELECT player, side, value, n FROM ratings WHERE run_id = 'RUN'".replace("RUN", result.run_id)
    _, rows = Results(tmp_path / "results").board.query(sql)
    assert sorted(rows) == sorted(
        (row["player"], row["side"], row["value"], row["n"]) for row in result.metrics["ratings"]
    )


@pytest.mark.full
def test_a_budget_ends_a_tournament_with_ratings_of_the_games_so_far(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = tournament_spec(
            tmp_path, server.base_url, size=12,
            tournament={"datapoints_per_round": 2}, budget={"completions": 200},
        )  # fmt: skip
        result = run_spec(path, tmp_path / "results")
        assert server.requests <= 200
        assert any("larger budget" in note for note in result.notes)
        games = {row["games"] for row in result.metrics["pairings"]}
        assert len(games) == 1
        assert games < {8, 16, 24, 32, 40}
        requests = server.requests
        extended_run = run_spec(path, tmp_path / "results", "budget.completions=400")
        assert requests < server.requests <= 400
    assert extended_run.run_id == result.run_id
    assert extended_run.metrics["pairings"][0]["games"] > result.metrics["pairings"][0]["games"]


@pytest.mark.full
def test_the_cost_of_other_points_of_a_sweep_does_not_end_a_tournament(tmp_path: Path) -> None:
    with run_chat_server() as server:
        options = {"datapoints_per_round": 1, "games": 24}
        tournament_spec(tmp_path, server.base_url, tournament=options, sweep={"seed": [0, 1]})
        free = nip_run_here("spec.yaml", "--json", cwd=tmp_path)
        calls = [point["completions"] for point in json.loads(free.stdout)]
        budget = f"budget.completions={sum(calls) + calls[1] // 2}"
        limited = nip_run_here("spec.yaml", budget, "name=limited", "--json", cwd=tmp_path)
        assert [point["rollouts"] for point in json.loads(limited.stdout)] == [24, 24], limited.stderr


def test_the_expected_cost_of_a_round_is_that_of_its_pairings() -> None:
    parts: Any = [SimpleNamespace(iteration=n, rollouts=10, cost_usd=usd) for n, usd in ((0, 9.0), (0, 9.0), (1, 2.0))]

    def expected_cost(more: dict[int, int]) -> float:
        return 20 * _cost_share(parts, more, ("cost_usd",))

    assert expected_cost({0: 4}) == pytest.approx(4 * 0.9)
    assert expected_cost({0: 4, 1: 5}) == pytest.approx(4 * 0.9 + 5 * 0.2)
    assert expected_cost({2: 3}) == pytest.approx(3 * 20 / 30)  # a new pairing has the mean of all games


@pytest.mark.full
def test_the_notes_of_a_tournament_count_all_games_of_a_pairing(tmp_path: Path) -> None:
    with run_chat_server(faults={"bad_decision": 0.5}) as server:
        options = {"pairing": "swiss", "datapoints_per_round": 1, "games": 24, "players": {"medium": None}}
        path = tournament_spec(
            tmp_path, server.base_url, tournament=options, retry={"invalid_response": {"attempts": 1}}
        )
        result = run_spec(path, tmp_path / "results")
    repeated = [note for note in result.notes if "ended undecided" in note]
    assert len(repeated) == 1
    assert " of 12 rollouts" in repeated[0]


@pytest.mark.full
@pytest.mark.parametrize("budget", [{"completions": 100}, {"tokens": 60_000}])
def test_a_round_that_costs_more_than_expected_stops_within_the_budget_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: dict[str, int]
) -> None:
    monkeypatch.setattr("runner.runs.tournaments.run.RESERVE", 0.0)  # as if the games of the next round cost nothing
    with run_chat_server() as server:
        path = tournament_spec(
            tmp_path, server.base_url, tournament={"datapoints_per_round": 1}, budget=budget,
            models={name: {"max_tokens": 200} for name in (*PLAYERS, "judge")},
        )  # fmt: skip
        with pytest.raises(BudgetExhausted):
            run_spec(path, tmp_path / "results", run_id="limited")
        stopped = server.requests
        ((unit, limit),) = budget.items()
        assert 0 < getattr(spent_on_parts(Results(tmp_path / "results"), "limited"), unit) <= limit
        summary = json.loads(nip_run_here("show", "limited", "--json", cwd=tmp_path).stdout)
        assert sum(row["games"] for row in summary["metrics"]["pairings"]) > 0
        resumed = run_spec(path, tmp_path / "results", "budget={}", run_id="limited")
        requests = server.requests
        complete_run = run_spec(path, tmp_path / "whole", "budget={}", run_id="limited")
        assert stopped < requests == server.requests - requests
    assert resumed.metrics["pairings"] == complete_run.metrics["pairings"]


@pytest.mark.full
def test_a_panel_judges_a_tournament(tmp_path: Path) -> None:
    judges = {f"judge{number}": {"model": "judge"} for number in range(3)}
    path = tournament_spec(
        tmp_path, size=4, protocol={"use": "panel_debate"}, prompts="prompts/code_validation/panel_debate",
        agents={**judges, "prover0": {"model": "judge"}, "prover1": {"model": "judge"}},
    )  # fmt: skip
    result = run_spec(path, tmp_path / "results")
    assert [(row["games"], row["judge"]) for row in result.metrics["pairings"]] == [(16, "panel")] * 3
    for part in list_parts(result):
        for row in table(part, "rollouts"):
            verdicts = [verdict["decision"] for verdict in json.loads(row["panel"])]
            assert row["decision"] == max({0, 1}, key=verdicts.count)
    with pytest.raises(SpecError, match="panel_debate has a panel, whose models are in `agents`; remove judges"):
        load_spec(path, ["+tournament.judges=[judge]"])


@pytest.mark.full
def test_the_runs_of_a_tournament_are_published_and_reproduced_instead_of_the_tournament(tmp_path: Path) -> None:
    result = run_spec(tournament_spec(tmp_path, size=2), tmp_path / "results")
    part_ids = [part.name for part in list_parts(result)]
    terms = ("--to", "registry", "--as", "acme", "--licence", "MIT", "--force")
    refused = nip_run_here("publish", result.run_id, *terms, cwd=tmp_path)
    assert refused.returncode == ExitCode.USAGE
    assert f"which have all games: nip-run publish {' '.join(part_ids)} --to WHERE" in refused.stderr
    published = nip_run_here("publish", *part_ids, *terms, cwd=tmp_path)
    assert published.returncode == 0, published.stderr
    for part_id in part_ids:
        download = nip_run_here("get", f"run/acme/{part_id}@1", part_id, "--from", "registry", cwd=tmp_path)
        assert download.returncode == 0, download.stderr
        done = nip_run_here("reproduce", part_id, cwd=tmp_path)
        assert (done.returncode, "follows from the transcripts" in done.stdout) == (0, True), done.stderr


@pytest.mark.gate
def test_a_part_cannot_be_resumed_alone(tmp_path: Path) -> None:
    result = run_spec(tournament_spec(tmp_path, size=2), tmp_path / "results")
    part = list_parts(result)[0]
    (part / "metrics.json").unlink()
    done = nip_run_here(part, cwd=tmp_path)
    assert done.returncode == 1
    assert f"is a part of the run {result.run_id}; resume that run with" in done.stderr


@pytest.mark.gate
def test_a_lost_part_is_reported(tmp_path: Path) -> None:
    path = tournament_spec(tmp_path, size=4, tournament={"pairing": "swiss", "games": 8, "datapoints_per_round": 1})
    result = run_spec(path, tmp_path / "results")
    (list_parts(result)[0] / "journal.jsonl").unlink()
    done = nip_run_here("spec.yaml", "tournament.games=16", cwd=tmp_path)
    assert done.returncode == 1
    assert "has games of tournament" in done.stderr


@pytest.mark.full
def test_a_lost_part_of_the_last_round_is_neither_ignored_nor_played_again(tmp_path: Path) -> None:
    with run_chat_server() as server:
        result = run_spec(tournament_spec(tmp_path, server.base_url, size=2), tmp_path / "results")
        requests = server.requests
        shutil.move(list_parts(result)[0], tmp_path / "lost")
        for command in (
            ("compare", result.run_id, "--players", "strong", "weak"), ("spec.yaml",),
            ("spec.yaml", "tournament.games=12"),
        ):  # fmt: skip
            done = nip_run_here(*command, cwd=tmp_path)
            assert done.returncode == 1
            assert f"{result.run_id}-p0a" in done.stderr
        arguments = ("compare", result.run_id, "--players", "strong", "weak", "--assert", "rating > base")
        assert nip_run_here(*arguments, cwd=tmp_path).returncode == ExitCode.USAGE
        shutil.move(tmp_path / "lost", tmp_path / "results" / "runs" / f"{result.run_id}-p0a")
        assert nip_run_here("spec.yaml", cwd=tmp_path).returncode == 0
        assert server.requests == requests
    result.folder.manifest_path.write_text("{")
    assert nip_run_here(*arguments, cwd=tmp_path).returncode == ExitCode.USAGE


@pytest.mark.full
def test_a_tournament_is_verified_with_its_parts_and_ratings(tmp_path: Path) -> None:
    result = run_spec(tournament_spec(tmp_path, size=3), tmp_path / "results")

    def verify() -> CompletedProcess[str]:
        return nip_run_here("verify", result.run_id, cwd=tmp_path)

    assert verify().returncode == 0, verify().stdout
    assert "all recorded numbers follow from the journal" in verify().stdout
    metrics = result.folder.metrics
    changed = json.loads(metrics.read_text())
    changed["ratings"][0]["value"] += 10
    metrics.write_text(json.dumps(changed))
    assert "metrics.json" in verify().stdout
    result.folder.seal()
    assert "metrics.json: ratings do not follow from the games" in verify().stdout
    journal = list_parts(result)[1] / "journal.jsonl"
    journal.write_text(journal.read_text().replace("Decision: accept", "Decision: reject"))
    done = verify()
    assert done.returncode == 1
    assert f"{result.run_id}-p0b: " in done.stdout


def test_the_worst_case_covers_the_pairings_that_cost_most(tmp_path: Path) -> None:
    prices = {"strong": {"price": {"input": 10.0, "output": 10.0}}, "weak": {"price": {"input": 1.0, "output": 1.0}}}
    path = tournament_spec(
        tmp_path, "http://127.0.0.1:9/v1", models=prices, tournament={"pairing": "adaptive", "games": 24}
    )
    plan = TournamentPlan(load_spec(path))
    games = plan.list_game_plans()
    assert sum(leg.size for leg in games) == 24
    assert {agent.model for leg in games for agent in leg.spec.experiment.agents.values()} >= {"strong"}
    assert all("strong" in {agent.model for agent in leg.spec.experiment.agents.values()} for leg in games)


def test_a_run_id_that_is_too_long_for_the_ids_of_its_parts_is_refused(tmp_path: Path) -> None:
    plan = TournamentPlan(load_spec(tournament_spec(tmp_path)))
    with pytest.raises(UsageError, match="the ids of the run's parts start with it"):
        plan.check_run_id("a" * MAX_RUN_ID_LENGTH)


@pytest.mark.gate
def test_the_page_of_a_tournament_has_ratings_pairings_and_the_cross_table(tmp_path: Path) -> None:
    result = run_spec(tournament_spec(tmp_path, size=3), tmp_path / "results")
    done = nip_run_here("report", result.run_id, "-o", "page.html", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.html").read_text()
    won, games = result.metrics["pairings"][0]["first_won"], result.metrics["pairings"][0]["games"]
    assert f"{result.run_id}</a>, games of pairing 0" in page or f"{result.run_id}, games of pairing 0" in page
    for text in ("Ratings by side in Elo points", "Cross table", f'<td class="number">{won}/{games}</td>'):
        assert text in page
    assert all(f'href="#/run/{row["runs"][0]}"' in page for row in result.metrics["pairings"])
