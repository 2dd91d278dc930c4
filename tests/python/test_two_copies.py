"""Two files of the plugin in one process: the second says so and leaves the first working."""

import shutil

import support

# What broke: TensorFlow took a second kernel for each op, and then ran none of them ("Multiple OpKernel registrations
# match"), for example after the plugin was built anew in a process that had loaded it.
CODE = """
import ctypes, sys, support
tf, ops = support.tf(), support.ops()
tf.load_op_library(sys.argv[1])
copy = ctypes.CDLL(sys.argv[1])
copy.mx_rec_load_message.restype = ctypes.c_char_p
assert copy.mx_rec_load_status() == 6, copy.mx_rec_load_status()
assert b"another copy" in copy.mx_rec_load_message()
table = support.Raw.new(1)
with support.new_session() as sess:
    assert table.assign(sess, [1], [[2]]) == 1
print("works")
"""


def test_a_second_copy_of_the_plugin_says_so_and_the_first_goes_on_working(tmp_path):
    copy = str(tmp_path / "libmx_rec_copy.so")
    shutil.copy(support.library_path(), copy)
    assert support.run_python(CODE, copy).strip().endswith("works")
