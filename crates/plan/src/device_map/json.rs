//! Reading a device map from untrusted JSON.

use super::{DeviceMap, Residency};
use crate::Tier;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::HashSet;

impl<'de> Deserialize<'de> for Residency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "streamed" => Ok(Self::Streamed),
            other => match other.parse().map_err(D::Error::custom)? {
                Tier::Disk => {
                    Err(D::Error::custom("a tensor cannot be resident on `disk`: write `streamed`"))
                }
                tier => Ok(Self::Resident(tier)),
            },
        }
    }
}

impl Serialize for DeviceMap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Derived by the attribute `remote`.
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for DeviceMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map = Self::deserialize(deserializer)?;
        map.check().map_err(|reason| D::Error::custom(format!("invalid device map: {reason}")))?;
        Ok(map)
    }
}

/// Returns this text as an error unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($reason:tt)+) => {
        if !$holds {
            return Err(format!($($reason)+));
        }
    };
}

/// The sum; none if it overflows 64 bits.
fn sum(parts: impl IntoIterator<Item = u64>) -> Option<u64> {
    parts.into_iter().try_fold(0u64, u64::checked_add)
}

impl DeviceMap {
    /// Whether it does not contradict itself and could come from some tree.
    fn check(&self) -> Result<(), String> {
        self.check_tiers()?;
        self.check_blocks()?;
        for (name, residency) in self.tensors.iter() {
            if let Residency::Resident(tier) = residency {
                ensure!(
                    self.holds(tier),
                    "tensor `{name}` is on {tier}, which is not among its tiers"
                );
            }
        }
        Ok(())
    }

    fn holds(&self, tier: Tier) -> bool {
        self.tiers.iter().any(|held| held.tier == tier)
    }

    fn check_tiers(&self) -> Result<(), String> {
        ensure!(
            self.tiers.is_sorted_by(|a, b| a.tier < b.tier),
            "its tiers are not in order, each once"
        );
        let [.., cpu, disk] = self.tiers.as_slice() else {
            return Err("its tiers lack cpu and disk".to_string());
        };
        ensure!(
            (cpu.tier, disk.tier) == (Tier::Cpu, Tier::Disk),
            "its tiers do not end with cpu and disk"
        );
        for held in &self.tiers {
            let tier = held.tier;
            let rest = [held.ring, held.kv_cache, held.activations, held.other];
            let all = sum(rest.into_iter().chain([held.weights]))
                .ok_or_else(|| format!("{tier} holds more than 64 bits can say"))?;
            if let Some(budget) = held.budget {
                ensure!(
                    self.budget.get(tier) == Some(budget),
                    "{tier} has a budget of {budget} bytes in one place and another elsewhere"
                );
                ensure!(
                    all <= budget,
                    "{tier} holds {all} bytes, more than its budget of {budget}"
                );
            }
        }
        let needs = &self.needs;
        let other = sum([needs.process, needs.readers, needs.overflow]);
        let on_disk = self.total_bytes.checked_sub(self.resident_bytes);
        let footprint = self.resident_footprint;
        for (what, one, other) in [
            ("ring_bytes", Some(self.ring_bytes), cpu.ring),
            ("resident_footprint", Some(footprint), cpu.weights),
            ("needs.kv_cache", Some(needs.kv_cache), cpu.kv_cache),
            ("needs.activations", Some(needs.activations), cpu.activations),
            ("the sum of its other needs", other, cpu.other),
            ("total_bytes less resident_bytes", on_disk, disk.weights),
        ] {
            ensure!(one == Some(other), "{what} does not agree with its tiers");
        }
        Ok(())
    }

