use super::modules::Kind;
use foldhash::fast::RandomState;
use std::collections::HashMap;

/// Modules of a module that are looked through one by one before a table is used.
const FEW: usize = 8;
/// No part.
const NONE: u32 = u32::MAX;

/// The parts of a model in the order in which they come up, the model itself being the first.
pub(super) struct Paths<'a> {
    pub(super) parts: Vec<Part<'a>>,
    /// The modules of a module but for its first few, by the last part of their path. The hash is a fast one, and seeded, so
    /// that nobody can choose names that meet.
    many: HashMap<(u32, &'a str), u32, RandomState>,
    /// The modules around the path that was seen last, with the length of their paths.
    last: Vec<(usize, u32)>,
    /// The path that was seen last.
    path: &'a str,
}

/// A module, a tensor or a KV cache.
pub(super) struct Part<'a> {
    pub(super) path: &'a str,
    /// Its bytes, if it is no module.
    pub(super) size: u64,
    /// The number of what holds it.
    pub(super) parent: u32,
    /// The number of the first module that it holds.
    first: u32,
    /// The number of the next of the first few modules that its parent holds.
    next: u32,
    pub(super) kind: Kind,
    /// Whether it holds more than a few modules.
    has_many: bool,
}

/// Where the paths of modules end in the path of something in them.
fn ends(path: &str) -> impl Iterator<Item = usize> + '_ {
    // A dot at the begin ends no path: that of the whole model is empty.
    path.match_indices('.')
        .map(|(at, _)| at)
        .filter(|at| *at > 0)
}

/// The last part of a path, which begins behind the path of the module around it.
fn part(path: &str, around: usize) -> &str {
    if around == 0 {
        path
    } else {
        &path[around + 1..]
    }
}

/// How many bytes both begin with.
fn common(one: &[u8], other: &[u8]) -> usize {
    const AT_ONCE: usize = 8;
    let pairs = one.chunks_exact(AT_ONCE).zip(other.chunks_exact(AT_ONCE));
    let begin = AT_ONCE * pairs.take_while(|(one, other)| one == other).count();
    let rest = one[begin..].iter().zip(&other[begin..]);
    begin + rest.take_while(|(one, other)| one == other).count()
}

impl<'a> Paths<'a> {
    /// Of a model with so many tensors.
    pub(super) fn new(tensors: usize) -> Self {
        let mut paths = Self {
            parts: Vec::with_capacity(2 * tensors + tensors / 2),
            many: HashMap::with_capacity_and_hasher(tensors / 2, RandomState::default()),
            last: Vec::new(),
            path: "",
        };
        paths.push("", 0, Kind::Module, 0);
        paths
    }

    /// Adds a part, and returns its number.
    pub(super) fn push(&mut self, path: &'a str, parent: u32, kind: Kind, size: u64) -> u32 {
        self.parts.push(Part {
            path,
            size,
            parent,
            first: NONE,
            next: NONE,
            kind,
            has_many: false,
        });
        self.parts.len() as u32 - 1
    }

    /// Whether it holds modules.
    pub(super) fn has_modules(&self, part: u32) -> bool {
        self.parts[part as usize].first != NONE
    }

    /// The module of this path that a module holds, or the last of the first few that it holds, and how many these are.
    fn among_few(&self, module: u32, path: &str) -> Result<u32, (u32, usize)> {
        let (mut last, mut count) = (NONE, 0);
        let mut next = self.parts[module as usize].first;
        while let Some(inner) = self.parts.get(next as usize) {
            // They begin alike: whole paths are compared.
            if inner.path == path {
                return Ok(next);
            }
            (last, count, next) = (next, count + 1, inner.next);
        }
        Err((last, count))
    }

    /// The module of this path that a module with a path of `around` bytes holds, if there is one.
    pub(super) fn inner(&self, module: u32, around: usize, path: &str) -> Option<u32> {
        let of_many = self.of_many(module, around, path);
        of_many.or_else(|| self.among_few(module, path).ok())
    }

