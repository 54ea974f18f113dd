//! Whether the parameters of a template fit the keys whose whole values they are. What a job will say is not known, so a key is
//! shown values of the parameter's type: if it takes none of them, it takes none that a job may say.

use toml::de::{DeTable, DeValue};

use super::{Checker, Kind, Place, Problem, Value, a_or_an, article, judge};
use crate::spec::template::{Param, ParamKind, described, whole_name};

impl Checker<'_> {
    /// Of an array each item is a value.
    pub(super) fn fit(&mut self, params: &[Param], kind: Kind, value: &Value<'_>, place: &Place) {
        let fit = |item: &Value<'_>, within: &str, of_item: Kind| {
            let named = item.get_ref().as_str().and_then(whole_name);
            let param = named.and_then(|name| params.iter().find(|param| param.name == name))?;
            if takes(of_item, param.kind) {
                return (!params.iter().all(Param::has_default)).then(|| self.default_of(param, of_item, place))?;
            }
            let (takes, is) = (article(&kind.describe()), described(param.kind));
            let advice = wanted(of_item).map_or_else(
                || "a parameter stands for a single value".to_owned(),
                |kind| format!("its type is to be {kind:?}"),
            );
            let message = format!(
                "`{}` takes {takes}, not {is}{within}, which parameter `{}` is; {advice}",
                place.written, param.name
            );
            Some((item.span(), message))
        };
        let found = match value.get_ref().as_array() {
            Some(items) => item_of(kind)
                .map(|of_item| items.iter().filter_map(|item| fit(item, " in it", of_item)).collect())
                .unwrap_or_default(),
            None => fit(value, "", kind).into_iter().collect::<Vec<_>>(),
        };
        found.into_iter().for_each(|(span, message)| self.error(span, place, message));
    }

    /// What is wrong with a default where some parameter has none: else the job of all defaults tells it.
    fn default_of(&self, param: &Param, kind: Kind, place: &Place) -> Option<(std::ops::Range<usize>, String)> {
        let (at, written) = param.default_written()?;
        let told = shown(written, |value| match judge(kind, value) {
            Ok(()) => None,
            Err(Problem::Value(message) | Problem::Bound(message)) => Some(format!("`{}`: {message}", place.written)),
            Err(Problem::Type) => {
                let found = value.type_str();
                Some(format!("`{}` takes {}, not {} {found}", place.written, article(&kind.describe()), a_or_an(found)))
            }
        });
        Some((at..at, format!("with its default parameter `{}` cannot stand here: {}", param.name, told?)))
    }
}

/// What the items of an array are, where there may be one.
fn item_of(kind: Kind) -> Option<Kind> {
    match kind {
        Kind::Command | Kind::Texts => Some(Kind::Text),
        Kind::Param | Kind::Scalars => Some(Kind::Scalar),
        _ => None,
    }
}

/// The type of parameters for a key.
fn wanted(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::Table | Kind::Tables | Kind::Texts => return None,
        Kind::Integer { .. } | Kind::CountOr(_) | Kind::PercentOr(_) | Kind::Port => "integer",
        Kind::Number { .. } => "number",
        Kind::Bool | Kind::BoolOr(_) => "bool",
        Kind::Size { .. } => "size",
        Kind::Duration { .. } => "duration",
        _ => "string",
    })
}

/// Whether a key takes some value of a type.
fn takes(key: Kind, kind: ParamKind) -> bool {
    let is_taken = |value: &DeValue<'_>| match judge(key, value) {
        Ok(()) | Err(Problem::Bound(_)) => true,
        // Which text it is, is the job's to say.
        Err(Problem::Value(_)) => kind == ParamKind::String,
        Err(Problem::Type) => false,
    };
    !matches!(key, Kind::Table | Kind::Tables) && stand_ins(kind).iter().any(|written| shown(written, is_taken))
}

fn stand_ins(kind: ParamKind) -> &'static [&'static str] {
    match kind {
        ParamKind::String => &["\"word\""],
        ParamKind::Integer => &["1"],
        ParamKind::Number => &["1", "1.5"],
        ParamKind::Bool => &["true"],
        ParamKind::Size => &["\"1GiB\""],
        ParamKind::Duration => &["\"1h\""],
    }
}

/// What is said of a value as TOML has it; nothing of what is none.
fn shown<T: Default>(written: &str, say: impl Fn(&DeValue<'_>) -> T) -> T {
    let text = format!("x = {written}");
    let table = DeTable::parse(&text).ok();
    table.as_ref().and_then(|table| table.get_ref().get("x")).map(|value| say(value.get_ref())).unwrap_or_default()
}
