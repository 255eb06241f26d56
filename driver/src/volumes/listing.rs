//! The volumes in the order of their ids, to be given out page by page.
//!
//! A volume is there from when it can first be used, which is when CreateVolume answers, until its
//! data is gone. Only what is told of one is kept, so that ten thousand take a few megabytes, and a
//! page costs as much as it has volumes.
//!
//! *Invariant:* a page begins after a name, whether or not a volume of that name is still there. So
//! whatever comes and goes between pages, what stays is given out exactly once (LV-11, LV-12).

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    ops::Bound,
    sync::{PoisonError, RwLock},
};

use cistern_crds::{Bytes, PoolVolume, names};
use kube::{ResourceExt as _, runtime::watcher::Event};
use tokio::sync::watch;

/// Most volumes of a page, so that an answer stays below the 4 MiB that callers take.
const MAX_PAGE: usize = 10_000;

/// Begins every token; another way to page would begin its tokens otherwise.
const TOKEN: &str = "after:";

/// What callers are told of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedVolume {
    /// Its id.
    pub id: String,
    /// How large it is.
    pub size: Bytes,
    /// The node that holds it.
    pub node: String,
}

impl ListedVolume {
    /// None for a volume that cannot be used yet, or whose data is gone.
    pub fn of(volume: &PoolVolume) -> Option<Self> {
        let status = volume.status.as_ref()?;
        let gone = volume.spec.deletion_requested && status.reserved.is_none();
        Some(Self {
            id: volume.name_any(),
            size: status.size.filter(|_| !gone)?,
            node: volume.spec.node_name.clone(),
        })
    }
}

/// Which volumes come next: opaque to callers (LV-04).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    after: String,
}

impl Token {
    /// Reads one that was given out; none for anything else (LV-07).
    pub fn parse(text: &str) -> Option<Self> {
        let after = text.strip_prefix(TOKEN)?;
        names::is_volume_id(after).then(|| Self {
            after: after.to_owned(),
        })
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{TOKEN}{}", self.after)
    }
}

/// Which volumes are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageQuery {
    /// Where an earlier page ended; none for the first one.
    pub start: Option<Token>,
    /// At most so many, where that is said.
    pub most: Option<NonZeroUsize>,
}

/// Some of the volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// In the order of their ids.
    pub volumes: Vec<ListedVolume>,
    /// Where the rest begins, if there is any.
    pub next: Option<Token>,
}

/// The volumes as the watch last showed them.
#[derive(Debug)]
pub(super) struct Listing {
    known: RwLock<Option<Known>>,
    changes: watch::Sender<()>,
}

/// By id.
pub(super) type Known = BTreeMap<Box<str>, Entry>;

/// What is kept of a volume.
#[derive(Debug)]
pub(super) struct Entry {
    size: Bytes,
    node: Box<str>,
}

impl Listing {
    pub(super) fn new() -> Self {
        Self {
            known: RwLock::default(),
            changes: watch::Sender::new(()),
        }
    }

    /// A page; none before the first list has come.
    pub(super) fn page(&self, query: &PageQuery) -> Option<Page> {
        let most = query.most.map_or(MAX_PAGE, |most| most.get().min(MAX_PAGE));
        let start = match &query.start {
            Some(token) => Bound::Excluded(token.after.as_str()),
            None => Bound::Unbounded,
        };
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut rest = known.as_ref()?.range::<str, _>((start, Bound::Unbounded));
        let volumes: Vec<ListedVolume> = rest
            .by_ref()
            .take(most)
            .map(|(id, entry)| ListedVolume {
                id: id.to_string(),
                size: entry.size,
                node: entry.node.to_string(),
            })
            .collect();
        let next = volumes.last().filter(|_| rest.next().is_some());
        let next = next.map(|last| Token {
            after: last.id.clone(),
        });
        Some(Page { volumes, next })
    }

