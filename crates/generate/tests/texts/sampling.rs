//! Tokens are chosen with the right probabilities, and the same ones again.

use outsize_generate::{Error, Sampler, Sampling};
use proptest::collection::vec;
use proptest::prelude::*;

const DRAWS: usize = 100_000;

fn sampling(temperature: f32, top_k: Option<usize>, top_p: Option<f32>) -> Sampling {
    Sampling { temperature, top_k, top_p, seed: 42, ..Sampling::default() }
}

fn choose(sampling: Sampling, logits: &[f32]) -> Result<u32, Error> {
    Sampler::new(sampling)?.sample(logits)
}

/// How often each token comes in [`DRAWS`] draws.
fn counts(sampling: Sampling, logits: &[f32]) -> Vec<usize> {
    let mut sampler = Sampler::new(sampling).unwrap();
    let mut counts = vec![0; logits.len()];
    for _ in 0..DRAWS {
        counts[sampler.sample(logits).unwrap() as usize] += 1;
    }
    counts
}

/// Pearson's statistic over the tokens of probability above 0. Others must not come at all.
fn chi_square(counts: &[usize], probabilities: &[f64]) -> f64 {
    counts
        .iter()
        .zip(probabilities)
        .map(|(&count, &probability)| {
            if probability == 0.0 {
                assert_eq!(count, 0, "a token of probability 0 came");
                return 0.0;
            }
            let expected = probability * DRAWS as f64;
            (count as f64 - expected).powi(2) / expected
        })
        .sum()
}

/// The 99.9 % points of the chi-square distribution with 1, 2, ... degrees of freedom.
const CRITICAL: [f64; 11] =
    [10.83, 13.82, 16.27, 18.47, 20.52, 22.46, 24.32, 26.12, 27.88, 29.59, 31.26];

/// Tokens 3 and 7 tie, and so do 2 and 10.
const LOGITS: [f32; 12] =
    [-1.46, -1.81, -1.67, 2.0, -0.59, 5.83, -4.21, 2.0, 1.89, -2.7, -1.67, 2.07];

#[test]
fn draws_follow_the_probabilities_of_transformers() {
    // Temperature, top-k, top-p; then token and probability after TemperatureLogitsWarper,
    // TopKLogitsWarper and TopPLogitsWarper of transformers 5.23 on `LOGITS`, softmax in float64.
    type Reference = (f32, Option<usize>, Option<f32>, &'static [(usize, f64)]);
    let references: [Reference; 7] = [
        (1.0, None, Some(0.9), &[(5, 1.0)]),
        (
            1.0,
            Some(3),
            None,
            &[(3, 0.020352073), (5, 0.937468089), (7, 0.020352073), (11, 0.021827764)],
        ),
        (
            2.5,
            None,
            Some(0.9),
            &[
                (0, 0.027182505),
                (3, 0.108480842),
                (4, 0.038496741),
                (5, 0.501986681),
                (7, 0.108480842),
                (8, 0.103811168),
                (11, 0.111561222),
            ],
        ),
        (
            2.5,
            Some(6),
            Some(0.9),
            &[
                (3, 0.116106638),
                (5, 0.537274463),
                (7, 0.116106638),
                (8, 0.111108703),
                (11, 0.119403558),
            ],
        ),
        (1.7, Some(9), Some(0.75), &[(5, 0.901301021), (11, 0.098698979)]),
        (1.0, None, Some(1e-6), &[(5, 1.0)]),
        (
            3.0,
            None,
            Some(0.999),
            &[
                (0, 0.033170857),
                (1, 0.029518142),
                (2, 0.030928302),
                (3, 0.105109751),
                (4, 0.044330446),
                (5, 0.376783831),
                (6, 0.013263356),
                (7, 0.105109751),
                (8, 0.101325526),
                (9, 0.02194059),
                (10, 0.030928302),
                (11, 0.107591146),
            ],
        ),
    ];
    for (temperature, top_k, top_p, reference) in references {
        let mut probabilities = [0.0; LOGITS.len()];
        for &(token, probability) in reference {
            probabilities[token] = probability;
        }
        let counts = counts(sampling(temperature, top_k, top_p), &LOGITS);
        let statistic = chi_square(&counts, &probabilities);
        let limit = if reference.len() == 1 { 1e-9 } else { CRITICAL[reference.len() - 2] };
        assert!(
            statistic < limit,
            "{temperature} {top_k:?} {top_p:?}: {statistic} of {limit}, {counts:?}"
        );
    }
}

/// One case of sampling.json; scripts/fixtures/sampling.py made it with transformers' own
/// processors.
#[derive(Debug, serde::Deserialize)]
struct Case {
    /// null is -inf.
    logits: Vec<Option<f32>>,
    seen: Vec<u32>,
    temperature: f32,
    repetition_penalty: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    /// What is left, with its probability.
    left: Vec<(u32, f64)>,
}

impl Case {
    fn sampling(&self) -> Sampling {
        Sampling {
            repetition_penalty: self.repetition_penalty,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: 0,
            ..Sampling::default()
        }
    }

    fn logits(&self) -> Vec<f32> {
        let logits = self.logits.iter();
        logits.map(|logit| logit.unwrap_or(f32::NEG_INFINITY)).collect()
    }
}

#[test]
fn distributions_are_those_of_transformers() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../fixtures/sampling.json")).unwrap();
    assert_eq!(cases.len(), 91);
    for (index, case) in cases.iter().enumerate() {
        let mut sampler = Sampler::new(case.sampling()).unwrap();
        sampler.see(&case.seen);
        let found = sampler.distribution(&case.logits()).unwrap();
        let tokens = |left: &[(u32, f64)]| -> Vec<u32> { left.iter().map(|(t, _)| *t).collect() };
        // What softmax in 32 bits rounds to 0 is as good as left out.
        let found: Vec<_> = found.into_iter().filter(|(_, p)| *p > 1e-43).collect();
        assert_eq!(tokens(&found), tokens(&case.left), "case {index}");
        for ((token, ours), (_, theirs)) in found.iter().zip(&case.left) {
            // transformers computes in 32 bits.
            assert!(
                (ours - theirs).abs() <= 2e-5 * theirs,
                "case {index}, token {token}: {ours} and {theirs}"
            );
        }
        // Greedy takes the likeliest of what the penalty leaves.
        let greedy = Sampling { temperature: 0.0, ..case.sampling() };
        let mut sampler = Sampler::new(greedy).unwrap();
        sampler.see(&case.seen);
        let token = sampler.sample(&case.logits()).unwrap();
        let most = case.left.iter().map(|(_, p)| *p).fold(0.0, f64::max);
        assert!(case.left.contains(&(token, most)), "case {index}");
    }
}

