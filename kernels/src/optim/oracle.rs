//! The optimizers as one would write them on paper, in float64, and the tests that hold the real
//! ones against them.

use super::adadelta::Adadelta;
use super::adam::AdamW;
use super::adamax::AdaMax;
use super::ftrl::ftrl;
use super::momentum::KerasMomentum;
use super::nadam::Nadam;
use super::proximal::{ProximalAdagrad, ProximalSgd};
use super::rmsprop::{Centered, RmsProp};
use super::*;
use crate::simd::{Isa, Level};

/// One column with up to three slots, as `[weight, slot ..]`, and step number `t` from 1.
type Naive<'a> = Box<dyn Fn([f64; 4], f64, i32) -> [f64; 4] + 'a>;

/// An optimizer for step `t`, its first state beside the weight, and the same on paper.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) at: Box<dyn Fn(i32, Level) -> Box<dyn RowOptimizer>>,
    naive: Naive<'static>,
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for decay in [0.0_f32, 0.01] {
        cases.push(Case {
            name: "sgd",
            at: Box::new(move |_, level| match decay == 0.0 {
                true => Box::new(Sgd::new(0.1).unwrap().at(level)),
                false => Box::new(DecayedSgd::new(0.1, decay).unwrap().at(level)),
            }),
            naive: Box::new(move |[w, ..], g, _| {
                [w - 0.1 * (g + f64::from(decay) * w), 0.0, 0.0, 0.0]
            }),
        });
    }
    for nesterov in [false, true] {
        cases.push(Case {
            name: "momentum",
            at: Box::new(move |_, level| {
                Box::new(Momentum::new(0.05, 0.9, nesterov).unwrap().at(level))
            }),
            naive: Box::new(move |[w, a, ..], g, _| {
                let a = 0.9 * a + g;
                let step = if nesterov { g + 0.9 * a } else { a };
                [w - 0.05 * step, a, 0.0, 0.0]
            }),
        });
    }
    cases.push(Case {
        name: "adagrad",
        at: Box::new(|_, level| Box::new(Adagrad::new(0.3, 0.1).unwrap().at(level))),
        naive: Box::new(|[w, a, ..], g, _| {
            let a = a + g * g;
            [w - 0.3 * g / a.sqrt(), a, 0.0, 0.0]
        }),
    });
    cases.push(Case {
        name: "adagrad_v2",
        at: Box::new(|_, level| Box::new(Adagrad::with_epsilon(0.3, 0.2, 0.1).unwrap().at(level))),
        naive: Box::new(|[w, a, ..], g, _| {
            let a = a + g * g;
            [w - 0.3 * g / (a.sqrt() + f64::from(0.2_f32)), a, 0.0, 0.0]
        }),
    });
    for name in ["lazy_adam", "adam"] {
        cases.push(Case {
            name,
            at: Box::new(move |t, level| {
                let (one, other) = (0.9_f64.powi(t) as f32, 0.99_f64.powi(t) as f32);
                if name == "adam" {
                    let adam = Adam::new(0.01, 0.9, 0.99, 1e-6, one, other);
                    return Box::new(adam.unwrap().at(level));
                }
                let lazy = LazyAdam::new(0.01, 0.9, 0.99, 1e-6, one, other);
                Box::new(lazy.unwrap().at(level))
            }),
            naive: Box::new(|[w, m, v, _], g, t| {
                let m = 0.9 * m + 0.1 * g;
                let v = 0.99 * v + 0.01 * g * g;
                let lr = 0.01 * (1.0 - 0.99_f64.powi(t)).sqrt() / (1.0 - 0.9_f64.powi(t));
                [w - lr * m / (v.sqrt() + 1e-6), m, v, 0.0]
            }),
        });
    }
    let powers = |t| (0.9_f64.powi(t), 0.99_f64.powi(t));
    let moments = |m: f64, v: f64, g: f64| (0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g);
    cases.push(Case {
        name: "adamw",
        at: Box::new(move |t, level| {
            let (one, other) = powers(t);
            let numbers = [0.01, one as f32, other as f32, 0.9, 0.99, 1e-6, -0.02];
            Box::new(AdamW::new(numbers).unwrap().at(level))
        }),
        naive: Box::new(move |[w, m, v, _], g, t| {
            let ((one, other), (m, v)) = (powers(t), moments(m, v, g));
            let lr = 0.01 * (1.0 - other).sqrt() / (1.0 - one);
            [(1.0 - 0.02) * w - lr * m / (v.sqrt() + 1e-6), m, v, 0.0]
        }),
    });
    cases.push(Case {
        name: "nadam",
        at: Box::new(move |t, level| {
            let (one, other) = powers(t);
            let numbers = [0.01, one as f32, other as f32, 0.9, 0.99, 1e-6];
            Box::new(Nadam::new(numbers).unwrap().at(level))
        }),
        naive: Box::new(move |[w, m, v, _], g, t| {
            let ((one, other), (m, v)) = (powers(t), moments(m, v, g));
            let lr = 0.01 * (1.0 - other).sqrt() / (1.0 - one);
            let bar = 0.9 * m + 0.1 * g;
            [w - lr * bar / (v.sqrt() + 1e-6), m, v, 0.0]
        }),
    });
    // The momentums of Keras' Nadam, and their products.
    let momentum = |t: i32| 0.9 * (1.0 - 0.5 * 0.96_f64.powf(0.004 * f64::from(t)));
    let schedule = move |t: i32| (1..=t).map(momentum).product::<f64>();
    cases.push(Case {
        name: "scheduled_nadam",
        at: Box::new(move |t, level| {
            let now = [momentum(t), momentum(t + 1), schedule(t), schedule(t + 1)];
            let [one, next, product, next_product] = now.map(|x| x as f32);
            let power = powers(t).1 as f32;
            let numbers = [
                0.01,
                0.9,
                0.99,
                1e-6,
                one,
                next,
                product,
                next_product,
                power,
            ];
            Box::new(Nadam::scheduled(numbers).unwrap().at(level))
        }),
        naive: Box::new(move |[w, m, v, _], g, t| {
            let (m, v) = moments(m, v, g);
            let of_grad = (1.0 - momentum(t)) * g / (1.0 - schedule(t));
            let bar = of_grad + momentum(t + 1) * m / (1.0 - schedule(t + 1));
            let root = (v / (1.0 - powers(t).1)).sqrt();
            [w - 0.01 * bar / (root + 1e-6), m, v, 0.0]
        }),
    });
    cases.push(Case {
        name: "adamax",
        at: Box::new(move |t, level| {
            let numbers = [0.01, powers(t).0 as f32, 0.9, 0.99, 1e-6];
            Box::new(AdaMax::new(numbers).unwrap().at(level))
        }),
        naive: Box::new(move |[w, m, u, _], g, t| {
            let (m, u) = (0.9 * m + 0.1 * g, g.abs().max(0.99 * u));
            [w - 0.01 / (1.0 - powers(t).0) * m / (u + 1e-6), m, u, 0.0]
        }),
    });
    for (power, l1, l2, shrinkage) in [
        (-0.5, 0.0, 0.0, 0.0),
        (-0.5, 0.2, 0.3, 0.1),
        (-0.7, 0.2, 0.0, 0.1),
        (0.0, 0.0, 1.0, 0.0),
    ] {
        cases.push(Case {
            name: "ftrl",
            at: Box::new(move |_, level| {
                let [power, l1, l2, shrinkage] = [power, l1, l2, shrinkage].map(|x: f64| x as f32);
                ftrl([0.5, power, 0.1, l1, l2, shrinkage], level).unwrap()
            }),
            naive: Box::new(move |[w, a, z, _], g, _| {
                let next = a + g * g;
                let sigma = (next.powf(-power) - a.powf(-power)) / 0.5;
                let z = z + g + 2.0 * shrinkage * w - sigma * w;
                let w = if z.abs() > l1 {
                    (l1 * z.signum() - z) / (next.powf(-power) / 0.5 + 2.0 * l2)
                } else {
                    0.0
                };
                [w, next, z, 0.0]
            }),
        });
    }
    for nesterov in [false, true] {
        cases.push(Case {
            name: "keras_momentum",
            at: Box::new(move |t, level| {
                // The rate of a schedule: what the slot holds has it inside.
                let numbers = [0.05 / t as f32, 0.9];
                Box::new(KerasMomentum::new(numbers, nesterov).unwrap().at(level))
            }),
            naive: Box::new(move |[w, a, ..], g, t| {
                let step = 0.05 / f64::from(t) * g;
                let a = 0.9 * a - step;
                [w + if nesterov { 0.9 * a - step } else { a }, a, 0.0, 0.0]
            }),
        });
    }
    cases.push(Case {
        name: "adadelta",
        at: Box::new(|_, level| Box::new(Adadelta::new([0.5, 0.9, 1e-3]).unwrap().at(level))),
        naive: Box::new(|[w, a, u, _], g, _| {
            let a = 0.9 * a + 0.1 * g * g;
            let step = (u + 1e-3).sqrt() / (a + 1e-3).sqrt() * g;
            [w - 0.5 * step, a, 0.9 * u + 0.1 * step * step, 0.0]
        }),
    });
    let shrunk = |moved: f64, rate: f64, l1: f64, l2: f64| {
        moved.signum() * (moved.abs() - rate * l1).max(0.0) / (1.0 + rate * l2)
    };
    for (l1, l2) in [(0.0, 0.0), (0.0, 0.5), (0.25, 0.0), (0.25, 0.5)] {
        let penalties = [l1 as f32, l2 as f32];
        cases.push(Case {
            name: "proximal_sgd",
            at: Box::new(move |_, level| {
                let numbers = [0.1, penalties[0], penalties[1]];
                Box::new(ProximalSgd::new(numbers).unwrap().at(level))
            }),
            naive: Box::new(move |[w, ..], g, _| [shrunk(w - 0.1 * g, 0.1, l1, l2), 0.0, 0.0, 0.0]),
        });
        cases.push(Case {
            name: "proximal_adagrad",
            at: Box::new(move |_, level| {
                let numbers = [0.3, 0.1, penalties[0], penalties[1]];
                Box::new(ProximalAdagrad::new(numbers).unwrap().at(level))
            }),
            naive: Box::new(move |[w, a, ..], g, _| {
                let a = a + g * g;
                let rate = 0.3 / a.sqrt();
                [shrunk(w - rate * g, rate, l1, l2), a, 0.0, 0.0]
            }),
        });
    }
    for (centered, momentum) in [(false, 0.0), (false, 0.8), (true, 0.0), (true, 0.8)] {
        cases.push(Case {
            name: if centered {
                "centered_rmsprop"
            } else {
                "rmsprop"
            },
            at: Box::new(move |_, level| {
                let numbers = [0.01, 0.9, momentum as f32, 1e-3, 1.0];
                match centered {
                    true => Box::new(Centered::new(numbers).unwrap().at(level)),
                    false => Box::new(RmsProp::new(numbers).unwrap().at(level)),
                }
            }),
            naive: Box::new(move |[w, s, second, third], g, _| {
                let s = 0.9 * s + 0.1 * g * g;
                let (c, a) = if centered {
                    (0.9 * second + 0.1 * g, third)
                } else {
                    (0.0, second)
                };
                let a = momentum * a + 0.01 * g / (s - c * c + 1e-3).sqrt();
                if centered {
                    [w - a, s, c, a]
                } else {
                    [w - a, s, a, 0.0]
                }
            }),
        });
    }
    cases
}

