"""Schemas as Pydantic and OpenAPI write them, with documents that are valid, from a seed.

A shape is a schema and a function that makes values of it; shapes are put together at random from the same parts that the
tools emit: titles and defaults, optional fields as anyOf with null, $defs, enums, discriminated unions, recursive models,
maps, constrained numbers and strings, and OpenAPI's formats.
"""
import datetime
import json
import random
import string
import uuid

WORDS = "id name title status price count tags address city street zip email created_at updated_at owner items total kind " \
        "description url phone notes rating active parent children value unit currency größe 名前 first-name x_y".split()


class Shapes:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.defs = {}
        self.makers = {}

    # Each gives (schema, make): make(depth) is a valid value.
    def text(self, alphabet=string.ascii_letters + " äé\n\"\\/日😀\t", low=0, high=12):
        return "".join(self.r.choice(alphabet) for _ in range(self.r.randint(low, high)))

    def string(self):
        r, kind = self.r, self.r.randrange(9)
        if kind < 4:
            return {"type": "string"}, lambda d: self.text()
        if kind == 4:
            low = r.randint(0, 3)
            high = r.choice([low + 2, 20, 300, 5000])
            return {"type": "string", "minLength": low, "maxLength": high}, lambda d: self.text(low=low, high=min(high, 40))
        if kind == 5:
            pattern, make = r.choice([
                (r"^[A-Z]{2}\d{4}$", lambda d: f"{r.choice('AZQ')}{r.choice('BXY')}{r.randint(0, 9999):04d}"),
                (r"^(\([0-9]{3}\))?[0-9]{3}-[0-9]{4}$", lambda d: r.choice(["555-1212", "(888)555-1212"])),
                (r"^\w+@\w+\.\w{2,}$", lambda d: "a_b@c1.org"),
                (r"^#[0-9a-fA-F]{6}$", lambda d: f"#{r.randrange(1 << 24):06x}"),
                (r"foo|^ba[rz]", lambda d: r.choice(["a foo b", "bar none", "baz"])),
                (r"^\S+( \S+)*$", lambda d: "one two  three".replace("  ", " ")),
                (r"^[^/]+/[^/]+$", lambda d: "é☃/😀"),
            ])
            return {"type": "string", "pattern": pattern}, make
        make = {
            "date": lambda: datetime.date(r.randint(1, 9999), r.randint(1, 12), r.randint(1, 28)).isoformat(),
            "date-time": lambda: datetime.datetime.fromtimestamp(r.randrange(2 ** 31), datetime.timezone.utc).isoformat(),
            "time": lambda: f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}:{r.randint(0, 59):02d}Z",
            "uuid": lambda: str(uuid.UUID(int=r.getrandbits(128), version=4)),
            "email": lambda: r.choice(["a@b.de", "first.last+tag@mail.example.com"]),
            "uri": lambda: r.choice(["https://example.com/a/b?c=d#e", "http://localhost:8080/", "mailto:a@b.c", "urn:x:y"]),
            "ipv4": lambda: ".".join(str(r.randint(0, 255)) for _ in range(4)),
            "ipv6": lambda: r.choice(["::1", "2001:db8::8a2e:370:7334", "fe80::1:2:3:4", "::ffff:10.0.0.1", "1:2:3:4:5:6:7:8"]),
            "duration": lambda: r.choice(["P3D", "PT1H30M", "P1Y2M10DT2H30M", "P2W", "PT10S"]),
            "binary": lambda: self.text(),
            "password": lambda: self.text(),
        }
        name = r.choice(sorted(make))
        return {"type": "string", "format": name}, lambda d: make[name]()

    def number(self):
        r, kind = self.r, self.r.randrange(7)
        if kind == 0:
            return {"type": "integer"}, lambda d: r.randint(-10 ** r.randint(0, 18), 10 ** r.randint(0, 18))
        if kind == 1:
            return {"type": "number"}, lambda d: r.choice([r.uniform(-1e3, 1e3), r.random() * 1e-9, 1e22, 0.0, 5])
        if kind == 2:
            low = r.randint(-2000, 2000)
            high = low + r.choice([0, 1, 7, 90, 12345])
            return {"type": "integer", "minimum": low, "maximum": high}, lambda d: r.randint(low, high)
        if kind == 3:
            low = r.choice([0, 0.5, -1.25, 1e-3, 99.99])
            high = low + r.choice([0.25, 1, 1000])
            return ({"type": "number", "minimum": low, "exclusiveMaximum": high},
                    lambda d: min(max(low, low + (high - low) * r.random() * 0.999), high * 0.9999 if high > 0 else high * 1.0001))
        if kind == 4:
            of = r.choice([2, 5, 7, 12, 100])
            return {"type": "integer", "multipleOf": of, "minimum": 0}, lambda d: of * r.randint(0, 10 ** r.randint(0, 9))
        if kind == 5:
            return {"type": "number", "exclusiveMinimum": 0}, lambda d: r.choice([1e-7, 0.1, 3.5, 1e17, r.random() + 1e-6, 7])
        return {"type": "integer", "format": "int64", "minimum": 1, "maximum": 2 ** 31 - 1}, lambda d: r.randint(1, 2 ** 31 - 1)

    def choice(self):
        r, kind = self.r, self.r.randrange(4)
        if kind == 0:
            return {"type": "boolean"}, lambda d: r.random() < 0.5
        if kind == 1:
            values = r.sample(["red", "green", "blue", "dark-blue", "grün", 'quo"te', "new\nline", "a", "ab", "abc"], r.randint(1, 6))
            return {"enum": values, "type": "string"}, lambda d: r.choice(values)
        if kind == 2:
            value = r.choice(["v1", 3, None, True, -2.5])
            return {"const": value}, lambda d: value
        values = r.sample([1, 2, 10, "x", None, 2.5, False], r.randint(2, 5))
        return {"enum": values}, lambda d: r.choice(values)

    def array(self, depth):
        r = self.r
        kind = r.randrange(6)
        if kind == 0:
            parts = [self.value(depth - 1) for _ in range(r.randint(1, 3))]
            schema = {"type": "array", "prefixItems": [p[0] for p in parts], "minItems": len(parts), "maxItems": len(parts)}
            return schema, lambda d: [m(d - 1) for _, m in parts]
        if kind == 1:
            values = r.sample(["a", "b", "c", "d", "e"], r.randint(1, 5))
            return ({"type": "array", "items": {"enum": values, "type": "string"}, "uniqueItems": True},
                    lambda d: r.sample(values, r.randint(0, len(values))))
        item, make = self.value(depth - 1)
        schema, low, high = {"type": "array", "items": item}, 0, 4
        if kind > 3:
            low = r.randint(0, 2)
            high = low + r.randint(0, 5)
            schema.update(minItems=low, maxItems=high)
        return schema, lambda d: [make(d - 1) for _ in range(r.randint(low, max(low, min(high, d + 1))))]

    def object(self, depth, tag=None):
        r = self.r
        names = r.sample(WORDS, r.randint(1, 6 if depth > 1 else 3))
        fields = {} if tag is None else {"type": ({"const": tag, "type": "string"}, lambda d: tag)}
        fields |= {n: self.value(depth - 1) for n in names}
        required = [n for n in fields if n == "type" and tag or r.random() < 0.6]
        schema = {"type": "object", "properties": {n: s | {"title": n.title()} if isinstance(s, dict) and "$ref" not in s else s
                                                   for n, (s, _) in fields.items()}}
        if required:
            schema["required"] = required
        extra = r.randrange(4)
        if extra == 0:
            schema["additionalProperties"] = False
        elif extra == 1:
            other, make_other = self.value(0)
            schema["additionalProperties"] = other

        def make(d):
            out = {n: m(d - 1) for n, (_, m) in fields.items() if n in required or (d > 0 and r.random() < 0.5)}
            if extra == 1 and d > 0 and r.random() < 0.5:
                out["extra " + self.text("abc\"é", 0, 3)] = make_other(d - 1)
            return out
        return schema, make

    def map(self, depth):
        value, make = self.value(depth - 1)
        if self.r.random() < 0.3:
            return ({"type": "object", "patternProperties": {"^[a-z]{1,8}$": value}, "additionalProperties": False},
                    lambda d: {self.text("abcxyz", 1, 8): make(d - 1) for _ in range(max(0, min(d, 3)))})
        schema = {"type": "object", "additionalProperties": value}
        if self.r.random() < 0.3:
            schema["propertyNames"] = {"pattern": "^x-"}
            return schema, lambda d: {"x-" + self.text(): make(d - 1) for _ in range(max(0, min(d, 3)))}
        return schema, lambda d: {self.text(): make(d - 1) for _ in range(max(0, min(d, 3)))}

    def model(self, depth):
        """A named one: $ref, or again one that is there (perhaps one that is still being made: recursion)."""
        r = self.r
        if self.defs and r.random() < 0.4:
            name = r.choice(sorted(self.defs))
            schema = {"$ref": f"#/$defs/{name}"}
            if self.makers[name] is None:  # recursive: it must be able to end
                return {"anyOf": [schema, {"type": "null"}], "default": None}, \
                    lambda d: self.makers[name](d - 1) if d > 0 and self.r.random() < 0.5 else None
            return schema, lambda d: self.makers[name](d - 1)
        name = f"Model{len(self.defs)}"
        self.defs[name], self.makers[name] = {}, None
        self.defs[name], self.makers[name] = self.object(depth)
        return {"$ref": f"#/$defs/{name}"}, self.makers[name]

    def union(self, depth):
        r = self.r
        if r.random() < 0.5:
            parts = [self.object(depth - 1, tag=t) for t in r.sample(["cat", "dog", "bird", "catfish"], r.randint(2, 3))]
            schema = {"oneOf": [p[0] for p in parts], "discriminator": {"propertyName": "type"}}
        else:
            parts = [self.value(depth - 1) for _ in range(r.randint(2, 3))]
            schema = {"anyOf": [p[0] for p in parts]}
        return schema, lambda d: r.choice(parts)[1](d - 1)

    def optional(self, depth):
        schema, make = self.value(depth - 1)
        return {"anyOf": [schema, {"type": "null"}], "default": None}, \
            lambda d: make(d - 1) if d > 0 and self.r.random() < 0.6 else None

    def all_of(self, depth):
        (a, make_a), (b, make_b) = self.object(depth - 1), self.object(depth - 1)
        for s in (a, b):
            s.pop("additionalProperties", None)
        b["properties"] = {n: s for n, s in b["properties"].items() if n not in a["properties"]}
        b["required"] = [n for n in b.get("required", []) if n in b["properties"]]
        return {"allOf": [a, b]}, lambda d: \
            {n: v for n, v in make_a(1).items() if n in a["properties"]} | \
            {n: v for n, v in make_b(1).items() if n in b["properties"]}

    def value(self, depth):
        r = self.r
        if depth <= 0:
            return r.choice([self.string, self.number, self.choice])()
        part = r.choice([self.array, self.object, self.map, self.model, self.union, self.optional, self.all_of,
                         lambda d: self.string(), lambda d: self.number(), lambda d: self.choice(),
                         lambda d: ({}, lambda e: r.choice([None, 1.5, "x", [1, {"a": []}], {"b": True}]))])
        return part(depth)


def shape(seed):
    """(schema, list of valid values)"""
    s = Shapes(seed)
    schema, make = s.object(3)
    if s.defs:
        schema["$defs"] = s.defs
    return schema, [make(3) for _ in range(8)]


def texts(value):
    """As clients write it: default, compact, not escaped, indented a little."""
    return [json.dumps(value), json.dumps(value, separators=(",", ":")), json.dumps(value, ensure_ascii=False)]


def change(r, text):
    """The text with a character or a piece changed, left out, doubled, or taken from elsewhere in it."""
    i = r.randrange(len(text))
    k = min(len(text), i + r.choice([1, 1, 1, 2, 5]))
    kind = r.randrange(5)
    if kind == 0:
        return text[:i] + text[k:]
    if kind == 1:
        return text[:k] + text[i:]
    if kind == 2:
        return text[:i] + r.choice('{}[],:"\\0159.-eEtfnu aé\x01\u2028') + text[k:]
    if kind == 3:
        j = r.randrange(len(text))
        return text[:i] + text[j:j + r.randint(1, 6)] + text[k:]
    return text[:i] + r.choice(['"x":1,', "null", "true", "0", '""', "{}", "[]", ',"a":0', "1e5", "-"]) + text[i:]
