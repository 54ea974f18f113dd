//! The OpenAPI 3.1 document, from the table of routes and the wire types.

use std::sync::LazyLock;

use hyper::body::Bytes;
use hyper::{Response, StatusCode};
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::frames::PROTOCOL;
use super::params::{Kind, Param};
use super::query::{CURSOR_MAX, NUMBER_MAX, TIME_MAX, VALUE_MAX};
use super::routes::{Action, Answers, Parts, ROUTES, Right, Route, Takes};
use super::server::{Body, in_full, json as answer_of};
use super::wire::Failure;
use crate::ids::{NAME_MAX_BYTES, NAME_MAX_CHARS};

/// Of a job or a template that was not there before.
const CREATED: &str = "201";

/// The document as it is sent: it says the same for as long as the program runs, and is made once.
static SENT: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(format!("{:#}\n", document())));

pub(super) fn answer() -> Response<Body> {
    answer_of(StatusCode::OK, &()).map(|_| in_full(SENT.clone()))
}

/// The whole document.
pub fn document() -> Value {
    let (mut answered, mut asked) =
        (generator(SchemaSettings::for_serialize), generator(SchemaSettings::for_deserialize));
    let failure = answered.subschema_for::<Failure>();
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.verb.name().to_lowercase()] = operation(route, &mut answered, &mut asked);
        if route.parts == Parts::AsText {
            path["head"] = head(route);
        }
    }
    let mut schemas = asked.take_definitions(true);
    schemas.extend(answered.take_definitions(true));
    let error = json!({ "description": "Why not.", "content": { "application/json": { "schema": failure } } });
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Trainyard",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Training jobs of one machine. Paths below /v1 keep what they mean; what is added is added beside it.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": { "Failure": error },
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

/// Of what is sent every field is there; of what is asked with, those without a default.
fn generator(way: fn(SchemaSettings) -> SchemaSettings) -> SchemaGenerator {
    let mut settings = way(SchemaSettings::draft2020_12());
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    settings.into_generator()
}

fn operation(route: &Route, generator: &mut SchemaGenerator, asked: &mut SchemaGenerator) -> Value {
    let parameters: Vec<Value> = route.places().map(place).chain(route.query.iter().map(parameter)).collect();
    let mut operation = json!({
        "operationId": name_of(route.action),
        "summary": route.does,
        "parameters": parameters,
        "responses": {
            route.status.to_string(): success(route, generator),
            "4XX": { "$ref": "#/components/responses/Failure" },
            "5XX": { "$ref": "#/components/responses/Failure" },
        },
    });
    if route.parts == Parts::AsText {
        describe_parts(&mut operation);
    }
    if matches!(route.answers, Answers::Upgrade) {
        describe_upgrade(&mut operation);
    }
    // Ready or not, it is told in the same way.
    if route.action == Action::Ready {
        operation["responses"]["503"] = success(route, generator);
    }
    if matches!(route.action, Action::PutJobFile | Action::PutTemplate) {
        operation["responses"][CREATED] = success(route, generator);
    }
    if route.may != Right::Anyone {
        operation["security"] = json!([{ "token": [route.may.name()] }]);
    }
    if let Some(body) = body(route, asked) {
        operation["requestBody"] = body;
    }
    operation
}

/// What there is to know of an answer that can be had in parts.
fn head(route: &Route) -> Value {
    let parameters: Vec<Value> = route.places().map(place).chain(route.query.iter().map(parameter)).collect();
    json!({
        "operationId": format!("{}Head", name_of(route.action)),
        "summary": "As GET, without a body; of `format=text` with the length of the file.",
        "parameters": parameters,
        "responses": {
            route.status.to_string(): { "description": "Done.", "headers": headers_of_file() },
            "4XX": { "description": "Why not is told by GET." },
            "5XX": { "description": "Why not is told by GET." },
        },
        "security": [{ "token": [route.may.name()] }],
    })
}