#[test]
fn tokens_chosen_are_penalized_as_the_prompt_is() {
    let sampling = Sampling { repetition_penalty: Some(2.0), ..Sampling::default() };
    let mut sampler = Sampler::new(sampling).unwrap();
    // 0 halves to 2.0 once it was chosen, 1 to 1.5, and each only once.
    let logits = [4.0, 3.0, 1.75];
    let chosen: Vec<u32> = (0..4).map(|_| sampler.sample(&logits).unwrap()).collect();
    assert_eq!(chosen, [0, 1, 0, 0]);
    let mut sampler = Sampler::new(sampling).unwrap();
    sampler.see(&[0, 0, 9]);
    assert_eq!(sampler.sample(&logits).unwrap(), 1);
}

#[test]
fn what_was_chosen_is_penalized_each_time_or_once_and_a_prompt_is_not() {
    let logits = [4.0, 3.25, f32::NEG_INFINITY];
    let chosen = |sampling: Sampling| {
        let mut sampler = Sampler::new(sampling).unwrap();
        sampler.see(&[0, 0, 0, 0]);
        (0..5).map(|_| sampler.sample(&logits).unwrap()).collect::<Vec<_>>()
    };
    // 4, 3.5, 3 for 3.25, then 3 for 2.75, 2.5 for 2.75.
    let frequency = Sampling { frequency_penalty: Some(0.5), ..Sampling::default() };
    assert_eq!(chosen(frequency), [0, 0, 1, 0, 1]);
    // 4, 3 for 3.25, then both have it.
    let presence = Sampling { presence_penalty: Some(1.0), ..Sampling::default() };
    assert_eq!(chosen(presence), [0, 1, 0, 0, 0]);
    let encouraged = Sampling { frequency_penalty: Some(-2.0), ..Sampling::default() };
    assert_eq!(chosen(encouraged), [0; 5]);
    let both = Sampling { repetition_penalty: Some(2.0), ..presence };
    // The prompt counts for the repetition penalty: 2 for 3.25, 2 for 0.625, 1 for 0.625.
    assert_eq!(chosen(both), [1, 0, 0, 0, 0]);
}

