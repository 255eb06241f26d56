//! The objects of a kind in the order of their ids, listed page by page.
//!
//! An object is listed from the time when it can first be used until its data is gone. The call
//! that creates it returns when it can be used. Only the listed fields are kept, so ten thousand
//! objects take a few megabytes, and the cost of a page depends on its entries alone.
//!
//! *Invariant:* a page begins after a name, whether or not an object of that name is still there. So
//! an object that exists throughout is listed exactly once (LV-11, LV-12).

use std::{
    borrow::Borrow, cmp::Ordering, collections::BTreeSet, num::NonZeroUsize, ops::Bound,
    time::Duration,
};

use cistern_crds::{HasImage, names};
use kube::{ResourceExt as _, runtime::watcher::Event};
use parking_lot::RwLock;
use tokio::{sync::watch, time::timeout};

/// Maximum number of entries of a page. A response with this number stays below 4 MiB, the limit of
/// callers.
const MAX_PAGE: usize = 10_000;

/// Prefix of every token. It identifies the format of the token.
const TOKEN: &str = "after:";

/// How long a response waits at most until the watch has delivered the change of the operation.
const LAG: Duration = Duration::from_secs(2);

/// The listed fields of an object: all that is kept of it in memory.
pub trait Listed: Clone {
    /// The custom resource that the fields are from.
    type Object: HasImage;

    /// Reads the listed fields. None for an object that cannot be used yet, or whose data is gone.
    fn of(object: &Self::Object) -> Option<Self>;

    /// The CSI id: the name of the custom resource.
    fn id(&self) -> &str;
}

/// Where the next page begins. Opaque to callers (LV-04).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    after: String,
}

impl Token {
    /// Parses a token of an earlier page; None for any other text (LV-07).
    pub fn parse(text: &str) -> Option<Self> {
        let after = text.strip_prefix(TOKEN)?;
        names::is_id(after).then(|| Self {
            after: after.to_owned(),
        })
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{TOKEN}{}", self.after)
    }
}

/// The range of entries of a list request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageQuery {
    /// End of the earlier page; None for the first page.
    pub start: Option<Token>,
    /// Maximum number of entries, if the request has one.
    pub most: Option<NonZeroUsize>,
}

impl PageQuery {
    /// Whether an entry comes after the earlier pages.
    pub fn reaches(&self, entry: &impl Listed) -> bool {
        let start = self.start.as_ref();
        start.is_none_or(|token| entry.id() > token.after.as_str())
    }
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<L> {
    /// In the order of their ids.
    pub entries: Vec<L>,
    /// The token of the next page; None on the last page.
    pub next: Option<Token>,
}

impl<L> Page<L> {
    /// The same page with each entry converted.
    pub fn map<M>(self, entry: impl FnMut(L) -> M) -> Page<M> {
        Page {
            entries: self.entries.into_iter().map(entry).collect(),
            next: self.next,
        }
    }
}

/// The objects as last seen in the watch.
#[derive(Debug)]
pub struct Listing<L> {
    known: RwLock<Option<Known<L>>>,
    changes: watch::Sender<()>,
}

/// In the order of their ids.
pub type Known<L> = BTreeSet<ById<L>>;

/// An entry that is found by its id.
#[derive(Debug)]
pub struct ById<L>(L);

impl<L> Default for Listing<L> {
    fn default() -> Self {
        Self {
            known: RwLock::new(None),
            changes: watch::Sender::new(()),
        }
    }
}

impl<L: Listed> Listing<L> {
    /// A page of the entries that `asked` selects; None before the first list is complete.
    pub fn page(&self, query: &PageQuery, asked: impl Fn(&L) -> bool) -> Option<Page<L>> {
        let most = query.most.map_or(MAX_PAGE, |most| most.get().min(MAX_PAGE));
        let start = match &query.start {
            Some(token) => Bound::Excluded(token.after.as_str()),
            None => Bound::Unbounded,
        };
        let known = self.known.read();
        let rest = known.as_ref()?.range::<str, _>((start, Bound::Unbounded));
        let mut rest = rest.map(|ById(entry)| entry).filter(|entry| asked(entry));
        let entries: Vec<L> = rest.by_ref().take(most).cloned().collect();
        let next = entries.last().filter(|_| rest.next().is_some());
        let next = next.map(|last| Token {
            after: last.id().to_owned(),
        });
        Some(Page { entries, next })
    }

    /// Waits until the list contains the object, or no longer contains it if `listed` is false, so
    /// that the caller finds its change in the list. Waits at most [`LAG`], and usually not at all,
    /// because the operation ended when the watch delivered the change.
    pub async fn until_shown(&self, id: &str, listed: bool) {
        let _ = timeout(LAG, self.until(id, listed)).await;
    }

    /// Waits until the object is listed, or until it is not if `listed` is false.
    async fn until(&self, id: &str, listed: bool) {
        let mut changes = self.changes.subscribe();
        while self.contains(id) != listed {
            // The sender lives as long as `self`.
            let _ = changes.changed().await;
        }
    }

    fn contains(&self, id: &str) -> bool {
        let known = self.known.read();
        known.as_ref().is_some_and(|known| known.contains(id))
    }

