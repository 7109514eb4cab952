"""OpenAI's own Python client against a server: python openai_python.py URL.

Any model will do: what is checked holds for every one of them. The server is to have been started with
`--enable-auto-tool-choice --tool-call-parser hermes`.
"""

import json
import sys
import time
import urllib.request
from typing import Literal

import openai
from openai import OpenAI
from pydantic import BaseModel

URL = sys.argv[1].rstrip("/")
HELLO = [{"role": "user", "content": "Hi"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

client = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=120)
MODEL = client.models.list().data[0].id


def models():
    card = client.models.retrieve(MODEL)
    assert card.id == MODEL and card.object == "model", card
    assert card.model_extra["max_model_len"] > 0, card
    refused(openai.NotFoundError, "model", lambda: client.models.retrieve("nobody"), checks_param=False)


def completions():
    answer = client.completions.create(model=MODEL, prompt="abc", max_tokens=5, temperature=0, extra_body=FULL)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-"), answer
    assert answer.choices[0].finish_reason == "length", answer
    assert answer.usage.completion_tokens == 5, answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5, answer.usage
    again = client.completions.create(model=MODEL, prompt="abc", max_tokens=5, temperature=0, extra_body=FULL)
    assert again.choices[0].text == answer.choices[0].text
    two = client.completions.create(model=MODEL, prompt=["abc", "de"], n=2, seed=1, max_tokens=4, extra_body=FULL)
    assert [choice.index for choice in two.choices] == [0, 1, 2, 3], two
    echoed = client.completions.create(model=MODEL, prompt="abc", echo=True, max_tokens=3, temperature=0)
    assert echoed.choices[0].text.startswith("abc"), echoed


def completion_logprobs():
    answer = client.completions.create(model=MODEL, prompt="abc", max_tokens=4, logprobs=3, extra_body=FULL)
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == 4, logprobs
    assert all(one <= 0 for one in logprobs.token_logprobs), logprobs
    assert all(token in top for token, top in zip(logprobs.tokens, logprobs.top_logprobs)), logprobs
    # One token is allowed, however unlikely the model finds it.
    chat = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=2, logprobs=True, top_logprobs=5,
        extra_body={"allowed_token_ids": [20], **FULL},
    )
    for one in chat.choices[0].logprobs.content:
        assert one.logprob > -9999 and len(one.top_logprobs) == 5 and one.bytes is not None, one
    assert len({one.token for one in chat.choices[0].logprobs.content}) == 1, chat


def chat():
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_completion_tokens=6, extra_body=FULL)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-"), answer
    message = answer.choices[0].message
    assert message.role == "assistant" and isinstance(message.content, str), message
    assert message.tool_calls is None or message.tool_calls == [], message
    assert answer.usage.completion_tokens == 6, answer.usage
    parts = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    answer = client.chat.completions.create(model=MODEL, messages=parts, max_tokens=3, n=2, seed=5, extra_body=FULL)
    assert [choice.index for choice in answer.choices] == [0, 1]


def seeds():
    def texts(n):
        answer = client.completions.create(
            model=MODEL, prompt="abc", n=n, seed=7, temperature=1, max_tokens=30, extra_body=FULL
        )
        return [choice.text for choice in answer.choices]

    four = texts(4)
    assert len(set(four)) > 1, four
    assert texts(4) == four and texts(2) == four[:2], four


def streams():
    plain = client.completions.create(model=MODEL, prompt="abc", max_tokens=12, temperature=0, extra_body=FULL)
    stream = client.completions.create(
        model=MODEL, prompt="abc", max_tokens=12, temperature=0, stream=True,
        stream_options={"include_usage": True}, extra_body=FULL,
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].text, (text, plain)
    assert chunks[-1].choices == [] and chunks[-1].usage == plain.usage, chunks[-1]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1


