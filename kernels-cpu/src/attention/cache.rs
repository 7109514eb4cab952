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
use quire_kernels::{DType, KvLayout, KvScales};

use super::product::MAX_QUERIES;
use super::stored::{F8E4M3, F8E5M2, Stored};
use super::strip::Strip;
use super::{MAX_HEAD_DIM, TILE_KEYS};
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

    /// What a tile of so many queries reads. In place it reads whole vectors of one block; decoding them again for
    /// every few queries pays only where there are few.
    pub(super) fn source(&self, isa: Isa, num_queries: usize) -> Source {
        if !(self.block_size.is_multiple_of(LANES) && self.head_dim.is_multiple_of(LANES)) {
            return Source::Decoded;
        }
        let is_decode = num_queries <= MAX_QUERIES && isa > Isa::Scalar;
        match self.dtype {
            DType::F32 => Source::F32,
            DType::F16 if is_decode => Source::F16,
            DType::BF16 if is_decode => Source::BF16,
            _ => Source::Decoded,
        }
    }
}

/// Where kernels read keys and values: in the blocks, as elements of a type, or decoded to f32 before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Source {
    F32,
    F16,
    BF16,
    Decoded,
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
#[derive(Clone, Copy)]
pub(super) struct KeyTile<'a, E> {
    pub(super) keys: [Strip<'a, E>; STRIPS],
    pub(super) values: [Strip<'a, E>; STRIPS],
}

impl<E: Stored> KeyTile<'_, E> {
    const EMPTY: Self = Self { keys: [Strip::EMPTY; STRIPS], values: [Strip::EMPTY; STRIPS] };
}

/// The strips of the tile from `start` on that have a visible position: number, first position, and what of them
/// is visible.
fn strips(start: usize, visible: Range<usize>) -> impl Iterator<Item = (usize, usize, Range<usize>)> {
    (0..STRIPS).filter_map(move |i| {
        let first = start + i * LANES;
        let seen = first.max(visible.start)..(first + LANES).min(visible.end);
        (!seen.is_empty()).then_some((i, first, seen))
    })
}

impl RowCache<'_> {
    /// The tile that starts at position `start`, in the blocks. Strips without a `visible` position stay empty;
    /// what a strip holds of positions that are not visible is undefined.
    pub(super) fn tile<E: Stored>(&self, head: usize, start: usize, visible: Range<usize>) -> KeyTile<'_, E> {
        let BlockShape { block_size, head_dim, .. } = self.shape;
        let mut tile = KeyTile::EMPTY;
        for (i, first, _) in strips(start, visible) {
            let (block, offset) = (first / block_size, first % block_size);
            let keys = self.elements(block, self.shape.keys(head));
            let values = self.elements(block, self.shape.values(head));
            tile.keys[i] = Strip::new(&keys[offset..], block_size);
            tile.values[i] = Strip::new(&values[offset * head_dim..], head_dim);
        }
        tile
    }

    /// As [`tile`](Self::tile), decoded.
    pub(super) fn decoded_tile<'t>(
        &self,
        isa: Isa,
        head: usize,
        start: usize,
        visible: Range<usize>,
        decoded: &'t mut Decoded<'_>,
    ) -> KeyTile<'t, f32> {
        let (keys_len, values_len) = (self.shape.head_dim * LANES, self.shape.padded_dim() * LANES);
        for (i, _, positions) in strips(start, visible.clone()) {
            let keys = &mut decoded.keys[i * keys_len..(i + 1) * keys_len];
            let values = &mut decoded.values[i * values_len..(i + 1) * values_len];
            lanes::run(isa, Decode { cache: self, head, positions, keys, values });
        }
        let mut tile = KeyTile::EMPTY;
        for (i, ..) in strips(start, visible) {
            tile.keys[i] = Strip::new(&decoded.keys[i * keys_len..(i + 1) * keys_len], LANES);
            let values = &decoded.values[i * values_len..(i + 1) * values_len];
            tile.values[i] = Strip::new(values, self.shape.padded_dim());
        }
        tile
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

/// Decodes at most [`LANES`] positions to their places in a strip.
struct Decode<'a> {
    cache: &'a RowCache<'a>,
    head: usize,
    positions: Range<usize>,
    keys: &'a mut [f32],
    values: &'a mut [f32],
}

impl Program for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { cache, head, positions, keys, values } = self;
        let dtype = cache.shape.dtype;
        for_dtype!(dtype, decode_keys::<S>(s, cache, head, positions.clone(), keys));
        for_dtype!(dtype, decode_values::<S>(s, cache, head, positions, values));
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
        if block_size == LANES {
            // The block is a strip. Lanes that were not asked for are decoded as well: that is one loop.
            decode_run(s, keys, strip);
            continue;
        }
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
        if padded_dim == head_dim {
            decode_run(s, values, &mut strip[lane * head_dim..]);
            lane += len;
            continue;
        }
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

/// Decodes whole vectors.
#[inline(always)]
fn decode_run<E: Stored, S: Simd>(s: S, from: &[E], to: &mut [f32]) {
    for (from, to) in from.as_chunks::<LANES>().0.iter().zip(to.as_chunks_mut::<LANES>().0) {
        s.store(E::decode_lanes(s, from), to);
    }
}

#[inline(always)]
fn decode_each<E: Stored>(from: &[E], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.decode();
    }
}

/// Stores keys and values, a row a token, in their slots, divided by their scales; a negative slot is skipped. The
/// heads are shared out to the threads.
pub(crate) fn write_rows(
    isa: Isa,
    pool: &Pool,
    (keys, values): (Rows<'_, f32>, Rows<'_, f32>),
    slots: &[i32],
    (blocks, shape): (&RowsMut<'_, u8>, BlockShape),
    scales: KvScales,
) {
    pool.for_each(shape.num_kv_heads, grain_rows(slots.len() * shape.head_dim), |heads| {
        let mut scaled = [[0.0; MAX_HEAD_DIM]; 2];
        for head in heads {
            let columns = head * shape.head_dim..(head + 1) * shape.head_dim;
            for (token, slot) in slots.iter().enumerate() {
                let Ok(slot) = usize::try_from(*slot) else { continue };
                let (block, offset) = (slot / shape.block_size, slot % shape.block_size);
                let (key, value) = (&keys.row(token)[columns.clone()], &values.row(token)[columns.clone()]);
                let [scaled_key, scaled_value] = &mut scaled;
                let (key, value) =
                    (divided(key, scales.k, scaled_key), divided(value, scales.v, scaled_value));
                // SAFETY: the pool visits each head once, and the two ranges of a head's block are disjoint.
                let (keys, values) = unsafe {
                    (blocks.slice_mut(block, shape.keys(head)), blocks.slice_mut(block, shape.values(head)))
                };
                lanes::run(isa, WriteToken { key, value, keys, values, shape, offset });
            }
        }
    });
}

/// `elements` over a scale, in `room`; themselves where that is 1.
fn divided<'a>(elements: &'a [f32], scale: f32, room: &'a mut [f32; MAX_HEAD_DIM]) -> &'a [f32] {
    if scale == 1.0 {
        return elements;
    }
    let room = &mut room[..elements.len()];
    room.iter_mut().zip(elements).for_each(|(to, element)| *to = element / scale);
    room
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
