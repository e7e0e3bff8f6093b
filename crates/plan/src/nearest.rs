//! Suggestions for unknown names.

/// The one of `names` most similar to `wanted`; none if no name is similar.
pub(crate) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A part of the path that is missing or too much is more likely than any slip.
    let ends_with = |long: &str, short: &str| {
        let rest = long.strip_suffix(short).filter(|_| !short.is_empty());
        rest.is_some_and(|rest| rest.ends_with('.'))
    };
    let length = wanted.chars().count();
    let most = (length / 3).clamp(1, 8);
    let distance = |name: &str| {
        if ends_with(name, wanted) || ends_with(wanted, name) {
            return Some(1);
        }
        // Names are many: those of another length need no look.
        let near = length.abs_diff(name.chars().count()) <= most;
        near.then(|| strsim::levenshtein(wanted, name)).filter(|distance| *distance <= most)
    };
    names
        .filter_map(|name| Some((distance(name)?, name)))
        .min_by_key(|(distance, name)| (*distance, name.len()))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found() {
        let names = ["model.embed", "model.layers.1", "model.layers.10", "lm_head"];
        for (wanted, found) in [
            ("layers.1", Some("model.layers.1")),
            ("transformer.lm_head", Some("lm_head")),
            ("model.layer.10", Some("model.layers.10")),
            ("lm_haed", Some("lm_head")),
            ("vision_tower", None),
            ("", None),
        ] {
            assert_eq!(nearest(wanted, names.into_iter()), found, "{wanted}");
        }
    }
}
