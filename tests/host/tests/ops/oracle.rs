//! The oracle: a table as a map from key to numbers of 64 bits, and optimizers as docs/ops.md
//! writes them.

use std::collections::BTreeMap;

/// Random numbers that are the same at every run (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `end` - 1.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A gradient: from -1 to 1, never 0.
    pub(crate) fn gradient(&mut self) -> f32 {
        (self.below(4000) as f32 + 0.5) / 2000.0 - 1.0
    }
}

/// The formula of an optimizer: arguments of the step, weight, slots, gradient; the new weight.
type Rule = fn(&[f64], f64, &mut [f64], f64) -> f64;

/// An optimizer.
pub(crate) struct Optimizer {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its number in docs/ops.md.
    pub(crate) number: i64,
    /// The arguments of a step, by its number from 1.
    pub(crate) arguments: fn(i32) -> Vec<f32>,
    /// Its slots, and what they start at.
    pub(crate) slots: &'static [(&'static str, f64)],
    rule: Rule,
    /// What a step does to rows without a gradient, whose gradient is then 0; `None` for nothing.
    others: Option<Rule>,
}

impl Optimizer {
    /// Whether a step changes the rows without a gradient as well, or their slots.
    pub(crate) fn changes_all_rows(&self) -> bool {
        self.others.is_some()
    }
}

