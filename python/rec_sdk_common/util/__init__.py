"""Import paths of newer scripts for what the device vendor's packages hold."""
