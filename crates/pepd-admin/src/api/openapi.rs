//! What the API is for programs: an OpenAPI 3.1 document, made of the types that it gives.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::wire::{
    API_VERSION, CounterList, Done, DrainQuery, ErrorBody, FlowHistory, FlowList, FlowQuery,
    FlowSnapshot, Index, LegHistory, LegHistoryQuery, LegList, LimitList, LinkQuery, LinkReport,
    MoveQuery, MoveReport, PeerList, Readiness, Status,
};

/// Where the types are in the document.
const TYPES: &str = "/components/schemas";

/// What is said of each status but 200.
const PROBLEMS: [(u16, &str); 6] = [
    (
        400,
        "A key or a value of the query or the path is not known.",
    ),
    (404, "There is no such connection, or no such leg."),
    (409, "The daemon is ending."),
    (413, "The request has a body; none needs one."),
    (
        422,
        "The file is refused; `what` is the text that `pepd check` would print.",
    ),
    (
        503,
        "Too many orders, or lists of flows, are being worked on.",
    ),
];

/// Returns the document.
pub fn document() -> Value {
    let mut paths = Paths::new();
    about_all(&mut paths);
    about_flows(&mut paths);
    about_legs(&mut paths);
    orders(&mut paths);
    paths.finish()
}

fn about_all(paths: &mut Paths) {
    paths.get::<Index>("/v1", "index", "What can be asked and ordered");
    paths.get::<Status>("/v1/status", "status", "The daemon as a whole");
    let what = "Whether connections are best led to this box";
    paths.get::<Readiness>("/v1/ready", "ready", what);
    let what = "The helper boxes at the other ends of the tunnels";
    paths.get::<PeerList>("/v1/peers", "peers", what);
    let what = "What is in use, and the most there may be";
    paths.get::<LimitList>("/v1/limits", "limits", what);
    let what = "Everything counted since the start, drops and refusals by reason";
    paths.get::<CounterList>("/v1/counters", "counters", what);
}

fn about_flows(paths: &mut Paths) {
    let query = paths.query::<FlowQuery>();
    paths.add::<FlowList>(
        ["get", "/v1/flows", "flows", "Live connections"],
        query,
        &[503],
    );
    let id = vec![paths.in_path::<u64>("id", "The connection's id.")];
    let what = ["get", "/v1/flows/{id}", "flow", "One live connection"];
    paths.add::<FlowSnapshot>(what, id.clone(), &[404]);
    let what =
        "The last minutes of a connection, a point for each second in which something happened";
    let what = ["get", "/v1/flows/{id}/history", "flowHistory", what];
    paths.add::<FlowHistory>(what, id, &[404]);
}

fn about_legs(paths: &mut Paths) {
    let what = "What is sent over each leg by all its connections, and their round trips, idle and under load";
    paths.get::<LegList>("/v1/legs", "legs", what);
    let mut which = vec![paths.in_path::<String>("leg", "The leg, as the configuration names it.")];
    which.extend(paths.query::<LegHistoryQuery>());
    let what = "The last ten minutes of a leg, or its last day, a point for each step in which something was sent";
    let what = ["get", "/v1/legs/{leg}/history", "legHistory", what];
    paths.add::<LegHistory>(what, which, &[404]);
}

fn orders(paths: &mut Paths) {
    let what = [
        "post",
        "/v1/reload",
        "reload",
        "Have the configuration read again",
    ];
    paths.add::<Done>(what, vec![], &[409, 422, 503]);
    let mut which = vec![paths.in_path::<LinkReport>("state", "What is known of the link.")];
    which.extend(paths.query::<LinkQuery>());
    let what = "Tell what is known of the link under a leg";
    paths.add::<Done>(
        ["post", "/v1/link/{state}", "link", what],
        which,
        &[404, 409, 503],
    );
    let which = paths.query::<MoveQuery>();
    let what = "Move live connections to another box";
    paths.add::<MoveReport>(["post", "/v1/move", "move", what], which, &[409, 503]);
    let what = "Have new connections routed and those that there are finish, and the daemon end";
    let which = paths.query::<DrainQuery>();
    paths.add::<Done>(["post", "/v1/drain", "drain", what], which, &[409, 503]);
}

/// The addresses so far, and the types that they have.
struct Paths {
    paths: Map<String, Value>,
    /// Types as they are written.
    given: SchemaGenerator,
    /// Types as they are read.
    taken: SchemaGenerator,
}