#[test]
fn every_optimizer_of_the_list_is_here() {
    // Those with a slot for the row are no matter of one column: `rowwise` compares them.
    let is_by_column = |optimizer: &&Optimizer| optimizer.slots.iter().all(|slot| !slot.per_row);
    for optimizer in OPTIMIZERS.into_iter().filter(is_by_column) {
        // Nesterov's momentum is a case of momentum.
        let name = optimizer.name.replace("nesterov", "momentum");
        assert!(cases().iter().any(|case| case.name == name), "{name}");
    }
}

/// Numbers in [-1, 1) without a pattern.
pub(super) fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut row = vec![0.0; n];
    crate::Initializer::RandomUniform {
        min: -1.0,
        max: 1.0,
    }
    .fill(seed, 1, &mut row);
    row
}

/// A row `[embedding | slots]` of an optimizer, and where the slots start.
fn fresh(optimizer: &dyn RowOptimizer, dim: usize) -> (Vec<f32>, Vec<usize>) {
    let mut row = numbers(3, dim);
    let slots = optimizer.slots();
    slots
        .iter()
        .for_each(|slot| row.resize(row.len() + dim, slot.initial));
    (row, (1..=slots.len()).map(|slot| slot * dim).collect())
}

#[test]
fn every_optimizer_follows_the_paper_over_many_steps() {
    const DIM: usize = 37;
    const STEPS: i32 = 300;
    for case in cases() {
        let (mut row, slots) = fresh(&*(case.at)(1, Level::detect()), DIM);
        let state = |row: &[f32], column: usize| {
            std::array::from_fn(|part| row.get(part * DIM + column).map_or(0.0, |&x| f64::from(x)))
        };
        let mut paper: Vec<[f64; 4]> = (0..DIM).map(|column| state(&row, column)).collect();
        for t in 1..=STEPS {
            let grad = numbers(1000 + t as u64, DIM);
            (case.at)(t, Level::detect()).update(&mut row, &slots, &grad);
            for (column, paper) in paper.iter_mut().enumerate() {
                *paper = (case.naive)(*paper, f64::from(grad[column]), t);
            }
        }
        for (column, paper) in paper.iter().enumerate() {
            for (got, want) in state(&row, column).iter().zip(paper) {
                let error: f64 = got - want;
                let name = case.name;
                assert!(
                    error.abs() <= 3e-5 * want.abs().max(1.0),
                    "{name} {column}: {got} {want}"
                );
            }
        }
    }
}

