//! Hidden states of a text's tokens to one vector.

use std::fmt;
use std::str::FromStr;

/// How the hidden states of a text's tokens become one vector, by the names that it has in
/// sentence-transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// That of the last token, which sees all others.
    LastToken,
    /// Their mean.
    Mean,
    /// Their mean, in which each counts as much as it has tokens up to itself.
    WeightedMean,
    /// Their sum, divided by the square root of how many they are.
    MeanSqrtLen,
    /// The largest of each value.
    Max,
    /// That of the first token.
    Cls,
}

impl Pooling {
    /// All of them, with their names.
    pub const NAMES: [(&'static str, Self); 6] = [
        ("lasttoken", Self::LastToken),
        ("mean", Self::Mean),
        ("weightedmean", Self::WeightedMean),
        ("mean_sqrt_len_tokens", Self::MeanSqrtLen),
        ("max", Self::Max),
        ("cls", Self::Cls),
    ];

    /// Its name in sentence-transformers.
    pub fn name(self) -> &'static str {
        let row = Self::NAMES.iter().find(|(_, pooling)| *pooling == self);
        row.map_or("", |(name, _)| name)
    }
}

impl FromStr for Pooling {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, pooling)| *pooling).ok_or(())
    }
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The vector of a text, while its tokens come one after the other.
#[derive(Debug)]
pub(crate) struct Pool {
    pooling: Pooling,
    /// The first token that counts.
    from: usize,
    values: Vec<f64>,
    weight: f64,
}

impl Pool {
    /// Of the tokens from `from` on.
    pub fn new(pooling: Pooling, from: usize) -> Self {
        Self { pooling, from, values: Vec::new(), weight: 0.0 }
    }

    /// Takes the hidden state of the next token, which has that number.
    pub fn add(&mut self, token: usize, state: &[f32]) {
        if token < self.from {
            return;
        }
        let weight = match self.pooling {
            Pooling::WeightedMean => token as f64 + 1.0,
            _ => 1.0,
        };
        let is_first = self.values.is_empty();
        if is_first {
            self.values = vec![0.0; state.len()];
        }
        for (value, state) in self.values.iter_mut().zip(state) {
            let state = f64::from(*state);
            match self.pooling {
                Pooling::LastToken => *value = state,
                Pooling::Cls if is_first => *value = state,
                Pooling::Cls => {}
                Pooling::Max if is_first => *value = state,
                Pooling::Max => *value = value.max(state),
                _ => *value += weight * state,
            }
        }
        self.weight += weight;
    }

    /// The vector, if any token counted.
    pub fn vector(self) -> Vec<f32> {
        let divisor = match self.pooling {
            Pooling::Mean | Pooling::WeightedMean => self.weight,
            Pooling::MeanSqrtLen => self.weight.sqrt(),
            Pooling::LastToken | Pooling::Max | Pooling::Cls => 1.0,
        };
        self.values.into_iter().map(|value| (value / divisor) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_pools_what_counts() {
        let states = [[9.0, -9.0], [1.0, 2.0], [3.0, -2.0], [2.0, 6.0]];
        let pooled = |pooling| {
            let mut pool = Pool::new(pooling, 1);
            states.iter().enumerate().for_each(|(token, state)| pool.add(token, state));
            pool.vector()
        };
        assert_eq!(pooled(Pooling::LastToken), [2.0, 6.0]);
        assert_eq!(pooled(Pooling::Cls), [1.0, 2.0]);
        assert_eq!(pooled(Pooling::Max), [3.0, 6.0]);
        assert_eq!(pooled(Pooling::Mean), [2.0, 2.0]);
        assert_eq!(pooled(Pooling::MeanSqrtLen), [(6.0 / 3f64.sqrt()) as f32; 2]);
        // Of 2, 3 and 4 parts of 9.
        assert_eq!(pooled(Pooling::WeightedMean), [(19.0 / 9.0f64) as f32, (22.0 / 9.0f64) as f32]);
    }

    #[test]
    fn names_are_those_of_sentence_transformers() {
        for (name, pooling) in Pooling::NAMES {
            assert_eq!((name.parse(), pooling.to_string()), (Ok(pooling), name.to_owned()));
        }
        assert_eq!("first".parse::<Pooling>(), Err(()));
    }
}
