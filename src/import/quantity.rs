//! Quantities of Kubernetes, and sizes as we write them.

use crate::ids::Bytes;

/// Decimal and binary suffixes, and what a number before them is multiplied by.
const SUFFIXES: [(&str, f64); 15] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("Ei", 1_152_921_504_606_846_976.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("K", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
];

/// `500m`, `2`, `1.5Gi`, `129e6`.
pub(super) fn quantity(text: &str) -> Option<f64> {
    let text = text.trim();
    let suffix = SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)));
    let (number, factor) = suffix.unwrap_or((text, 1.0));
    let plain = number.chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c));
    let number: f64 = plain.then(|| number.parse().ok()).flatten()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

/// Whole bytes, rounded up as Kubernetes does.
pub(super) fn bytes(text: &str) -> Option<Bytes> {
    let bytes = quantity(text)?.ceil();
    // Sizes of job files end there.
    (bytes <= 1e18).then_some(Bytes(bytes as u64))
}

/// A size that reads back as exactly this one.
pub(super) fn written(size: Bytes) -> String {
    let text = size.to_string();
    if text.parse() == Ok(size) { text } else { format!("{}B", size.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_of_kubernetes_come_out_right() {
        let cases = [
            ("1Ki", 1024),
            ("128Mi", 128 << 20),
            ("30Gi", 30 << 30),
            ("100M", 100_000_000),
            ("2k", 2000),
            ("2K", 2000),
            ("1.5G", 1_500_000_000),
            ("129e6", 129_000_000),
            ("128974848000m", 128_974_848),
            ("123", 123),
        ];
        for (text, wanted) in cases {
            assert_eq!(bytes(text), Some(Bytes(wanted)), "{text}");
        }
        assert_eq!(quantity("500m"), Some(0.5));
        for bad in ["", "Gi", "1Xi", "-1", "inf", "nan", "1 2", "99999Pi"] {
            assert_eq!(bytes(bad), None, "{bad}");
        }
    }

    #[test]
    fn written_sizes_read_back_exactly() {
        for size in [64 << 20, 100_000_000, 129_000_001, 1 << 30, 8192 << 20, (5 << 30) + 1] {
            assert_eq!(written(Bytes(size)).parse(), Ok(Bytes(size)));
        }
        assert_eq!(written(Bytes(6500 << 20)), "6500MiB");
    }
}