#[test]
fn every_level_gives_the_bits_of_the_scalar_one_for_every_width() {
    let mut dims: Vec<usize> = (1..=67).collect();
    dims.push(8192);
    let odd = [
        0.0,
        -0.0,
        1e-40,
        -1e-30,
        1e20,
        f32::INFINITY,
        f32::NEG_INFINITY,
    ];
    for case in cases() {
        for &dim in &dims {
            let run = |isa| {
                let level = Level::forced(isa)?;
                let (mut row, slots) = fresh(&*(case.at)(1, level), dim);
                for t in 1..=4 {
                    let mut grad = numbers(t as u64, dim);
                    if t == 3 {
                        grad.iter_mut()
                            .zip(odd.iter().cycle())
                            .for_each(|(g, odd)| *g = *odd);
                    }
                    (case.at)(t, level).update(&mut row, &slots, &grad);
                }
                // The payload and sign of a NaN are the processor's business.
                let bits = |x: &f32| if x.is_nan() { u32::MAX } else { x.to_bits() };
                Some(row.iter().map(bits).collect::<Vec<_>>())
            };
            let scalar = run(Isa::Scalar);
            for isa in [Isa::Avx2, Isa::Avx512] {
                let wide = run(isa);
                assert!(
                    wide.is_none() || wide == scalar,
                    "{} {isa:?} dim {dim}",
                    case.name
                );
            }
        }
    }
}

