"""Makes servers load the LoRA adapters that a run has trained, and unload them after use.

The stage log records an adapter before a server loads it. If nip-run is killed, the next process reads from the log
which adapters may still be loaded, and unloads the unused ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial

from runner.base.async_runner import run_sync
from runner.base.errors import NipRunError, RunError, TransientError
from runner.models.connectors import load_adapter, unload_adapter
from runner.models.settings import ModelSettings
from runner.results.folder import RunFolder
from runner.spec.training_settings import TrainerSettings
from runner.training.stage_log import StageLog, output_folder
from runner.training.stages import AdapterChanged
from runner.training.weights import recorded_weights

UNLOAD_SECONDS = 20.0
"""The time limit for unloading an adapter. An adapter that takes longer may stay loaded."""

log = logging.getLogger("nip_run.training")


@dataclass(frozen=True)
class _LoadedAdapter:
    """An adapter of a model group that is loaded at a server."""

    group: str
    name: str
    base_url: str


@dataclass(frozen=True)
class Adapters:
    """Loads and unloads a run's adapters. The log has the adapters that each server has loaded."""

    trainers: Mapping[str, TrainerSettings]
    folder: RunFolder
    stages: StageLog
    add_note: Callable[[str], None]

    def load_needed(self, iteration: int, models: Mapping[str, ModelSettings]) -> dict[str, str]:
        """Load the adapters among these models at their servers, and unload all others of this run.

        Return the path of each adapter by name, so that it can be loaded again if a server restarts.

        Raises:
            RunError: an adapter cannot be loaded, or no server of a group can be reached.
            ProviderRefusal: a server refuses to serve this account.
        """
        paths = {group: path for group in models if (path := self._adapter_path(group, models[group])) is not None}
        needed = {
            _LoadedAdapter(group, models[group].name, str(address))
            for group in paths
            for address in models[group].addresses
        }
        self._unload([adapter for adapter in self._loaded_adapters() if adapter not in needed], iteration, models)
        for group, path in paths.items():
            self._load_at_all_servers(iteration, group, models[group], path)
        return {models[group].name: path for group, path in paths.items()}

    def unload_all(self, iteration: int, models: Mapping[str, ModelSettings]) -> None:
        """Unload all adapters. Errors of servers or of the log become notes."""
        try:
            self._unload(self._loaded_adapters(), iteration, models)
        except NipRunError as error:
            self.add_note(str(error))

    def _adapter_path(self, group: str, model: ModelSettings) -> str | None:
        """Return the path of the adapter that a group plays with; None if its model is not a trained adapter.

        A model that another run trained is an adapter if the trainer's output in that run has an adapter config. But a
        downloaded run may have the id of a run in this results folder. If the output has other weights than the model,
        it is not loaded, and a note says so.
        """
        trainer = self.trainers.get(group)
        last = model.lineage[-1] if model.lineage else None
        if trainer is None or not trainer.load_lora or last is None:
            return None
        own_record = self.stages.training_record(last.iteration, group)
        if last.run_id == self.folder.run_id and own_record is not None and own_record.model == last.model:
            return str(output_folder(self.folder, last.iteration, group))
        output = output_folder(self.folder.sibling(last.run_id), last.iteration, group)
        if not (output / "adapter_config.json").is_file():
            return None
        if last.weights_sha256 not in (None, recorded_weights(str(output)).get("weights_sha256")):
            self.add_note(
                f"{output} has other weights than the model {model.name} of {group}, so nip-run does not load it as "
                f"an adapter; make the servers of models.{group} serve the adapter of {model.name} under this name"
            )
            return None
        return str(output)

    def _loaded_adapters(self) -> list[_LoadedAdapter]:
        """Return the adapters that are or may be loaded, according to the log."""
        last_state = {
            _LoadedAdapter(record.group, record.name, record.base_url): record.is_loaded
            for record in self.stages.find_all(AdapterChanged)
        }
        return [adapter for adapter, is_loaded in last_state.items() if is_loaded]

    def _load_at_all_servers(self, iteration: int, group: str, model: ModelSettings, path: str) -> None:
        """Load an adapter at all servers of a group; a note reports servers that cannot be reached.

        Raises:
            RunError: no server can be reached, or a server cannot load the adapter.
        """
        loaded, unreachable = set(self._loaded_adapters()), []
        for server in model.settings_per_server:
            adapter = _LoadedAdapter(group, model.name, str(server.address))
            is_new = adapter not in loaded
            if is_new:
                self._record(iteration, adapter, is_loaded=True)
            try:
                run_sync(partial(load_adapter, server, group, path, reload=is_new))
                log.info("iteration %d: %s is loaded at %s", iteration, model.name, server.address)
            except TransientError as error:
                unreachable.append(str(error))
        if len(unreachable) == len(model.addresses):
            raise RunError(
                "\n".join(unreachable) + f"\nno server of models.{group} can be reached to load the adapter {path}; "
                "start a server, and run the same command again"
            )
        for message in unreachable:
            self.add_note(f"{message}; the adapter {model.name} will be loaded at this server with the next request")

    def _unload(self, adapters: list[_LoadedAdapter], iteration: int, models: Mapping[str, ModelSettings]) -> None:
        """Unload adapters at their servers, and record each unloaded adapter. Failures become notes."""
        for adapter in adapters:
            model = models.get(adapter.group)
            if model is None or adapter.base_url not in model.addresses:
                continue  # API keys are only sent to addresses in the current spec
            server = replace(model, base_url=adapter.base_url, model=adapter.name)
            try:
                run_sync(partial(asyncio.wait_for, unload_adapter(server, adapter.group), UNLOAD_SECONDS))
            except (NipRunError, TimeoutError) as error:
                self.add_note(
                    f"the adapter {adapter.name} may still be loaded at {adapter.base_url}: {error}. Unload this "
                    "adapter if the server needs the memory"
                )
                continue
            self._record(iteration, adapter, is_loaded=False)
            log.info("iteration %d: %s is unloaded at %s", iteration, adapter.name, adapter.base_url)

    def _record(self, iteration: int, adapter: _LoadedAdapter, *, is_loaded: bool) -> None:
        self.stages.add(AdapterChanged(iteration=iteration, **asdict(adapter), is_loaded=is_loaded))
