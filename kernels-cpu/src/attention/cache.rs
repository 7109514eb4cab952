//! The blocks of a layer: how they are written, and how a tile of tokens is read from them.
//!
//! ```text
//! block   keys of head 0 | keys of head 1 | ... | values of head 0 | values of head 1 | ...
//! keys    [head_dim, block_size]: tokens side by side, so that a vector holds the same element of many tokens
//! values  [block_size, head_dim]: elements side by side, so that a vector is weighed as a whole
//! ```

use std::ops::Range;

use bytemuck::Pod;
use half::{bf16, f16};
use quire_kernels::{DType, KvLayout};

use super::TILE_KEYS;
use super::stored::{F8E4M3, F8E5M2, Stored};
use super::strip::Strip;
use crate::Isa;
use crate::access::{Rows, RowsMut};
use crate::lanes::{self, LANES, Program, Simd};
use crate::norm::grain_rows;
use crate::pool::Pool;

/// Strips of a tile.
const STRIPS: usize = TILE_KEYS / LANES;

/// Calls `$f` with the element type of `$dtype`, which [`kv_layout`](super::CpuAttention) admitted.
macro_rules! for_dtype {
    ($dtype:expr, $f:ident::<$($generic:ty),*>($($arg:expr),*)) => {
        match $dtype {
            DType::F32 => $f::<f32 $(, $generic)*>($($arg),*),
            DType::F16 => $f::<f16 $(, $generic)*>($($arg),*),
            DType::BF16 => $f::<bf16 $(, $generic)*>($($arg),*),
            DType::F8E4M3 => $f::<F8E4M3 $(, $generic)*>($($arg),*),
            DType::F8E5M2 => $f::<F8E5M2 $(, $generic)*>($($arg),*),
            other => unreachable!("a cache of {other} was refused at its layout"),
        }
    };
}

/// Where in a block what lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockShape {
    pub(crate) block_size: usize,
    pub(crate) num_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) dtype: DType,
}

impl BlockShape {
    pub(crate) fn of(layout: &KvLayout) -> Self {
        let &KvLayout { block_size, num_kv_heads, head_dim, dtype, .. } = layout;
        Self { block_size, num_kv_heads, head_dim, dtype }
    }

    /// Bytes of a block.
    fn keys(&self, head: usize) -> Range<usize> {
        let len = self.block_size * self.head_dim * self.dtype.block_bytes();
        head * len..(head + 1) * len
    }

    /// Bytes of a block.
    fn values(&self, head: usize) -> Range<usize> {
        self.keys(self.num_kv_heads + head)
    }

    /// `head_dim` rounded up to whole vectors.
    pub(super) fn padded_dim(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Whether kernels can read keys where they lie: strips in one block, as f32.
    fn reads_keys_in_place(&self) -> bool {
        self.dtype == DType::F32 && self.block_size.is_multiple_of(LANES)
    }

    /// As for keys; whole vectors besides.
    fn reads_values_in_place(&self) -> bool {
        self.reads_keys_in_place() && self.head_dim.is_multiple_of(LANES)
    }
}

/// The cached tokens of one row.
#[derive(Clone, Copy)]
pub(super) struct RowCache<'a> {
    pub(super) blocks: Rows<'a, u8>,
    pub(super) shape: BlockShape,
    /// Block ids in order; those past the end of the row are not looked at.
    pub(super) block_table: &'a [i32],
}

/// Room for the tiles that have to be decoded.
pub(super) struct Decoded<'a> {
    /// `[STRIPS, head_dim, LANES]`.
    pub(super) keys: &'a mut [f32],
    /// `[STRIPS, LANES, padded_dim]`.
    pub(super) values: &'a mut [f32],
}

impl Decoded<'_> {
    /// Elements of the two.
    pub(super) fn lens(head_dim: usize) -> (usize, usize) {
        (TILE_KEYS * head_dim, TILE_KEYS * head_dim.next_multiple_of(LANES))
    }
}

