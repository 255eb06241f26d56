//! What a power cut leaves of the changes that were not flushed.

use std::{fs::File, io};

use crate::Change;

/// Bytes that the disk writes in full or not at all.
const BLOCK: usize = 4096;

/// What of the changes after the last flush is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// None of them.
    None,
    /// The first ones, up to a random one.
    Beginning,
    /// Random blocks of random ones.
    Part,
}

impl Rest {
    /// Makes what is left of the changes in a file that holds the disk. What is written before the byte `ordered` gets there
    /// in its order. `random` returns a number below the one that it is called with.
    pub fn apply(
        self,
        changes: &[Change],
        disk: &File,
        ordered: u64,
        mut random: impl FnMut(usize) -> usize,
    ) -> io::Result<()> {
        match self {
            Self::Beginning if !changes.is_empty() => {
                let count = 1 + random(changes.len());
                let mut first = changes.iter().take(count);
                first.try_for_each(|it| it.apply(disk))
            }
            Self::None | Self::Beginning => Ok(()),
            Self::Part => {
                let beginning = random(changes.len() + 1);
                for (index, change) in changes.iter().enumerate() {
                    let is_ordered =
                        matches!(change, Change::Write { offset, .. } if *offset < ordered);
                    for block in change.blocks() {
                        let is_there = if is_ordered {
                            index < beginning
                        } else {
                            random(2) == 1
                        };
                        if is_there {
                            block.apply(disk)?;
                        }
                    }
                }
                Ok(())
            }
        }
    }
}

/// Number of the changes that are durable, of those that were made.
pub fn flushed(changes: &[Change]) -> usize {
    let last = changes.iter().rposition(|it| *it == Change::Flush);
    last.map_or(0, |last| last + 1)
}

impl Change {
    /// The changes into which a power cut can divide this one.
    fn blocks(&self) -> Vec<Self> {
        let Self::Write { offset, data } = self else {
            return vec![self.clone()];
        };
        let blocks = data.chunks(BLOCK).zip((*offset..).step_by(BLOCK));
        let block = |(data, offset): (&[u8], u64)| Self::Write {
            offset,
            data: data.to_vec(),
        };
        blocks.map(block).collect()
    }
}
