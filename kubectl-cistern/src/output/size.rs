//! Formats sizes for people: up to four digits and a unit.

use cistern_crds::Bytes;

const UNITS: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Formats a size, rounded down: `1.5Gi`, `738Mi`, `0`. JSON and YAML contain bytes instead.
pub fn human(size: Bytes) -> String {
    if size.0 < 1024 {
        return size.0.to_string();
    }
    // Tenths of the current unit.
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

/// Returns `part` in percent of `whole`; `None` if `whole` is 0.
pub fn percent(part: Bytes, whole: Bytes) -> Option<u64> {
    (whole.0 > 0).then(|| {
        let percent = u128::from(part.0) * 100 / u128::from(whole.0);
        u64::try_from(percent).unwrap_or(u64::MAX)
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
    fn a_percentage_of_zero_is_undefined() {
        assert_eq!(percent(Bytes(1), Bytes(3)), Some(33));
        assert_eq!(percent(Bytes(1), Bytes(0)), None);
    }
}
