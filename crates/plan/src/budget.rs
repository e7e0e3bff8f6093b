use crate::{Error, Tier, parse_size};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

impl FromStr for Tier {
    type Err = Error;

    /// `gpu0`, `cpu`, `disk`; or the number of a GPU, as Accelerate writes it.
    fn from_str(text: &str) -> Result<Self, Error> {
        let digits = text.strip_prefix("gpu").unwrap_or(text);
        match text {
            "cpu" => Some(Self::Cpu),
            "disk" => Some(Self::Disk),
            // `parse` alone would take `+1`.
            _ if digits.starts_with('+') => None,
            _ => digits.parse().ok().map(Self::Gpu),
        }
        .ok_or_else(|| Error::Tier { text: text.to_string() })
    }
}

impl<'de> Deserialize<'de> for Tier {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// The budget: the most bytes to hold on each tier (Accelerate's `max_memory`).
///
/// Main memory that is not named is not bounded; a GPU that is not named, or has 0 bytes, is not
/// used. Beside GPUs, `cpu=0` keeps weights, ring and KV cache out of main memory, but not the
/// process itself. The disk holds streamed weights, in the checkpoint's own files: `disk=0` forbids
/// streaming.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Budget(#[serde(deserialize_with = "unique")] BTreeMap<Tier, u64>);

/// Reads a map in which no key comes twice.
pub(crate) fn unique<'de, D, K, V>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
where
    D: Deserializer<'de>,
    K: Deserialize<'de> + Ord + fmt::Display,
    V: Deserialize<'de>,
{
    struct Unique<K, V>(PhantomData<(K, V)>);

    impl<'de, K, V> Visitor<'de> for Unique<K, V>
    where
        K: Deserialize<'de> + Ord + fmt::Display,
        V: Deserialize<'de>,
    {
        type Value = BTreeMap<K, V>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((key, value)) = access.next_entry::<K, V>()? {
                if map.contains_key(&key) {
                    return Err(A::Error::custom(format!("`{key}` comes twice")));
                }
                map.insert(key, value);
            }
            Ok(map)
        }
    }
    deserializer.deserialize_map(Unique(PhantomData))
}

impl Budget {
    /// Reads `cpu=600MB`, or several parts with commas between them: `gpu0=8GiB,cpu=600MB`. Sizes
    /// are as in [`parse_size`].
    ///
    /// # Errors
    /// [`Error::BudgetPart`] with the part that is wrong and what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut budget = Self::default();
        for part in text.split(',') {
            let error =
                |reason: String| Error::BudgetPart { part: part.trim().to_string(), reason };
            let (tier, size) = part
                .split_once('=')
                .ok_or_else(|| error("there is no `=` between a device and a size".to_string()))?;
            let tier: Tier = tier.trim().parse().map_err(|e: Error| error(e.to_string()))?;
            let size = parse_size(size).map_err(|e| error(e.to_string()))?;
            if budget.0.insert(tier, size).is_some() {
                return Err(error(format!("{tier} has a size already")));
            }
        }
        Ok(budget)
    }

    /// The budget of the tier; none if unbounded.
    pub fn get(&self, tier: Tier) -> Option<u64> {
        self.0.get(&tier).copied()
    }

    /// Bounds the tier to `bytes`.
    pub fn set(&mut self, tier: Tier, bytes: u64) {
        self.0.insert(tier, bytes);
    }

    /// The bounded tiers and their bytes, the fastest first.
    pub fn iter(&self) -> impl Iterator<Item = (Tier, u64)> + '_ {
        self.0.iter().map(|(tier, bytes)| (*tier, *bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts_are_read() {
        let budget = Budget::parse("gpu0=8GiB, cpu = 600MB,1=5,disk=1TB").unwrap();
        let parts: Vec<_> = budget.iter().collect();
        assert_eq!(
            parts,
            [
                (Tier::Gpu(0), 8 << 30),
                (Tier::Gpu(1), 5),
                (Tier::Cpu, 600_000_000),
                (Tier::Disk, 1_000_000_000_000),
            ]
        );
        assert_eq!(budget.get(Tier::Cpu), Some(600_000_000));
        assert_eq!(budget.get(Tier::Gpu(2)), None);
        assert_eq!(
            serde_json::to_string(&budget).unwrap(),
            r#"{"gpu0":8589934592,"gpu1":5,"cpu":600000000,"disk":1000000000000}"#
        );
    }

    #[test]
    fn the_part_at_fault_is_named() {
        for (text, named, reason) in [
            ("", "``", "no `=`"),
            ("600MB", "`600MB`", "no `=`"),
            ("cpu=600MB,", "``", "no `=`"),
            ("gpu0=1GB,cpu=6XB", "`cpu=6XB`", "unit is unknown"),
            ("cpu=1GB,cpu=2GB", "`cpu=2GB`", "already"),
            ("gpu0=1GB,0=2GB", "`0=2GB`", "already"),
            ("ram=1GB", "`ram=1GB`", "`ram`"),
            ("gpu=1GB", "`gpu=1GB`", "`gpu`"),
            ("gpu+1=1GB", "`gpu+1=1GB`", "`gpu+1`"),
            ("=1GB", "`=1GB`", "``"),
            ("cpu=", "`cpu=`", "empty"),
            ("cpu==1", "`cpu==1`", "begin with a number"),
        ] {
            let error = Budget::parse(text).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,60}") {
            let _ = Budget::parse(&text);
        }

        #[test]
        fn no_near_miss_panics(text in "([cgpu0-9]{0,5}=[0-9.]{0,22}[KMGT]?i?B?,?){0,4}") {
            let _ = Budget::parse(&text);
        }

        /// A tier reads what it writes, and tiers are ordered by speed.
        #[test]
        fn tiers_read_what_they_write(number: usize) {
            for tier in [Tier::Gpu(number), Tier::Cpu, Tier::Disk] {
                prop_assert_eq!(tier.to_string().parse(), Ok(tier));
            }
            prop_assert_eq!(number.to_string().parse(), Ok(Tier::Gpu(number)));
            prop_assert!(Tier::Gpu(number) < Tier::Cpu && Tier::Cpu < Tier::Disk);
        }
    }
}