/// Keys and values of [`TILE_KEYS`] tokens of one head, strip by strip.
#[derive(Clone, Copy, Default)]
pub(super) struct KeyTile<'a> {
    pub(super) keys: [Strip<'a>; STRIPS],
    pub(super) values: [Strip<'a>; STRIPS],
}

impl RowCache<'_> {
    /// The tile that starts at position `start`. Strips without a `visible` position stay empty, and what a strip
    /// holds of positions that are not visible is undefined.
    pub(super) fn tile<'t>(
        &'t self,
        isa: Isa,
        head: usize,
        start: usize,
        visible: Range<usize>,
        decoded: &'t mut Decoded<'_>,
    ) -> KeyTile<'t> {
        let shape = &self.shape;
        let mut tile = KeyTile::default();
        let key_rooms = decoded.keys.chunks_exact_mut(shape.head_dim * LANES);
        let value_rooms = decoded.values.chunks_exact_mut(shape.padded_dim() * LANES);
        for (i, (key_room, value_room)) in key_rooms.zip(value_rooms).enumerate() {
            let strip = start + i * LANES;
            let positions = strip.max(visible.start)..(strip + LANES).min(visible.end);
            if positions.is_empty() {
                continue;
            }
            tile.keys[i] = if shape.reads_keys_in_place() {
                self.keys_in_place(head, strip)
            } else {
                let (half, out) = (Half::Keys, &mut *key_room);
                lanes::run(isa, Decode { cache: self, half, head, positions: positions.clone(), out });
                Strip::new(key_room, LANES)
            };
            tile.values[i] = if shape.reads_values_in_place() {
                self.values_in_place(head, strip)
            } else {
                let (half, out) = (Half::Values, &mut *value_room);
                lanes::run(isa, Decode { cache: self, half, head, positions, out });
                Strip::new(value_room, shape.padded_dim())
            };
        }
        tile
    }

    fn keys_in_place(&self, head: usize, position: usize) -> Strip<'_> {
        let block_size = self.shape.block_size;
        let keys = self.elements::<f32>(position / block_size, self.shape.keys(head));
        Strip::new(&keys[position % block_size..], block_size)
    }

    fn values_in_place(&self, head: usize, position: usize) -> Strip<'_> {
        let BlockShape { block_size, head_dim, .. } = self.shape;
        let values = self.elements::<f32>(position / block_size, self.shape.values(head));
        Strip::new(&values[position % block_size * head_dim..], head_dim)
    }

    /// A range of bytes of one of the row's blocks.
    fn elements<E: Pod>(&self, block: usize, bytes: Range<usize>) -> &[E] {
        let block =
            usize::try_from(self.block_table[block]).expect("a row has a block for each of its tokens");
        bytemuck::cast_slice(&self.blocks.row(block)[bytes])
    }

    /// Runs of positions within one block each: `(block of the row, offset of the first one, how many)`.
    fn runs(&self, positions: Range<usize>) -> impl Iterator<Item = (usize, usize, usize)> {
        let block_size = self.shape.block_size;
        let blocks = positions.start / block_size..positions.end.div_ceil(block_size);
        blocks.map(move |block| {
            let start = positions.start.max(block * block_size);
            let end = positions.end.min((block + 1) * block_size);
            (block, start % block_size, end - start)
        })
    }
}

/// One of the two halves of a cache.
#[derive(Clone, Copy)]
enum Half {
    Keys,
    Values,
}

/// Decodes at most [`LANES`] positions to their places in a strip.
struct Decode<'a> {
    cache: &'a RowCache<'a>,
    half: Half,
    head: usize,
    positions: Range<usize>,
    out: &'a mut [f32],
}

impl Program for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { cache, half, head, positions, out } = self;
        match half {
            Half::Keys => for_dtype!(cache.shape.dtype, decode_keys::<S>(s, cache, head, positions, out)),
            Half::Values => for_dtype!(cache.shape.dtype, decode_values::<S>(s, cache, head, positions, out)),
        }
    }
}

/// Decodes keys of at most [`LANES`] positions to where the strip `[head_dim, LANES]` has them.
#[inline(always)]
fn decode_keys<E: Stored, S: Simd>(
    s: S,
    cache: &RowCache<'_>,
    head: usize,
    positions: Range<usize>,
    strip: &mut [f32],
) {
    let block_size = cache.shape.block_size;
    let mut lane = positions.start % LANES;
    for (block, offset, len) in cache.runs(positions) {
        let keys = cache.elements::<E>(block, cache.shape.keys(head));
        for (keys, out) in keys.chunks_exact(block_size).zip(strip.as_chunks_mut::<LANES>().0) {
            let keys = &keys[offset..offset + len];
            if let Some(keys) = keys.first_chunk::<LANES>() {
                s.store(E::decode_lanes(s, keys), out);
            } else if let Ok(keys) = <&[E; LANES / 2]>::try_from(keys) {
                decode_each(keys, &mut out[lane..]);
            } else {
                decode_each(keys, &mut out[lane..]);
            }
        }
        lane += len;
    }
}

