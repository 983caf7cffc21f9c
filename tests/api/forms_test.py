#!/usr/bin/env python3
"""Structured output through the openai package, unmodified: answers that parse, whatever the model would rather say."""

import json
import os
import re
import sys
from typing import Literal, Optional

from daemon import GEMMA, QWEN, ROOT, Daemon, Scratch, client_of, need, run

try:
    import jsonschema
    import openai
    from pydantic import BaseModel, Field
except ImportError as e:
    print(f"skip: {e}")
    sys.exit(77)

MODEL = "default"
ASKED = "Tell me about the city of Lisbon, in Portugal."


class Place(BaseModel):
    name: str = Field(max_length=40)
    country: str = Field(max_length=40)
    kind: Literal["city", "river", "mountain"]


class Report(BaseModel):
    place: Place
    population: Optional[int]
    founded: str = Field(pattern=r"^(about )?\d{1,4} (BC|AD)$")
    ratings: list[int] = Field(min_length=2, max_length=3)


SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 30},
        "date": {"type": "string", "format": "date"},
        "rating": {"type": "number", "minimum": 1, "maximum": 5},
        "tags": {"type": "array", "items": {"enum": ["sea", "hills", "trams"]}, "uniqueItems": True, "minItems": 1},
    },
    "required": ["title", "date", "rating", "tags"],
    "additionalProperties": False,
}


def parsed_by_pydantic():
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        for temperature in (0, 1.5):
            answer = c.responses.parse(model=MODEL, input=ASKED, text_format=Report, temperature=temperature, extra_body={"convod": {"seed": 3}})
            assert isinstance(answer.output_parsed, Report), answer
            assert answer.status == "completed" and 2 <= len(answer.output_parsed.ratings) <= 3
            assert answer.text.format.type == "json_schema" and answer.text.format.strict
        assert c.responses.retrieve(answer.id).text.format.name == answer.text.format.name
        chat = c.chat.completions.parse(model=MODEL, messages=[{"role": "user", "content": ASKED}], response_format=Report, temperature=1)
        assert isinstance(chat.choices[0].message.parsed, Report) and chat.choices[0].finish_reason == "stop"
        d.stop()


def every_answer_is_valid():
    """Several at once, at a temperature at which nothing would be; they share one form, and an ordinary answer is beside them."""
    from concurrent.futures import ThreadPoolExecutor

    for model, args in ((QWEN, ()), (GEMMA, ("--chat-format", "gemma"))):
        with Scratch() as data:
            d = Daemon(data, model=model, args=args)
            c = client_of(d)
            form = {"format": {"type": "json_schema", "name": "report", "schema": SCHEMA, "strict": True}}
            with ThreadPoolExecutor(8) as pool:
                plain = pool.submit(c.responses.create, model=MODEL, input="Say hello.", max_output_tokens=12, temperature=0)
                answers = [
                    pool.submit(c.responses.create, model=MODEL, input=ASKED, text=form, temperature=2, top_p=1, extra_body={"convod": {"seed": i, "top_k": 0}})
                    for i in range(8)
                ]
                for a in answers:
                    answer = a.result()
                    assert answer.status == "completed", answer
                    jsonschema.validate(json.loads(answer.output_text), SCHEMA)
                assert not plain.result().output_text.startswith("{")
            d.stop()


def objects_streams_and_turns():
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        first = c.responses.create(model=MODEL, input="Two fruits and their colours.", text={"format": {"type": "json_object"}}, max_output_tokens=200, temperature=0)
        assert first.status == "incomplete" or isinstance(json.loads(first.output_text), dict), first
        text = "".join(
            e.delta
            for e in c.responses.create(
                model=MODEL, input=ASKED, stream=True, temperature=0,
                text={"format": {"type": "json_schema", "name": "report", "schema": SCHEMA, "strict": True}},
            )
            if e.type == "response.output_text.delta"
        )
        jsonschema.validate(json.loads(text), SCHEMA)
        # The turn behind one of a form is free, and computes nothing again.
        answer = c.responses.create(model=MODEL, input="Thank you. Say goodbye in one word.", previous_response_id=first.id, temperature=0, max_output_tokens=8)
        assert not answer.output_text.startswith("{") and answer.to_dict()["convod"]["reprefilled"] == [], answer
        d.stop()


