//! Small collections by node and by epoch, whose elements are plain values.

use crate::state::{Epoch, Node};

/// The number of epochs that the model knows. A scenario asks for fewer moves than that.
pub const EPOCHS: u8 = 3;

/// One value for each node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ByNode<T>(pub T, pub T);

impl<T> ByNode<T> {
    /// The value of a node.
    pub const fn of(&self, node: Node) -> &T {
        match node {
            Node::A => &self.0,
            Node::B => &self.1,
        }
    }

    /// The value of a node, to be changed.
    pub const fn of_mut(&mut self, node: Node) -> &mut T {
        match node {
            Node::A => &mut self.0,
            Node::B => &mut self.1,
        }
    }
}

/// At most one value for each epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByEpoch<T>([Option<T>; EPOCHS as usize]);

impl<T: Copy> ByEpoch<T> {
    /// None for any epoch.
    pub const EMPTY: Self = Self([None; EPOCHS as usize]);

    /// The value of an epoch.
    pub fn at(&self, epoch: Epoch) -> Option<T> {
        self.0.get(usize::from(epoch)).copied().flatten()
    }

    /// Sets or removes the value of an epoch.
    pub fn put(&mut self, epoch: Epoch, value: Option<T>) {
        if let Some(place) = self.0.get_mut(usize::from(epoch)) {
            *place = value;
        }
    }

    /// The values that there are.
    pub fn iter(&self) -> impl Iterator<Item = (Epoch, T)> + '_ {
        let all = (0..EPOCHS).zip(self.0.iter());
        all.filter_map(|(epoch, value)| Some((epoch, (*value)?)))
    }
}
