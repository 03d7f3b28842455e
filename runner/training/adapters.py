"""The LoRA adapters that a run has trained, at the servers of their groups: there while they are played with.

Before a server is asked to load one, that is in the log of stages, so that a process after a kill knows what is still
loaded, and has it unloaded once it is of no more use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from runner.base.async_runner import run_sync
from runner.base.errors import NipRunError, RunError, TransientError
from runner.models.connectors import load_adapter, unload_adapter
from runner.models.settings import ModelSettings
from runner.results.folder import RunFolder
from runner.spec.training_settings import TrainerSettings
from runner.training.stage_log import StageLog, output_of
from runner.training.stages import AdapterNoted

UNLOAD_SECONDS = 20.0
"""How long a server may take to unload one; the run goes on, or ends."""

log = logging.getLogger("nip_run.training")


@dataclass(frozen=True)
class _Place:
    """An adapter's name, and the address of a server."""

    group: str
    name: str
    base_url: str


@dataclass(frozen=True)
class Adapters:
    """What this run has loaded where."""

    trainers: Mapping[str, TrainerSettings]
    folder: RunFolder
    stages: StageLog
    note: Callable[[str], None]

    def use(self, iteration: int, models: Mapping[str, ModelSettings]) -> dict[str, str]:
        """Have the servers load the adapters among these models, and unload all others of this run.

        Returns for each name the path that it is loaded from: for a server that is started again meanwhile.

        Raises:
            RunError: an adapter cannot be loaded, or no server of a group can be reached; what to do.
            ProviderRefusal: a server refuses to serve us.
        """
        wanted = {group: path for group in models if (path := self._path(group, models[group])) is not None}
        places = {
            _Place(group, models[group].name, str(address)) for group in wanted for address in models[group].addresses
        }
        self._unload([place for place in self._loaded() if place not in places], iteration, models)
        for group, path in wanted.items():
            self._load_everywhere(iteration, group, models[group], path)
        return {models[group].name: path for group, path in wanted.items()}

    def end(self, iteration: int, models: Mapping[str, ModelSettings]) -> None:
        """Have all of them unloaded, as far as servers can be reached, and the log can be written."""
        try:
            self._unload(self._loaded(), iteration, models)
        except NipRunError as error:
            self.note(str(error))

    def _path(self, group: str, model: ModelSettings) -> str | None:
        """Where a trainer left the adapter that a group plays with; None where it is none that can be told.

        That of another run, from which this one goes on or whose tests it does again, is told by what lies there.
        """
        trainer = self.trainers.get(group)
        last = model.lineage[-1] if model.lineage else None
        if trainer is None or not trainer.load_lora or last is None:
            return None
        if last.run_id == self.folder.run_id:
            return str(output_of(self.folder, last.iteration, group))
        output = output_of(self.folder.beside(last.run_id), last.iteration, group)
        return str(output) if (output / "adapter_config.json").is_file() else None

    def _loaded(self) -> list[_Place]:
        """What is loaded, or may be, by the log."""
        found: dict[_Place, bool] = {}
        for record in self.stages.all(AdapterNoted):
            found[_Place(record.group, record.name, record.base_url)] = record.is_loaded
        return [place for place, is_loaded in found.items() if is_loaded]

    def _load_everywhere(self, iteration: int, group: str, model: ModelSettings, path: str) -> None:
        known, unreachable = set(self._loaded()), []
        for one in model.each_server:
            place = _Place(group, model.name, str(one.address))
            if place not in known:
                self._keep(iteration, place, is_loaded=True)
            try:
                run_sync(partial(load_adapter, one, group, path, anew=place not in known))
                log.info("iteration %d: %s is loaded at %s", iteration, model.name, one.address)
            except TransientError as error:
                unreachable.append(str(error))
        if len(unreachable) == len(model.addresses):
            raise RunError(
                "\n".join(unreachable) + f"\nno server of {group} can load its adapter; run the same command again "
                "when one is up"
            )
        for said in unreachable:
            self.note(f"{said}; its adapter is loaded there when it is asked again")

    def _unload(self, places: list[_Place], iteration: int, models: Mapping[str, ModelSettings]) -> None:
        for place in places:
            model = models.get(place.group)
            if model is None or place.base_url not in model.addresses:
                continue  # a key goes to the addresses that the spec has now, and to no other
            one = replace(model, base_url=place.base_url, model=place.name)
            try:
                run_sync(partial(asyncio.wait_for, unload_adapter(one, place.group), UNLOAD_SECONDS))
            except (NipRunError, TimeoutError) as error:
                self.note(f"the adapter {place.name} may still be loaded at {place.base_url}: {error}")
                continue
            self._keep(iteration, place, is_loaded=False)
            log.info("iteration %d: %s is unloaded at %s", iteration, place.name, place.base_url)

    def _keep(self, iteration: int, place: _Place, *, is_loaded: bool) -> None:
        self.stages.add(
            AdapterNoted(
                iteration=iteration, group=place.group, name=place.name, base_url=place.base_url, is_loaded=is_loaded
            )
        )