fn headers_of_file() -> Value {
    let text = |says: &str| json!({ "description": says, "schema": { "type": "string" } });
    json!({
        "ETag": text("Of `format=text`: another one where the file may be another."),
        "Accept-Ranges": text("Of `format=text`: bytes."),
    })
}

/// Without the header there is nothing that frames could be sent over.
fn describe_upgrade(operation: &mut Value) {
    if let Some(parameters) = operation["parameters"].as_array_mut() {
        parameters.push(json!({
            "name": "Upgrade", "in": "header", "required": true, "description": "With `Connection: Upgrade`.",
            "schema": { "type": "string", "const": PROTOCOL },
        }));
    }
}

/// RFC 9110, 14: a range that cannot be understood is no error, but the whole.
fn describe_parts(operation: &mut Value) {
    let header = |name: &str, says: &str| json!({ "name": name, "in": "header", "required": false, "description": says, "schema": { "type": "string" } });
    if let Some(parameters) = operation["parameters"].as_array_mut() {
        parameters.push(header(
            "Range",
            "With `format=text` and without `follow`: this part, as `bytes=0-1023`, `bytes=1024-` or `bytes=-512`.",
        ));
        parameters.push(header("If-Range", "Only if the file still has this `ETag`; else it is sent whole."));
    }
    let mut part = json!({
        "description": "The part that was asked for.",
        "content": { "text/plain": { "schema": { "type": "string" } } },
        "headers": headers_of_file(),
    });
    part["headers"]["Content-Range"] =
        json!({ "description": "Which part of how many bytes.", "required": true, "schema": { "type": "string" } });
    operation["responses"]["206"] = part;
    operation["responses"]["200"]["headers"] = headers_of_file();
}

/// `ListJobs` for the action of that name.
fn name_of(action: Action) -> String {
    format!("{action:?}")
}

fn place(name: &str) -> Value {
    if name == "run" {
        let number = json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX });
        return json!({ "name": name, "in": "path", "required": true, "schema": number, "example": 1 });
    }
    let example = match name {
        "job" => "hello",
        "dataset" => "flowers",
        "version" => "v1",
        "template" => "workbench",
        "secret" => "registry",
        "token" => "ci",
        _ => "default",
    };
    json!({ "name": name, "in": "path", "required": true, "schema": name_schema(), "example": example })
}

fn parameter(param: &Param) -> Value {
    json!({
        "name": param.name, "in": "query", "required": param.required, "description": param.does,
        "schema": schema_of(param.kind),
        // A list is one value with commas.
        "explode": false,
    })
}

/// As `ids` checks names; what no pattern can say, in words.
fn name_schema() -> Value {
    let says = format!(
        "At most {NAME_MAX_CHARS} characters and {NAME_MAX_BYTES} bytes of UTF-8, in Unicode's composed form (NFC), without \
         characters that nobody sees (Default_Ignorable_Code_Point)."
    );
    json!({
        "type": "string", "minLength": 1, "maxLength": NAME_MAX_CHARS, "description": says,
        "pattern": r"^[\p{Alpha}\p{N}][\p{Alpha}\p{M}\p{N}._~-]*$",
    })
}

/// For a field that holds a name.
pub(super) fn name_in_body(_: &mut SchemaGenerator) -> Schema {
    Schema::try_from(name_schema()).unwrap_or_default()
}

/// For a field that holds several, or says nothing.
pub(super) fn names_in_body(_: &mut SchemaGenerator) -> Schema {
    Schema::try_from(json!({ "type": ["array", "null"], "items": name_schema(), "default": null })).unwrap_or_default()
}

