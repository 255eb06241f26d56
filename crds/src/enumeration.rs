//! Texts that name the first of several things, and say how many more there are. Pure.

/// The first names, at most `limit`, and how many more there are: `a, b and 3 more`.
pub fn first_names<S: AsRef<str>>(names: impl ExactSizeIterator<Item = S>, limit: usize) -> String {
    let more = names.len().saturating_sub(limit);
    joined(names.take(limit), ", ") + &and_more(more)
}

/// The first clauses, at most `limit`, and how many more there are: `a; b; and 3 more`.
pub fn first_clauses<S: AsRef<str>>(
    clauses: impl ExactSizeIterator<Item = S>,
    limit: usize,
) -> String {
    let more = clauses.len().saturating_sub(limit);
    let first = joined(clauses.take(limit), "; ");
    match more {
        0 => first,
        more => format!("{first};{}", and_more(more)),
    }
}

/// How many more things there are than a text has named: ` and 3 more`. Empty for none.
pub fn and_more(count: usize) -> String {
    match count {
        0 => String::new(),
        count => format!(" and {count} more"),
    }
}

fn joined<S: AsRef<str>>(texts: impl Iterator<Item = S>, separator: &str) -> String {
    let texts: Vec<S> = texts.collect();
    let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
    texts.join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_named_and_the_others_are_counted() {
        let names = ["a", "b", "c"];
        assert_eq!(first_names(names.iter(), 3), "a, b, c");
        assert_eq!(first_names(names.iter(), 2), "a, b and 1 more");
        assert_eq!(first_clauses(names.iter(), 3), "a; b; c");
        assert_eq!(first_clauses(names.iter(), 1), "a; and 2 more");
        let none: [String; 0] = [];
        assert_eq!(first_names(none.iter(), 2), "");
        assert_eq!(first_clauses(none.iter(), 2), "");
        assert_eq!([and_more(0), and_more(7)], ["", " and 7 more"]);
    }
}