#[test]
fn slots_may_lie_anywhere_in_the_row_and_nothing_else_is_touched() {
    let adam = LazyAdam::new(0.1, 0.9, 0.99, 1e-8, 0.9, 0.99).unwrap();
    let grad = numbers(5, 3);
    let (mut plain, slots) = fresh(&adam, 3);
    let mut spread = vec![7.0; 15];
    spread[..3].copy_from_slice(&plain[..3]);
    spread[12..15].fill(0.0);
    spread[6..9].fill(0.0);
    adam.update(&mut plain, &slots, &grad);
    adam.update(&mut spread, &[12, 6], &grad);
    assert_eq!(spread[..3], plain[..3]);
    assert_eq!(spread[12..15], plain[3..6]);
    assert_eq!(spread[6..9], plain[6..9]);
    assert!(spread[3..6].iter().chain(&spread[9..12]).all(|&x| x == 7.0));
}

#[test]
fn a_gradient_that_is_not_a_number_stays_in_its_column() {
    for case in cases() {
        let optimizer = (case.at)(1, Level::detect());
        let (mut row, slots) = fresh(&*optimizer, 20);
        let mut grad = numbers(6, 20);
        grad[7] = f32::NAN;
        optimizer.update(&mut row, &slots, &grad);
        let bad: Vec<usize> = (0..20).filter(|&column| row[column].is_nan()).collect();
        assert_eq!(bad, [7], "{}", case.name);
    }
}

