//! Size limits of statuses. The schemas enforce them, writers truncate their texts to them, and the
//! admission policy of the nodes counts the bytes: a compromised node cannot make its objects so
//! large that clients that list them run out of memory.

/// Maximum number of conditions in a list.
pub const CONDITIONS: usize = 9;
/// Maximum number of problems in a list.
pub const PROBLEMS: usize = 6;
/// Maximum bytes of the message of a condition or a drift finding. A schema counts characters, so it
/// accepts every text of this many bytes.
pub const MESSAGE: usize = 1024;
/// Maximum bytes of the message of a problem.
pub const PROBLEM: usize = 512;
/// Maximum bytes of the name of a type or reason.
pub const NAME: usize = 64;
/// Maximum bytes of all types, reasons and messages of an object, except a StorageNode, in total. With
/// its other fields the object stays below 16 KiB. `manifests/base/node-policy.yaml` states the same number.
pub const TEXTS: usize = 13 << 10;

/// Truncates the text to at most `bytes` bytes, at a character boundary.
pub fn truncate(mut text: String, bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_truncated_at_a_character_boundary() {
        assert_eq!(truncate("aü".to_owned(), 3), "aü");
        assert_eq!(truncate("aü".to_owned(), 2), "a");
        assert_eq!(truncate("ü".repeat(1000), MESSAGE).len(), MESSAGE);
        assert_eq!(truncate(String::new(), 5), "");
    }

    #[test]
    fn texts_within_their_own_bounds_are_within_the_total_bound() {
        // Types, reasons and severities are names of this crate, none of which has more.
        const OWN_NAME: usize = 24;
        let conditions = CONDITIONS * (2 * OWN_NAME + MESSAGE);
        let problems = PROBLEMS * (2 * OWN_NAME + PROBLEM);
        assert!(conditions + problems <= TEXTS);
        let policy = include_str!("../../manifests/base/node-policy.yaml");
        assert!(policy.contains(&format!("<= {TEXTS}")));
    }
}
