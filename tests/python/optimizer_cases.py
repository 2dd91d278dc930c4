"""The optimizers under test, each beside TensorFlow's own: one list of cases for every test of numbers."""

import numpy as np

import support


class Case:
    """One optimizer with one set of hyperparameters.

    Attributes:
        name: Of the case.
        op: Name of the plugin's optimizer.
        lr: Learning rate that suits it.
        power: Of the learning rate, for FTRL.
        slots: (slot of the table, slot of TensorFlow's optimizer).
        ulps: How far one run of a few dozen steps may be from TensorFlow, in units in the last place of the
            biggest number involved. Each step rounds a handful of times, and TensorFlow's own kernels use Eigen's
            vectorised rsqrt and pow, which are 1-2 units off themselves; the errors add up over the steps.
        use_resource: Whether TensorFlow's optimizer trains resource variables alone.
    """

    def __init__(self, name, op, lr, slots=(), ulps=16.0, stock=None, hyper=None, ours=None, power=None,
                 use_resource=False):
        self.use_resource = use_resource
        self.name, self.op, self.lr, self.slots, self.ulps = name, op, lr, slots, ulps
        self.power = power
        self._stock, self._hyper, self._ours = stock, hyper, ours

    def __repr__(self):
        return self.name

    def stock(self, lr):
        """TensorFlow's optimizer."""
        return self._stock(lr)

    def ours(self, lr):
        """The optimizer that `mx_rec` makes."""
        return self._ours(lr)

    def apply(self, handle, target, grad, lr, step, by_ids=False):
        """The raw update.

        Args:
            handle: Of the table.
            target: Offsets, or ids with `by_ids`.
            grad: float32.
            lr: float32 scalar tensor.
            step: float32 scalar tensor, 1 at the first step (LazyAdam's powers follow from it).
            by_ids: Whether `target` holds ids.
        """
        tf = support.tf()
        hyper = [tf.convert_to_tensor(value, tf.float32) for value in self._hyper(tf, lr, step)]
        make = support.update_ids if by_ids else support.update_rows
        return make(self.op, handle, target, grad, *hyper)


def _sgd():
    def ours(lr):
        from mx_rec.optimizers.gradient_descent import create_hash_optimizer
        return create_hash_optimizer(lr)

    return Case("sgd", "sgd", 0.3, stock=lambda lr: support.tf().compat.v1.train.GradientDescentOptimizer(lr),
                hyper=lambda tf, lr, step: [lr, 0.0], ours=ours)


def _momentum(nesterov):
    def ours(lr):
        from mx_rec.optimizers.momentum import create_hash_optimizer
        return create_hash_optimizer(lr, mom=0.8, enable_nesterov=nesterov)

    name = "nesterov" if nesterov else "momentum"
    return Case(
        name, name, 0.1, slots=[("Momentum_momentum", "momentum")],
        stock=lambda lr: support.tf().compat.v1.train.MomentumOptimizer(lr, 0.8, use_nesterov=nesterov),
        hyper=lambda tf, lr, step: [lr, 0.8], ours=ours)


def _adagrad(initial):
    def ours(lr):
        from mx_rec.optimizers.adagrad import create_hash_optimizer
        return create_hash_optimizer(lr, initial_accumulator_value=initial)

    return Case(
        "adagrad_from_%g" % initial, "adagrad", 0.2, slots=[("Adagrad_accumulator", "accumulator")],
        stock=lambda lr: support.tf().compat.v1.train.AdagradOptimizer(lr, initial_accumulator_value=initial),
        hyper=lambda tf, lr, step: [lr, initial], ours=ours)


def _lazy_adam(beta1=0.9, beta2=0.999, epsilon=1e-8):
    def stock(lr):
        from tensorflow.contrib.opt import LazyAdamOptimizer
        return LazyAdamOptimizer(lr, beta1, beta2, epsilon)

    def ours(lr):
        from mx_rec.optimizers.lazy_adam import create_hash_optimizer
        return create_hash_optimizer(lr, beta1=beta1, beta2=beta2, epsilon=epsilon)

    def hyper(tf, lr, step):
        return [lr, tf.pow(beta1, step), tf.pow(beta2, step), beta1, beta2, epsilon]

    return Case("lazy_adam_%g_%g_%g" % (beta1, beta2, epsilon), "lazy_adam", 0.05, ulps=24.0,
                slots=[("LazyAdam_momentum", "m"), ("LazyAdam_velocity", "v")], stock=stock, hyper=hyper, ours=ours)