/// Every optimizer of docs/ops.md, with its variants.
pub(crate) const OPTIMIZERS: [Optimizer; 21] = [
    Optimizer {
        name: "sgd",
        number: 0,
        arguments: |_| vec![0.3, 0.0],
        slots: &[],
        rule: sgd,
        others: None,
    },
    Optimizer {
        name: "sgd",
        number: 0,
        arguments: |_| vec![0.3, 0.25],
        slots: &[],
        rule: sgd,
        others: None,
    },
    Optimizer {
        name: "momentum",
        number: 1,
        arguments: |_| vec![0.3, 0.75],
        slots: &[("Momentum_momentum", 0.0)],
        rule: |arguments, w, slots, g| momentum(arguments, w, slots, g, false),
        others: None,
    },
    Optimizer {
        name: "nesterov",
        number: 2,
        arguments: |_| vec![0.3, 0.75],
        slots: &[("Momentum_momentum", 0.0)],
        rule: |arguments, w, slots, g| momentum(arguments, w, slots, g, true),
        others: None,
    },
    Optimizer {
        name: "adagrad",
        number: 3,
        arguments: |_| vec![0.3, 0.25],
        slots: &[("Adagrad_accumulator", 0.25)],
        rule: adagrad,
        others: None,
    },
    Optimizer {
        name: "adagrad_v2",
        number: 13,
        arguments: |_| vec![0.3, 0.0625, 0.25],
        slots: &[("Adagrad_accumulator", 0.25)],
        rule: |arguments, w, slots, g| {
            slots[0] += g * g;
            w - arguments[0] * g / (slots[0].sqrt() + arguments[1])
        },
        others: None,
    },
    Optimizer {
        name: "lazy_adam",
        number: 4,
        arguments: of_adam,
        slots: MOMENTS,
        rule: lazy_adam,
        others: None,
    },
    Optimizer {
        name: "ftrl",
        number: 5,
        arguments: |_| vec![0.3, -0.5, 0.25, 0.125, 0.0625, 0.03125],
        slots: &[("Ftrl_accum", 0.25), ("Ftrl_linear", 0.0)],
        rule: ftrl,
        others: None,
    },
    Optimizer {
        name: "ftrl",
        number: 5,
        arguments: |_| vec![0.3, -0.75, 0.25, 0.125, 0.0625, 0.03125],
        slots: &[("Ftrl_accum", 0.25), ("Ftrl_linear", 0.0)],
        rule: ftrl,
        others: None,
    },
    Optimizer {
        name: "rmsprop",
        number: 6,
        arguments: |_| vec![0.125, 0.75, 0.5, 1e-3, 0.5],
        slots: &[("RMSProp_rms", 0.5), ("RMSProp_momentum", 0.0)],
        rule: rmsprop,
        others: None,
    },
    Optimizer {
        name: "centered_rmsprop",
        number: 7,
        arguments: |_| vec![0.125, 0.75, 0.5, 1e-3, 0.5],
        slots: &[
            ("RMSProp_rms", 0.5),
            ("RMSProp_mg", 0.0),
            ("RMSProp_momentum", 0.0),
        ],
        rule: rmsprop,
        others: None,
    },
    Optimizer {
        name: "keras_momentum",
        number: 16,
        arguments: |step| vec![0.3 / step as f32, 0.75],
        slots: &[("KerasMomentum_momentum", 0.0)],
        rule: |arguments, w, slots, g| {
            slots[0] = slots[0] * arguments[1] - arguments[0] * g;
            w + slots[0]
        },
        others: None,
    },
    Optimizer {
        name: "keras_nesterov",
        number: 17,
        arguments: |step| vec![0.3 / step as f32, 0.75],
        slots: &[("KerasMomentum_momentum", 0.0)],
        rule: |arguments, w, slots, g| {
            slots[0] = slots[0] * arguments[1] - arguments[0] * g;
            w + slots[0] * arguments[1] - arguments[0] * g
        },
        others: None,
    },
    Optimizer {
        name: "adadelta",
        number: 18,
        arguments: |_| vec![0.5, 0.75, 1e-3],
        slots: &[("Adadelta_accum", 0.0), ("Adadelta_accum_update", 0.0)],
        rule: |arguments, w, slots, g| {
            let (lr, rho, epsilon) = (arguments[0], arguments[1], arguments[2]);
            slots[0] = rho * slots[0] + (1.0 - rho) * g * g;
            let step = ((slots[1] + epsilon) / (slots[0] + epsilon)).sqrt() * g;
            slots[1] = rho * slots[1] + (1.0 - rho) * step * step;
            w - lr * step
        },
        others: None,
    },
    Optimizer {
        name: "proximal_sgd",
        number: 19,
        arguments: |_| vec![0.3, 0.125, 0.25],
        slots: &[],
        rule: |arguments, w, _, g| shrunk(arguments[0], &arguments[1..], w, g),
        others: None,
    },
    Optimizer {
        name: "proximal_adagrad",
        number: 20,
        arguments: |_| vec![0.3, 0.25, 0.125, 0.25],
        slots: &[("ProximalAdagrad_accumulator", 0.25)],
        rule: |arguments, w, slots, g| {
            slots[0] += g * g;
            shrunk(arguments[0] / slots[0].sqrt(), &arguments[2..], w, g)
        },
        others: None,
    },
    Optimizer {
        name: "adam",
        number: 8,
        arguments: of_adam,
        slots: MOMENTS,
        rule: lazy_adam,
        others: Some(lazy_adam),
    },
    Optimizer {
        name: "adamw",
        number: 9,
        arguments: |step| [of_adam(step), vec![-0.125]].concat(),
        slots: MOMENTS,
        rule: |arguments, w, slots, g| lazy_adam(arguments, w + arguments[6] * w, slots, g),
        others: Some(lazy_adam),
    },
    Optimizer {
        name: "nadam",
        number: 10,
        arguments: of_adam,
        slots: MOMENTS,
        rule: |arguments, w, slots, g| {
            let (beta1, epsilon) = (arguments[3], arguments[5]);
            let lr = arguments[0] * (1.0 - arguments[2]).sqrt() / (1.0 - arguments[1]);
            lazy_adam(arguments, w, slots, g);
            let bar = (1.0 - beta1) * g + beta1 * slots[0];
            w - lr * bar / (slots[1].sqrt() + epsilon)
        },
        others: Some(|arguments, w, slots, g| {
            lazy_adam(arguments, w, slots, g);
            w
        }),
    },
    Optimizer {
        name: "scheduled_nadam",
        number: 11,
        arguments: |step| {
            let (beta1, beta2, schedule) = (0.75_f32, 0.875_f32, 0.5_f32);
            let (now, next) = (schedule.powi(step), schedule.powi(step + 1));
            vec![
                0.3,
                beta1,
                beta2,
                1e-4,
                0.5,
                0.5,
                now,
                next,
                beta2.powi(step),
            ]
        },
        slots: MOMENTS,
        rule: |arguments, w, slots, g| {
            let (beta1, beta2, epsilon) = (arguments[1], arguments[2], arguments[3]);
            lazy_adam(&[0.0, 0.0, 0.0, beta1, beta2, epsilon], w, slots, g);
            let of_grad = (1.0 - arguments[4]) * g / (1.0 - arguments[6]);
            let bar = of_grad + arguments[5] * slots[0] / (1.0 - arguments[7]);
            let root = (slots[1] / (1.0 - arguments[8])).sqrt();
            w - arguments[0] * bar / (root + epsilon)
        },
        others: Some(|arguments, w, slots, g| {
            let of_moments = [0.0, 0.0, 0.0, arguments[1], arguments[2], 1.0];
            lazy_adam(&of_moments, w, slots, g);
            w
        }),
    },
    Optimizer {
        name: "adamax",
        number: 12,
        arguments: |step| vec![0.3, 0.75_f32.powi(step), 0.75, 0.875, 1e-4],
        slots: &[("AdaMax_momentum", 0.0), ("AdaMax_infinity_norm", 0.0)],
        rule: |arguments, w, slots, g| {
            let (beta1, beta2, epsilon) = (arguments[2], arguments[3], arguments[4]);
            slots[0] = beta1 * slots[0] + (1.0 - beta1) * g;
            slots[1] = g.abs().max(beta2 * slots[1]);
            w - arguments[0] / (1.0 - arguments[1]) * slots[0] / (slots[1] + epsilon)
        },
        others: None,
    },
];