impl Paths {
    fn new() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = TYPES.into();
            settings.meta_schema = None;
        });
        Self {
            paths: Map::new(),
            given: settings.clone().for_serialize().into_generator(),
            taken: settings.for_deserialize().into_generator(),
        }
    }

    /// Adds a question without parameters: its path, its name and what it is about.
    fn get<T: JsonSchema>(&mut self, path: &str, id: &str, what: &str) {
        self.add::<T>(["get", path, id, what], vec![], &[]);
    }

    /// Adds what is asked for with this method at this path, under this name, and what it is about. It
    /// is answered with a `T`, or with a problem.
    fn add<T: JsonSchema>(
        &mut self,
        [method, path, id, what]: [&str; 4],
        parameters: Vec<Value>,
        problems: &[u16],
    ) {
        let schema = self.given.subschema_for::<T>();
        let mut responses = Map::new();
        responses.insert("200".to_owned(), response("The answer.", &schema));
        let schema = self.given.subschema_for::<ErrorBody>();
        for (status, why) in PROBLEMS {
            // These two each request can have.
            if [400, 413].contains(&status) || problems.contains(&status) {
                responses.insert(status.to_string(), response(why, &schema));
            }
        }
        let operation = json!({
            "operationId": id,
            "summary": what,
            "parameters": parameters,
            "responses": responses,
        });
        let methods = self
            .paths
            .entry(path.to_owned())
            .or_insert_with(|| json!({}));
        methods[method] = operation;
    }

    /// Describes a part of a path.
    fn in_path<T: JsonSchema>(&mut self, name: &str, what: &str) -> Value {
        let schema = self.taken.subschema_for::<T>();
        json!({ "name": name, "in": "path", "required": true, "description": what, "schema": schema })
    }

    /// Describes the keys of a query.
    fn query<T: JsonSchema>(&mut self) -> Vec<Value> {
        let schema = T::json_schema(&mut self.taken);
        let keys = schema.get("properties").and_then(Value::as_object);
        let required = schema.get("required").and_then(Value::as_array);
        let is_required = |name: &str| required.is_some_and(|all| all.iter().any(|it| it == name));
        let keys = keys.into_iter().flatten().map(|(name, key)| {
            let mut key = key.clone();
            let what = key
                .as_object_mut()
                .and_then(|key| key.remove("description"));
            json!({
                "name": name,
                "in": "query",
                "required": is_required(name),
                "description": what.unwrap_or_default(),
                "schema": without_null(key),
            })
        });
        keys.collect()
    }

    fn finish(mut self) -> Value {
        let mut types = self.given.take_definitions(true);
        for (name, schema) in self.taken.take_definitions(true) {
            types.entry(name).or_insert(schema);
        }
        types.sort_keys();
        let mut document = json!({
            "openapi": "3.1.0",
            "info": {
                "title": "The admin API of pepd",
                "version": API_VERSION.to_string(),
                "description": "What a running daemon tells about itself, and takes, over HTTP on its Unix socket. \
                                Times are seconds, rates bits per second, sizes bytes. Within a version fields are \
                                added and never change their meaning: ignore those that you do not know. \
                                docs/admin.md has examples.",
                "license": { "name": "MIT OR Apache-2.0" },
            },
            "servers": [{ "url": "http://pepd", "description": "At the Unix socket /run/pepd/admin.sock" }],
            "paths": self.paths,
            "components": { "schemas": types },
        });
        plain(&mut document);
        document
    }
}

fn response(what: &str, schema: &Schema) -> Value {
    json!({ "description": what, "content": { "application/json": { "schema": schema } } })
}

/// The schema of a value that a query may lack, which is not null there.
fn without_null(mut schema: Value) -> Value {
    let is_value = |it: &&Value| **it != json!("null") && **it != json!({ "type": "null" });
    for word in ["type", "anyOf"] {
        let Some(only) = schema[word]
            .as_array()
            .and_then(|all| all.iter().find(is_value))
            .cloned()
        else {
            continue;
        };
        if word == "anyOf" {
            return only;
        }
        schema[word] = only;
    }
    if let Some(schema) = schema.as_object_mut() {
        schema.retain(|_, value| !value.is_null());
    }
    schema
}

/// Has descriptions without links that only the documentation of the source can follow.
fn plain(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if key == "description" => *text = without_links(text),
                    value => plain(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(plain),
        _ => {}
    }
}

/// Has `[code](where)` and `[code]` be code alone.
fn without_links(text: &str) -> String {
    let mut pieces = text.split("[`");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (code, rest) = piece.split_once("`]").unwrap_or((piece, ""));
        let rest = match rest.strip_prefix('(') {
            Some(link) => link.split_once(')').map_or("", |(_, rest)| rest),
            None => rest,
        };
        plain += &format!("`{code}`{rest}");
    }
    plain.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::super::{GET, POST};
    use super::*;

    #[test]
    fn it_has_each_address_and_no_other() {
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        let of = |method: &str| -> Vec<_> {
            let has = paths
                .iter()
                .filter(|(_, methods)| methods.get(method).is_some());
            let mut has: Vec<_> = has.map(|(path, _)| path.as_str()).collect();
            has.sort_unstable();
            has
        };
        let mut get = [&["/v1"], GET].concat();
        let mut post = POST.to_vec();
        get.sort_unstable();
        post.sort_unstable();
        assert_eq!(of("get"), get);
        assert_eq!(of("post"), post);
    }

    #[test]
    fn links_of_the_source_are_not_in_it() {
        assert_eq!(
            without_links("[`A`](super::A), and [`B`]: `c`."),
            "`A`, and `B`: `c`."
        );
    }
}
