//! Writes of PoolVolumes that the API server counts, for each volume made and deleted.

use cistern_e2e::ControlPlane;

use crate::Figure;

/// The API server's counters at one point in time.
pub(crate) struct Writes {
    taken: f64,
    refused: f64,
}

impl Writes {
    /// Reads the current counters.
    pub(crate) async fn until_now(control_plane: &ControlPlane) -> Self {
        let metrics = control_plane.metrics().await;
        let writes = metrics.lines().filter_map(write_of_volume);
        let (taken, refused): (Vec<_>, Vec<_>) =
            writes.partition(|(code, _)| code.starts_with('2'));
        let sum = |counts: Vec<(&str, f64)>| counts.iter().map(|(_, count)| count).sum();
        Self {
            taken: sum(taken),
            refused: sum(refused),
        }
    }

    /// Returns the writes since `before` for each of `volumes`.
    pub(crate) fn since(
        &self,
        before: &Self,
        what: &str,
        volumes: usize,
        aim: &'static str,
    ) -> Figure {
        #[expect(clippy::cast_precision_loss, reason = "there are some hundreds")]
        let [taken, refused] = [self.taken - before.taken, self.refused - before.refused]
            .map(|count| count / volumes as f64);
        Figure {
            what: format!("API writes to {what} a volume"),
            ours: format!("{taken:.1}"),
            beside: format!("refused as conflicts: {refused:.1}"),
            ratio: None,
            aim,
        }
    }
}

/// Returns code and count of a line of the API server's metrics, if it counts writes to PoolVolumes.
fn write_of_volume(line: &str) -> Option<(&str, f64)> {
    let labels = line.strip_prefix("apiserver_request_total{")?;
    let is_write = ["POST", "PUT", "PATCH", "APPLY", "DELETE"]
        .iter()
        .any(|verb| labels.contains(&format!("verb=\"{verb}\"")));
    let (_, after) = labels.split_once("code=\"")?;
    let (code, _) = after.split_once('"')?;
    let (_, count) = labels.rsplit_once(' ')?;
    let is_ours = is_write && labels.contains("resource=\"poolvolumes\"");
    is_ours.then_some((code, count.parse().ok()?))
}
