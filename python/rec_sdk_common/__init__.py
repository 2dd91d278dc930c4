"""Import paths of newer scripts for what mx_rec holds: ranks and the logger."""
