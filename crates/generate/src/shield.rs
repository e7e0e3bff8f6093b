//! Calls of a library that may panic.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};

thread_local! {
    static SHIELDED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is in a call whose panic would be caught and become an
/// [`Error`](crate::Error).
///
/// Rust writes the message of every panic to standard error, caught or not. A program that wants
/// only the error there can ask this in its panic hook:
///
/// ```
/// let report = std::panic::take_hook();
/// std::panic::set_hook(Box::new(move |panic| {
///     if !outsize_generate::panic_is_caught() {
///         report(panic);
///     }
/// }));
/// ```
pub fn panic_is_caught() -> bool {
    SHIELDED.get()
}

/// Calls the `tokenizers` library, which panics on some files that are valid JSON and no valid
/// tokenizer; that becomes an error with the panic's message.
pub(crate) fn shielded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    /// Puts back what was, also if the call panics.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            SHIELDED.set(self.0);
        }
    }
    let result = {
        let _restore = Restore(SHIELDED.replace(true));
        // Nothing half-changed is seen afterwards: the calls here only build a value of their own
        // or read.
        panic::catch_unwind(AssertUnwindSafe(call))
    };
    match result {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(payload) => {
            Err(match (payload.downcast_ref::<String>(), payload.downcast_ref::<&str>()) {
                (Some(message), _) => message.clone(),
                (_, Some(message)) => (*message).to_owned(),
                _ => "the tokenizers library panicked".to_owned(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_caught_and_known_to_be() {
        assert!(!panic_is_caught());
        let result: Result<(), String> = shielded(|| {
            assert!(panic_is_caught());
            panic!("broken {}", 7)
        });
        assert_eq!(result.unwrap_err(), "broken 7");
        assert!(!panic_is_caught());
        assert_eq!(shielded(|| Ok(3)), Ok(3));
        assert!(!panic_is_caught());
    }
}