/// Decodes values of at most [`LANES`] positions to where the strip `[LANES, padded_dim]` has them.
#[inline(always)]
fn decode_values<E: Stored, S: Simd>(
    s: S,
    cache: &RowCache<'_>,
    head: usize,
    positions: Range<usize>,
    strip: &mut [f32],
) {
    let BlockShape { head_dim, .. } = cache.shape;
    let padded_dim = cache.shape.padded_dim();
    let mut lane = positions.start % LANES;
    for (block, offset, len) in cache.runs(positions) {
        let values = cache.elements::<E>(block, cache.shape.values(head));
        let values = &values[offset * head_dim..(offset + len) * head_dim];
        let rows = strip[lane * padded_dim..].chunks_exact_mut(padded_dim);
        for (values, out) in values.chunks_exact(head_dim).zip(rows) {
            let (values, tail) = values.as_chunks::<LANES>();
            let (out, _) = out.as_chunks_mut::<LANES>();
            for (values, out) in values.iter().zip(out.iter_mut()) {
                s.store(E::decode_lanes(s, values), out);
            }
            if !tail.is_empty() {
                decode_each(tail, &mut out[values.len()]);
            }
        }
        lane += len;
    }
}

#[inline(always)]
fn decode_each<E: Stored>(from: &[E], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.decode();
    }
}

/// Stores keys and values, a row a token, in their slots; a negative slot is skipped. The heads are shared out to
/// the threads.
pub(crate) fn write_rows(
    isa: Isa,
    pool: &Pool,
    (keys, values): (Rows<'_, f32>, Rows<'_, f32>),
    slots: &[i32],
    (blocks, shape): (&RowsMut<'_, u8>, BlockShape),
) {
    pool.for_each(shape.num_kv_heads, grain_rows(slots.len() * shape.head_dim), |heads| {
        for head in heads {
            let columns = head * shape.head_dim..(head + 1) * shape.head_dim;
            for (token, slot) in slots.iter().enumerate() {
                let Ok(slot) = usize::try_from(*slot) else { continue };
                let (block, offset) = (slot / shape.block_size, slot % shape.block_size);
                let (key, value) = (&keys.row(token)[columns.clone()], &values.row(token)[columns.clone()]);
                // SAFETY: the pool visits each head once, and the two ranges of a head's block are disjoint.
                let (keys, values) = unsafe {
                    (blocks.slice_mut(block, shape.keys(head)), blocks.slice_mut(block, shape.values(head)))
                };
                lanes::run(isa, WriteToken { key, value, keys, values, shape, offset });
            }
        }
    });
}

/// Stores the key and the value of one token and head in their places among all tokens of a block.
struct WriteToken<'a> {
    key: &'a [f32],
    value: &'a [f32],
    keys: &'a mut [u8],
    values: &'a mut [u8],
    shape: BlockShape,
    offset: usize,
}

impl Program for WriteToken<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for_dtype!(self.shape.dtype, write_token::<S>(s, self));
    }
}

#[inline(always)]
fn write_token<E: Stored, S: Simd>(s: S, args: WriteToken<'_>) {
    let WriteToken { key, value, keys, values, shape, offset } = args;
    let values: &mut [E] = bytemuck::cast_slice_mut(values);
    let row = &mut values[offset * shape.head_dim..(offset + 1) * shape.head_dim];
    E::encode_all(s, value, row);
    let keys: &mut [E] = bytemuck::cast_slice_mut(keys);
    let mut columns = keys.chunks_exact_mut(shape.block_size);
    for elements in key.chunks(LANES) {
        let mut encoded = [E::zeroed(); LANES];
        E::encode_all(s, elements, &mut encoded[..elements.len()]);
        for (element, column) in encoded[..elements.len()].iter().zip(columns.by_ref()) {
            column[offset] = *element;
        }
    }
}
