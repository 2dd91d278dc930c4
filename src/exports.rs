//! How the C functions are written that give out bytes.

/// Functions for C: each has the arguments it names and then a place for a result, gives out what
/// its work makes with 0, or the text of its error with 1, and never panics. Without a place for
/// the result nothing is done. What names the work stands before it.
macro_rules! exports {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) $what:expr => $work:expr;
    )*) => {$(
        $(#[$doc])*
        #[no_mangle]
        pub(crate) unsafe extern "C" fn $name(
            $($arg: $type,)*
            result: *mut *mut u8,
            result_size: *mut usize,
        ) -> std::ffi::c_int {
            // SAFETY: the caller says that all are what they have to be.
            unsafe { $crate::ffi_buffer::give(result, result_size, $what, || $work) }
        }
    )*};
}
