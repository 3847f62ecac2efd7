"""Long answers that lose their worker in mid-sentence, and what must hold of them then."""

from dataclasses import dataclass
from typing import Any

from tests.pipeline import Pipeline, Reply, WorkerProcess

PARTITION = 0

SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": 7},
}

LAST_EVENT_S = 120.0


@dataclass(frozen=True)
class LongAnswers:
    """Asks for the same long answers again and again: one greedy, one drawn from a seed.

    `max_tokens` must take a worker many times longer than its first few flushes.
    """

    pipeline: Pipeline
    messages: list[dict[str, str]]
    max_tokens: int

    async def ask(self, run: str) -> dict[str, Reply]:
        """Both to one worker; their replies as they grow."""
        for kind, sampling in SAMPLING.items():
            body = {
                "request_id": f"{kind} {run}",
                "messages": self.messages,
                "max_tokens": self.max_tokens,
                "ignore_eos": True,
                "return_token_ids": True,
            }
            await self.pipeline.ask(body | sampling, key=f"{kind} {run}", partition=PARTITION)
        return {kind: self.pipeline.replies[f"{kind} {run}"] for kind in SAMPLING}

    async def undisturbed(self) -> dict[str, Reply]:
        """What they are when nothing happens to their worker."""
        replies = await self.ask("undisturbed")
        await self._finished("undisturbed")
        return replies

    async def _finished(self, run: str) -> None:
        names = [f"{kind} {run}" for kind in SAMPLING]
        await self.pipeline.finished(names, timeout_s=LAST_EVENT_S)

    async def worker_in_mid_sentence(self, replies: dict[str, Reply]) -> WorkerProcess:
        """The worker that is answering, once each reader has seen some of its text."""
        await self.pipeline.until(lambda: all(len(reply.events) > 5 for reply in replies.values()))
        assert not any(reply.reader.finished for reply in replies.values())
        (pid,) = {pid for reply in replies.values() for pid in reply.published_by}
        return self.pipeline.worker(pid)

    async def assert_went_on(
        self, run: str, *, victim: WorkerProcess, expected: dict[str, Reply]
    ) -> None:
        """The other worker took over from the journal, and made what an undisturbed one makes."""
        await self._finished(run)
        (survivor,) = [worker for worker in self.pipeline.workers if worker is not victim]
        for kind in SAMPLING:
            reply = self.pipeline.replies[f"{kind} {run}"]
            assert reply.publishers == [victim.process.pid, survivor.process.pid]
            assert reply.token_ids == expected[kind].token_ids
            assert reply.text == expected[kind].text
            numbers = [event["sequence_number"] for event in reply.events]
            assert numbers == list(range(len(numbers)))
            assert len({event["attempt"] for event in reply.events}) == 1
            assert reply.finish_reason == "length"
        assert await survivor.metric("headrace_resumed_total") == len(SAMPLING)
        made = await survivor.metric("headrace_generation_tokens_total")
        assert 0 < made < len(SAMPLING) * (self.max_tokens - 5)
        await self.pipeline.all_committed()

    def longest_pause_s(self, run: str) -> float:
        return max(self.pipeline.replies[f"{kind} {run}"].longest_pause_s for kind in SAMPLING)
