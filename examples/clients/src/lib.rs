//! Servers on loopback that fail in every way a real one does, for the examples and tests of this package.

pub mod faulty;