def beside_tools():
    """A call comes first and is no text; a text has the form."""
    tool = {"type": "function", "name": "lookup_place", "description": "Facts about a place.", "strict": False,
            "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}
    form = {"format": {"type": "json_schema", "name": "report", "schema": SCHEMA, "strict": True}}
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        for choice in ("required", "none", "auto"):
            answer = c.responses.create(model=MODEL, input=ASKED, tools=[tool], tool_choice=choice, text=form, temperature=0, max_output_tokens=300)
            kinds = {i.type for i in answer.output}
            assert choice == "auto" or kinds == {"function_call" if choice == "required" else "message"}, answer
            if kinds == {"message"}:
                assert answer.status == "completed"
                jsonschema.validate(json.loads(answer.output_text), SCHEMA)
        d.stop()


class Booking(BaseModel):
    """Books a table."""

    restaurant: str = Field(max_length=30)
    people: int = Field(ge=1, le=12)
    day: Literal["today", "tomorrow"]


def strict_tools():
    """Arguments fulfil their schema at a temperature at which nothing would; of a tool that is not strict they are an object."""
    loose = {"name": "note", "description": "Writes something down.", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}
    MOST = 250  # tokens: a Booking has room in them, whatever its 30 characters are
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        nested = [openai.pydantic_function_tool(Booking), {"type": "function", "function": loose}]
        flat = [{"type": "function", "strict": True, **{k: nested[0]["function"][k] for k in ("name", "description", "parameters")}}, {"type": "function", **loose}]
        asked = "Book a table for four at Ramiro, and note it down."
        seen = set()
        for seed in range(6):
            # By name, by any name, and where the model decides.
            named = {"type": "function", "function": {"name": "Booking"}}
            for choice in (named, "required", "auto"):
                create = c.chat.completions.create if choice == "required" else c.chat.completions.parse
                try:
                    chat = create(
                        model=MODEL, messages=[{"role": "user", "content": asked}], tools=nested if choice == "required" else nested[:1], tool_choice=choice,
                        temperature=2, top_p=1, seed=seed, max_tokens=MOST, parallel_tool_calls=False,
                    )  # fmt: skip
                except openai.LengthFinishReasonError:  # the helper takes no answer that was cut; text may be as long as it likes
                    assert choice == "auto", seed
                    continue
                for call in chat.choices[0].message.tool_calls or []:
                    seen.add(("chat", call.function.name))
                    if call.function.name == "Booking":
                        Booking.model_validate_json(call.function.arguments)
                    elif chat.choices[0].finish_reason == "tool_calls":
                        assert isinstance(json.loads(call.function.arguments), dict), call
                assert choice != named or chat.choices[0].message.tool_calls[0].function.parsed_arguments.people >= 1, chat
            response = c.responses.create(
                model=MODEL, input=asked, tools=flat, tool_choice="required", temperature=2, top_p=1, max_output_tokens=MOST,
                parallel_tool_calls=False, extra_body={"convod": {"seed": seed, "top_k": 0}},
            )
            for item in response.output:
                assert item.type == "function_call", response
                seen.add(("responses", item.name))
                if item.name == "Booking":
                    Booking.model_validate_json(item.arguments)
                elif response.status == "completed":
                    assert isinstance(json.loads(item.arguments), dict), item
        assert {("chat", "Booking"), ("responses", "Booking")} <= seen, seen
        bad = {"type": "object", "properties": {"a": {"not": {}}}}
        for call, param in (
            (lambda: c.responses.create(model=MODEL, input="x", tools=[{"type": "web_search"}, flat[1], {**flat[0], "parameters": bad}]), "tools[2].parameters"),
            (lambda: c.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}],
             tools=[{"type": "function", "function": {"name": "f", "strict": True, "parameters": bad}}]), "tools[0].function.parameters"),
        ):  # fmt: skip
            try:
                call()
                raise AssertionError("a schema that is not supported was taken as strict")
            except openai.BadRequestError as e:
                assert e.code == "invalid_function_parameters" and e.param == param and "#/properties/a/not" in e.message, e
        c.responses.create(model=MODEL, input="x", tools=[{**flat[0], "strict": False, "parameters": bad}], max_output_tokens=1)
        d.stop()


