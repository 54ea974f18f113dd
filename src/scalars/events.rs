//! TensorBoard's event files: records with their length and sums (TFRecord), each an `Event` of protobuf. Of these only the
//! fields that a scalar has are read.

use prost::Message;

use super::Scalar;
use crate::ids::Timestamp;

/// Length, 8 bytes, and its sum, 4 bytes.
pub const HEAD: usize = 12;
/// The sum of the content.
pub const FOOT: usize = 4;

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, tag = "8")]
    tensor: Option<Tensor>,
}

#[derive(Clone, PartialEq, Message)]
struct Tensor {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
    #[prost(bytes = "vec", tag = "4")]
    content: Vec<u8>,
    #[prost(float, repeated, tag = "5")]
    floats: Vec<f32>,
    #[prost(double, repeated, tag = "6")]
    doubles: Vec<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Shape {
    #[prost(message, repeated, tag = "2")]
    dimensions: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
struct Dimension {
    #[prost(int64, tag = "1")]
    size: i64,
}

const FLOAT: i32 = 1;
const DOUBLE: i32 = 2;

/// The length of a record's content by its head; `None` where that is damaged, and with it all that follows.
pub fn content_length(head: &[u8; HEAD]) -> Option<u64> {
    let (length, sum) = head.split_at(8);
    let is_whole = masked(length) == u32::from_le_bytes(sum.try_into().ok()?);
    Some(u64::from_le_bytes(length.try_into().ok()?)).filter(|_| is_whole)
}

/// The scalars of a record: its content and [`FOOT`]. `None` where it is damaged.
pub fn scalars(content: &[u8], foot: [u8; FOOT]) -> Option<Vec<Scalar>> {
    if masked(content) != u32::from_le_bytes(foot) {
        return None;
    }
    let event = Event::decode(content).ok()?;
    let time = Timestamp(if event.wall_time.is_finite() { (event.wall_time.max(0.0) * 1000.0) as u64 } else { 0 });
    let values = event.summary.map(|summary| summary.value).unwrap_or_default();
    let scalar = |value: &Value| Scalar::new(event.step, &value.tag, number(value)?, time);
    Some(values.iter().filter_map(scalar).collect())
}

/// A tensor is a scalar if it has no dimension.
fn number(value: &Value) -> Option<f64> {
    if let Some(number) = value.simple_value {
        return Some(shortest(number));
    }
    let tensor = value.tensor.as_ref()?;
    if tensor.shape.as_ref().is_some_and(|shape| !shape.dimensions.is_empty()) {
        return None;
    }
    match (tensor.dtype, tensor.content.as_slice()) {
        (FLOAT, []) => tensor.floats.first().copied().map(shortest),
        (FLOAT, bytes) => Some(shortest(f32::from_le_bytes(bytes.try_into().ok()?))),
        (DOUBLE, []) => tensor.doubles.first().copied(),
        (DOUBLE, bytes) => Some(f64::from_le_bytes(bytes.try_into().ok()?)),
        _ => None,
    }
}

/// 0.1 of single precision stays 0.1.
fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| f64::from(number))
}

/// The sum of TFRecord: CRC-32C, turned and shifted, so that a sum over sums is none.
fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A record as TensorBoard's writers make it.
#[cfg(test)]
pub(crate) fn record(content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u64).to_le_bytes();
    [&length[..], &masked(&length).to_le_bytes(), content, &masked(content).to_le_bytes()].concat()
}

/// One event with one value.
#[cfg(test)]
pub(crate) fn event(step: i64, tag: &str, value: f32) -> Vec<u8> {
    let value = Value { tag: tag.to_owned(), simple_value: Some(value), tensor: None };
    Event { wall_time: 1.5, step, summary: Some(Summary { value: vec![value] }) }.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(record: &[u8]) -> Option<Vec<Scalar>> {
        let length = content_length(record[..HEAD].try_into().unwrap())? as usize;
        let content = &record[HEAD..HEAD + length];
        scalars(content, record[HEAD + length..].try_into().unwrap())
    }

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn a_record_of_pytorch_s_writer_is_read() {
        // torch.utils.tensorboard, add_scalar("loss", 0.25, 3), with the wall time 1700000000.5.
        let content = hex("090000203840 54d941".replace(' ', "").as_str());
        let mut event = content;
        event.extend(hex("10032a0d0a0b0a046c6f7373150000803e"));
        let read = read(&record(&event)).unwrap();
        assert_eq!(read.len(), 1);
        assert_eq!((read[0].step, read[0].tag.as_str(), read[0].value), (3, "loss", 0.25));
    }

    #[test]
    fn tensors_without_dimensions_are_scalars_and_others_are_not() {
        let tensor = |tensor: Tensor| {
            let value = Value { tag: "a".to_owned(), simple_value: None, tensor: Some(tensor) };
            let event = Event { wall_time: 0.0, step: 1, summary: Some(Summary { value: vec![value] }) };
            let read = read(&record(&event.encode_to_vec())).unwrap();
            read.first().map(|scalar| scalar.value)
        };
        let plain = Tensor { dtype: FLOAT, ..Tensor::default() };
        assert_eq!(tensor(Tensor { floats: vec![0.1], ..plain.clone() }), Some(0.1));
        assert_eq!(tensor(Tensor { content: 0.1f32.to_le_bytes().to_vec(), ..plain.clone() }), Some(0.1));
        let double = Tensor { dtype: DOUBLE, content: 0.3f64.to_le_bytes().to_vec(), ..Tensor::default() };
        assert_eq!(tensor(double), Some(0.3));
        let shape = Some(Shape { dimensions: vec![Dimension { size: 2 }] });
        assert_eq!(tensor(Tensor { shape, floats: vec![0.1, 0.2], ..plain.clone() }), None);
        assert_eq!(tensor(Tensor { content: vec![1, 2, 3], ..plain }), None);
    }

    #[test]
    fn damaged_records_are_told_from_whole_ones() {
        let whole = record(&event(7, "loss", 0.5));
        assert_eq!(read(&whole).unwrap()[0].step, 7);
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            let length = content_length(damaged[..HEAD].try_into().unwrap());
            assert!(length.is_none() || read(&damaged).is_none(), "byte {at}");
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_that_comes_makes_the_reader_panic(content in proptest::collection::vec(0u8.., 0..300)) {
            let record = record(&content);
            let _ = read(&record);
        }
    }
}
