//! Parses the pagination fields of a list request.

use cistern_controller::objects::listing::{PageQuery, Token};

/// Why the pagination fields are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A negative limit (LV-06, FLD-11).
    #[error("max_entries is {value}: write 0 for no limit")]
    Negative {
        /// Value of the request.
        value: i32,
    },
    /// The token is unknown (LV-07). The caller lists from the beginning.
    #[error("starting_token is unknown: list from the beginning")]
    Token,
}

/// Parses the pagination fields. Zero and an empty token mean not given (FLD-08). Fails if the
/// limit is negative or the token is unknown.
pub fn parse(max_entries: i32, starting_token: &str) -> Result<PageQuery, Error> {
    let most = usize::try_from(max_entries).map_err(|_| Error::Negative { value: max_entries })?;
    let start = match starting_token {
        "" => None,
        token => Some(Token::parse(token).ok_or(Error::Token)?),
    };
    Ok(PageQuery {
        start,
        most: most.try_into().ok(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fld_08_lv_06_lv_07_zero_is_not_given_and_nonsense_is_refused() {
        assert_eq!(parse(0, ""), Ok(PageQuery::default()));
        let read = parse(3, "after:pvc-1").unwrap();
        assert_eq!(read.most.map(usize::from), Some(3));
        assert_eq!(read.start.unwrap().to_string(), "after:pvc-1");
        assert_eq!(parse(-1, ""), Err(Error::Negative { value: -1 }));
        assert_eq!(parse(1, "invalid-token"), Err(Error::Token));
    }

    proptest! {
        #[test]
        fn lv_07_no_token_makes_the_parser_panic_and_what_is_read_can_be_written(
            most in any::<i32>(),
            token in ".{0,200}",
        ) {
            if let Ok(PageQuery { start: Some(start), .. }) = parse(most, &token) {
                prop_assert_eq!(start.to_string(), token);
            }
        }
    }
}