def patterns():
    """An extension: the whole answer matches a regular expression, in both interfaces."""
    pattern = r"(yes|no), (because|although) [a-z ]{5,40}\."
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        flat = {"type": "grammar", "syntax": "regex", "definition": pattern}
        nested = {"type": "grammar", "grammar": {"syntax": "regex", "definition": pattern}}
        answer = c.responses.create(model=MODEL, input="Is the sea salty?", text={"format": flat}, temperature=1.5)
        assert answer.status == "completed" and re.fullmatch(pattern, answer.output_text), answer
        assert answer.to_dict()["text"]["format"] == flat == c.responses.retrieve(answer.id).to_dict()["text"]["format"]
        chat = c.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Is the sea salty?"}], response_format=nested, temperature=1.5)
        assert re.fullmatch(pattern, chat.choices[0].message.content), chat
        for change, param, code in (
            ({"syntax": "ebnf"}, "syntax", "invalid_value"),
            ({"syntax": "lark", "definition": 'start: "(" start ")"'}, "definition", "invalid_grammar"),
            ({"syntax": None}, "syntax", "missing_required_parameter"),
            ({"definition": None}, "definition", "missing_required_parameter"),
            ({"definition": "(a"}, "definition", "invalid_grammar"),
            ({"definition": "(?=a)"}, "definition", "invalid_grammar"),
            ({"definition": 1}, "definition", "invalid_type"),
        ):
            for call, prefix in (
                (lambda g: c.responses.create(model=MODEL, input="x", text={"format": {"type": "grammar", **g}}), "text.format."),
                (lambda g: c.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}], response_format={"type": "grammar", "grammar": g}),
                 "response_format.grammar."),
            ):  # fmt: skip
                try:
                    call({**nested["grammar"], **change})
                    raise AssertionError(f"{change} was accepted")
                except openai.BadRequestError as e:
                    assert (e.param, e.code) == (prefix + param, code), e
        d.stop()


def examples_of_the_page():
    """The blocks of docs/structured-output.md, one after the other, against another address."""
    with open(os.path.join(ROOT, "docs", "structured-output.md")) as f:
        lines = f.read().split("\n## How it works")[0].splitlines()
    code = "\n".join(line[4:] for line in lines if line.startswith("    ") or not line)
    assert code.count("127.0.0.1:8642") == 1 and code.count("print(") == 3, code
    with Scratch() as data:
        d = Daemon(data)
        printed = []
        names = {"print": printed.append, "__name__": "page"}
        exec(code.replace("http://127.0.0.1:8642", d.url), names)  # noqa: S102 - it is the page's own
        place, year, calls = printed
        assert isinstance(place, names["Place"]), place
        assert re.fullmatch(r"\d{1,2} (May|June|November) \d{4}", year), year
        assert calls and all(isinstance(json.loads(c), dict) for c in calls), calls
        d.stop()


def names_of_control_tokens():
    """The text of a control token is text, as a name, a value or an argument: the model spells it, and nothing ends or begins by it."""
    name, value = "<|im_end|>", "<|im_start|>system"
    schema = {"type": "object", "properties": {name: {"enum": [value]}, "<tool_call>": {"const": "</tool_call>"}},
              "required": [name, "<tool_call>"], "additionalProperties": False}
    want = {name: value, "<tool_call>": "</tool_call>"}
    tool = {"type": "function", "name": "spell", "description": f"Spells {name}.", "strict": True, "parameters": schema}
    form = {"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": True}}
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        answer = c.responses.create(model=MODEL, input=f"Spell {name}.", text=form, temperature=0, max_output_tokens=200)
        assert answer.status == "completed" and json.loads(answer.output_text) == want, answer
        called = c.responses.create(model=MODEL, input=f"Spell {name}.", tools=[tool], tool_choice="required", parallel_tool_calls=False,
                                    temperature=0, max_output_tokens=300)
        calls = [i for i in called.output if i.type == "function_call"]
        assert len(calls) == 1 and json.loads(calls[0].arguments) == want, called
        # Both are gone on with as they are.
        for after, said in ((answer, "Thank you."), (called, [{"type": "function_call_output", "call_id": calls[0].call_id, "output": value}])):
            more = c.responses.create(model=MODEL, input=said, tools=[tool], tool_choice="none", previous_response_id=after.id, max_output_tokens=4, temperature=0)
            assert all(r["reason"] == "tools_changed" for r in more.to_dict()["convod"]["reprefilled"]), more
        assert json.loads(c.responses.retrieve(answer.id).output_text) == want
        d.stop()


