//! Elements with scales beside them: `value = (element - zero) · scale`.

use super::encode;
use crate::{DType, WeightScales};

/// Turns a row of elements into values: takes the zero point off each, then multiplies it with its scale.
///
/// # Panics
///
/// Where the scales are not those of a weight with so many columns.
pub fn scale_row(scales: &WeightScales<'_>, row: usize, elements: &mut [f32]) {
    let blocks_per_row = scales.blocks_per_row(elements.len());
    let first = row / scales.block[0] * blocks_per_row;
    for (column, element) in elements.iter_mut().enumerate() {
        let group = match scales.column_groups {
            Some(groups) => groups[column] as usize,
            None => column / scales.block[1],
        };
        let zero = scales.zeros.map_or(0.0, |zeros| f32::from(zeros[first + group]));
        *element = (*element - zero) * scales.scales[first + group];
    }
}

/// Quantizes rows to an 8-bit float, a scale for each row that takes its largest magnitude to the largest number of
/// the type. Returns elements and scales.
///
/// # Panics
///
/// Where the values are no whole rows, or the dtype is no 8-bit float.
pub fn quantize_rows(dtype: DType, values: &[f32], columns: usize) -> (Vec<u8>, Vec<f32>) {
    let largest_number = match dtype {
        DType::F8E4M3 => 448.0,
        DType::F8E5M2 => 57344.0,
        other => panic!("{other} is no 8-bit float"),
    };
    assert!(columns > 0 && values.len().is_multiple_of(columns), "whole rows");
    let mut elements = Vec::with_capacity(values.len());
    let mut scales = Vec::with_capacity(values.len() / columns);
    for row in values.chunks_exact(columns) {
        let largest = row.iter().fold(0.0f32, |a, v| a.max(v.abs()));
        let scale = if largest > 0.0 { largest / largest_number } else { 1.0 };
        let scaled: Vec<f32> = row.iter().map(|v| v / scale).collect();
        elements.extend(encode(dtype, &scaled));
        scales.push(scale);
    }
    (elements, scales)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostWeight;

    fn weight<'a>(
        dtype: DType,
        shape: [usize; 2],
        data: &'a [u8],
        scales: WeightScales<'a>,
    ) -> HostWeight<'a> {
        let [rows, columns] = shape;
        HostWeight { name: "w", dtype, rows, columns, data, scales: Some(scales), bias: None }
    }

    #[test]
    fn a_group_has_a_scale_and_a_zero_point() {
        // Two rows of four columns in groups of two.
        let data = [0x21, 0x43, 0x65, 0x87];
        let scales = [1.0, 0.5, 2.0, 10.0];
        let scales =
            WeightScales { block: [1, 2], scales: &scales, zeros: Some(&[0, 3, 5, 8]), column_groups: None };
        let weight = weight(DType::U4, [2, 4], &data, scales);
        weight.check().unwrap();
        assert_eq!(weight.decode(), [1.0, 2.0, 0.0, 0.5, 0.0, 2.0, -10.0, 0.0]);
    }

    #[test]
    fn columns_can_belong_to_any_group() {
        let data = [0x11, 0x11];
        let scales = WeightScales {
            block: [1, 2],
            scales: &[1.0, 2.0],
            zeros: None,
            column_groups: Some(&[1, 0, 0, 1]),
        };
        assert_eq!(weight(DType::U4, [1, 4], &data, scales).decode(), [2.0, 1.0, 1.0, 2.0]);
    }

    #[test]
    fn squares_may_reach_past_the_edges() {
        let data = [1; 3 * 3];
        let scales =
            WeightScales { block: [2, 2], scales: &[1.0, 2.0, 3.0, 4.0], zeros: None, column_groups: None };
        let weight = weight(DType::I8, [3, 3], &data, scales);
        weight.check().unwrap();
        assert_eq!(weight.decode(), [1.0, 1.0, 2.0, 1.0, 1.0, 2.0, 3.0, 3.0, 4.0]);
    }

    #[test]
    fn scales_that_do_not_fit_are_refused() {
        let data = [0; 8];
        let fitting = WeightScales { block: [1, 2], scales: &[1.0; 4], zeros: None, column_groups: None };
        let error = |scales| weight(DType::I8, [2, 4], &data, scales).check().unwrap_err().to_string();
        for (scales, says) in [
            (WeightScales { scales: &[1.0; 3], ..fitting }, "4 scales"),
            (WeightScales { zeros: Some(&[0; 5]), ..fitting }, "5 given"),
            (WeightScales { block: [0, 2], ..fitting }, "blocks of [0, 2]"),
            (WeightScales { column_groups: Some(&[0; 3]), ..fitting }, "3 given"),
            (WeightScales { column_groups: Some(&[0, 1, 2, 0]), ..fitting }, "group 2, there are 2"),
        ] {
            assert!(error(scales).contains(says), "{}", error(scales));
        }
    }

    #[test]
    fn rows_are_quantized_to_within_half_a_step() {
        let values: Vec<f32> =
            (0..96).map(|i| (i as f32 * 0.7).sin() * (1.0 + (i / 32) as f32 * 50.0)).collect();
        let (data, scales) = quantize_rows(DType::F8E4M3, &values, 32);
        let scales = WeightScales { block: [1, 32], scales: &scales, zeros: None, column_groups: None };
        let back = weight(DType::F8E4M3, [3, 32], &data, scales).decode();
        for (a, b) in values.iter().zip(&back) {
            assert!((a - b).abs() <= a.abs() / 15.9 + 1e-3, "{a} became {b}");
        }
        assert!(quantize_rows(DType::F8E5M2, &[0.0; 4], 2).0.iter().all(|&byte| byte == 0));
    }
}