    /// The same, if it is none of the first few.
    fn of_many(&self, module: u32, around: usize, path: &str) -> Option<u32> {
        if !self.parts[module as usize].has_many {
            return None;
        }
        self.many.get(&(module, part(path, around))).copied()
    }

    /// The module of this path that a module with a path of `around` bytes holds. If it is not there yet it is added.
    fn inner_or_new(&mut self, module: u32, around: usize, path: &'a str) -> u32 {
        // Where there are many, most are not among the first few.
        if let Some(inner) = self.of_many(module, around, path) {
            return inner;
        }
        let new = self.parts.len() as u32;
        match self.among_few(module, path) {
            Ok(inner) => return inner,
            Err((_, FEW)) => {
                self.parts[module as usize].has_many = true;
                self.many.insert((module, part(path, around)), new);
            }
            Err((NONE, _)) => self.parts[module as usize].first = new,
            Err((last, _)) => self.parts[last as usize].next = new,
        }
        self.push(path, module, Kind::Module, 0)
    }

    /// The module that holds a tensor of this path; those around it that are not there yet are added.
    pub(super) fn holder(&mut self, path: &'a str) -> u32 {
        // Tensors of one module mostly follow each other.
        let (mut around, mut module) = self.follow(path);
        let known = around;
        for end in ends(&path[known..]).map(|end| known + end) {
            module = self.inner_or_new(module, around, &path[..end]);
            around = end;
            self.last.push((end, module));
        }
        module
    }

    /// The innermost module whose path is `path` or leads to it; and whether it is the former. It is found soonest if paths
    /// come in order.
    pub(super) fn find(&mut self, path: &'a str) -> (u32, bool) {
        if path.is_empty() {
            return (0, true);
        }
        let (mut around, mut module) = self.follow(path);
        let known = around;
        let inner = ends(&path[known..]).map(|end| known + end);
        for end in inner.chain([path.len()]) {
            match self.inner(module, around, &path[..end]) {
                Some(inner) => (around, module) = (end, inner),
                None => return (module, false),
            }
            self.last.push((end, module));
        }
        (module, true)
    }

    /// The innermost module that is around this path and was around the one before, with the length of its path.
    fn follow(&mut self, path: &'a str) -> (usize, u32) {
        let common = common(path.as_bytes(), self.path.as_bytes());
        self.path = path;
        while let Some((end, _)) = self.last.last()
            && (*end > common || path.as_bytes().get(*end) != Some(&b'.'))
        {
            self.last.pop();
        }
        self.last.last().copied().unwrap_or((0, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_begins_are_counted() {
        let text = "model.layers.10.mlp.experts.7";
        for end in 0..text.len() {
            let other = format!("{}?{}", &text[..end], &text[end..]);
            assert_eq!(common(text.as_bytes(), other.as_bytes()), end);
            assert_eq!(common(&text.as_bytes()[..end], text.as_bytes()), end);
        }
    }

    #[test]
    fn modules_are_found_in_any_order_and_number() {
        let names: Vec<String> = (0..40)
            .flat_map(|outer| (0..3).map(move |inner| format!("m.{}.{inner}.w", outer * 7 % 40)))
            .collect();
        let mut paths = Paths::new(1);
        let first: Vec<u32> = names.iter().map(|name| paths.holder(name)).collect();
        let again: Vec<u32> = names.iter().rev().map(|name| paths.holder(name)).collect();
        assert!(first.iter().eq(again.iter().rev()));
        // The model, `m`, 40 modules, and three in each.
        assert_eq!(paths.parts.len(), 2 + 40 + 3 * 40);
        for (name, module) in names.iter().zip(first) {
            let holder = &name[..name.len() - 2];
            assert_eq!(paths.find(holder), (module, true));
            assert_eq!(paths.find(name), (module, false));
        }
    }
}
