//! What goes into the layers of a block.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::quality::FixedState;
use outsize_core::InputObserver;

use super::feedback::Feedback;
use super::gram::Gram;

/// Sums up what goes into matrices of a block, in so many bytes.
pub(super) struct BlockInputs {
    most: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Matrices of which something is to be known.
    wanted: HashSet<String>,
    /// Those for which there was no room.
    left_out: HashSet<String>,
    /// One for which there must be room.
    first: Option<(String, u64)>,
    /// Of each matrix the place among the sums.
    places: HashMap<String, usize>,
    sums: Vec<Option<Sums>>,
    held: u64,
    /// What was added last in this pass: a hash of its rows, the layer's parent, and the place.
    last: Option<(u64, String, usize)>,
}

/// Sums for layers that take the same.
struct Sums {
    /// The one whose rows are added.
    path: String,
    bytes: u64,
    is_complete: bool,
    kind: Kind,
}

enum Kind {
    Gram(Gram),
    /// None if nothing can be made of what was seen.
    Feedback(Option<Arc<Feedback>>),
}

/// What is known of what goes into a matrix.
pub(super) enum Known {
    /// How its errors are made up for.
    Feedback(Arc<Feedback>),
    /// That nothing of use goes into it.
    Nothing,
    /// It comes with the next pass.
    Later,
}

impl BlockInputs {
    pub fn new(most: u64) -> Self {
        Self { most, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock leaves it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins with these matrices of a block.
    pub fn begin(&self, paths: impl Iterator<Item = String>) {
        *self.state() = State { wanted: paths.collect(), ..State::default() };
    }

    /// Ends a pass over the block: what was seen is all that there is.
    pub fn end_pass(&self) {
        let mut state = self.state();
        state.last = None;
        state.sums.iter_mut().flatten().for_each(|sums| sums.is_complete = true);
    }

    /// What is known of a matrix of so many columns, which is not asked for again.
    pub fn take(&self, path: &str, columns: usize) -> Known {
        let mut state = self.state();
        if let Some(place) = state.places.remove(path) {
            let is_last = !state.places.values().any(|other| *other == place);
            let Some(sums) = state.sums[place].take() else { return Known::Nothing };
            let Sums { path: of, bytes, is_complete, kind } = sums;
            let feedback = match kind {
                Kind::Gram(gram) => gram.feedback().map(Arc::new),
                Kind::Feedback(feedback) => feedback,
            };
            match is_last {
                true => state.held -= bytes,
                false => {
                    let kind = Kind::Feedback(feedback.clone());
                    state.sums[place] = Some(Sums { path: of, bytes, is_complete, kind });
                }
            }
            state.wanted.remove(path);
            return feedback.map_or(Known::Nothing, Known::Feedback);
        }
        if !state.left_out.contains(path) {
            return Known::Nothing;
        }
        // Whatever else is held could be in its way.
        let wanted = std::mem::take(&mut state.wanted);
        let first = Some((path.to_owned(), Gram::bytes(columns)));
        *state = State { wanted, first, ..State::default() };
        Known::Later
    }
}

impl InputObserver for BlockInputs {
    fn observe(&self, path: &str, rows: &[f32], columns: usize) {
        let mut state = self.state();
        if !state.wanted.contains(path) {
            return;
        }
        let parent = path.rsplitn(3, '.').nth(2).unwrap_or_default();
        let known = state.places.get(path).copied();
        let takes_none =
            |sums: &Option<Sums>| sums.as_ref().is_none_or(|it| it.path != path || it.is_complete);
        if known.is_some_and(|place| takes_none(&state.sums[place])) {
            return;
        }
        let hash = hash(rows);
        let place = match known {
            Some(place) => place,
            None => {
                if let Some((same, of, place)) = &state.last
                    && (*same, of.as_str()) == (hash, parent)
                {
                    let place = *place;
                    state.places.insert(path.to_owned(), place);
                    return;
                }
                let bytes = Gram::bytes(columns);
                let reserved = match &state.first {
                    Some((first, bytes)) if first != path && !state.places.contains_key(first) => {
                        *bytes
                    }
                    _ => 0,
                };
                let fits = state.held + reserved + bytes <= self.most;
                if !fits && state.held + reserved > 0 {
                    state.left_out.insert(path.to_owned());
                    return;
                }
                state.held += bytes;
                let place = state.sums.len();
                let kind = Kind::Gram(Gram::new(columns));
                let path = path.to_owned();
                state.places.insert(path.clone(), place);
                state.sums.push(Some(Sums { path, bytes, is_complete: false, kind }));
                place
            }
        };
        if let Some(Sums { kind: Kind::Gram(gram), .. }) = &mut state.sums[place] {
            gram.add(rows);
            state.last = Some((hash, parent.to_owned(), place));
        }
    }
}

fn hash(rows: &[f32]) -> u64 {
    let mut hasher = FixedState::default().build_hasher();
    hasher.write(bytemuck::cast_slice(rows));
    hasher.finish()
}
