"""LangChain's client of OpenAI's API against a server: python langchain_python.py URL."""

import sys
import time
from importlib.metadata import version
from typing import Literal

import httpx
import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

URL = sys.argv[1].rstrip("/")
MODEL = httpx.get(f"{URL}/v1/models").json()["data"][0]["id"]
COMMON = {"model": MODEL, "base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0, "timeout": 120}
FULL = {"extra_body": {"ignore_eos": True}}


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return "sunny"


def chat_model(**more):
    return ChatOpenAI(**COMMON, **{"temperature": 0, "max_tokens": 8, **FULL, **more})


def invoke():
    answer = chat_model().invoke([SystemMessage("Be kind."), HumanMessage("Hi")])
    assert isinstance(answer, AIMessage) and isinstance(answer.content, str), answer
    assert answer.usage_metadata["output_tokens"] == 8, answer.usage_metadata
    assert answer.response_metadata["finish_reason"] == "length", answer.response_metadata
    assert answer.response_metadata["model_name"] == MODEL, answer.response_metadata


def stream():
    pieces = list(chat_model(stream_usage=True).stream("Hi"))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert whole.content == chat_model().invoke("Hi").content
    assert whole.usage_metadata["output_tokens"] == 8, whole.usage_metadata


def batch():
    answers = chat_model().batch(["a", "b", "c"])
    assert len(answers) == 3 and all(isinstance(answer.content, str) for answer in answers)


def logprobs():
    answer = chat_model(logprobs=True, top_logprobs=2).invoke("Hi")
    content = answer.response_metadata["logprobs"]["content"]
    assert len(content) == 8 and len(content[0]["top_logprobs"]) == 2, content


def completions():
    model = OpenAI(**COMMON, temperature=0, max_tokens=8, **FULL)
    whole = model.invoke("abc")
    assert "".join(model.stream("abc")) == whole


def tools():
    model = chat_model().bind_tools([weather])
    answer = model.invoke("What is the weather in Rome?")
    assert isinstance(answer.tool_calls, list), answer
    call = {"name": "weather", "args": {"city": "Rome"}, "id": "call-1"}
    past = [HumanMessage("Hi"), AIMessage("", tool_calls=[call]), ToolMessage("sunny", tool_call_id="call-1")]
    assert isinstance(model.invoke(past).content, str)


class City(BaseModel):
    """A city."""

    name: Literal["Rome", "Oslo"]


def structured_output():
    for method in ["json_schema", "function_calling"]:
        model = ChatOpenAI(**COMMON, temperature=0, max_tokens=150).with_structured_output(City, method=method, strict=True)
        assert model.invoke("Name a city.").name in ("Rome", "Oslo"), method


def cancellation():
    stream = chat_model(max_tokens=400).stream("Hi")
    next(stream)
    stream.close()
    started = time.monotonic()
    while httpx.get(f"{URL}/v1/effective").json()["stats"]["num_running"]:
        assert time.monotonic() - started < 10, "it runs still"
        time.sleep(0.05)


def errors():
    try:
        chat_model(top_p=0.0).invoke("Hi")
    except openai.BadRequestError as error:
        assert error.param == "top_p", error.body
    else:
        raise AssertionError("top_p 0 was not refused")


failed = 0
checks = [invoke, stream, batch, logprobs, completions, tools, structured_output, errors, cancellation]
for check in checks:
    try:
        check()
        print(f"ok {check.__name__}")
    except Exception as error:
        failed += 1
        print(f"FAILED {check.__name__}: {type(error).__name__}: {error}")
print(f"langchain-openai {version('langchain-openai')}: {len(checks) - failed} of {len(checks)} passed")
sys.exit(min(failed, 1))
