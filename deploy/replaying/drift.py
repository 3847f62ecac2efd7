"""The candidate's model, asked why two answers part: at a near tie, or not.

Loads the model in float32 through transformers, at the first question and no sooner: it decides
between two roundings, so it has to be more exact than both. Knows nothing of Kafka.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from transformers import AutoTokenizer

from headrace.deploy.replaying.answer import Answer
from headrace.deploy.replaying.judging import Row
from headrace.models.constraints import Constraint, GrammarCompiler
from headrace.models.loading import LoadedModel, load_model
from headrace.models.near_choice import margin_text, near_tokens
from headrace.models.sampler import SampleRow
from headrace.models.store import resolve_model
from headrace.models.text import Detokenizer
from headrace.schemas.request import GenerationRequest
from headrace.schemas.settings import Settings
from headrace.streams.preparation import sampling_of


class CandidateModel:
    """The model that a replay's workers run, for questions about single tokens. Blocking."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def texts_of(self, ids: Sequence[int]) -> list[str]:
        """The text that each token adds; a character belongs to the token that completes it."""
        decoder = self._detokenizer.start()
        return [decoder.push(token) for token in ids]

    def drift_of(self, row: Row) -> str | None:
        """How near the tokens are where the answers part; None unless rounding may have chosen
        either.
        """
        request, answered, recorded = row.asked.request, row.answered, row.recorded
        parting = row.verdict.parting
        if request is None or answered is None or recorded is None or parting is None:
            return None
        if answered.ids is None or answered.prompt_ids is None or answered.seed is None:
            return None
        common = answered.ids[: parting.token]
        sampled = SampleRow(
            sampling_of(request, answered.seed),
            answered.prompt_ids,
            common,
            self._constraint(request, common),
        )
        return self._margin(sampled, answered.ids[parting.token : parting.token + 1], recorded)

    def _margin(self, sampled: SampleRow, chosen: list[int], recorded: Answer) -> str | None:
        """`chosen`: the new answer's token, or none where it ends there."""
        common = list(sampled.generated_ids)
        logits = self._logits([*sampled.prompt_ids, *common])
        near = near_tokens(logits, sampled)
        if not set(chosen) <= set(near):
            return None
        for token in near:
            if token not in chosen and self._may_be_recorded(token, common, recorded):
                return margin_text(logits, sampled, (chosen or near)[0], token)
        return None

    def _may_be_recorded(self, token: int, common: list[int], recorded: Answer) -> bool:
        """Whether the recorded answer goes on with `token`, by its ids or else by its text."""
        if recorded.ids is not None:
            return recorded.ids[len(common) : len(common) + 1] == [token]
        texts = self.texts_of([*common, token])
        rest = recorded.text[len("".join(texts[:-1])) :]
        if not texts[-1]:
            return not rest
        return bool(rest) and (rest.startswith(texts[-1]) or texts[-1].startswith(rest))

    def _constraint(self, request: GenerationRequest, common: list[int]) -> Constraint | None:
        schema = request.response_format.schema_text
        if schema is None:
            return None
        constraint = self._grammars.compile(schema).start()
        for token in common:
            constraint.accept(token)
        return constraint

    @torch.inference_mode()
    def _logits(self, ids: list[int]) -> torch.Tensor:
        """Shapes: (vocabulary,) float32, for the token behind `ids`."""
        output = self._loaded.model(input_ids=torch.tensor([ids]), use_cache=False)
        logits: torch.Tensor = output.logits[0, -1].float()
        return logits

    @cached_property
    def _source(self) -> str:
        return str(resolve_model(self._settings.model))

    @cached_property
    def _detokenizer(self) -> Detokenizer:
        return Detokenizer(AutoTokenizer.from_pretrained(self._source))

    @cached_property
    def _loaded(self) -> LoadedModel:
        loaded = load_model(self._source, dtype="float32", device="cpu", native=False)
        model: Any = loaded.model
        model.set_attn_implementation("sdpa")  # the engine's own wants its step around it
        return loaded

    @cached_property
    def _grammars(self) -> GrammarCompiler:
        loaded = self._loaded
        return GrammarCompiler(
            loaded.tokenizer, vocab_size=loaded.vocab_size, eos_ids=loaded.eos_ids
        )