    fn check_blocks(&self) -> Result<(), String> {
        let mut names = HashSet::with_capacity(self.blocks.len());
        for block in &self.blocks {
            let name = &block.name;
            ensure!(names.insert(name), "there are two blocks named `{name}`");
            ensure!(
                block.resident_bytes <= block.bytes,
                "more of block `{name}` is resident than there is"
            );
            ensure!(
                block.kept_bytes <= block.streamed_bytes,
                "the ring keeps more of block `{name}` than is streamed"
            );
            let routed = block.routed;
            ensure!(
                routed.streamed <= block.streamed_bytes
                    && routed.kept <= block.kept_bytes.min(routed.streamed)
                    && routed.upload <= block.upload_bytes
                    && block.kept_bytes - routed.kept <= block.streamed_bytes - routed.streamed,
                "block `{name}` has more bytes of experts than of weights"
            );
            let computes = [block.decode_on, block.prefill_on];
            for tier in computes.into_iter().chain([block.tier]) {
                ensure!(
                    self.holds(tier),
                    "block `{name}` is on {tier}, which is not among its tiers"
                );
            }
            ensure!(!computes.contains(&Tier::Disk), "block `{name}` cannot compute on disk");
            ensure!(
                block.placed().gpu().is_some() || block.upload_bytes == 0,
                "block `{name}` is copied to a GPU and computes on none"
            );
        }
        let streamed = sum(self.blocks.iter().map(|block| block.streamed_bytes));
        ensure!(
            streamed == Some(self.streamed_bytes),
            "streamed_bytes is not the sum over its blocks"
        );
        ensure!(
            sum(self.blocks.iter().map(|block| block.bytes)).is_some(),
            "its blocks have more bytes than 64 bits can say"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::fixtures::{block, cpu, tensor, tree};
    use crate::{DeviceMap, Options, infer};
    use serde_json::{Value, json};

    /// A map of two blocks, one of them streamed.
    fn written() -> Value {
        let blocks = ["a", "b", "c", "d"];
        let blocks = blocks.map(|name| block(name, vec![tensor(&format!("{name}.w"), 1 << 20)]));
        let tree = tree(blocks.into());
        let map = infer(&tree, &cpu(3_500_000), &Options::default()).unwrap();
        assert!(map.streamed_bytes() > 0 && map.resident_bytes() > 0);
        serde_json::to_value(map).unwrap()
    }

    fn error(json: &str) -> String {
        let error = serde_json::from_str::<DeviceMap>(json).unwrap_err();
        error.to_string()
    }

    /// A map that was edited is refused with this reason.
    #[track_caller]
    fn refused(reason: &str, edit: impl FnOnce(&mut Value)) {
        let mut json = written();
        edit(&mut json);
        let error = error(&json.to_string());
        assert!(error.contains(reason), "{error}");
    }

    /// The same with `value` at some places.
    #[track_caller]
    fn refused_with(places: &[&str], value: Value, reason: &str) {
        refused(reason, |json| {
            for place in places {
                *json.pointer_mut(place).expect(place) = value.clone();
            }
        });
    }

    #[test]
    fn what_was_written_is_read() {
        let json = written();
        let map: DeviceMap = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(serde_json::to_value(&map).unwrap(), json);
        let again: DeviceMap = serde_json::from_value(json).unwrap();
        assert_eq!(map, again);
    }

    #[test]
    fn who_chose_is_written_and_read() {
        let mut json = written();
        assert_eq!(json["strategy"], "auto");
        for name in ["balanced_low_0", "manual"] {
            json["strategy"] = json!(name);
            let map: DeviceMap = serde_json::from_value(json.clone()).unwrap();
            assert_eq!(map.chosen_by().name(), name);
            assert_eq!(serde_json::to_value(&map).unwrap(), json);
        }
        let reason = r"unknown strategy `best\u{1b}`";
        refused_with(&["/strategy"], json!("best\u{1b}"), reason);
    }

    #[test]
    fn sums_that_overflow_are_refused() {
        for (places, reason) in [
            (&["/tiers/0/activations"][..], "more than 64 bits can say"),
            (&["/tiers/1/other"], "more than 64 bits can say"),
            (&["/needs/process", "/needs/overflow"], "other needs does not agree with its tiers"),
            (&["/blocks/0/bytes", "/blocks/1/bytes"], "blocks have more bytes than 64 bits"),
            (
                &["/blocks/0/streamed_bytes", "/blocks/1/streamed_bytes"],
                "streamed_bytes is not the sum",
            ),
        ] {
            refused_with(places, json!(u64::MAX), reason);
        }
    }

    #[test]
    fn sums_that_do_not_agree_are_refused() {
        for (place, reason) in [
            ("/ring_bytes", "ring_bytes does not agree"),
            ("/resident_footprint", "resident_footprint does not agree"),
            ("/needs/kv_cache", "needs.kv_cache does not agree"),
            ("/needs/activations", "needs.activations does not agree"),
            ("/needs/readers", "other needs does not agree"),
            ("/total_bytes", "total_bytes less resident_bytes does not"),
            // More is resident than there is.
            ("/resident_bytes", "total_bytes less resident_bytes"),
            ("/streamed_bytes", "streamed_bytes is not the sum"),
            ("/budget/cpu", "cpu has a budget of 3500000 bytes in one"),
            ("/blocks/0/resident_bytes", "more of block `a` is resident"),
            ("/blocks/0/kept_bytes", "keeps more of block `a`"),
            ("/blocks/0/upload_bytes", "`a` is copied to a GPU"),
        ] {
            refused_with(&[place], json!(1u64 << 40), reason);
            refused_with(&[place], json!(1u64 << 40), "invalid device map: ");
        }
        let places = ["/tiers/0/budget", "/budget/cpu"];
        refused_with(&places, json!(1000), "more than its budget of 1000");
    }

    #[test]
    fn tiers_that_are_none_are_refused() {
        for tier in ["tpu0", "gpu", "gpu+1", "CPU", "", "gpu99999999999999999999"] {
            for place in ["/tensors/a.w", "/blocks/0/tier", "/tiers/0/tier"] {
                refused_with(&[place], json!(tier), &format!("`{tier}`"));
            }
        }
        // Those that may be are not all there.
        for (place, tier, reason) in [
            ("/blocks/1/tier", "gpu7", "block `b` is on gpu7, which is not among its tiers"),
            ("/blocks/1/decode_on", "gpu7", "block `b` is on gpu7, which is not among its tiers"),
            ("/tensors/b.w", "gpu7", "tensor `b.w` is on gpu7"),
            ("/tensors/b.w", "disk", "write `streamed`"),
            ("/blocks/2/prefill_on", "disk", "`c` cannot compute on disk"),
        ] {
            refused_with(&[place], json!(tier), reason);
        }
        refused_with(&["/tiers"], json!([]), "lack cpu and disk");
        refused("not in order", |json| json["tiers"].as_array_mut().unwrap().reverse());
    }

    #[test]
    fn what_comes_twice_is_refused() {
        let json = written().to_string();
        for (once, name) in [(r#""tensors":{"#, "b.w"), (r#""budget":{"#, "cpu")] {
            let value = match name {
                "cpu" => "7",
                _ => r#""cpu""#,
            };
            let twice = json.replacen(once, &format!(r#"{once}"{name}":{value},"#), 1);
            assert_ne!(twice, json);
            let text = error(&twice);
            assert!(text.contains(&format!("`{name}` comes twice")), "{text}");
        }
        refused_with(&["/blocks/1/name"], json!("a"), "two blocks named `a`");
        refused("not in order, each once", |json| {
            let first = json["tiers"][0].clone();
            json["tiers"].as_array_mut().unwrap().insert(0, first);
        });
    }
}
