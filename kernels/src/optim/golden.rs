//! Numbers that TensorFlow gives, which the optimizers have to give.

use super::adadelta::Adadelta;
use super::ftrl::ftrl;
use super::momentum::KerasMomentum;
use super::proximal::{ProximalAdagrad, ProximalSgd};
use super::rmsprop::{Centered, RmsProp};
use super::*;
use crate::simd::Level;

/// Facts: what TensorFlow 1.15.5 gives for the weights, gradients and settings of its own optimizer
/// tests, sparse gradients.
#[test]
fn tensorflows_own_test_values_come_out() {
    let adam = |t| -> Box<dyn RowOptimizer> {
        Box::new(
            LazyAdam::new(0.001, 0.9, 0.999, 1e-8, 0.9_f32.powi(t), 0.999_f32.powi(t)).unwrap(),
        )
    };
    let ftrl = |power, l1, l2, shrinkage| -> Box<dyn Fn(i32) -> Box<dyn RowOptimizer>> {
        Box::new(move |_| ftrl([3.0, power, 0.1, l1, l2, shrinkage], Level::detect()).unwrap())
    };
    let momentum = |nesterov| -> Box<dyn Fn(i32) -> Box<dyn RowOptimizer>> {
        Box::new(move |_| Box::new(Momentum::new(2.0, 0.9, nesterov).unwrap()))
    };
    let rmsprop = |momentum, epsilon, centered| -> Box<dyn Fn(i32) -> Box<dyn RowOptimizer>> {
        let numbers = [2.0, 0.9, momentum, epsilon, 1.0];
        Box::new(move |_| match centered {
            true => Box::new(Centered::new(numbers).unwrap()),
            false => Box::new(RmsProp::new(numbers).unwrap()),
        })
    };
    let keras_momentum = |nesterov| -> Box<dyn Fn(i32) -> Box<dyn RowOptimizer>> {
        Box::new(move |_| Box::new(KerasMomentum::new([2.0, 0.9], nesterov).unwrap()))
    };
    let proximal_sgd = |l1, l2| -> Box<dyn Fn(i32) -> Box<dyn RowOptimizer>> {
        Box::new(move |_| Box::new(ProximalSgd::new([3.0, l1, l2]).unwrap()))
    };
    let proximal_adagrad = |l1, l2| -> Box<dyn Fn(i32) -> Box<dyn RowOptimizer>> {
        Box::new(move |_| Box::new(ProximalAdagrad::new([3.0, 0.1, l1, l2]).unwrap()))
    };
    type At = Box<dyn Fn(i32) -> Box<dyn RowOptimizer>>;
    type Golden<'a> = (At, i32, [f32; 4], [f32; 4], [f32; 4], &'a [[f32; 4]]);
    let (even, mixed) = ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 4.0, 3.0]);
    let (flat, slope) = ([0.1, 0.1, 0.01, 0.01], [0.1, 0.2, 0.01, 0.02]);
    let signs = [1.0, -2.0, 0.3, -0.4];
    let goldens: Vec<Golden> = vec![
        (
            Box::new(|_| Box::new(Sgd::new(3.0).unwrap())),
            1,
            even,
            flat,
            [0.7, 1.7, 2.97, 3.97],
            &[],
        ),
        (
            Box::new(|_| Box::new(Adagrad::new(3.0, 0.1).unwrap())),
            3,
            even,
            flat,
            [-1.602_609_9, -0.602_609_93, 2.715_679_2, 3.715_679_2],
            &[[0.13, 0.13, 0.1003, 0.1003]],
        ),
        (
            momentum(false),
            2,
            even,
            flat,
            [0.42, 1.42, 2.942, 3.942],
            &[[0.19, 0.19, 0.019, 0.019]],
        ),
        (
            momentum(true),
            4,
            even,
            flat,
            [-1.428_819_9, -0.428_819_9, 2.757_118, 3.757_118],
            &[[0.3439, 0.3439, 0.034_39, 0.034_39]],
        ),
        (
            Box::new(adam),
            3,
            even,
            flat,
            [0.997, 1.997, 2.997, 3.997],
            &[
                [0.0271, 0.0271, 0.002_71, 0.002_71],
                [
                    2.996_962_6e-5,
                    2.996_962_6e-5,
                    2.996_962_4e-7,
                    2.996_962_4e-7,
                ],
            ],
        ),
        (
            ftrl(-0.5, 0.0, 0.0, 0.0),
            3,
            [0.0; 4],
            slope,
            [-2.602_609_6, -4.296_985, -0.284_320_9, -0.566_948_95],
            &[
                [0.13, 0.22, 0.1003, 0.1012],
                [0.312_794_74, 0.671_821_6, 0.030_014_975, 0.060_119_163],
            ],
        ),
        (
            ftrl(-0.5, 0.0, 0.0, 0.0),
            3,
            mixed,
            slope,
            [-2.556_072_5, -3.987_294, -0.282_322_4, -0.560_966_73],
            &[],
        ),
        (
            ftrl(-0.5, 0.001, 0.0, 0.0),
            10,
            mixed,
            slope,
            [-7.667_188, -10.912_738, -0.934_607_27, -1.861_472_4],
            &[],
        ),
        (
            ftrl(-0.5, 0.001, 2.0, 0.0),
            10,
            mixed,
            slope,
            [-0.240_599_35, -0.468_293_52, -0.024_061_473, -0.048_305_087],
            &[],
        ),
        (
            ftrl(-0.5, 0.001, 2.0, 0.1),
            10,
            mixed,
            slope,
            [-0.225_789_95, -0.443_457_96, -0.143_784_93, -0.132_294_76],
            &[
                [0.2, 0.5, 0.101, 0.104],
                [0.937_818_6, 1.879_355_8, 0.591_371_54, 0.544_400_3],
            ],
        ),
        (
            ftrl(-0.7, 0.001, 2.0, 0.1),
            10,
            mixed,
            slope,
            [-0.227_564_89, -0.447_070_8, -0.144_572_94, -0.133_079_44],
            &[
                [0.2, 0.5, 0.101, 0.104],
                [0.935_846_5, 1.881_022_2, 0.588_974_36, 0.542_415],
            ],
        ),
        (
            ftrl(0.0, 0.001, 0.0, 0.0),
            5,
            mixed,
            slope,
            [-1.497, -2.997, -0.147, -0.297],
            &[[0.15, 0.3, 0.1005, 0.102], [0.5, 1.0, 0.05, 0.1]],
        ),
        (
            rmsprop(0.0, 1.0, false),
            3,
            even,
            flat,
            [0.554_379_94, 1.554_379_9, 2.955_414_8, 3.955_414_8],
            &[
                [0.731_709_96, 0.731_709_96, 0.729_027_03, 0.729_027_03],
                [0.151_982_1, 0.151_982_1, 0.015_209_996, 0.015_209_996],
            ],
        ),
        (
            rmsprop(0.5, 1e-5, false),
            3,
            even,
            flat,
            [0.064_526_38, 1.064_526_6, 2.906_350_9, 3.906_350_9],
            &[
                [0.731_709_96, 0.731_709_96, 0.729_027_03, 0.729_027_03],
                [0.397_462_43, 0.397_462_43, 0.039_805, 0.039_805],
            ],
        ),
        (
            rmsprop(0.5, 1e-3, true),
            3,
            even,
            flat,
            [0.064_878_08, 1.064_878, 2.906_407, 3.906_407],
            &[
                [0.731_709_96, 0.731_709_96, 0.729_027_03, 0.729_027_03],
                [
                    0.027_100_008,
                    0.027_100_008,
                    0.002_710_000_4,
                    0.002_710_000_4,
                ],
                [0.397_352_67, 0.397_352_67, 0.039_779_58, 0.039_779_58],
            ],
        ),
        (
            keras_momentum(false),
            3,
            even,
            flat,
            [-0.121_999_98, 0.877_999_96, 2.8878, 3.8878],
            &[[-0.542, -0.542, -0.0542, -0.0542]],
        ),
        (
            keras_momentum(true),
            3,
            even,
            flat,
            [-0.6098, 0.390_200_08, 2.839_02, 3.839_02],
            &[[-0.542, -0.542, -0.0542, -0.0542]],
        ),
        (
            Box::new(|_| Box::new(Adadelta::new([2.0, 0.9, 1e-3]).unwrap())),
            3,
            even,
            slope,
            [0.569_102_6, 1.452_221_4, 2.940_269_5, 3.882_120_6],
            &[
                [
                    0.002_710_000_6,
                    0.010_840_002,
                    2.710_000_6e-5,
                    1.084_000_25e-4,
                ],
                [
                    0.001_400_771_3,
                    0.002_265_411,
                    2.685_884_5e-5,
                    1.046_283_4e-4,
                ],
            ],
        ),
        (
            proximal_sgd(0.1, 0.2),
            3,
            signs,
            slope,
            [0.0, -0.866_210_9, 0.0, 0.0],
            &[],
        ),
        (
            proximal_sgd(0.0, 0.2),
            3,
            signs,
            slope,
            [-0.133_789_06, -1.244_140_5, 0.035_449_218, -0.173_242_18],
            &[],
        ),
        (
            proximal_adagrad(0.001, 2.0),
            3,
            mixed,
            slope,
            [-0.049_332_83, -0.098_914_38, -0.004_046_034, -0.009_120_416],
            &[[0.13, 0.220_000_01, 0.100_300_01, 0.1012]],
        ),
        (
            proximal_adagrad(0.1, 0.0),
            3,
            signs,
            slope,
            [0.0, -4.148_492_3, 0.0, 0.0],
            &[[0.13, 0.220_000_01, 0.100_300_01, 0.1012]],
        ),
    ];
    for (at, steps, weights, grad, expected, slots) in goldens {
        let specs = at(1).slots();
        let mut row = weights.to_vec();
        specs
            .iter()
            .for_each(|slot| row.resize(row.len() + 4, slot.initial));
        let starts: Vec<usize> = (1..=specs.len()).map(|slot| 4 * slot).collect();
        (1..=steps).for_each(|t| at(t).update(&mut row, &starts, &grad));
        let parts = std::iter::once(&expected).chain(slots);
        for (part, (expected, got)) in parts.zip(row.chunks_exact(4)).enumerate() {
            for (want, got) in expected.iter().zip(got) {
                let close = (want - got).abs() <= 1e-6 + 2e-6 * want.abs();
                assert!(close, "{specs:?} part {part}: {got} is not {want}");
            }
        }
    }
}
