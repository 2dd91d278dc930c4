"""Speed of whole TensorFlow 1.15 session calls: tables of the plugin beside TensorFlow's own."""