def _adam(beta1=0.9, beta2=0.999, epsilon=1e-8):
    def ours(lr):
        from mx_rec.optimizers.adam import create_hash_optimizer
        return create_hash_optimizer(lr, beta1=beta1, beta2=beta2, epsilon=epsilon)

    def hyper(tf, lr, step):
        return [lr, tf.pow(beta1, step), tf.pow(beta2, step), beta1, beta2, epsilon]

    return Case("adam_%g_%g_%g" % (beta1, beta2, epsilon), "adam", 0.05, ulps=64.0,
                slots=[("LazyAdam_momentum", "m"), ("LazyAdam_velocity", "v")],
                stock=lambda lr: support.tf().compat.v1.train.AdamOptimizer(lr, beta1, beta2, epsilon), hyper=hyper,
                ours=ours)


def _of_unchanged_models(name, lr, ulps=64.0):
    """An optimizer that only variables of unchanged models have."""
    beta1, beta2, epsilon = 0.9, 0.999, 1e-8

    def stock(rate):
        from tensorflow.contrib import opt

        if name == "scheduled_nadam":
            return support.tf().keras.optimizers.Nadam(rate, beta1, beta2, epsilon)
        make = {"adamw": lambda *numbers: opt.AdamWOptimizer(0.01, *numbers), "nadam": opt.NadamOptimizer,
                "adamax": opt.AdaMaxOptimizer}[name]
        return make(rate, beta1, beta2, epsilon)

    def hyper(tf, rate, step):
        power1, power2 = tf.pow(beta1, step), tf.pow(beta2, step)
        if name == "scheduled_nadam":
            momentums = beta1 * (1 - 0.5 * 0.96 ** (0.004 * np.arange(1, 100)))
            (now, following), (product, next_product) = [
                [tf.gather(tf.constant(one, tf.float32), tf.cast(step, tf.int32) + at) for at in (-1, 0)]
                for one in (momentums, np.cumprod(momentums))]
            return [rate, beta1, beta2, epsilon, now, following, product, next_product, power2]
        if name == "adamax":
            return [rate, power1, beta1, beta2, epsilon]
        return [rate, power1, power2, beta1, beta2, epsilon] + [-0.01] * (name == "adamw")

    slots = ["AdaMax_momentum", "AdaMax_infinity_norm"] if name == "adamax" \
        else ["LazyAdam_momentum", "LazyAdam_velocity"]
    return Case(name, name, lr, slots=list(zip(slots, "mv")), ulps=ulps, stock=stock, hyper=hyper,
                use_resource=name == "scheduled_nadam")


def _keras_adagrad(initial, epsilon=1e-3):
    """Keras' Adagrad, which only variables of unchanged models have."""
    return Case("adagrad_v2_from_%g" % initial, "adagrad_v2", 0.1, ulps=32.0, slots=[("Adagrad_accumulator", "accumulator")],
                stock=lambda lr: support.tf().keras.optimizers.Adagrad(lr, initial, epsilon),
                hyper=lambda tf, lr, step: [lr, epsilon, initial], use_resource=True)


def _keras_momentum(nesterov):
    """Keras' SGD with a momentum, which only variables of unchanged models have."""
    name = "keras_nesterov" if nesterov else "keras_momentum"
    return Case(name, name, 0.1, slots=[("KerasMomentum_momentum", "momentum")],
                stock=lambda lr: support.tf().keras.optimizers.SGD(lr, 0.8, nesterov),
                hyper=lambda tf, lr, step: [lr, 0.8], use_resource=True)


def _adadelta(keras):
    """Adadelta of unchanged models: tables of scripts run TensorFlow's own ops."""
    slots = ["accum_grad", "accum_var"] if keras else ["accum", "accum_update"]

    def stock(lr):
        tf = support.tf()
        make = tf.keras.optimizers.Adadelta if keras else tf.compat.v1.train.AdadeltaOptimizer
        return make(lr, 0.9, epsilon=1e-4)

    return Case("keras_adadelta" if keras else "adadelta", "adadelta", 0.5, ulps=32.0,
                slots=list(zip(["Adadelta_accum", "Adadelta_accum_update"], slots)), stock=stock,
                hyper=lambda tf, lr, step: [lr, 0.9, 1e-4], use_resource=keras)


def _proximal(adaptive, l1, l2):
    """Proximal steps of unchanged models, as Adadelta."""
    op = "proximal_adagrad" if adaptive else "proximal_sgd"

    def stock(lr):
        train = support.tf().compat.v1.train
        return train.ProximalAdagradOptimizer(lr, 0.1, l1, l2) if adaptive \
            else train.ProximalGradientDescentOptimizer(lr, l1, l2)

    return Case("%s_%g_%g" % (op, l1, l2), op, 0.1, ulps=32.0,
                slots=[("ProximalAdagrad_accumulator", "accumulator")] * adaptive, stock=stock,
                hyper=lambda tf, lr, step: [lr] + [0.1] * adaptive + [l1, l2])


