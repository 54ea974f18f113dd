//! Addresses of stores elsewhere, as scripts and job files of other platforms have them: what they name, and by which kind of pool
//! the same place is reached here.

use crate::ids::StoreKind;

/// A store by the beginning of its addresses.
#[derive(Debug, PartialEq, Eq)]
pub struct ForeignStore {
    pub scheme: &'static str,
    pub name: &'static str,
    /// Of a pool by which it is reached, if there is one.
    pub kind: Option<StoreKind>,
}

const fn store(scheme: &'static str, name: &'static str, kind: Option<StoreKind>) -> ForeignStore {
    ForeignStore { scheme, name, kind }
}

pub const FOREIGN: [ForeignStore; 15] = [
    store("gs://", "Google Cloud Storage", None),
    store("obs://", "Huawei OBS", Some(StoreKind::S3)),
    store("oss://", "Alibaba OSS", Some(StoreKind::Oss)),
    store("cos://", "Tencent COS", Some(StoreKind::S3)),
    store("cosn://", "Tencent COS", Some(StoreKind::S3)),
    store("bos://", "Baidu BOS", Some(StoreKind::S3)),
    store("us3://", "UCloud US3", Some(StoreKind::S3)),
    store("s3://", "Amazon S3", Some(StoreKind::S3)),
    store("s3a://", "Amazon S3", Some(StoreKind::S3)),
    store("fds://", "Xiaomi FDS", None),
    store("hdfs://", "HDFS", Some(StoreKind::WebHdfs)),
    store("abfs://", "Azure storage", None),
    store("abfss://", "Azure storage", None),
    store("wasbs://", "Azure storage", None),
    store("azureml://", "Azure Machine Learning", None),
];

impl ForeignStore {
    /// The store that the text is an address in.
    pub fn of(address: &str) -> Option<&'static Self> {
        FOREIGN.iter().find(|store| address.starts_with(store.scheme))
    }

    /// Whether an address in it stands in the text.
    pub fn is_in(&self, text: &str) -> bool {
        // Behind one of these letters it is the end of another scheme, or of a name.
        let goes_on = |before: &str| before.ends_with(|c: char| c.is_alphanumeric() || "+-._".contains(c));
        text.match_indices(self.scheme).any(|(at, _)| !text.get(..at).is_some_and(goes_on))
    }

    /// How a place in it is named in a job file.
    pub fn place(&self) -> Option<String> {
        self.kind.map(|kind| format!("{}:POOL/PREFIX", kind.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_at_the_beginning_of_a_word() {
        let found =
            |text: &str| FOREIGN.iter().filter(|store| store.is_in(text)).map(|store| store.scheme).collect::<Vec<_>>();
        assert_eq!(found("cp us3://b/x cosn://b/y s3a://z"), ["cosn://", "us3://", "s3a://"]);
        assert_eq!(found("--data=obs://b/x,'gs://y'"), ["gs://", "obs://"]);
        assert_eq!(found("logs://x jobs://y chaos3://z my-s3://a"), [""; 0]);
    }
}
