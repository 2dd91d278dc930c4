"""TensorFlow's saved_model_cli for models with tables: `python -m mx_rec.saved_model_cli run ...`.

The original has no option for op libraries; here the ops are there, because the package is.
"""

from tensorflow.python.tools import saved_model_cli

if __name__ == "__main__":
    saved_model_cli.main()
