//! The engine as its users see it: on a scripted executor, and on a tiny model.

mod beams;
mod broken;
mod cancellation;
mod chat;
mod explain;
mod failures;
mod forks;
mod gated;
mod goldens;
mod limits;
mod loading;
mod loops;
mod model;
mod output_kinds;
mod params;
mod processors;
mod rig;
mod sampling_goldens;
mod schemas;
mod structured;
mod text;
mod transfers;
