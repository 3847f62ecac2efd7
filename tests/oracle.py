"""What the model itself says: `model.generate`, greedy, fp32, one request at a time."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class Oracle:
    """The plain way to run a model folder."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def prompt_ids(self, messages: list[dict[str, str]]) -> list[int]:
        found = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return list(found)

    def generate(
        self, prompt_ids: list[int], max_tokens: int, *, ignore_eos: bool = False
    ) -> list[int]:
        """Greedy token ids after `prompt_ids`, with the end-of-turn token if it came and counts."""
        ids = torch.tensor([prompt_ids])
        ends = {"eos_token_id": -1} if ignore_eos else {}
        made = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
            **ends,
        )
        return list(made[0, len(prompt_ids) :].tolist())

    def choices(self, prompt_ids: list[int], made: list[int]) -> list[int]:
        """The greedy token after each prefix of `made`: all of `made` if that is greedy.

        In one pass, so quick enough for thousands of tokens.
        """
        with torch.inference_mode():
            logits = self._model(torch.tensor([prompt_ids + made[:-1]])).logits[0]
        return list(logits[len(prompt_ids) - 1 :].argmax(-1).tolist())

    def lead(self, ids: list[int], token: int, other: int) -> float:
        """How much larger the logit of `token` is than that of `other`, after `ids`."""
        with torch.inference_mode():
            logits = self._model(torch.tensor([ids])).logits[0, -1]
        return float(logits[token] - logits[other])

    def answer(self, messages: list[dict[str, str]], max_tokens: int) -> str:
        """The greedy answer's text."""
        return self.text(self.generate(self.prompt_ids(messages), max_tokens))

    def text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


@cache
def oracle_for(folder: Path) -> Oracle:
    """One oracle per model folder and test run."""
    return Oracle(folder)
