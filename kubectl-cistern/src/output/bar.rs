//! How full something is, as a bar.

use cistern_crds::Bytes;

use super::paint::Tone;

/// A bar of `width` characters: `█` volumes, `▒` snapshots, `·` free. What is there shows, however
/// little it is.
pub fn bar(volumes: Bytes, snapshots: Bytes, whole: Bytes, width: usize) -> Vec<(Tone, String)> {
    let taken = volumes.saturating_add(snapshots);
    let in_volumes = cells(volumes, whole, width);
    let in_all = cells(taken, whole, width).max(in_volumes);
    // A snapshot takes the last cell of the volumes where there is no other left.
    let in_snapshots = match in_all - in_volumes {
        0 if snapshots > Bytes::ZERO && in_all < width => 1,
        some => some,
    };
    let free = width - in_volumes - in_snapshots;
    let tone = match super::size::percent(taken, whole) {
        Some(percent) if percent >= 95 => Tone::Bad,
        Some(percent) if percent >= 80 => Tone::Warning,
        Some(_) | None => Tone::Good,
    };
    let full = "█".repeat(in_volumes) + &"▒".repeat(in_snapshots);
    vec![(tone, full), (Tone::Faint, "·".repeat(free))]
}

fn cells(part: Bytes, whole: Bytes, width: usize) -> usize {
    if part == Bytes::ZERO || whole == Bytes::ZERO {
        return 0;
    }
    let scaled = u128::from(part.0) * width as u128 / u128::from(whole.0);
    usize::try_from(scaled).unwrap_or(width).clamp(1, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_whatever_is_there() {
        let draw = |volumes, snapshots, whole| {
            let (volumes, snapshots) = (Bytes(volumes), Bytes(snapshots));
            let parts = bar(volumes, snapshots, Bytes(whole), 10);
            parts.into_iter().map(|(_, text)| text).collect::<String>()
        };
        assert_eq!(draw(0, 0, 100), "··········");
        assert_eq!(draw(50, 20, 100), "█████▒▒···");
        assert_eq!(draw(1, 1, 1000), "█▒········");
        assert_eq!(draw(100, 0, 100), "██████████");
        assert_eq!(draw(0, 0, 0), "··········");
        // Thin volumes may be promised more than there is.
        assert_eq!(draw(300, 50, 100), "██████████");
    }
}