def chat_streams():
    def create(**more):
        return client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=12, temperature=0, extra_body=FULL, **more
        )

    chunks = list(create(stream=True, logprobs=True, top_logprobs=2))
    assert chunks[0].choices[0].delta.role == "assistant", chunks[0]
    assert all(chunk.usage is None for chunk in chunks), "nobody asked for usage"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == create().choices[0].message.content
    tokens = [one for chunk in chunks if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content]
    assert len(tokens) == 12, len(tokens)
    with client.chat.completions.stream(
        model=MODEL, messages=HELLO, max_tokens=12, temperature=0, extra_body=FULL,
        stream_options={"include_usage": True},
    ) as stream:
        deltas = ""
        try:
            for event in stream:
                deltas += event.delta if event.type == "content.delta" else ""
            final = stream.get_final_completion()
        except openai.LengthFinishReasonError as error:
            # This client takes an answer that was cut for an error.
            final = error.completion
    assert final.choices[0].message.content == text and deltas == text, (final, deltas)


def stops():
    text = client.completions.create(
        model=MODEL, prompt="abc", max_tokens=30, temperature=0, extra_body=FULL
    ).choices[0].text
    stop = next((text[i : i + 2] for i in range(3, len(text) - 2) if text[i : i + 2].isprintable()), None)
    if stop is None:
        return
    answer = client.completions.create(
        model=MODEL, prompt="abc", max_tokens=30, temperature=0, stop=[stop], extra_body=FULL
    ).choices[0]
    assert (answer.text, answer.finish_reason) == (text[: text.index(stop)], "stop"), (text, stop, answer)
    assert answer.model_extra["stop_reason"] == stop, answer


def errors():
    def create(**more):
        return lambda: client.chat.completions.create(**{"model": MODEL, "messages": HELLO, "max_tokens": 2, **more})

    refused(openai.NotFoundError, "model", create(model="nobody"))
    refused(openai.BadRequestError, "top_p", create(top_p=0))
    refused(openai.BadRequestError, "temperature", create(temperature=-1))
    refused(openai.BadRequestError, "n", create(n=0))
    refused(openai.BadRequestError, "messages", create(messages=[]))
    refused(openai.BadRequestError, "top_logprobs", create(top_logprobs=2))
    refused(openai.BadRequestError, "max_tokens", create(max_tokens=10**9))
    refused(openai.BadRequestError, "max_tokens", create(max_tokens=10**9, stream=True))
    refused(openai.BadRequestError, "stream_options", create(stream_options={"include_usage": True}))
    refused(openai.InternalServerError, "input", lambda: client.embeddings.create(model=MODEL, input="a"), False)
    create()()


def refused(kind, param, call, checks_param=True):
    try:
        call()
    except openai.APIStatusError as error:
        assert isinstance(error, kind), repr(error)
        assert error.type and isinstance(error.message, str) and error.body["message"], error.body
        assert not checks_param or error.param == param, (param, error.body)
        # OpenAI has words as codes, vLLM the status: the number is what its clients know.
        assert error.body["code"] == error.status_code, error.body
    else:
        raise AssertionError(f"{param} was not refused")


def cancellation():
    before = gauge("request_success_total{finished_reason=\"abort\"}")
    stream = client.completions.create(model=MODEL, prompt="abc", max_tokens=400, stream=True, extra_body=FULL)
    next(iter(stream))
    stream.close()
    becomes_idle()
    try:
        client.with_options(timeout=0.2).completions.create(
            model=MODEL, prompt="abc", max_tokens=400, n=8, seed=1, extra_body=FULL
        )
    except openai.APITimeoutError:
        pass
    becomes_idle()
    assert gauge("request_success_total{finished_reason=\"abort\"}") > before


def becomes_idle():
    started = time.monotonic()
    names = ["num_requests_running", "num_requests_waiting", 'kv_blocks{state="live"}']
    while any(gauge(name) for name in names):
        assert time.monotonic() - started < 10, {name: gauge(name) for name in names}
        time.sleep(0.05)


