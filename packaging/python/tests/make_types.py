"""Makes `trainyard/types.py` out of the daemon's own description: `make_types.py < openapi.json > ../trainyard/types.py`."""

from __future__ import annotations

import json
import sys
from typing import Any, Dict, List, Set

#: What the client asks, by the operation's id.
USED = (
    "Ready Jobs Job Logs Stop Rerun Restart Extend Send KeepUnsent Remove Images Gpus Usage Workspaces Workspace JobFile PutJobFile "
    "RemoveJobFile CloneJob Check TaskMetrics TaskScalars Events Datasets Models RemoveModel Templates Template PutTemplate RemoveTemplate "
    "Secrets PutSecret RemoveSecret"
).split()
#: What it does not ask, and why.
LEFT_OUT = {
    "Health": "`ready` tells more",
    "JobLines": "`jobs` tells all of each",
    "Metrics": "for Prometheus",
    "OpenApi": "no type",
    "Exec": "the command line has it",
    "LogsHead": "logs are read whole, or from a time on",
    "Image RemoveImage TagImage PullImage ImportImage PruneImages RemoveDataset": "the command line has them",
    "Tokens NewToken RemoveToken State Drain BeginDrain UndoDrain Shutdown": "for administrators, by the command line",
}
HEAD = '''"""What the daemon answers. Made by tests/make_types.py out of its own description: do not edit."""

from __future__ import annotations

from typing import List, Literal, Optional, TypedDict
'''


def operations(document: Dict[str, Any]) -> Dict[str, Any]:
    found = {}
    for path in document["paths"].values():
        found.update({operation["operationId"]: operation for operation in path.values()})
    return found


def references(value: Any) -> Set[str]:
    if isinstance(value, list):
        return set().union(*(references(item) for item in value)) if value else set()
    if not isinstance(value, dict):
        return set()
    own = {value["$ref"].rsplit("/", 1)[1]} if "/schemas/" in str(value.get("$ref")) else set()
    return own.union(*(references(item) for item in value.values()))


def reached(document: Dict[str, Any]) -> List[str]:
    """Schemas of what the used operations answer, those that others name before them."""
    schemas, order = document["components"]["schemas"], []

    def visit(name: str) -> None:
        if name not in order:
            for other in sorted(references(schemas[name]) - {name}):
                visit(other)
            order.append(name)

    every = operations(document)
    for used in USED:
        for name in sorted(references(every[used]["responses"])):
            visit(name)
    return order


def literals(schema: Any) -> List[str]:
    """The words that it allows, if it allows no others."""
    if "const" in schema:
        return [schema["const"]]
    parts = [literals(one) for one in schema.get("oneOf", [])]
    return schema.get("enum") or (sum(parts, []) if all(parts) else [])


def of(schema: Any) -> str:
    """The type of Python, as its name."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[1]
    words = literals(schema)
    if words:
        return "Literal[" + ", ".join(json.dumps(word) for word in words) + "]"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            kinds = [one for one in schema[several] if one.get("type") != "null"]
            assert len(kinds) == 1, schema
            return f"Optional[{of(kinds[0])}]"
    kind = schema["type"]
    if isinstance(kind, list):
        (one,) = (one for one in kind if one != "null")
        return f"Optional[{of({**schema, 'type': one})}]"
    if kind == "array":
        items = schema.get("items") or schema["prefixItems"][0]
        if "prefixItems" in schema:
            assert all(item == items for item in schema["prefixItems"]), schema
        return f"List[{of(items)}]"
    return {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}[kind]


def described(schema: Any, indent: str) -> List[str]:
    text = str(schema.get("description", ""))
    return [f"{indent}#: {line}".rstrip() for line in text.splitlines()]


def fields(schema: Any, wanted: bool) -> List[str]:
    out, required = [], schema.get("required", [])
    for name, field in schema["properties"].items():
        if (name in required) == wanted:
            out += [*described(field, "    "), f"    {name}: {of(field)}"]
    return out


def made(name: str, schema: Any) -> List[str]:
    if "properties" not in schema:
        return ["", *described(schema, ""), f"{name} = {of(schema)}"]
    # Which may be absent stands in a class of its own: Python 3.9 has no other way to say so.
    optional = fields(schema, False)
    base = f"_{name}" if optional else "TypedDict"
    first = ["", "", f"class _{name}(TypedDict, total=False):", *optional] if optional else []
    says = [line.replace("#:", "#") for line in described(schema, "")]
    return [*first, "", "", *says, f"class {name}({base}):", *(fields(schema, True) or ["    pass"])]


def text(document: Dict[str, Any]) -> str:
    lines = [HEAD.rstrip("\n")]
    for name in reached(document):
        lines += made(name, document["components"]["schemas"][name])
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text(json.load(sys.stdin)))