#[test]
fn biases_are_added_first() {
    let chosen = |biases: &[(u32, f32)], sampling| {
        let mut sampler = Sampler::new(sampling).unwrap();
        sampler.bias(biases.to_vec());
        (0..3).map(|_| sampler.sample(&[4.0, 3.25, f32::NEG_INFINITY]).unwrap()).collect::<Vec<_>>()
    };
    let greedy = Sampling::default();
    assert_eq!(chosen(&[], greedy), [0; 3]);
    assert_eq!(chosen(&[(1, 0.5)], greedy), [0; 3]);
    assert_eq!(chosen(&[(1, 1.0)], greedy), [1; 3]);
    assert_eq!(chosen(&[(0, -100.0)], greedy), [1; 3]);
    // What is excluded stays so, and there is no fourth.
    assert_eq!(chosen(&[(2, 100.0), (3, 100.0)], greedy), [0; 3]);
    // 4 for 4.25, 4 for 2.125, 2 for 2.125.
    let penalty = Sampling { repetition_penalty: Some(2.0), ..greedy };
    assert_eq!(chosen(&[(1, 1.0)], penalty), [1, 0, 1]);
    let mut sampler = Sampler::new(Sampling { temperature: 1.0, ..greedy }).unwrap();
    sampler.bias(vec![(0, -1.0)]);
    let shares = sampler.distribution(&[1.0, 0.0]).unwrap();
    assert_eq!(shares, [(0, 0.5), (1, 0.5)]);
}

#[test]
fn a_penalty_never_makes_an_infinity() {
    for penalty in [f32::MIN_POSITIVE, f32::MAX] {
        let sampling =
            Sampling { repetition_penalty: Some(penalty), temperature: 1.0, ..Sampling::default() };
        let mut sampler = Sampler::new(sampling).unwrap();
        sampler.see(&[0, 1, 2]);
        let left = sampler.distribution(&[3e38, -3e38, f32::NEG_INFINITY]);
        assert_eq!(left.unwrap()[0], (0, 1.0));
    }
}

#[test]
fn the_statistic_sees_a_temperature_two_percent_off() {
    let softmax = |temperature: f64| {
        let weights = LOGITS.map(|logit| (f64::from(logit) / temperature).exp());
        weights.map(|weight| weight / weights.iter().sum::<f64>())
    };
    let counts = counts(sampling(1.5, None, None), &LOGITS);
    assert!(chi_square(&counts, &softmax(1.5)) < CRITICAL[10]);
    assert!(chi_square(&counts, &softmax(1.53)) > CRITICAL[10]);
}

#[test]
fn the_same_seed_gives_the_same_tokens_on_every_platform() {
    let draw = |seed: u64| -> Vec<u32> {
        let mut sampler =
            Sampler::new(Sampling { temperature: 1.0, seed, ..Sampling::default() }).unwrap();
        (0..16).map(|_| sampler.sample(&[0.0; 1000]).unwrap()).collect()
    };
    assert_eq!(draw(0), draw(0));
    assert_ne!(draw(0), draw(1));
    // The first outputs of xoshiro256++ seeded with 0 through SplitMix64, as shares of 1000:
    // 0x53175d61490b23df / 2^64 is 0.3245...
    assert_eq!(draw(0), [324, 382, 359, 11, 495, 20, 857, 845, 294, 74, 314, 66, 104, 93, 65, 400]);
}

#[test]
fn greedy_takes_the_first_of_equals() {
    assert_eq!(choose(Sampling::default(), &[1.0, 3.0, 3.0, 2.0]).unwrap(), 1);
    assert_eq!(choose(Sampling::default(), &[-0.0, 0.0]).unwrap(), 0);
    assert_eq!(choose(Sampling::default(), &[f32::NEG_INFINITY, -1e30]).unwrap(), 1);
    // Filters leave the likeliest token where it is.
    assert_eq!(choose(sampling(0.0, Some(1), Some(0.1)), &[1.0, 3.0, 3.0, 2.0]).unwrap(), 1);
}

#[test]
fn one_of_equals_at_the_edge_of_top_p_is_the_smaller_token() {
    let counts = counts(sampling(1.0, None, Some(0.4)), &[0.0; 4]);
    assert!(counts[0] > 0 && counts[1] > 0 && counts[2] == 0 && counts[3] == 0, "{counts:?}");
}

