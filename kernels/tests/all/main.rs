//! Claims about the engine as a whole, a file each: one program, so that what they share is linked
//! once. Tests that measure their process have programs of their own beside this folder.

mod adam;
mod adam_family;
mod admission;
mod ahead;
mod ahead_many;
mod counting;
mod directory;
mod faulty;
mod fixtures;
mod groups;
mod half_slots;
mod halves;
mod halves_adam;
mod hostile_files;
mod hostile_records;
mod max_norm;
mod model;
mod offsets;
mod optimizers;
mod parts;
mod pooled;
mod pushes;
mod refused;
#[path = "../singles/mod.rs"]
mod singles;
mod sketch;
mod sketch_checkpoint;
mod support;
mod table;
mod threads;
mod tier_files;
mod tier_log;
mod tiered;
