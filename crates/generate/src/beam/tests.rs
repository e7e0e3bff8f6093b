use std::convert::Infallible;

use proptest::prelude::*;

use super::*;
use crate::sampling::Sampling;

const VOCAB: u32 = 6;

/// A model whose logits depend on the whole of a sequence, so that no other one can stand for it.
#[derive(Debug, Clone)]
struct Toy {
    seed: u64,
    context: Option<usize>,
    most: usize,
    sequences: Vec<Vec<u32>>,
}

impl Toy {
    fn new(seed: u64, most: usize) -> Self {
        Self { seed, context: None, most, sequences: Vec::new() }
    }

    fn logits(&self, sequence: &[u32]) -> Vec<f32> {
        let mix = |hash: u64, value: u64| {
            let hash = (hash ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            hash ^ (hash >> 29)
        };
        let hash = sequence.iter().fold(self.seed, |hash, id| mix(hash, u64::from(*id) + 1));
        let logit = |token: u32| (mix(mix(hash, 99), u64::from(token)) >> 40) as f32 / 4e6;
        (0..VOCAB).map(logit).collect()
    }

    fn log_probabilities(&self, sequence: &[u32]) -> Vec<f32> {
        let mut logits = self.logits(sequence);
        log_softmax(&mut logits).unwrap();
        logits
    }
}

impl LanguageModel for Toy {
    type Error = Infallible;

    fn forward_rows(&mut self, rows: &[&[u32]]) -> Result<Vec<f32>, Infallible> {
        if self.sequences.is_empty() {
            self.sequences = vec![Vec::new(); rows.len()];
        }
        assert_eq!(self.sequences.len(), rows.len());
        for (sequence, ids) in self.sequences.iter_mut().zip(rows) {
            assert!(!ids.is_empty());
            sequence.extend(*ids);
        }
        Ok(self.sequences.iter().flat_map(|sequence| self.logits(sequence)).collect())
    }

    fn copy_rows(&mut self, copies: &[(usize, usize)], rows: usize) -> Result<(), Infallible> {
        for &(from, to) in copies {
            let copy = self.sequences[from].clone();
            match to == self.sequences.len() {
                true => self.sequences.push(copy),
                false => self.sequences[to] = copy,
            }
        }
        assert!(self.sequences.len() <= self.most && (1..=self.sequences.len()).contains(&rows));
        self.sequences.truncate(rows);
        Ok(())
    }

    fn context(&self) -> Option<usize> {
        self.context
    }