fn schema_of(kind: Kind) -> Value {
    match kind {
        Kind::Name => name_schema(),
        Kind::Cursor => {
            json!({ "type": "string", "maxLength": CURSOR_MAX, "pattern": "^[A-Za-z0-9._~%-]*:[A-Za-z0-9._~%-]+$" })
        }
        Kind::Text => {
            json!({ "type": "string", "minLength": 1, "maxLength": VALUE_MAX, "pattern": r"^[^\u0000]+$" })
        }
        Kind::Number(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most.min(NUMBER_MAX) }),
        Kind::Time => json!({ "anyOf": [
            { "type": "integer", "minimum": 0, "maximum": TIME_MAX },
            { "type": "string", "format": "date-time" },
        ] }),
        Kind::Flag => json!({ "type": "string", "enum": ["1", "0", "true", "false"] }),
        Kind::OneOf(list) => json!({ "type": "string", "enum": list }),
        Kind::AnyOf(list) => json!({ "type": "array", "minItems": 1, "items": { "type": "string", "enum": list } }),
    }
}

fn success(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let content = |kind: &str, schema: Schema| json!({ kind: { "schema": schema } });
    let text = Schema::try_from(json!({ "type": "string" })).unwrap_or_default();
    let content = match route.answers {
        Answers::Json(schema) => content("application/json", schema(generator)),
        // Each line by itself is of the schema, which OpenAPI 3.1 has no word for.
        Answers::Lines(schema) => {
            let line = schema(generator);
            let mut content = content("application/x-ndjson", text.clone());
            content["application/x-ndjson"]["x-line-schema"] = line.into();
            if route.query.iter().any(|param| param.name == "format" && param.kind != Kind::Text) {
                content["text/plain"] = json!({ "schema": text });
            }
            content
        }
        Answers::Text(kind) => content(kind, text),
        Answers::Upgrade => json!({}),
    };
    json!({ "description": "Done.", "content": content })
}

fn body(route: &Route, generator: &mut SchemaGenerator) -> Option<Value> {
    let (kind, schema) = match route.takes {
        Takes::Nothing => return None,
        Takes::Json(schema, _) => ("application/json", schema(generator).into()),
        Takes::Text(kind, _) | Takes::Stream(kind) => (kind, json!({ "type": "string", "minLength": 1 })),
    };
    let mut content = json!({ "schema": schema });
    if kind == "application/toml" {
        content["example"] = json!("command = \"echo hello\"\nimage = \"host\"\n");
    }
    Some(json!({ "required": true, "content": { kind: content } }))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    /// Every `$ref` of the document.
    fn references(value: &Value) -> Vec<String> {
        match value {
            Value::Object(map) => {
                let own = map.get("$ref").and_then(Value::as_str).map(str::to_owned);
                own.into_iter().chain(map.values().flat_map(references)).collect()
            }
            Value::Array(list) => list.iter().flat_map(references).collect(),
            _ => Vec::new(),
        }
    }

    #[tokio::test]
    async fn the_document_is_made_once_and_sent_as_it_is() {
        let [first, second] = [answer(), answer()].map(|answer| answer.into_body().collect());
        let (first, second) = (first.await.unwrap().to_bytes(), second.await.unwrap().to_bytes());
        assert_eq!(first.as_ptr(), second.as_ptr());
        assert_eq!(serde_json::from_slice::<Value>(&first).unwrap(), document());
    }

    #[test]
    fn a_run_is_a_number_wherever_it_stands() {
        let remove = &document()["paths"]["/v1/models/{workspace}/{job}/{run}"]["delete"];
        let places = remove["parameters"].as_array().unwrap();
        let run = places.iter().find(|place| place["name"] == "run").unwrap();
        assert_eq!(run["schema"], json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX }));
        assert_eq!(run["example"], 1);
    }

    #[test]
    fn the_document_has_every_route_and_every_schema_that_it_names() {
        let document = document();
        for route in ROUTES {
            let operation = &document["paths"][route.path][route.verb.name().to_lowercase()];
            assert_eq!(operation["operationId"], name_of(route.action), "{}", route.path);
        }
        assert_eq!(
            document["components"]["schemas"]["TokenRequest"]["required"],
            json!(["name"]),
            "all else has a default"
        );
        let references = references(&document);
        assert!(references.len() > 20);
        for reference in references {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }
}
