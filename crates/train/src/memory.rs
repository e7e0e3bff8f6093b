//! Looking for a batch size that fits into memory.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::Error;

/// Parts of what programs say when memory does not suffice.
const OUT_OF_MEMORY: [&str; 5] =
    ["out of memory", "outofmemory", "out_of_memory", "cannot allocate", "memory allocation"];

/// Runs `train` with `start` items a batch, and with half as many as long as it fails or panics
/// for want of memory.
///
/// All ranks must see the same failure: try one step on each rank before the first collective.
///
/// # Errors
///
/// Not even one item fits ([`Error::Setting`]); another error of `train` is given back as it is,
/// within `Ok`.
pub fn find_executable_batch_size<T, E: Display>(
    start: usize,
    mut train: impl FnMut(usize) -> Result<T, E>,
) -> Result<Result<T, E>, Error> {
    let mut batch_size = start;
    while batch_size > 0 {
        match catch_unwind(AssertUnwindSafe(|| train(batch_size))) {
            Ok(Err(fault)) if is_out_of_memory(&fault.to_string()) => {}
            Ok(result) => return Ok(result),
            Err(panic) if is_out_of_memory(crate::panic::message(&*panic)) => {}
            Err(panic) => resume_unwind(panic),
        }
        batch_size /= 2;
    }
    let message = format!("no batch size from {start} down to 1 fits into memory");
    Err(Error::Setting(message))
}

fn is_out_of_memory(message: &str) -> bool {
    let message = message.to_lowercase();
    OUT_OF_MEMORY.iter().any(|part| message.contains(part))
}

#[cfg(test)]
mod tests {
    use super::find_executable_batch_size;

    #[test]
    fn the_batch_size_halves_until_it_fits() {
        let mut tried = Vec::new();
        let found = find_executable_batch_size(20, |size| {
            tried.push(size);
            match size {
                6.. => Err("CUDA out of memory"),
                3.. => panic!("memory allocation of {size} GB failed"),
                _ => Ok(size),
            }
        });
        assert_eq!(found.unwrap(), Ok(2));
        assert_eq!(tried, [20, 10, 5, 2]);

        let other = find_executable_batch_size(8, |_| Err::<(), _>("no such file"));
        assert_eq!(other.unwrap(), Err("no such file"));
        let never = find_executable_batch_size(8, |_| Err::<(), _>("out of memory"));
        assert!(never.unwrap_err().to_string().contains("from 8 down to 1"));
    }
}
