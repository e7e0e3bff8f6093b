//! Refuses to be built where panics do not unwind. A file of its own, so that a test can compile it
//! by itself.

#[cfg(panic = "abort")]
compile_error!(
    "outsize needs `panic = \"unwind\"`: Burn's parameter hooks cannot return errors, so a failed read \
     travels to `Dispatched::run` by unwinding. Remove `panic = \"abort\"` from the Cargo profile."
);