/// The slots of Adam and its like.
const MOMENTS: &[(&str, f64)] = &[("LazyAdam_momentum", 0.0), ("LazyAdam_velocity", 0.0)];

/// The arguments of a step of Adam.
fn of_adam(step: i32) -> Vec<f32> {
    let (beta1, beta2) = (0.75_f32, 0.875_f32);
    vec![0.3, beta1.powi(step), beta2.powi(step), beta1, beta2, 1e-4]
}

fn sgd(arguments: &[f64], w: f64, _: &mut [f64], g: f64) -> f64 {
    let (lr, decay) = (arguments[0], arguments[1]);
    w - lr * (g + decay * w)
}

fn momentum(arguments: &[f64], w: f64, slots: &mut [f64], g: f64, nesterov: bool) -> f64 {
    let (lr, momentum) = (arguments[0], arguments[1]);
    slots[0] = slots[0] * momentum + g;
    match nesterov {
        false => w - lr * slots[0],
        true => w - lr * (g + momentum * slots[0]),
    }
}

/// A step of gradient descent by `rate`, and what penalties `[l1, l2]` leave of the weight.
fn shrunk(rate: f64, penalties: &[f64], w: f64, g: f64) -> f64 {
    let moved = w - rate * g;
    moved.signum() * (moved.abs() - rate * penalties[0]).max(0.0) / (1.0 + rate * penalties[1])
}

fn adagrad(arguments: &[f64], w: f64, slots: &mut [f64], g: f64) -> f64 {
    slots[0] += g * g;
    w - arguments[0] * g / slots[0].sqrt()
}

fn lazy_adam(arguments: &[f64], w: f64, slots: &mut [f64], g: f64) -> f64 {
    let (lr, power1, power2) = (arguments[0], arguments[1], arguments[2]);
    let (beta1, beta2, epsilon) = (arguments[3], arguments[4], arguments[5]);
    slots[0] = beta1 * slots[0] + (1.0 - beta1) * g;
    slots[1] = beta2 * slots[1] + (1.0 - beta2) * g * g;
    w - lr * (1.0 - power2).sqrt() / (1.0 - power1) * slots[0] / (slots[1].sqrt() + epsilon)
}