#[test]
fn wrong_hyperparameters_are_refused_by_name_and_value() {
    let nan = f32::NAN;
    let errors = [
        (
            Sgd::new(-0.1).err(),
            "sgd: lr must be finite and not negative (lr=-0.1)",
        ),
        (DecayedSgd::new(0.1, nan).err(), "weight_decay=NaN"),
        (Momentum::new(f32::INFINITY, 0.9, false).err(), "lr=inf"),
        (
            Momentum::new(0.1, nan, true).err(),
            "nesterov: momentum must be finite (momentum=NaN)",
        ),
        (Adagrad::new(nan, 0.1).err(), "adagrad: lr"),
        (
            Adagrad::new(0.1, 0.0).err(),
            "initial_accumulator must be finite and above 0",
        ),
        (LazyAdam::new(-1.0, 0.9, 0.9, 1e-8, 0.9, 0.9).err(), "lr=-1"),
        (
            LazyAdam::new(0.1, 1.1, 0.9, 1e-8, 0.9, 0.9).err(),
            "beta1 must lie in [0, 1]",
        ),
        (
            LazyAdam::new(0.1, 0.9, nan, 1e-8, 0.9, 0.9).err(),
            "beta2=NaN",
        ),
        (
            LazyAdam::new(0.1, 0.9, 0.9, -1e-8, 0.9, 0.9).err(),
            "epsilon",
        ),
        (
            LazyAdam::new(0.1, 0.9, 0.9, 1e-8, 1.0, 0.9).err(),
            "beta1_power must lie in [0, 1)",
        ),
        (
            LazyAdam::new(0.1, 0.9, 0.9, 1e-8, 0.9, -0.1).err(),
            "beta2_power",
        ),
        (
            ftrl([0.0, -0.5, 0.1, 0.0, 0.0, 0.0], Level::detect()).err(),
            "ftrl: lr must be finite and above 0",
        ),
        (
            ftrl([1e-40, -0.5, 0.1, 0.0, 0.0, 0.0], Level::detect()).err(),
            "lr is too small",
        ),
        (
            ftrl([0.1, 0.5, 0.1, 0.0, 0.0, 0.0], Level::detect()).err(),
            "lr_power=0.5",
        ),
        (
            ftrl([0.1, -0.5, -0.1, 0.0, 0.0, 0.0], Level::detect()).err(),
            "initial_accumulator",
        ),
        (
            ftrl([0.1, -0.5, 0.1, -1.0, 0.0, 0.0], Level::detect()).err(),
            "l1=-1",
        ),
        (
            ftrl([0.1, -0.5, 0.1, 0.0, nan, 0.0], Level::detect()).err(),
            "l2=NaN",
        ),
        (
            ftrl([0.1, -0.5, 0.1, 0.0, 0.0, -2.0], Level::detect()).err(),
            "l2_shrinkage=-2",
        ),
        (
            RmsProp::new([-0.1, 0.9, 0.0, 1e-10, 1.0]).err(),
            "rmsprop: lr must be finite and not negative (lr=-0.1)",
        ),
        (
            Centered::new([0.1, 1.5, 0.0, 1e-10, 1.0]).err(),
            "centered_rmsprop: decay must lie in [0, 1] (decay=1.5)",
        ),
        (
            RmsProp::new([0.1, 0.9, nan, 1e-10, 1.0]).err(),
            "momentum=NaN",
        ),
        (RmsProp::new([0.1, 0.9, 0.0, -1.0, 1.0]).err(), "epsilon=-1"),
        (
            Centered::new([0.1, 0.9, 0.0, 1e-10, -1.0]).err(),
            "initial_rms=-1",
        ),
        (
            AdamW::new([0.1, 0.9, 0.9, 0.9, 0.9, 0.0, 0.0]).err(),
            "adamw: epsilon must be finite and above 0 (epsilon=0",
        ),
        (
            AdamW::new([0.1, 0.9, 0.9, 0.9, 0.9, 0.1, nan]).err(),
            "adamw: weight_change must be finite (weight_change=NaN)",
        ),
        (
            Nadam::new([0.1, 1.0, 0.9, 0.9, 0.9, 0.1]).err(),
            "nadam: beta1_power must lie in [0, 1) (beta1_power=1",
        ),
        (
            Nadam::scheduled([0.1, 0.9, 0.9, 0.1, 0.9, 0.9, 0.9, 1.0, 0.9]).err(),
            "scheduled_nadam: next_schedule must lie in [0, 1) (next_schedule=1",
        ),
        (
            KerasMomentum::new([0.1, nan], true).err(),
            "keras_nesterov: momentum must be finite (momentum=NaN)",
        ),
        (
            Adadelta::new([0.1, 1.5, 0.1]).err(),
            "adadelta: rho must lie in [0, 1] (rho=1.5)",
        ),
        (
            ProximalSgd::new([0.1, -1.0, 0.0]).err(),
            "proximal_sgd: l1 must be finite and not negative (l1=-1",
        ),
        (
            ProximalAdagrad::new([0.1, 0.0, 0.0, 0.0]).err(),
            "proximal_adagrad: initial_accumulator must be finite and above 0",
        ),
        (
            AdaMax::new([0.1, 0.9, 1.5, 0.9, 0.1]).err(),
            "adamax: beta1 must lie in [0, 1] (beta1=1.5)",
        ),
    ];
    for (error, text) in errors {
        let error = error.expect(text);
        assert_eq!(error.kind(), crate::Kind::InvalidArgument);
        assert!(error.to_string().contains(text), "{error} lacks {text}");
    }
}

