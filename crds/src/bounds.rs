//! How large what a status says may be. The schemas take no more, writers cut their texts to it, and the
//! admission policy of the nodes counts the bytes: a node in the wrong hands cannot make its objects so
//! large that whoever lists them runs out of memory.

/// Conditions in a list.
pub const CONDITIONS: usize = 8;
/// Problems in a list.
pub const PROBLEMS: usize = 8;
/// Bytes of the message of a condition, or of what does not belong together on a node. A schema counts
/// characters, so that it takes every text of so many bytes.
pub const MESSAGE: usize = 1024;
/// Bytes of the message of a problem.
pub const PROBLEM: usize = 512;
/// Bytes of the name of a type or reason.
pub const NAME: usize = 64;
/// Bytes of all types, reasons and messages of an object that is not a StorageNode, together. With its
/// other fields it stays below 16 KiB. `manifests/base/node-policy.yaml` states the same number.
pub const TEXTS: usize = 13 << 10;

/// The text, cut to so many bytes between two characters.
pub fn cut(mut text: String, bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_two_characters() {
        assert_eq!(cut("aü".to_owned(), 3), "aü");
        assert_eq!(cut("aü".to_owned(), 2), "a");
        assert_eq!(cut("ü".repeat(1000), MESSAGE).len(), MESSAGE);
        assert_eq!(cut(String::new(), 5), "");
    }

    #[test]
    fn whoever_keeps_to_the_bounds_of_each_text_keeps_to_the_bound_of_all() {
        // Types, reasons and severities are names of this crate, none of which has more.
        const OWN_NAME: usize = 24;
        let conditions = CONDITIONS * (2 * OWN_NAME + MESSAGE);
        let problems = PROBLEMS * (2 * OWN_NAME + PROBLEM);
        assert!(conditions + problems <= TEXTS);
        let policy = include_str!("../../manifests/base/node-policy.yaml");
        assert!(policy.contains(&format!("<= {TEXTS}")));
    }
}