/// As in TensorFlow's SparseApplyFtrlV2.
fn ftrl(arguments: &[f64], w: f64, slots: &mut [f64], g: f64) -> f64 {
    let (lr, power, l1) = (arguments[0], -arguments[1], arguments[3]);
    let (l2, shrinkage) = (arguments[4], arguments[5]);
    let (old, new) = (slots[0], slots[0] + g * g);
    let sigma = (new.powf(power) - old.powf(power)) / lr;
    slots[0] = new;
    slots[1] += g + 2.0 * shrinkage * w - sigma * w;
    let z = slots[1];
    (z.clamp(-l1, l1) - z) / (new.powf(power) / lr + 2.0 * l2)
}

/// As in TensorFlow's SparseApplyRMSProp, and with three slots as in SparseApplyCenteredRMSProp.
fn rmsprop(arguments: &[f64], w: f64, slots: &mut [f64], g: f64) -> f64 {
    let (lr, decay, momentum, epsilon) = (arguments[0], arguments[1], arguments[2], arguments[3]);
    slots[0] = decay * slots[0] + (1.0 - decay) * g * g;
    let mut below = slots[0] + epsilon;
    if slots.len() == 3 {
        slots[1] = decay * slots[1] + (1.0 - decay) * g;
        below -= slots[1] * slots[1];
    }
    let last = slots.len() - 1;
    slots[last] = momentum * slots[last] + lr * g / below.sqrt();
    w - slots[last]
}

/// A table in plain numbers.
pub(crate) struct Oracle {
    /// For each key its row, and one for each slot of the optimizer.
    rows: BTreeMap<i64, Vec<Vec<f64>>>,
    dim: usize,
}

impl Oracle {
    pub(crate) fn new(dim: usize) -> Oracle {
        let rows = BTreeMap::new();
        Oracle { rows, dim }
    }

    /// One step: gradients of a key are summed, then its row is updated once. Rows start at 0.5,
    /// -1 is padding. Gives how many rows were updated.
    pub(crate) fn step(&mut self, with: &Optimizer, step: i32, ids: &[i64], grad: &[f32]) -> i64 {
        let arguments: Vec<f64> = (with.arguments)(step).iter().map(|&x| x.into()).collect();
        let mut sums = BTreeMap::new();
        for (&key, grad) in ids.iter().zip(grad.chunks(self.dim)) {
            let sum = sums.entry(key).or_insert_with(|| vec![0.0; self.dim]);
            sum.iter_mut()
                .zip(grad)
                .for_each(|(sum, &g)| *sum += f64::from(g));
        }
        sums.remove(&-1);
        let updated = sums.len() as i64;
        let none = vec![0.0; self.dim];
        let others = self.rows.keys().filter(|&key| !sums.contains_key(key));
        let others: Vec<_> = match with.others {
            Some(rule) => others.map(|&key| (key, rule, &none)).collect(),
            None => Vec::new(),
        };
        let batch = sums.iter().map(|(&key, sum)| (key, with.rule, sum));
        for (key, rule, sum) in batch.chain(others) {
            let row = self.rows.entry(key).or_insert_with(|| {
                let slots = with.slots.iter().map(|(_, start)| vec![*start; self.dim]);
                [vec![0.5; self.dim]].into_iter().chain(slots).collect()
            });
            for (column, &g) in sum.iter().enumerate() {
                let mut slots: Vec<f64> = row[1..].iter().map(|slot| slot[column]).collect();
                row[0][column] = rule(&arguments, row[0][column], &mut slots, g);
                for (to, slot) in row[1..].iter_mut().zip(slots) {
                    to[column] = slot;
                }
            }
        }
        updated
    }

    /// Fails unless the rows (`part` 0) or the values of slot `part` - 1 are these.
    pub(crate) fn compare(&self, part: usize, found: &[(i64, Vec<f32>)], what: &str) {
        let keys: Vec<i64> = found.iter().map(|(key, _)| *key).collect();
        let expected: Vec<i64> = self.rows.keys().copied().collect();
        assert_eq!(keys, expected, "{what}");
        for ((key, found), row) in found.iter().zip(self.rows.values()) {
            for (column, (&found, &expected)) in found.iter().zip(&row[part]).enumerate() {
                let apart = (f64::from(found) - expected).abs();
                assert!(
                    apart <= 2e-5 * expected.abs().max(0.1),
                    "{what}: key {key} column {column} is {found}, and should be {expected}"
                );
            }
        }
    }
}