    /// Applies one watch event. `listing` holds a list that is not complete yet.
    pub fn apply_event(&self, event: &Event<L::Object>, listing: &mut Known<L>) {
        match event {
            Event::Init => listing.clear(),
            Event::InitApply(object) => put(listing, object),
            Event::InitDone => self.change(|known| *known = Some(std::mem::take(listing))),
            Event::Apply(object) => {
                self.change(|known| put(known.get_or_insert_default(), object));
            }
            Event::Delete(object) => self.change(|known| {
                known
                    .get_or_insert_default()
                    .remove(object.name_any().as_str());
            }),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Option<Known<L>>)) {
        change(&mut self.known.write());
        self.changes.send_replace(());
    }
}

fn put<L: Listed>(known: &mut Known<L>, object: &L::Object) {
    match L::of(object) {
        Some(entry) => {
            known.replace(ById(entry));
        }
        None => {
            known.remove(object.name_any().as_str());
        }
    }
}

impl<L: Listed> Borrow<str> for ById<L> {
    fn borrow(&self) -> &str {
        self.0.id()
    }
}

impl<L: Listed> Ord for ById<L> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.id().cmp(other.0.id())
    }
}

impl<L: Listed> PartialOrd for ById<L> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<L: Listed> PartialEq for ById<L> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<L: Listed> Eq for ById<L> {}

#[cfg(test)]
mod tests {
    use cistern_crds::PoolVolume;
    use futures::FutureExt as _;
    use proptest::prelude::*;

    use super::*;
    use crate::{testing::ready_volume, volumes::ListedVolume};

    type Known = super::Known<ListedVolume>;
    type Listing = super::Listing<ListedVolume>;
    type Page = super::Page<ListedVolume>;

    fn made(name: &str) -> PoolVolume {
        let mut volume = ready_volume();
        volume.metadata.name = Some(name.to_owned());
        volume
    }

    fn listing(names: &[&str]) -> Listing {
        let listing = Listing::default();
        let mut unfinished = Known::new();
        listing.apply_event(&Event::Init, &mut unfinished);
        for name in names {
            listing.apply_event(&Event::InitApply(made(name)), &mut unfinished);
        }
        let nothing = listing.page(&PageQuery::default(), |_| true);
        assert_eq!(nothing, None, "the list is not complete");
        listing.apply_event(&Event::InitDone, &mut unfinished);
        listing
    }

    fn page(listing: &Listing, start: Option<&Token>, most: usize) -> Page {
        let query = PageQuery {
            start: start.cloned(),
            most: NonZeroUsize::new(most),
        };
        listing.page(&query, |_| true).unwrap()
    }

    fn apply_event(listing: &Listing, event: &Event<PoolVolume>) {
        listing.apply_event(event, &mut Known::new());
    }

    fn ids(page: &Page) -> Vec<&str> {
        page.entries.iter().map(Listed::id).collect()
    }

    #[test]
    fn r04_what_cannot_be_used_any_more_leaves_the_list() {
        let listing = listing(&["a"]);
        let mut gone = made("a");
        gone.spec.deletion_requested = true;
        gone.status = None;
        apply_event(&listing, &Event::Apply(gone));
        assert!(!listing.contains("a"));
    }

    #[test]
    fn ls_10_pages_are_those_of_the_entries_that_are_asked_for() {
        let listing = listing(&["a", "b", "c", "d", "e"]);
        let asked = |entry: &ListedVolume| entry.id() != "b" && entry.id() != "e";
        let query = |start| PageQuery {
            start,
            most: NonZeroUsize::new(2),
        };
        let first = listing.page(&query(None), asked).unwrap();
        assert_eq!(ids(&first), ["a", "c"]);
        let rest = listing.page(&query(first.next), asked).unwrap();
        assert_eq!((ids(&rest), &rest.next), (vec!["d"], &None));
    }

    // Shows: FLD-01.
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
            apply_event(&listing, &Event::Delete(made(gone)));
        }
        let rest = page(&listing, Some(&token), 2);
        assert_eq!((rest.entries.len(), rest.next), (0, None));
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
            listing.apply_event(&event, &mut unfinished);
        }
        assert_eq!(ids(&page(&listing, None, 0)), ["a", "b"]);
        listing.apply_event(&Event::InitDone, &mut unfinished);
        assert_eq!(ids(&page(&listing, None, 0)), ["c"]);
    }

    #[test]
    fn a_change_is_waited_for() {
        let listing = listing(&[]);
        assert!(listing.until("a", false).now_or_never().is_some());
        let mut shown = Box::pin(listing.until("a", true));
        assert!((&mut shown).now_or_never().is_none());
        apply_event(&listing, &Event::Apply(made("a")));
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
            let mut stayed: BTreeSet<Box<str>> = first.iter().map(|name| name.as_str().into()).collect();
            let mut listed = Vec::new();
            let mut token: Option<Token> = None;
            for (most, changes) in between.iter().cycle() {
                let page = page(&listing, token.as_ref(), *most);
                prop_assert!(page.entries.len() <= *most);
                listed.extend(page.entries.into_iter().map(|entry| entry.id));
                let Some(next) = page.next else { break };
                token = Token::parse(&next.to_string());
                for (name, comes) in changes {
                    if *comes {
                        apply_event(&listing, &Event::Apply(made(name)));
                    } else {
                        stayed.remove(name.as_str());
                        apply_event(&listing, &Event::Delete(made(name)));
                    }
                }
            }
            prop_assert!(listed.is_sorted_by(|one, next| one < next), "none twice");
            let listed = BTreeSet::from_iter(listed);
            prop_assert!(stayed.is_subset(&listed), "{stayed:?} in {listed:?}");
        }
    }
}