#[test]
fn slot_names_are_those_of_checkpoints() {
    let names: Vec<String> = [
        Momentum::new(0.1, 0.9, false).unwrap().slots(),
        Adagrad::new(0.1, 0.9).unwrap().slots(),
        LazyAdam::new(0.1, 0.9, 0.99, 1e-8, 0.9, 0.99)
            .unwrap()
            .slots(),
        ftrl([0.1, -0.5, 0.1, 0.0, 0.0, 0.0], Level::detect())
            .unwrap()
            .slots(),
        Centered::new([0.1, 0.9, 0.0, 1e-10, 1.0]).unwrap().slots(),
        AdaMax::new([0.1, 0.9, 0.9, 0.9, 0.1]).unwrap().slots(),
        KerasMomentum::new([0.1, 0.9], false).unwrap().slots(),
        Adadelta::new([0.1, 0.9, 0.1]).unwrap().slots(),
        ProximalAdagrad::new([0.1, 0.2, 0.0, 0.0]).unwrap().slots(),
    ]
    .into_iter()
    .flatten()
    .map(|slot| format!("{}={}", slot.name, slot.initial))
    .collect();
    let expected = "Momentum_momentum=0 Adagrad_accumulator=0.9 LazyAdam_momentum=0 \
                    LazyAdam_velocity=0 Ftrl_accum=0.1 Ftrl_linear=0 RMSProp_rms=1 RMSProp_mg=0 \
                    RMSProp_momentum=0 AdaMax_momentum=0 AdaMax_infinity_norm=0 \
                    KerasMomentum_momentum=0 Adadelta_accum=0 Adadelta_accum_update=0 \
                    ProximalAdagrad_accumulator=0.2";
    assert_eq!(names.join(" "), expected);
}
