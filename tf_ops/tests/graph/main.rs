//! The graph pass on small graphs, on a large one, and on hostile ones.

mod fuzz;
mod golden;
mod large;
mod notation;