#[test]
fn logits_that_are_not_numbers_are_refused_at_any_temperature() {
    for temperature in [0.0, 1.0] {
        let sampling = sampling(temperature, Some(2), Some(0.5));
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            let message = choose(sampling, &[1.0, 2.0, bad, 9.0]).unwrap_err().to_string();
            let name = if bad.is_nan() { "NaN" } else { "inf" };
            assert!(message.contains("token 2") && message.contains(name), "{message}");
        }
        let message = |logits| choose(sampling, logits).unwrap_err().to_string();
        assert!(message(&[]).contains("no logits"));
        assert!(message(&[f32::NEG_INFINITY; 3]).contains("all 3 logits"));
    }
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    for value in [-0.1, f32::NAN, f32::INFINITY] {
        let error = Sampler::new(sampling(value, None, None)).unwrap_err();
        assert!(error.to_string().contains("temperature is"), "{error}");
    }
    for value in [-0.5, 1.01, f32::NAN, f32::INFINITY] {
        let error = Sampler::new(sampling(1.0, None, Some(value))).unwrap_err();
        assert!(error.to_string().contains("top_p is"), "{error}");
        let min_p = Sampling { min_p: Some(value), ..Sampling::default() };
        let error = Sampler::new(min_p).unwrap_err();
        assert!(error.to_string().contains("min_p is"), "{error}");
    }
    for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let penalty = Sampling { repetition_penalty: Some(value), ..Sampling::default() };
        let error = Sampler::new(penalty).unwrap_err();
        assert!(error.to_string().contains("repetition_penalty is"), "{error}");
    }
    for value in [-2.1, 2.1, f32::NAN] {
        let frequency = Sampling { frequency_penalty: Some(value), ..Sampling::default() };
        let error = Sampler::new(frequency).unwrap_err();
        assert!(error.to_string().contains("frequency_penalty is"), "{error}");
        let presence = Sampling { presence_penalty: Some(value), ..Sampling::default() };
        let error = Sampler::new(presence).unwrap_err();
        assert!(error.to_string().contains("presence_penalty is"), "{error}");
    }
    let error = Sampler::new(sampling(1.0, Some(0), None)).unwrap_err();
    assert!(error.to_string().contains("top_k is 0"), "{error}");
}

#[test]
fn extreme_temperatures_are_greedy_and_uniform() {
    let logits = [1.0, 2.0, f32::MAX, f32::MIN, 2.0];
    assert_eq!(choose(sampling(f32::MIN_POSITIVE, None, None), &logits).unwrap(), 2);
    let counts = counts(sampling(f32::MAX, None, None), &[1.0, 5.0, -3.0]);
    assert!(chi_square(&counts, &[1.0 / 3.0; 3]) < CRITICAL[1], "{counts:?}");
}

/// Logits with ties, some of them excluded and at least one not.
fn logits() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        4 => (-40i32..40).prop_map(|tenths| tenths as f32 / 10.0),
        1 => Just(f32::NEG_INFINITY),
        3 => -8.0f32..8.0,
    ];
    (vec(logit, 0..1500), -5.0f32..5.0).prop_map(|(mut logits, finite)| {
        logits.push(finite);
        logits
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_token_is_among_the_top_k(logits in logits(), k in 1usize..2000, seed: u64) {
        let sampling = Sampling { temperature: 1.5, top_k: Some(k), top_p: None, seed, ..Sampling::default() };
        let token = choose(sampling, &logits).unwrap() as usize;
        let likelier = logits.iter().filter(|&&logit| logit > logits[token]).count();
        prop_assert!(likelier < k && logits[token] > f32::NEG_INFINITY);
    }

    #[test]
    fn a_token_is_within_the_top_p(logits in logits(), top_p in 0.01f32..=1.0, seed: u64) {
        let sampling = Sampling { temperature: 1.0, top_k: None, top_p: Some(top_p), seed, ..Sampling::default() };
        let token = choose(sampling, &logits).unwrap() as usize;
        let weights: Vec<f64> = logits.iter().map(|&logit| f64::from(logit).exp()).collect();
        let likelier: f64 = weights.iter().filter(|&&weight| weight > weights[token]).sum();
        // What is likelier stays below the share, up to rounding.
        prop_assert!(likelier < f64::from(top_p) * weights.iter().sum::<f64>() * (1.0 + 1e-12));
        prop_assert!(logits[token] > f32::NEG_INFINITY);
    }

    #[test]
    fn a_tiny_share_and_a_single_candidate_are_greedy(logits in logits(), seed: u64) {
        let greedy = choose(Sampling::default(), &logits).unwrap();
        let nucleus = choose(Sampling { temperature: 1.0, top_k: None, top_p: Some(1e-6), seed, ..Sampling::default() }, &logits).unwrap();
        prop_assert_eq!(nucleus, greedy);
        let single = choose(Sampling { temperature: 1.0, top_k: Some(1), top_p: None, seed, ..Sampling::default() }, &logits).unwrap();
        prop_assert_eq!(logits[single as usize], logits[greedy as usize]);
    }

    #[test]
    fn a_filter_that_leaves_all_changes_nothing(logits in logits(), seed: u64) {
        let plain = Sampling { temperature: 0.8, top_k: None, top_p: None, seed, ..Sampling::default() };
        let wide = Sampling { top_k: Some(logits.len()), top_p: Some(1.0), ..plain };
        prop_assert_eq!(choose(plain, &logits).unwrap(), choose(wide, &logits).unwrap());
    }
}
