"""Writes tests/golden/json_schemas.jsonl: the first 500 different schemas of the JSON Schema Test Suite.

The suite is taken from the source distribution of the Python package `jsonschema` 4.26.0, where it lies under `json`:

    pip download --no-deps --no-binary :all: jsonschema==4.26.0
    tar xzf jsonschema-4.26.0.tar.gz
    python tests/tools/json_schemas.py jsonschema-4.26.0/json > tests/golden/json_schemas.jsonl

Newest draft first; a schema that two files share is taken once. The first line holds the suite's licence.
"""

import json
import pathlib
import sys

DRAFTS = ["draft2020-12", "draft7", "draft2019-09"]
NUM_SCHEMAS = 500


def cases(suite: pathlib.Path):
    """All schemas, each with where it stands."""
    for draft in DRAFTS:
        folder = suite / "tests" / draft
        for path in sorted(folder.glob("*.json")) + sorted(folder.glob("optional/**/*.json")):
            for case in json.loads(path.read_text()):
                schema = case["schema"]
                # The suite of this draft leaves it to the folder to say what its schemas mean.
                if draft == "draft7" and isinstance(schema, dict):
                    schema = {"$schema": "http://json-schema.org/draft-07/schema#"} | schema
                yield f"{path.relative_to(suite / 'tests')}: {case['description']}", schema


def main():
    suite = pathlib.Path(sys.argv[1])
    print(json.dumps({"source": "JSON Schema Test Suite", "license": (suite / "LICENSE").read_text()}))
    seen = set()
    for name, schema in cases(suite):
        plain = {k: v for k, v in schema.items() if k != "$schema"} if isinstance(schema, dict) else schema
        key = json.dumps(plain, sort_keys=True)
        if key in seen:
            continue
        seen.add(key)
        # The newest draft is what a schema means that names none.
        is_newest = isinstance(schema, dict) and "2020-12" in schema.get("$schema", "")
        print(json.dumps({"name": name, "schema": plain if is_newest else schema}, ensure_ascii=False))
        if len(seen) == NUM_SCHEMAS:
            return
    sys.exit(f"only {len(seen)} schemas")


if __name__ == "__main__":
    main()