    fn position(&self) -> usize {
        0
    }
}

fn request(ids: &[u32], max_new_tokens: usize, eos: &[u32]) -> Request {
    Request { ids: ids.to_vec(), max_new_tokens, eos: eos.to_vec(), sampling: Sampling::default() }
}

fn run(toy: &Toy, requests: &[Request], search: &BeamSearch) -> Vec<Vec<Hypothesis>> {
    beam_search(&mut toy.clone(), requests, search, |_, _| Ok(false)).unwrap()
}

/// Every sequence that ends, with its score, the best first; of equal ones, first the one whose
/// beginning is the better.
fn all(toy: &Toy, request: &Request, penalty: f32) -> Vec<(Vec<u32>, f64)> {
    let mut open = vec![(Vec::new(), 0.0)];
    let mut ended = Vec::new();
    for length in 1..=request.max_new_tokens {
        let mut longer = Vec::new();
        for (tokens, sum) in &open {
            let sequence = [&request.ids[..], tokens].concat();
            for (token, log) in (0..).zip(toy.log_probabilities(&sequence)) {
                longer.push(([&tokens[..], &[token]].concat(), sum + f64::from(log)));
            }
        }
        longer.sort_by(|a, b| b.1.total_cmp(&a.1));
        let ends = |tokens: &[u32]| {
            length == request.max_new_tokens || request.eos.contains(&tokens[length - 1])
        };
        let (done, next): (Vec<_>, _) = longer.into_iter().partition(|(tokens, _)| ends(tokens));
        let power = (length as f64).powf(f64::from(penalty));
        ended.extend(done.into_iter().map(|(tokens, sum)| (tokens, sum / power)));
        open = next;
    }
    ended.sort_by(|a, b| b.1.total_cmp(&a.1));
    ended
}

/// Beam search as transformers computes it: of one text, all beams at every step, marks in place of
/// what is missing.
fn reference(toy: &Toy, request: &Request, search: &BeamSearch) -> Vec<(Vec<u32>, f64)> {
    const NONE: f64 = -1e9;
    let &BeamSearch { num_beams, length_penalty, early_stopping, num_return_sequences } = search;
    let power = |length: usize| (length as f64).powf(f64::from(length_penalty));
    let mut running = vec![(Vec::new(), NONE); num_beams];
    running[0].1 = 0.0;
    let mut ended = vec![(Vec::new(), NONE, false); num_beams];
    let mut improvable = true;
    for length in 1.. {
        let mut top = Vec::new();
        for (tokens, sum) in &running {
            let sequence = [&request.ids[..], tokens].concat();
            for (token, log) in (0..).zip(toy.log_probabilities(&sequence)) {
                top.push(([&tokens[..], &[token]].concat(), sum + f64::from(log)));
            }
        }
        top.sort_by(|a, b| b.1.total_cmp(&a.1));
        top.truncate(num_beams * (1 + request.eos.len()).max(2));
        let hits: Vec<bool> = (top.iter())
            .map(|(tokens, _)| {
                request.eos.contains(&tokens[length - 1]) || length == request.max_new_tokens
            })
            .collect();
        let full = early_stopping == EarlyStopping::AtOnce && ended.iter().all(|entry| entry.2);
        let mut next = Vec::new();
        for (rank, ((tokens, sum), &hit)) in top.iter().zip(&hits).enumerate() {
            next.push((tokens.clone(), sum + if hit { NONE } else { 0.0 }));
            let now = hit && rank < num_beams;
            let barred = [full, !improvable, !now].into_iter().filter(|bar| *bar).count() as f64;
            ended.push((tokens.clone(), sum / power(length) + barred * NONE, now));
        }
        next.sort_by(|a, b| b.1.total_cmp(&a.1));
        next.truncate(num_beams);
        running = next;
        ended.sort_by(|a, b| b.1.total_cmp(&a.1));
        ended.truncate(num_beams);
        let hypothetical = match early_stopping {
            EarlyStopping::Never if length_penalty > 0.0 => request.max_new_tokens,
            _ => length,
        };
        let worst = ended.last().unwrap().1;
        let open = ended.iter().any(|entry| !entry.2);
        improvable &= open || running[0].1 / power(hypothetical) > worst;
        let full = early_stopping == EarlyStopping::AtOnce && !open;
        if !improvable || full || hits.iter().all(|hit| *hit) {
            break;
        }
    }
    ended.retain(|entry| entry.2);
    ended.truncate(num_return_sequences);
    ended.into_iter().map(|(tokens, score, _)| (tokens, score)).collect()
}

fn pairs(found: &[Hypothesis]) -> Vec<(Vec<u32>, f64)> {
    found.iter().map(|hypothesis| (hypothesis.tokens.clone(), hypothesis.score)).collect()
}

fn assert_same(found: &[Hypothesis], expected: &[(Vec<u32>, f64)]) {
    let found = pairs(found);
    assert_eq!(found.len(), expected.len(), "{found:?} {expected:?}");
    for ((tokens, score), (others, other)) in found.iter().zip(expected) {
        assert_eq!(tokens, others, "{found:?} {expected:?}");
        assert!((score - other).abs() < 1e-9, "{score} {other}");
    }
}

fn stopping() -> impl Strategy<Value = EarlyStopping> {
    prop_oneof![
        Just(EarlyStopping::Unlikely),
        Just(EarlyStopping::AtOnce),
        Just(EarlyStopping::Never)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// With a beam for every sequence there is, the search finds the best of all.
    #[test]
    fn with_room_for_all_the_best_of_all_is_found(
        seed in any::<u64>(), length in 1usize..4, penalty in -2f32..3.0, early_stopping in stopping(),
        eos in prop::collection::vec(0..VOCAB, 0..2), returned in 1usize..6,
    ) {
        let num_beams = (VOCAB as usize).pow(length as u32);
        let request = request(&[1, 2], length, &eos);
        let search = BeamSearch {
            length_penalty: penalty, early_stopping, num_return_sequences: returned, ..BeamSearch::new(num_beams)
        };
        let toy = Toy::new(seed, num_beams);
        let mut expected = all(&toy, &request, penalty);
        expected.truncate(returned);
        assert_same(&run(&toy, &[request], &search)[0], &expected);
    }

    /// With few beams, and several texts side by side, of which some end before others, each is as
    /// transformers has it.
    #[test]
    fn each_text_is_as_transformers_searches_it_alone(
        seed in any::<u64>(), num_beams in 1usize..5, penalty in -2f32..3.0, early_stopping in stopping(),
        eos in prop::collection::btree_set(0..VOCAB, 0..3), returned in 1usize..5,
        prompts in prop::collection::vec((prop::collection::vec(0..VOCAB, 1..4), 1usize..9), 1..4),
    ) {
        // As many tokens as there are candidates.
        prop_assume!(num_beams * (1 + eos.len()).max(2) <= VOCAB as usize);
        let eos: Vec<u32> = eos.into_iter().collect();
        let search = BeamSearch {
            length_penalty: penalty, early_stopping, num_return_sequences: returned.min(num_beams),
            ..BeamSearch::new(num_beams)
        };
        let requests: Vec<_> = prompts.iter().map(|(ids, length)| request(ids, *length, &eos)).collect();
        let toy = Toy::new(seed, num_beams * requests.len());
        let found = run(&toy, &requests, &search);
        for (request, found) in requests.iter().zip(&found) {
            assert_same(found, &reference(&toy, request, &search));
            for hypothesis in found {
                let last = hypothesis.tokens.last().unwrap();
                let reason = if eos.contains(last) { Finish::Eos } else { Finish::Length };
                prop_assert_eq!(hypothesis.finish, reason);
            }
        }
    }
}

#[test]
fn a_text_may_end_otherwise_than_by_a_token() {
    let toy = Toy::new(5, 12);
    let requests = [request(&[1], 6, &[]), request(&[2, 3], 6, &[]), request(&[4], 0, &[])];
    let search = BeamSearch { num_return_sequences: 4, ..BeamSearch::new(4) };
    let ends = |text: usize, tokens: &[u32]| Ok(text == 1 && tokens.len() == 3);
    let found = beam_search(&mut toy.clone(), &requests, &search, ends).unwrap();
    let of = |text: usize| -> Vec<_> {
        found[text].iter().map(|sequence| (sequence.tokens.len(), sequence.finish)).collect()
    };
    assert_eq!(of(0), [(6, Finish::Length); 4]);
    assert_eq!(of(1), [(3, Finish::StopString); 4]);
    assert_eq!(of(2), [(0, Finish::Length)]);
    // The context counts the longest prompt.
    let full = Toy { context: Some(5), ..toy.clone() };
    let found = run(&full, &requests[..2], &search);
    assert_eq!((found[0][0].tokens.len(), found[0][0].finish), (3, Finish::Context));
    let full = Toy { context: Some(2), ..toy };
    let error = beam_search(&mut full.clone(), &requests[..2], &search, |_, _| Ok(false));
    assert!(error.unwrap_err().to_string().contains("holds 2"));
}

#[test]
fn impossible_searches_are_refused() {
    let refused = |search: BeamSearch, sampling: Sampling| {
        let request = Request { sampling, ..request(&[1], 3, &[]) };
        let found = beam_search(&mut Toy::new(1, 9), &[request], &search, |_, _| Ok(false));
        found.unwrap_err().to_string()
    };
    let none = Sampling::default();
    for (search, field) in [
        (BeamSearch::new(0), "num_beams is 0"),
        (BeamSearch { num_return_sequences: 3, ..BeamSearch::new(2) }, "num_return_sequences is 3"),
        (BeamSearch { num_return_sequences: 0, ..BeamSearch::new(2) }, "num_return_sequences is 0"),
        (BeamSearch { length_penalty: f32::NAN, ..BeamSearch::new(2) }, "length_penalty is NaN"),
    ] {
        let message = refused(search, none);
        assert!(message.contains(field), "{message}");
    }
    let message = refused(BeamSearch::new(2), Sampling { temperature: 0.5, ..none });
    assert!(message.contains("does not sample"), "{message}");
    let penalty = Sampling { repetition_penalty: Some(-1.0), ..none };
    assert!(refused(BeamSearch::new(2), penalty).contains("repetition_penalty is -1"));
}

/// Two sequences of one score, to the last bit: that of the better beginning comes first, as from a
/// stable top-k.
#[test]
fn equal_scores_keep_the_order_of_their_beams() {
    let request = request(&[1, 2], 2, &[]);
    let search = BeamSearch { length_penalty: 0.0, num_return_sequences: 4, ..BeamSearch::new(36) };
    let toy = Toy::new(6, 36);
    let found = run(&toy, std::slice::from_ref(&request), &search);
    let expected = &all(&toy, &request, 0.0)[..4];
    assert_eq!((expected[1].1, &expected[1].0[..]), (expected[2].1, &[4, 0][..]), "{expected:?}");
    assert_same(&found[0], expected);
}