def gauge(name):
    """The sum of the samples whose names begin so; the label of the model is left out."""
    with urllib.request.urlopen(f"{URL}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    total = 0.0
    for line in lines:
        plain = line.replace(f'model_name="{MODEL}",', "").replace(f'{{model_name="{MODEL}"}}', "")
        if plain.startswith(f"quire:{name}"):
            total += float(plain.rsplit(" ", 1)[1])
    return total


def tools():
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[TOOL], tool_choice="none", max_tokens=4, extra_body=FULL
    )
    assert not answer.choices[0].message.tool_calls, answer
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, tools=[TOOL], max_tokens=4, extra_body=FULL)
    assert answer.choices[0].finish_reason in ("length", "tool_calls"), answer
    past = HELLO + [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}]},
        {"role": "tool", "tool_call_id": "call-1", "content": "sunny"},
    ]
    client.chat.completions.create(model=MODEL, messages=past, tools=[TOOL], max_tokens=4, extra_body=FULL)
    chunks = list(client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[TOOL], max_tokens=4, stream=True, extra_body=FULL))
    assert chunks[-1].choices[0].finish_reason in ("length", "tool_calls"), chunks[-1]


def forced_call():
    """A form forces the text of a call; the parser reads it, in one piece and in a stream."""
    text = r'<tool_call>\n\{"name": "weather", "arguments": \{"city": "(Rome|Oslo)"\}\}\n</tool_call>'
    more = {"guided_regex": text}

    def create(**rest):
        return client.chat.completions.create(
            model=MODEL, messages=HELLO, tools=[TOOL], max_tokens=120, temperature=0, extra_body=more, **rest
        )

    choice = create().choices[0]
    assert choice.finish_reason == "tool_calls", choice
    call = choice.message.tool_calls[0]
    assert call.type == "function" and call.function.name == "weather", call
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo"), call
    deltas = [d for chunk in create(stream=True) for d in (chunk.choices[0].delta.tool_calls or [])]
    assert [d.function.name for d in deltas if d.function.name] == ["weather"], deltas
    assert json.loads("".join(d.function.arguments or "" for d in deltas)) == json.loads(call.function.arguments)


def response_formats():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=64, temperature=0, response_format=shape
    ).choices[0]
    assert answer.finish_reason in ("stop", "length"), answer
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content)["a"], int), answer
    refused(
        openai.BadRequestError, "response_format",
        lambda: client.chat.completions.create(model=MODEL, messages=HELLO, response_format={"type": "xml"}),
    )
    text = {"type": "text"}
    client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2, response_format=text)


class City(BaseModel):
    """With values that leave the model no way to go on for ever."""

    name: Literal["Rome", "Oslo"]


def parsed():
    answer = client.chat.completions.parse(
        model=MODEL, messages=HELLO, max_tokens=100, temperature=0, response_format=City
    )
    assert answer.choices[0].message.parsed.name in ("Rome", "Oslo"), answer


def required_calls():
    for tool_choice, finish_reason in [
        ("required", "tool_calls"), ({"type": "function", "function": {"name": "City"}}, "stop"),
    ]:
        choice = client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=150, temperature=0, tools=[openai.pydantic_function_tool(City)],
            tool_choice=tool_choice, parallel_tool_calls=False,
        ).choices[0]
        (call,) = choice.message.tool_calls
        assert City.model_validate_json(call.function.arguments) and call.function.name == "City", call
        assert choice.finish_reason == finish_reason, choice


# Outputs have the length that was asked for, whatever the model says.
FULL = {"ignore_eos": True}

checks = [
    models, completions, completion_logprobs, chat, seeds, streams, chat_streams, stops, errors, tools, cancellation,
    response_formats, parsed, forced_call, required_calls,
]
failed = 0
for check in checks:
    try:
        check()
        print(f"ok {check.__name__}")
    except Exception as error:
        failed += 1
        print(f"FAILED {check.__name__}: {type(error).__name__}: {error}")
print(f"openai {openai.__version__}: {len(checks) - failed} of {len(checks)} passed")
sys.exit(min(failed, 1))