def _ftrl(name, lr=0.3, power=-0.5, initial=0.1, l1=0.0, l2=0.0, shrinkage=0.0):
    def stock(rate):
        return support.tf().compat.v1.train.FtrlOptimizer(
            rate, learning_rate_power=power, initial_accumulator_value=initial, l1_regularization_strength=l1,
            l2_regularization_strength=l2, l2_shrinkage_regularization_strength=shrinkage)

    def ours(rate):
        from mx_rec.optimizers.ftrl import create_hash_optimizer
        return create_hash_optimizer(
            rate, learning_rate_power=power, initial_accumulator_value=initial, l1_regularization_strength=l1,
            l2_regularization_strength=l2, l2_shrinkage_regularization_strength=shrinkage)

    return Case(name, "ftrl", lr, ulps=64.0, slots=[("Ftrl_accum", "accum"), ("Ftrl_linear", "linear")],
                stock=stock, hyper=lambda tf, rate, step: [rate, power, initial, l1, l2, shrinkage], ours=ours,
                power=power)


def _rmsprop(momentum, centered, epsilon=1e-10):
    settings = dict(decay=0.8, momentum=momentum, epsilon=epsilon, centered=centered)

    def ours(lr):
        from mx_rec.optimizers.rmsprop import create_hash_optimizer
        return create_hash_optimizer(lr, **settings)

    op = "centered_rmsprop" if centered else "rmsprop"
    slots = [("RMSProp_rms", "rms")] + [("RMSProp_mg", "mg")] * centered + [("RMSProp_momentum", "momentum")]
    return Case("%s_%g" % (op, momentum), op, 0.02, ulps=32.0, slots=slots,
                stock=lambda lr: support.tf().compat.v1.train.RMSPropOptimizer(lr, **settings),
                hyper=lambda tf, lr, step: [lr, 0.8, momentum, epsilon, 1.0], ours=ours)


CASES = [
    _sgd(),
    _momentum(False),
    _momentum(True),
    _adagrad(0.1),
    _adagrad(0.9),
    _lazy_adam(),
    _lazy_adam(0.5, 0.9, 1e-3),
    _adam(),
    _adam(0.5, 0.9, 1e-3),
    _ftrl("ftrl"),
    _ftrl("ftrl_l1", l1=0.3),
    _ftrl("ftrl_l2", l2=0.5),
    _ftrl("ftrl_shrinkage", shrinkage=0.2),
    _ftrl("ftrl_power", power=-0.3),
    _ftrl("ftrl_fixed_rate", power=0.0),
    _ftrl("ftrl_everything", power=-0.7, initial=0.5, l1=0.1, l2=0.2, shrinkage=0.1),
    _rmsprop(0.0, False),
    _rmsprop(0.7, False),
    _rmsprop(0.0, True, 1e-3),
    _rmsprop(0.7, True, 1e-3),
]

OF_UNCHANGED_MODELS = [_of_unchanged_models(name, 0.05) for name in ("adamw", "nadam", "scheduled_nadam", "adamax")] + [
    _keras_adagrad(0.0), _keras_adagrad(0.1), _keras_momentum(False), _keras_momentum(True), _adadelta(False),
    _adadelta(True)] + [_proximal(adaptive, l1, l2) for adaptive in (False, True)
                        for l1, l2 in ((0.0, 0.0), (0.1, 0.0), (0.1, 0.2))]

# TensorFlow has none of them: test_half_rows.py compares them with NumPy.
OF_NUMPY = ["rowwise_adagrad", "rowwise_adam"]

ONE_OF_EACH = [case for case in CASES
               if case.name in ("sgd", "nesterov", "adagrad_from_0.1", "lazy_adam_0.9_0.999_1e-08", "ftrl_everything",
                                "rmsprop_0.7", "centered_rmsprop_0.7")]

assert len(ONE_OF_EACH) == 7

# No slots, two, and three that start at different values. For claims of what comes before the arithmetic: the engine
# sums gradients and finds rows in the same way for all optimizers.
OF_EACH_SIZE = [case for case in ONE_OF_EACH if case.op in ("sgd", "lazy_adam", "centered_rmsprop")]


def ids_of(cases):
    """Names for pytest."""
    return [case.name for case in cases]
