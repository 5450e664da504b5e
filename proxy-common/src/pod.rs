//! The one macro that declares a map row and proves it is plain bytes.

/// A type that can be copied to and from a map as bytes: `repr(C)`, no padding, no references,
/// every bit pattern valid. Only the `row!` macro implements it.
///
/// # Safety
/// The implementer has none of the above to hide; the macro checks the absence of padding at
/// compile time and accepts integer and octet-array fields only.
pub unsafe trait Row: Copy + 'static {}

/// Integers, octet arrays and nested rows: what a row may be made of.
///
/// # Safety
/// Every bit pattern must be valid.
pub unsafe trait Field: Copy + 'static {}

macro_rules! fields {
    ($($t:ty),*) => {
        $(
            // SAFETY: every bit pattern of an integer or integer array is valid.
            unsafe impl Field for $t {}
        )*
    };
}
// SAFETY: integers and octet arrays have no padding and no invalid values.
unsafe impl Row for u32 {}
// SAFETY: as above.
unsafe impl Row for u64 {}
// SAFETY: as above.
unsafe impl Row for [u8; 4] {}
// SAFETY: as above.
unsafe impl Row for [u8; 16] {}

fields!(u8, u16, u32, u64, [u8; 4], [u8; 16], [u8; 144]);

/// Declares map rows. `row! { pub struct Name<A> { … } }` gives one row type per IP family,
/// `row! { pub struct Name { … } }` one for both. Padding is a compile error.
macro_rules! row {
    (
        $(#[$meta:meta])*
        pub struct $name:ident<A> { $( $(#[$fmeta:meta])* pub $field:ident : $t:ty ),* $(,)? }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(C)]
        pub struct $name<A> { $( $(#[$fmeta])* pub $field: $t ),* }

        impl<A> $name<A> {
            const FIELD_BYTES: usize = 0 $( + size_of::<$t>() )*;
        }
        const _: () = {
            assert!(size_of::<$name<[u8; 4]>>() == $name::<[u8; 4]>::FIELD_BYTES, "padding in an IPv4 row");
            assert!(size_of::<$name<[u8; 16]>>() == $name::<[u8; 16]>::FIELD_BYTES, "padding in an IPv6 row");
        };
        // SAFETY: repr(C), fields are `Field`s (by the bounds), no padding (above).
        unsafe impl<A: $crate::pod::Field> $crate::pod::Row for $name<A> where $( $t: $crate::pod::Field ),* {}
        // SAFETY: as for `Row`.
        unsafe impl<A: $crate::pod::Field> $crate::pod::Field for $name<A> where $( $t: $crate::pod::Field ),* {}
        #[cfg(feature = "user")]
        // SAFETY: as for `Row`.
        unsafe impl<A: $crate::pod::Field> aya::Pod for $name<A> where $( $t: $crate::pod::Field ),* {}
    };
    (
        $(#[$meta:meta])*
        pub struct $name:ident { $( $(#[$fmeta:meta])* pub $field:ident : $t:ty ),* $(,)? }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(C)]
        pub struct $name { $( $(#[$fmeta])* pub $field: $t ),* }

        const _: () = assert!(size_of::<$name>() == 0 $( + size_of::<$t>() )*, "padding in a row");
        const _: fn() = || {
            fn is_field<T: $crate::pod::Field>() {}
            $( is_field::<$t>(); )*
        };
        // SAFETY: repr(C), fields are `Field`s (checked above), no padding (checked above).
        unsafe impl $crate::pod::Row for $name {}
        // SAFETY: as for `Row`.
        unsafe impl $crate::pod::Field for $name {}
        #[cfg(feature = "user")]
        // SAFETY: as for `Row`.
        unsafe impl aya::Pod for $name {}
    };
}
pub(crate) use row;
