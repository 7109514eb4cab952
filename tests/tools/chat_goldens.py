"""What `transformers` makes of conversations with the chat templates of a folder.

    pip install transformers jinja2
    python tests/tools/chat_goldens.py FOLDER

FOLDER holds templates, NAME.jinja each. Writes FOLDER/goldens.json: the conversations below, and for each template the text that
apply_chat_template gives, or the message of the exception that the template raised, or null where it failed otherwise. Then

    QUIRE_CHAT_TEMPLATES=FOLDER cargo test -p quire-engine --lib goldens -- --nocapture

compares. The committed folder is tests/golden/chat, whose NOTICE says where its templates are from and under which licences. Templates
under other licences are compared the same way, and not committed.
"""

import datetime
import json
import pathlib
import sys

import transformers.utils.chat_template_utils as utils
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, __version__

NOW = datetime.datetime(2024, 7, 26, 13, 5, 9)


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


utils.datetime = Clock

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city, <now>.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Its name"},
                "unit": {"type": "string", "enum": ["°C", "°F"]},
            },
            "required": ["city"],
        },
    },
}
NOTHING = {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "abc123xyz", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "exact": True, "scale": 1.5}}}
CALL_2 = {"id": "def456uvw", "type": "function", "function": {"name": "now", "arguments": {}}}
RESULT = {"role": "tool", "tool_call_id": "abc123xyz", "name": "get_weather", "content": '{"temperature": 21}'}
RESULT_2 = {"role": "tool", "tool_call_id": "def456uvw", "name": "now", "content": "12:00"}

user = lambda text: {"role": "user", "content": text}
system = lambda text: {"role": "system", "content": text}
assistant = lambda text, **more: {"role": "assistant", "content": text, **more}

# Arguments of apply_chat_template; add_generation_prompt is true where it is not there.
CASES = {
    "user": {"messages": [user("Hi <b>you</b> & 'me'")]},
    "system": {"messages": [system("  Be brief.\n"), user("Hi")], "add_generation_prompt": False},
    "turns": {"messages": [system("Be brief."), user(" a "), assistant("b\n"), user("c")]},
    "thoughts": {"messages": [user("a"), assistant("<think>\nhm\n</think>\n\nb"), user("c")]},
    "continued": {"messages": [user("a"), assistant("It is ")], "add_generation_prompt": False, "continue_final_message": True},
    "tools": {"messages": [user("Weather?")], "tools": [WEATHER, NOTHING]},
    "tools and system": {"messages": [system("Be brief."), user("Weather?")], "tools": [WEATHER]},
    "call": {"messages": [user("Weather?"), assistant(None, tool_calls=[CALL]), RESULT], "tools": [WEATHER]},
    "empty call": {"messages": [user("Weather?"), assistant("", tool_calls=[CALL]), RESULT], "tools": [WEATHER]},
    "calls": {"messages": [user("?"), assistant("I look.", tool_calls=[CALL, CALL_2]), RESULT, RESULT_2, assistant("Fine."), user("Ta")], "tools": [WEATHER, NOTHING]},
    "parts": {"messages": [system("Be brief."), {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]},
    "kwargs": {"messages": [user("a")], "kwargs": {"enable_thinking": False, "thinking": True, "reasoning_effort": "low"}},
    "two users": {"messages": [user("a"), user("b")]},
    "assistant first": {"messages": [assistant("a"), user("b")]},
    "other role": {"messages": [user("a"), {"role": "critic", "content": "b"}]},
}


def tokenizer():
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1}, unk_token="<s>")), bos_token="<s>", eos_token="</s>"
    )


def render(template, case):
    arguments = {"add_generation_prompt": True, **case}
    messages, kwargs = arguments.pop("messages"), arguments.pop("kwargs", {})
    try:
        text = tokenizer().apply_chat_template(json.loads(json.dumps(messages)), chat_template=template, tokenize=False, **arguments, **kwargs)
        return {"text": text}
    except Exception as error:
        is_raised = type(error).__name__ == "TemplateError"
        return {"error": str(error) if is_raised else None}


def main(folder):
    folder = pathlib.Path(folder)
    rendered = {path.stem: {name: render(path.read_text(), case) for name, case in CASES.items()} for path in sorted(folder.glob("*.jinja"))}
    goldens = {"made_with": f"transformers {__version__}", "now": int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp()), "cases": CASES, "rendered": rendered}
    (folder / "goldens.json").write_text(json.dumps(goldens, ensure_ascii=False, indent=1) + "\n")
    print(len(rendered), "templates,", len(rendered) * len(CASES), "texts")


main(sys.argv[1])
