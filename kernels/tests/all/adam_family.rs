//! What AdamW and the two forms of Nadam give every row is what they give it on paper, in all rows.

use crate::adam::{apply, both, trained, Dense, Draw, Numbers, DIM, USUAL};
use crate::singles::Singles as _;
use mx_rec_kernels::{Optimizer, Pool, RowOptimizer, SlotSpec, OPTIMIZERS};

/// The momentum of step `t` of Keras' Nadam.
fn momentum(t: i32) -> f64 {
    0.9 * (1.0 - 0.5 * 0.96_f64.powf(0.004 * f64::from(t)))
}

/// The product of the momentums up to step `t`.
fn schedule(t: i32) -> f64 {
    (1..=t).map(momentum).product()
}

fn named(name: &str) -> &'static Optimizer {
    let mut all = OPTIMIZERS.into_iter();
    all.find(|one| one.name == name).unwrap()
}

fn step_of(name: &str, now: Numbers, step: i32) -> Box<dyn RowOptimizer> {
    let (power1, power2) = now.powers(step);
    let values = named(name).numbers.iter().map(|number| match number.name {
        "lr" => now.lr,
        "beta1_power" => power1,
        "beta2_power" => power2,
        "beta1" => now.beta1,
        "beta2" => now.beta2,
        "epsilon" => now.epsilon,
        "weight_change" => -0.01,
        "momentum" => momentum(step) as f32,
        "next_momentum" => momentum(step + 1) as f32,
        "schedule" => schedule(step) as f32,
        "next_schedule" => schedule(step + 1) as f32,
        other => panic!("a number for {other}"),
    });
    named(name).step(&values.collect::<Vec<_>>()).unwrap()
}

/// The same in the rows of the batch alone.
struct Lazy(Box<dyn RowOptimizer>);

impl RowOptimizer for Lazy {
    fn slots(&self) -> Vec<SlotSpec> {
        self.0.slots()
    }

    fn update(&self, row: &mut [f32], slots: &[usize], grad: &[f32]) {
        self.0.update(row, slots, grad);
    }
}

/// A step in all rows, in float64; `grads` has zeros for rows outside of the batch.
fn on_paper(name: &str, rows: &mut [[f64; 3]], now: Numbers, t: i32, grads: &[(bool, f64)]) {
    let [lr, b1, b2, epsilon] = [now.lr, now.beta1, now.beta2, now.epsilon].map(f64::from);
    let (power1, power2) = now.powers(t);
    let [power1, power2] = [power1, power2].map(f64::from);
    let lr_t = lr * (1.0 - power2).sqrt() / (1.0 - power1);
    let [of_grad, of_m] = [
        (1.0 - momentum(t)) / (1.0 - schedule(t)),
        momentum(t + 1) / (1.0 - schedule(t + 1)),
    ];
    for ([w, m, v], &(is_in_batch, grad)) in rows.iter_mut().zip(grads) {
        *m = b1 * *m + (1.0 - b1) * grad;
        *v = b2 * *v + (1.0 - b2) * grad * grad;
        let is_in_batch = f64::from(is_in_batch);
        *w -= match name {
            "adamw" => is_in_batch * 0.01 * *w + lr_t * *m / (v.sqrt() + epsilon),
            "nadam" => is_in_batch * lr_t * (b1 * *m + (1.0 - b1) * grad) / (v.sqrt() + epsilon),
            _ => {
                let bar = of_grad * grad + of_m * *m;
                is_in_batch * lr * bar / ((*v / (1.0 - power2)).sqrt() + epsilon)
            }
        };
    }
}

/// The differences of optimizers from a form on paper.
fn trained_as<const N: usize>(
    name: &str,
    numbers: impl Fn(i32) -> Numbers,
    steps: impl Fn(Numbers, i32) -> [Box<dyn RowOptimizer>; N],
) -> [(f64, f64); N] {
    let of_all_rows = |dense: &mut Dense, now, step, keys: &[i64], grads: &[f32]| {
        let mut of_all = vec![(false, 0.0); dense.0.len()];
        for (&key, grads) in keys.iter().zip(grads.chunks_exact(DIM)) {
            let row = &mut of_all[key as usize * DIM..];
            let pairs = row.iter_mut().zip(grads);
            pairs.for_each(|(of_all, &grad)| *of_all = (true, f64::from(grad)));
        }
        on_paper(name, &mut dense.0, now, step, &of_all);
    };
    trained(numbers, of_all_rows, steps)
}

#[test]
fn every_row_has_the_numbers_of_the_form_that_changes_all_rows_and_the_lazy_form_has_not() {
    for name in ["adamw", "nadam", "scheduled_nadam"] {
        let numbers = |step| Numbers {
            lr: 0.002 * 0.998_f32.powi(step),
            ..USUAL
        };
        let [found, lazy] = trained_as(name, numbers, |now, step| {
            let lazy = Lazy(step_of(name, now, step));
            [step_of(name, now, step), Box::new(lazy)]
        });
        assert!(found.0 < 2e-6 && found.1 < 2e-7, "{name}: {found:?}");
        assert!(lazy.0 > 1e-3, "{name}: {lazy:?}");
        let numbers = |step| Numbers {
            beta1: if step / 100 % 2 == 0 { 0.9 } else { 0.5 },
            beta2: 0.99,
            ..USUAL
        };
        let [found] = trained_as(name, numbers, |now, step| [step_of(name, now, step)]);
        assert!(
            found.0 < 2e-6 && found.1 < 2e-7,
            "{name} with other betas: {found:?}"
        );
    }
}

#[test]
fn rows_that_nadam_leaves_alone_keep_all_their_bits_while_their_moments_decay() {
    let pool = Pool::new(1).unwrap();
    let (table, _) = both(&pool, 100);
    let read = || {
        let (keys, mut rows) = ((0..100).collect::<Vec<i64>>(), vec![0.0; 100 * DIM]);
        let ids = mx_rec_kernels::Ids::I64(&keys);
        let absent = mx_rec_kernels::Absent::Zeros;
        table.find(&pool, ids, absent, &mut rows).unwrap();
        rows.iter().map(|one| one.to_bits()).collect::<Vec<_>>()
    };
    let keys: Vec<i64> = (0..100).collect();
    let grads = Draw(3).grads(&keys);
    apply(&table, &pool, &keys, &grads, &*step_of("nadam", USUAL, 1));
    let before = read();
    // More steps than a span has.
    for step in 2..=3000 {
        apply(
            &table,
            &pool,
            &[7],
            &[0.5; DIM],
            &*step_of("nadam", USUAL, step),
        );
    }
    let after = read();
    for (key, (one, other)) in before.chunks(DIM).zip(after.chunks(DIM)).enumerate() {
        assert_eq!(one == other, key != 7, "{key}");
    }
    // An epsilon of 0 is one of tf.contrib.opt.NadamOptimizer: the rows of the batch have a v.
    let now = Numbers {
        epsilon: 0.0,
        ..USUAL
    };
    for step in 3001..=3010 {
        apply(
            &table,
            &pool,
            &[7],
            &[0.5; DIM],
            &*step_of("nadam", now, step),
        );
    }
    let last = read();
    assert!(last[..7 * DIM] == after[..7 * DIM]);
    assert!(last.iter().all(|&bits| f32::from_bits(bits).is_finite()));
}
