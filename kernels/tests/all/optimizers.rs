//! Every optimizer of the engine for tests that run with each, with numbers by their names.

use mx_rec_kernels::{RowOptimizer, OPTIMIZERS};

/// Step `step`, from 0, of the optimizer at a place of the list.
pub(crate) fn optimizer(at: usize, step: usize) -> Box<dyn RowOptimizer> {
    let power = |base: f32| base.powi(step as i32 + 1);
    let numbers = OPTIMIZERS[at]
        .numbers
        .iter()
        .map(|number| match number.name {
            "lr" | "initial_accumulator" => 0.1,
            "weight_decay" | "l1" | "l2" | "l2_shrinkage" => 0.01,
            "momentum" | "next_momentum" => 0.8,
            "schedule" => 0.8_f32.powi(step as i32 + 1),
            "next_schedule" => 0.8_f32.powi(step as i32 + 2),
            "weight_change" => -0.01,
            "beta1_power" => power(0.9),
            "beta2_power" => power(0.99),
            "beta1" | "decay" | "rho" => 0.9,
            "beta2" => 0.99,
            "epsilon" => 1e-8,
            "lr_power" => -0.5,
            "initial_rms" => 1.0,
            other => panic!("a number for {other}"),
        });
    let numbers: Vec<f32> = numbers.collect();
    OPTIMIZERS[at].step(&numbers).unwrap()
}