    /// Ends when the volume is listed, or when it is not.
    pub(super) async fn until(&self, id: &str, listed: bool) {
        let mut changes = self.changes.subscribe();
        while self.contains(id) != listed {
            // The sender lives as long as `self`.
            let _ = changes.changed().await;
        }
    }

    fn contains(&self, id: &str) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().is_some_and(|known| known.contains_key(id))
    }

    /// Takes one event of the watch in. `listing` holds a list that is not complete yet.
    pub(super) fn see(&self, event: &Event<PoolVolume>, listing: &mut Known) {
        match event {
            Event::Init => listing.clear(),
            Event::InitApply(volume) => put(listing, volume),
            Event::InitDone => self.change(|known| *known = Some(std::mem::take(listing))),
            Event::Apply(volume) => {
                self.change(|known| put(known.get_or_insert_default(), volume));
            }
            Event::Delete(volume) => self.change(|known| {
                let id = volume.name_any();
                known.get_or_insert_default().remove(id.as_str());
            }),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Option<Known>)) {
        change(&mut self.known.write().unwrap_or_else(PoisonError::into_inner));
        self.changes.send_replace(());
    }
}

fn put(known: &mut Known, volume: &PoolVolume) {
    match ListedVolume::of(volume) {
        Some(ListedVolume { id, size, node }) => {
            let node = node.into();
            known.insert(id.into(), Entry { size, node });
        }
        None => {
            known.remove(volume.name_any().as_str());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use cistern_crds::PoolVolumeStatus;
    use futures::FutureExt as _;
    use proptest::prelude::*;

    use super::*;
    use crate::volumes::request::tests::wanted;

    fn made(name: &str) -> PoolVolume {
        let mut volume = wanted(name).on_node("n1");
        volume.status = Some(PoolVolumeStatus {
            reserved: Some(Bytes::gib(1)),
            size: Some(Bytes::gib(1)),
            ..PoolVolumeStatus::default()
        });
        volume
    }

    fn listing(names: &[&str]) -> Listing {
        let listing = Listing::new();
        let mut unfinished = Known::new();
        listing.see(&Event::Init, &mut unfinished);
        for name in names {
            listing.see(&Event::InitApply(made(name)), &mut unfinished);
        }
        let nothing = listing.page(&PageQuery::default());
        assert_eq!(nothing, None, "the list is not complete");
        listing.see(&Event::InitDone, &mut unfinished);
        listing
    }

    fn page(listing: &Listing, start: Option<&Token>, most: usize) -> Page {
        let query = PageQuery {
            start: start.cloned(),
            most: NonZeroUsize::new(most),
        };
        listing.page(&query).unwrap()
    }

    fn see(listing: &Listing, event: &Event<PoolVolume>) {
        listing.see(event, &mut Known::new());
    }

    fn ids(page: &Page) -> Vec<&str> {
        page.volumes.iter().map(|v| v.id.as_str()).collect()
    }

    #[test]
    fn lv_02_a_volume_is_listed_from_when_it_can_be_used_until_its_data_is_gone() {
        type Change = fn(&mut PoolVolume, &mut PoolVolumeStatus);
        let life: [(&str, Change, bool); 6] = [
            ("placed", |_, s| *s = PoolVolumeStatus::default(), false),
            ("admitted", |_, s| s.size = None, false),
            ("made", |_, _| {}, true),
            (
                "to be deleted",
                |v, _| v.spec.deletion_requested = true,
                true,
            ),
            (
                "reclaimed",
                |v, s| {
                    v.spec.deletion_requested = true;
                    s.reserved = None;
                },
                false,
            ),
            ("never asked to go", |_, s| s.reserved = None, true),
        ];
        for (stage, change, listed) in life {
            let mut volume = made("a");
            let mut status = volume.status.take().unwrap();
            change(&mut volume, &mut status);
            volume.status = Some(status);
            assert_eq!(ListedVolume::of(&volume).is_some(), listed, "{stage}");

            // From whatever the watch has shown before.
            let listing = listing(&["a"]);
            see(&listing, &Event::Apply(volume));
            assert_eq!(listing.contains("a"), listed, "{stage}");
        }
        assert_eq!(ListedVolume::of(&wanted("a").on_node("n1")), None);
    }

    #[test]
    fn lv_03_lv_04_lv_05_a_page_has_at_most_what_was_asked_for_and_a_token_while_more_remain() {
        let listing = listing(&["b", "a", "c"]);
        for unlimited in [0, 3, MAX_PAGE + 1] {
            let all = page(&listing, None, unlimited);
            assert_eq!(ids(&all), ["a", "b", "c"]);
            assert_eq!(all.next, None);
        }
        let first = page(&listing, None, 2);
        assert_eq!(ids(&first), ["a", "b"]);
        let token = first.next.unwrap();
        assert!(token.to_string().len() <= 128, "FLD-01");
        let read = Token::parse(&token.to_string()).unwrap();
        assert_eq!(ids(&page(&listing, Some(&read), 2)), ["c"]);
    }

    #[test]
    fn lv_12_a_token_outlives_the_volume_that_it_names() {
        let listing = listing(&["a", "b", "c"]);
        let token = page(&listing, None, 2).next.unwrap();
        for gone in ["b", "c"] {
            see(&listing, &Event::Delete(made(gone)));
        }
        assert_eq!(page(&listing, Some(&token), 2), Page::default());
    }

    #[test]
    fn lv_07_what_was_never_given_out_is_no_token() {
        for bad in [
            "invalid-token",
            "",
            "after:",
            "after:../nodes",
            "after:A",
            "before:a",
            &format!("after:{}", "a".repeat(64)),
        ] {
            assert_eq!(Token::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn r04_a_new_list_replaces_the_old_one_when_it_is_complete() {
        let listing = listing(&["a", "b"]);
        let mut unfinished = Known::new();
        for event in [Event::Init, Event::InitApply(made("c"))] {
            listing.see(&event, &mut unfinished);
        }
        assert_eq!(ids(&page(&listing, None, 0)), ["a", "b"]);
        listing.see(&Event::InitDone, &mut unfinished);
        assert_eq!(ids(&page(&listing, None, 0)), ["c"]);
    }

    #[test]
    fn a_change_is_waited_for() {
        let listing = listing(&[]);
        assert!(listing.until("a", false).now_or_never().is_some());
        let mut shown = Box::pin(listing.until("a", true));
        assert!((&mut shown).now_or_never().is_none());
        see(&listing, &Event::Apply(made("a")));
        assert!(shown.now_or_never().is_some());
    }

    proptest! {
        /// Pages of any sizes, with any volumes coming and going between them.
        #[test]
        fn lv_11_lv_12_what_stays_is_listed_exactly_once_whatever_comes_and_goes(
            first in prop::collection::btree_set("[a-e]{1,3}", 0..30),
            between in prop::collection::vec(
                (1..5_usize, prop::collection::vec(("[a-e]{1,3}", any::<bool>()), 0..6)),
                1..40,
            ),
        ) {
            let names: Vec<&str> = first.iter().map(String::as_str).collect();
            let listing = listing(&names);
            let mut stayed: BTreeSet<String> = first.clone();
            let mut listed = Vec::new();
            let mut token: Option<Token> = None;
            for (most, changes) in between.iter().cycle() {
                let page = page(&listing, token.as_ref(), *most);
                prop_assert!(page.volumes.len() <= *most);
                listed.extend(page.volumes.into_iter().map(|volume| volume.id));
                let Some(next) = page.next else { break };
                token = Token::parse(&next.to_string());
                for (name, comes) in changes {
                    if *comes {
                        see(&listing, &Event::Apply(made(name)));
                    } else {
                        stayed.remove(name);
                        see(&listing, &Event::Delete(made(name)));
                    }
                }
            }
            prop_assert!(listed.is_sorted_by(|one, next| one < next), "none twice");
            let listed = BTreeSet::from_iter(listed);
            prop_assert!(stayed.is_subset(&listed), "{stayed:?} in {listed:?}");
        }
    }
}
