"""The candidate's model, imported at the first question: most replays ask none.

Owns nothing but the moment; importing torch takes seconds.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from headrace.deploy.console import note
from headrace.deploy.replaying.judging import Row
from headrace.schemas.settings import Settings

if TYPE_CHECKING:
    from headrace.deploy.replaying.drift import CandidateModel


class LazyModel:
    """A `CandidateModel` that is made when it is needed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._cannot_load = False

    def texts_of(self, ids: Sequence[int]) -> list[str]:
        """See CandidateModel."""
        return self._model.texts_of(ids)

    def drift_of(self, row: Row) -> str | None:
        """See CandidateModel. Where the model cannot be loaded here, nothing is drift."""
        if self._cannot_load:
            return None
        from headrace.models.attention import UnsupportedModelError
        from headrace.models.loading import ModelLoadError

        try:
            return self._model.drift_of(row)
        except (ModelLoadError, UnsupportedModelError, MemoryError) as problem:
            self._cannot_load = True
            note(f"drift is not told from other differences: {problem!r}")
            return None

    @cached_property
    def _model(self) -> "CandidateModel":
        from headrace.deploy.replaying.drift import CandidateModel

        return CandidateModel(self._settings)
