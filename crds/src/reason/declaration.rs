//! The declaration of an enum of names.
//!
//! *Invariant:* the name of a variant, its text and its documentation are written once.

/// Declares an enum whose variants are serialized as their own names.
macro_rules! names {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])+ $variant:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[doc = $doc])+ $variant,)+ }

        impl $name {
            /// All variants, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name as serialized in the custom resource or event.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)+ }
            }

            /// Parses a serialized name. Returns `None` for a name that this version does not know.
            pub fn parse(name: &str) -> Option<Self> {
                match name { $(stringify!($variant) => Some(Self::$variant),)+ _ => None }
            }

            /// The documentation of the variant, for `docs/conditions.md`.
            pub const fn documentation(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc, "\n"),+),)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(super) use names;
