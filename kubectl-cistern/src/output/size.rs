//! Sizes for people: two or three digits and a unit.

use cistern_crds::Bytes;

const UNITS: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// A size as a person wants it: `1.5Gi`, `738Mi`, `0`. Rounded; programs get bytes.
pub fn human(size: Bytes) -> String {
    if size.0 < 1024 {
        return size.0.to_string();
    }
    // Tenths of the unit that is at hand.
    let mut tenths = u128::from(size.0) * 10 / 1024;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    while tenths >= 10_240 {
        match units.next() {
            Some(larger) => unit = Some(larger),
            None => break,
        }
        tenths /= 1024;
    }
    let unit = unit.copied().unwrap_or_default();
    match (tenths / 10, tenths % 10) {
        (whole, tenth) if whole < 100 && tenth > 0 => format!("{whole}.{tenth}{unit}"),
        (whole, _) => format!("{whole}{unit}"),
    }
}

/// How much of something: `24 %`; none of nothing.
pub fn percent(part: Bytes, whole: Bytes) -> Option<u64> {
    (whole.0 > 0).then(|| {
        let hundredths = u128::from(part.0) * 100 / u128::from(whole.0);
        u64::try_from(hundredths).unwrap_or(u64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits_at_most() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1Ki"),
            (1536 << 20, "1.5Gi"),
            (738 << 20, "738Mi"),
            (5520 << 20, "5.3Gi"),
            (1023 << 20, "1023Mi"),
            (u64::MAX, "15.9Ei"),
        ] {
            assert_eq!(human(Bytes(bytes)), text);
        }
    }

    #[test]
    fn nothing_has_no_share() {
        assert_eq!(percent(Bytes(1), Bytes(3)), Some(33));
        assert_eq!(percent(Bytes(1), Bytes(0)), None);
    }
}