def numbers_are_exact():
    """A constant's digits are those of the schema, also where they are the last ones that a double has."""
    want = {"a": 9007199254740991, "b": 0.30000000000000004, "c": 1.0000000000000002}
    schema = {"type": "object", "properties": {k: {"const": v} for k, v in want.items()}, "required": list(want), "additionalProperties": False}
    tool = {"type": "function", "name": "measure", "strict": True, "parameters": schema}
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        form = {"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": True}}
        answer = c.responses.create(model=MODEL, input="Measure.", text=form, max_output_tokens=200)
        assert json.loads(answer.output_text) == want, answer
        called = c.responses.create(model=MODEL, input="Measure.", tools=[tool], tool_choice="required", parallel_tool_calls=False, max_output_tokens=200)
        assert [json.loads(i.arguments) for i in called.output if i.type == "function_call"] == [want], called
        d.stop()


def cut_answers_are_incomplete():
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        form = {"format": {"type": "json_schema", "name": "report", "schema": SCHEMA, "strict": True}}
        answer = c.responses.create(model=MODEL, input=ASKED, text=form, max_output_tokens=5, temperature=0)
        assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens", answer
        try:
            c.chat.completions.parse(model=MODEL, messages=[{"role": "user", "content": ASKED}], response_format=Report, max_tokens=5)
            raise AssertionError("a cut answer was taken for a whole one")
        except openai.LengthFinishReasonError:
            pass
        d.stop()


def refused():
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)

        def ask(schema, strict=True):
            return c.responses.create(model=MODEL, input="x", max_output_tokens=1, text={"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": strict}})

        for schema, part in (
            ({"type": "object", "not": {}}, "#/not: not is not supported"),
            ({"type": "integer", "minimum": 2, "maximum": 1}, "contradict"),
            ({"$ref": "#"}, "refers to itself"),
            ({"$ref": "https://example.com/s.json"}, "not fetched"),
            ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
            ({"enum": []}, "enum is empty"),
        ):
            try:
                ask(schema)
                raise AssertionError(f"{schema} was accepted")
            except openai.BadRequestError as e:
                assert e.code == "invalid_json_schema" and e.param == "text.format.schema" and part in e.message, e
        assert ask({"type": "object", "not": {}}, strict=False).status == "incomplete"
        for format, param in (({"type": "yaml"}, "text.format.type"), ({"type": "json_schema", "name": "a"}, "text.format.schema"), ({"type": "json_schema", "schema": {}}, "text.format.name")):
            try:
                c.responses.create(model=MODEL, input="x", text={"format": format})
                raise AssertionError(f"{format} was accepted")
            except openai.BadRequestError as e:
                assert e.param == param, e
        d.stop()


def stopped_before_it_is_whole():
    """Some agents send their stop strings with every request. One that comes within a form ends the answer, which is not whole then."""
    with Scratch() as data:
        d = Daemon(data)
        c = client_of(d)
        form = {"type": "json_schema", "name": "a", "strict": True, "schema": {"const": {"a": "so it is"}}}
        for stop, text in (("so", '{"a":"'), ("}", '{"a":"so it is"'), ("no", '{"a":"so it is"}')):
            whole = stop == "no"
            r = c.responses.create(model=MODEL, input="x", text={"format": form}, extra_body={"convod": {"stop": stop}})
            reason = r.to_dict()["convod"].get("incomplete_reason")
            bare = lambda said: "".join(said.split())  # noqa: E731 - JSON may have white space
            assert bare(r.output_text) == bare(text) and (r.status, reason) == (("completed", None) if whole else ("incomplete", "stop")), r
            again = c.responses.retrieve(r.id)
            assert (again.status, again.output_text) == (r.status, r.output_text), again
            nested = {"type": "json_schema", "json_schema": {k: v for k, v in form.items() if k != "type"}}
            chat = c.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}], stop=[stop], response_format=nested).choices[0]
            assert (bare(chat.message.content), chat.finish_reason) == (bare(text), "stop"), chat
        d.stop()


need(QWEN)
need(GEMMA)
run(parsed_by_pydantic, every_answer_is_valid, objects_streams_and_turns, beside_tools, strict_tools, patterns, examples_of_the_page, names_of_control_tokens, numbers_are_exact, cut_answers_are_incomplete, stopped_before_it_is_whole, refused)
