//! Kernel programs.
#![no_std]
