//! `<% $parameters.x %>` and its like in commands of OpenPAI.

use super::node::{Node, Value};

/// What tags may name: `parameters` and what the role's prerequisites are.
pub(super) struct Scope<'n> {
    pub(super) names: Vec<(&'static str, &'n Node)>,
}

/// The text with its tags replaced, and the tags that stand for nothing, which stay as they are.
pub(super) fn render(text: &str, scope: &Scope<'_>) -> (String, Vec<String>) {
    let mut out = String::new();
    let mut unresolved = Vec::new();
    let mut rest = text;
    while let Some((before, tail)) = rest.split_once("<%") {
        let Some((tag, after)) = tail.split_once("%>") else { break };
        out.push_str(before);
        match resolve(tag.trim(), scope) {
            Some(value) => out.push_str(&value),
            None => {
                out.extend(["<%", tag, "%>"]);
                unresolved.push(format!("<%{tag}%>"));
            }
        }
        rest = after;
    }
    out.push_str(rest);
    (out, unresolved)
}

/// `$data.uri[0]`: a name, then fields and places in lists.
fn resolve(tag: &str, scope: &Scope<'_>) -> Option<String> {
    let (first, path) = tag.strip_prefix('$')?.split_once('.')?;
    let (_, root) = scope.names.iter().find(|(name, _)| *name == first)?;
    let mut node = *root;
    for step in path.split('.') {
        let (field, places) = step.split_once('[').map_or((step, ""), |(field, places)| (field, places));
        node = node.get(field)?;
        for place in places.split('[').filter(|place| !place.is_empty()) {
            let Value::List(items) = &node.value else { return None };
            node = items.get(place.strip_suffix(']')?.parse::<usize>().ok()?)?;
        }
    }
    node.scalar()
}
