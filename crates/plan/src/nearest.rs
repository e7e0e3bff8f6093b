//! The name that somebody meant.

/// The one of `names` that is most like `wanted`; nothing if none is much like it.
pub(crate) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A part of the path that is missing or too much is more likely than any slip.
    let ends_with = |long: &str, short: &str| {
        !short.is_empty()
            && long
                .strip_suffix(short)
                .is_some_and(|rest| rest.ends_with('.'))
    };
    let most = (wanted.chars().count() / 3).clamp(1, 8);
    let distance = |name: &str| {
        if ends_with(name, wanted) || ends_with(wanted, name) {
            Some(1)
        } else {
            slips(wanted, name, most)
        }
    };
    names
        .filter_map(|name| Some((distance(name)?, name)))
        .min_by_key(|(distance, name)| (*distance, name.len()))
        .map(|(_, name)| name)
}

/// How many characters of `a` must be replaced, removed or added to make it `b` (Levenshtein's distance), if these are not
/// more than `most`.
fn slips(a: &str, b: &str, most: usize) -> Option<usize> {
    // The names of tensors are long and many: what is the same at both ends needs no look.
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > most {
        return None;
    }
    let same = |pair: &(&char, &char)| pair.0 == pair.1;
    let begin = a.iter().zip(&b).take_while(same).count();
    let (a, b) = (&a[begin..], &b[begin..]);
    let end = a.iter().rev().zip(b.iter().rev()).take_while(same).count();
    let (a, b) = (&a[..a.len() - end], &b[..b.len() - end]);
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (at, own) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (other_at, other) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(own != other);
            diagonal = row[other_at + 1];
            row[other_at + 1] = replaced.min(diagonal + 1).min(row[other_at] + 1);
        }
        if row.iter().all(|slips| *slips > most) {
            return None;
        }
    }
    row.last().copied().filter(|slips| *slips <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_counted() {
        for (a, b, count) in [
            ("lm_head", "lm_head", 0),
            ("lm_head", "lmhead", 1),
            ("kitten", "sitting", 3),
            ("", "abc", 3),
        ] {
            assert_eq!(slips(a, b, 3), Some(count), "{a} {b}");
            assert_eq!(slips(b, a, 3), Some(count), "{b} {a}");
        }
        assert_eq!(slips("abcd", "efgh", 3), None);
    }

    #[test]
    fn the_nearest_name_is_found() {
        let names = [
            "model.embed",
            "model.layers.1",
            "model.layers.10",
            "lm_head",
        ];
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
