"""Answers of /v1/responses: OpenAI's response objects, whole and as a stream of events.

Knows neither HTTP nor the engine. A response is not stored.
"""

from collections.abc import Sequence

from jax_lm.config import Fields
from jax_lm.serving.jobs import Event
from jax_lm.serving.responses import AnswerFormat, Pieces, data


class ResponsesFormat(AnswerFormat):
    """Format of the answers of /v1/responses: a message per choice."""

    prefix = "resp"
    error_event = "error"
    sequence_number = 0

    def whole(self, ends) -> Fields:
        return self.response([end for end in ends if end.is_answer])

    def response(self, ends: Sequence[Event] = ()) -> Fields:
        """Return the object of a response, with its messages once it has ended."""
        output_tokens = sum(len(end.tokens) for end in ends)
        is_cut = any(end.reason == "length" for end in ends)
        usage = {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + output_tokens,
        }
        status = "incomplete" if is_cut else "completed"
        options = self.requests[0].options
        return {
            "id": self.frame["id"],
            "object": "response",
            "created_at": self.frame["created"],
            "model": self.model,
            "status": status if ends else "in_progress",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": self.body.instructions,
            "max_output_tokens": options.max_new_tokens,
            "metadata": {},
            "output": [self.item(*each) for each in enumerate(ends)],
            "parallel_tool_calls": False,
            "temperature": options.temperature,
            "tool_choice": "none",
            "tools": [],
            "top_p": options.top_p,
            "usage": usage if ends else None,
        }

    def item(self, index: int, end: Event | None = None) -> Fields:
        """Return the message of a choice, empty until it has ended."""
        statuses = {None: "in_progress", "length": "incomplete"}
        return {
            "id": f"msg-{self.identity}-{index}",
            "type": "message",
            "role": "assistant",
            "status": statuses.get(end and end.reason, "completed"),
            "content": [] if end is None else [self.part(end.text)],
        }

    def part(self, text: str) -> Fields:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def event(self, kind: str, **fields) -> str:
        """Format an event of a stream, with its number."""
        kind = f"response.{kind}"
        content = {"type": kind, "sequence_number": self.sequence_number, **fields}
        self.sequence_number += 1
        return data(content, kind)

    def opening(self) -> Pieces:
        self.ends: dict[int, Event] = {}
        for kind in ("created", "in_progress"):
            yield self.event(kind, response=self.response())
        for index in range(len(self.choices)):
            yield self.event("output_item.added", output_index=index, item=self.item(index))
            yield self.event("content_part.added", **self.place(index), part=self.part(""))

    def progress(self, index, event) -> Pieces:
        place = self.place(index)
        if text := self.new_text(index, event.text):
            yield self.event("output_text.delta", **place, delta=text, logprobs=[])
        if event.reason:
            self.ends[index] = event
            yield self.event("output_text.done", **place, text=event.text, logprobs=[])
            yield self.event("content_part.done", **place, part=self.part(event.text))
            yield self.event("output_item.done", output_index=index, item=self.item(index, event))

    def place(self, index: int) -> Fields:
        return {"item_id": self.item(index)["id"], "output_index": index, "content_index": 0}

    def closing(self) -> Pieces:
        response = self.response([self.ends[index] for index in range(len(self.choices))])
        yield self.event(response["status"], response=response)
