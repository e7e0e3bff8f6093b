//! Names of a GGUF file in several parts, as `llama-gguf-split` gives them:
//! `model-00001-of-00003.gguf`.

/// More parts than any real file has.
const MOST: usize = 1000;

/// The name of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GgufPartName<'a> {
    /// What is before the numbers.
    pub stem: &'a str,
    /// Which part it is, counted from 1.
    pub number: usize,
    /// How many parts there are, at most 1,000.
    pub count: usize,
}

impl<'a> GgufPartName<'a> {
    /// Reads the name of a file; none if it is not that of a part.
    pub fn parse(name: &'a str) -> Option<Self> {
        let rest = name.strip_suffix(".gguf")?;
        let (rest, count) = rest.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let right = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            right.then(|| text.parse().ok()).flatten()
        };
        let (number, count) = (digits(number)?, digits(count)?);
        ((1..=count).contains(&number) && count <= MOST).then_some(Self { stem, number, count })
    }

    /// The names of all parts, in order.
    pub fn all(self) -> impl Iterator<Item = String> + 'a {
        let Self { stem, count, .. } = self;
        (1..=count).map(move |number| format!("{stem}-{number:05}-of-{count:05}.gguf"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts_go_there_and_back() {
        let name = "a-of-b-00002-of-00003.gguf";
        let part = GgufPartName::parse(name).unwrap();
        assert_eq!(part, GgufPartName { stem: "a-of-b", number: 2, count: 3 });
        assert_eq!(part.all().nth(1).unwrap(), name);
        assert_eq!(part.all().count(), 3);
        for other in [
            "a.gguf",
            "a-00000-of-00002.gguf",
            "a-00003-of-00002.gguf",
            "a-1-of-2.gguf",
            "a-00001-of-99999.gguf",
        ] {
            assert_eq!(GgufPartName::parse(other), None, "{other}");
        }
    }
}
