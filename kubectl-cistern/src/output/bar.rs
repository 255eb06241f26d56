//! Draws used capacity as a bar.

use cistern_crds::Bytes;

use super::paint::Style;

/// A bar of `width` characters: `█` volumes, `▒` snapshots, `·` free. Any nonzero share gets at least one
/// character.
pub fn bar(volumes: Bytes, snapshots: Bytes, whole: Bytes, width: usize) -> Vec<(Style, String)> {
    let taken = volumes.saturating_add(snapshots);
    let in_volumes = cells(volumes, whole, width);
    let in_all = cells(taken, whole, width).max(in_volumes);
    // Nonzero snapshots get one more cell if rounding left none and a cell is free.
    let in_snapshots = match in_all - in_volumes {
        0 if snapshots > Bytes::ZERO && in_all < width => 1,
        some => some,
    };
    let free = width - in_volumes - in_snapshots;
    let style = match super::size::percent(taken, whole) {
        Some(percent) if percent >= 95 => Style::Bad,
        Some(percent) if percent >= 80 => Style::Warning,
        Some(_) | None => Style::Good,
    };
    let full = "█".repeat(in_volumes) + &"▒".repeat(in_snapshots);
    vec![(style, full), (Style::Faint, "·".repeat(free))]
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
    fn a_bar_shows_every_nonzero_share() {
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
        // Reservations of thin volumes may exceed the capacity.
        assert_eq!(draw(300, 50, 100), "██████████");
    }
}
