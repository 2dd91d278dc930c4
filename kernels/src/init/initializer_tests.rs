//! What new rows look like: bounds, moments, shape of the distribution, purity, and pinned values.

use super::*;
use crate::simd::Isa;
use proptest::prelude::*;

const DIM: usize = 40;

/// `rows` rows of `DIM` columns, one after the other.
fn sample(initializer: &Initializer, rows: i64) -> Vec<f32> {
    let mut values = vec![0.0; rows as usize * DIM];
    for (key, row) in (0..).zip(values.chunks_exact_mut(DIM)) {
        initializer.fill(11, key, row);
    }
    values
}

fn moments(values: &[f32]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let variance = values
        .iter()
        .map(|&x| (f64::from(x) - mean).powi(2))
        .sum::<f64>()
        / n;
    (mean, variance.sqrt())
}

/// The normal distribution's cumulative function, from the series of its integral (good for |x| < 7
/// in float64).
fn cumulative(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= x * x / f64::from(2 * n + 1);
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// The largest distance between the empirical and the expected cumulative function, times sqrt(n)
/// (Kolmogorov, Smirnov).
fn distance(values: &[f32], expected: impl Fn(f64) -> f64) -> f64 {
    let mut sorted: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let gap = |(rank, &x): (usize, &f64)| (expected(x) - (rank as f64 + 0.5) / n).abs();
    sorted.iter().enumerate().map(gap).fold(0.0, f64::max) * n.sqrt()
}

fn random_kinds() -> Vec<Initializer> {
    let scaling = |mode, distribution| Initializer::VarianceScaling {
        scale: 2.0,
        mode,
        distribution,
        fan_in: 100.0,
        fan_out: 300.0,
    };
    vec![
        Initializer::RandomUniform {
            min: -0.5,
            max: 1.5,
        },
        Initializer::RandomNormal {
            mean: 0.5,
            stddev: 2.0,
        },
        Initializer::TruncatedNormal {
            mean: -1.0,
            stddev: 0.5,
        },
        scaling(Mode::FanIn, Distribution::Uniform),
        scaling(Mode::FanOut, Distribution::UntruncatedNormal),
        scaling(Mode::FanAvg, Distribution::TruncatedNormal),
    ]
}

#[test]
fn constants_fill_every_column() {
    for (initializer, value) in [
        (Initializer::Zeros, 0.0),
        (Initializer::Ones, 1.0),
        (Initializer::Constant { value: -2.5 }, -2.5),
    ] {
        assert!(sample(&initializer, 3).iter().all(|&x| x == value));
    }
}

#[test]
fn uniform_values_fill_their_range_evenly() {
    let values = sample(
        &Initializer::RandomUniform {
            min: -0.5,
            max: 1.5,
        },
        5000,
    );
    assert!(values.iter().all(|x| (-0.5..1.5).contains(x)));
    assert!(
        distance(&values, |x| (x + 0.5) / 2.0) < 1.95,
        "1 in 1000 by chance"
    );
}

#[test]
fn normal_values_have_the_normal_shape_out_to_the_tails() {
    let values = sample(
        &Initializer::RandomNormal {
            mean: 3.0,
            stddev: 2.0,
        },
        25_000,
    );
    let (mean, stddev) = moments(&values);
    assert!(
        (mean - 3.0).abs() < 0.01 && (stddev - 2.0).abs() < 0.01,
        "{mean} {stddev}"
    );
    assert!(distance(&values, |x| cumulative((x - 3.0) / 2.0)) < 1.95);
    let beyond = values.iter().filter(|x| (**x - 3.0).abs() > 6.0).count() as f64;
    assert!(
        (beyond / values.len() as f64 - 0.0027).abs() < 0.0003,
        "{beyond}"
    );
}

#[test]
fn truncated_values_stay_within_two_deviations_and_have_the_cut_shape() {
    let values = sample(
        &Initializer::TruncatedNormal {
            mean: 0.0,
            stddev: 1.0,
        },
        25_000,
    );
    assert!(values.iter().all(|x| x.abs() < 2.0));
    assert!(values.iter().any(|x| x.abs() > 1.999));
    let (mean, stddev) = moments(&values);
    assert!(
        mean.abs() < 0.005 && (stddev - TRUNCATED_STDDEV).abs() < 0.005,
        "{mean} {stddev}"
    );
    let (least, within) = (cumulative(-2.0), cumulative(2.0) - cumulative(-2.0));
    assert!(distance(&values, |x| (cumulative(x) - least) / within) < 1.95);
}

#[test]
fn variance_scaling_gives_the_variance_of_its_mode() {
    for distribution in [
        Distribution::Uniform,
        Distribution::UntruncatedNormal,
        Distribution::TruncatedNormal,
    ] {
        for (mode, fan) in [
            (Mode::FanIn, 100.0),
            (Mode::FanOut, 300.0),
            (Mode::FanAvg, 200.0),
        ] {
            let (fan_in, fan_out) = (100.0, 300.0);
            let initializer = Initializer::VarianceScaling {
                scale: 2.0,
                mode,
                distribution,
                fan_in,
                fan_out,
            };
            let values = sample(&initializer, 10_000);
            let (mean, stddev) = moments(&values);
            let expected = (2.0_f64 / fan).sqrt();
            assert!(mean.abs() < expected * 0.01, "{initializer:?} {mean}");
            assert!(
                (stddev / expected - 1.0).abs() < 0.01,
                "{initializer:?} {stddev}"
            );
        }
    }
}

#[test]
fn a_fan_below_one_counts_as_one() {
    let of = |fan| Initializer::VarianceScaling {
        scale: 1.0,
        mode: Mode::FanIn,
        distribution: Distribution::Uniform,
        fan_in: fan,
        fan_out: 1.0,
    };
    assert_eq!(sample(&of(0.25), 3), sample(&of(1.0), 3));
}

#[test]
fn rows_of_different_keys_seeds_and_columns_differ() {
    let initializer = Initializer::RandomUniform { min: 0.0, max: 1.0 };
    let mut seen = std::collections::HashSet::new();
    let keys = [0, 1, -2, 1 << 32, -(1 << 32), i64::MIN, i64::MAX];
    for seed in [0, 1, 1 << 32, u64::MAX] {
        for key in keys {
            let mut row = [0.0; 64];
            initializer.fill(seed, key, &mut row);
            seen.insert(row.map(f32::to_bits));
            let columns: std::collections::HashSet<u32> = row.iter().map(|x| x.to_bits()).collect();
            assert_eq!(columns.len(), 64, "seed {seed}, key {key}");
        }
    }
    assert_eq!(seen.len(), 4 * keys.len());
}

#[test]
fn neighbouring_keys_are_not_correlated() {
    let initializer = Initializer::RandomNormal {
        mean: 0.0,
        stddev: 1.0,
    };
    let values = sample(&initializer, 10_000);
    for lag in [1, 4, 16, DIM, 2 * DIM] {
        let products = values
            .iter()
            .zip(&values[lag..])
            .map(|(a, b)| f64::from(a * b));
        let mean = products.sum::<f64>() / (values.len() - lag) as f64;
        assert!(
            mean.abs() < 4.0 / (values.len() as f64).sqrt(),
            "lag {lag}: {mean}"
        );
    }
}

#[test]
fn every_level_and_every_width_gives_the_same_bits() {
    let mut widths: Vec<usize> = (0..=67).collect();
    widths.push(8192);
    for initializer in random_kinds() {
        let mut whole = vec![0.0; 8192];
        initializer.fill_at(Level::forced(Isa::Scalar).unwrap(), 5, -77, &mut whole);
        for level in [Isa::Scalar, Isa::Avx2, Isa::Avx512]
            .into_iter()
            .filter_map(Level::forced)
        {
            for &width in &widths {
                let mut row = vec![9.0; width];
                initializer.fill_at(level, 5, -77, &mut row);
                assert!(
                    row.iter()
                        .zip(&whole)
                        .all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{initializer:?} {level:?} {width}"
                );
            }
        }
    }
}

/// Tables that were saved and go on training rely on these: new keys must get the rows they would
/// have had.
#[test]
fn values_of_a_few_keys_are_pinned() {
    let bits = |initializer: Initializer, seed, key| {
        let mut row = [0.0; 18];
        initializer.fill(seed, key, &mut row);
        [row[0], row[1], row[15], row[17]].map(f32::to_bits)
    };
    let uniform = Initializer::RandomUniform { min: 0.0, max: 1.0 };
    let normal = Initializer::RandomNormal {
        mean: 0.0,
        stddev: 1.0,
    };
    let truncated = Initializer::TruncatedNormal {
        mean: 0.0,
        stddev: 1.0,
    };
    assert_eq!(
        bits(uniform.clone(), 0, 0),
        [0x3ECC_4FD0, 0x3F78_E4CC, 0x3EDA_827C, 0x3EE6_9126]
    );
    assert_eq!(
        bits(uniform, 10_086, i64::MIN),
        [0x3E05_1038, 0x3EB8_9214, 0x3C8F_0760, 0x3F71_C3D1]
    );
    assert_eq!(
        bits(normal, 10_086, 42),
        [0x3F4D_827F, 0xBEEA_4F58, 0xBED3_B5D6, 0x3FD1_8389]
    );
    assert_eq!(
        bits(truncated, 10_086, 42),
        [0x3F42_11CC, 0xBEDE_EDF5, 0xBEC9_8CE1, 0x3FBB_B2CA]
    );
}

#[test]
fn wrong_parameters_are_refused_by_name_and_value() {
    let scaling = |scale, fan_in, fan_out| Initializer::VarianceScaling {
        scale,
        mode: Mode::FanIn,
        distribution: Distribution::Uniform,
        fan_in,
        fan_out,
    };
    for (initializer, message) in [
        (
            Initializer::Constant { value: f32::NAN },
            "value must be finite (value=NaN)",
        ),
        (
            Initializer::RandomUniform {
                min: f32::NEG_INFINITY,
                max: 0.0,
            },
            "min must be finite",
        ),
        (
            Initializer::RandomUniform {
                min: 0.0,
                max: f32::NAN,
            },
            "max must be finite",
        ),
        (
            Initializer::RandomUniform { min: 2.0, max: 1.0 },
            "above max (min=2, max=1)",
        ),
        (
            Initializer::RandomUniform {
                min: f32::MIN,
                max: f32::MAX,
            },
            "must fit float32",
        ),
        (
            Initializer::RandomNormal {
                mean: f32::NAN,
                stddev: 1.0,
            },
            "mean must be finite",
        ),
        (
            Initializer::RandomNormal {
                mean: 0.0,
                stddev: -1.0,
            },
            "negative (stddev=-1)",
        ),
        (
            Initializer::TruncatedNormal {
                mean: 0.0,
                stddev: f32::INFINITY,
            },
            "(stddev=inf)",
        ),
        (
            scaling(0.0, 1.0, 1.0),
            "scale must be finite and above 0 (scale=0)",
        ),
        (
            scaling(1.0, 0.0, 1.0),
            "fan_in must be finite and above 0 (fan_in=0)",
        ),
        (
            scaling(1.0, 1.0, f64::NAN),
            "fan_out must be finite and above 0 (fan_out=NaN)",
        ),
    ] {
        let error = initializer.validate().unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
        assert_eq!(error.kind(), crate::Kind::InvalidArgument);
    }
    for good in random_kinds() {
        good.validate().unwrap();
    }
    Initializer::RandomUniform { min: 1.0, max: 1.0 }
        .validate()
        .unwrap();
    Initializer::RandomNormal {
        mean: 0.0,
        stddev: 0.0,
    }
    .validate()
    .unwrap();
}

proptest! {
    #[test]
    fn any_seed_and_key_give_finite_values_within_bounds(seed: u64, key: i64) {
        let mut row = [0.0; 35];
        Initializer::RandomUniform { min: 0.0, max: 1.0 }.fill(seed, key, &mut row);
        prop_assert!(row.iter().all(|x| (0.0..1.0).contains(x)));
        Initializer::RandomNormal { mean: 0.0, stddev: 1.0 }.fill(seed, key, &mut row);
        prop_assert!(row.iter().all(|x| x.abs() < 6.5));
        Initializer::TruncatedNormal { mean: 0.0, stddev: 1.0 }.fill(seed, key, &mut row);
        prop_assert!(row.iter().all(|x| x.abs() < 2.0));
    }
}
