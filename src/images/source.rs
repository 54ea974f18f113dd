//! Images that lie on this machine: OCI layouts, and archives of OCI and of Docker.
//!
//! All of it is opened with the rights of whoever asked for it, and none of it is trusted.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::config::machine;
use super::digest::{Digest, NotADigest};
use super::document::{self, Descriptor, ImageManifest, Platform};
use super::unpack::decompress;
use super::{ImageError, Local};
use crate::sys::given_up::GivenUp;
use crate::sys::rooted::Rooted;

/// Largest JSON document that is read, bytes.
const DOCUMENT_MAX: u64 = 4 << 20;
/// Indexes in indexes are followed so far.
const NESTING_MAX: usize = 4;
/// Most entries of an archive that are looked at.
const ENTRIES_MAX: usize = 10_000;
/// Most bytes of their headers.
const HEADERS_MAX: u64 = 32 << 20;

/// A described image whose layers can be read.
#[derive(Debug)]
pub(super) struct Source {
    /// Of the manifest or, where there is none, of the configuration.
    pub(super) digest: Digest,
    pub(super) config: Vec<u8>,
    /// Bottom first.
    pub(super) layers: Vec<Blob>,
    /// Names that the archive gives to it.
    pub(super) names: Vec<String>,
}

/// A layer as it lies there, perhaps compressed.
#[derive(Debug, Clone)]
pub(super) struct Blob {
    /// What it must add up to, where that is known.
    pub(super) digest: Option<Digest>,
    file: Arc<File>,
    offset: u64,
    pub(super) size: u64,
}

impl Blob {
    fn of_file(file: File, digest: Option<Digest>) -> io::Result<Self> {
        Ok(Self { size: file.metadata()?.len(), file: Arc::new(file), offset: 0, digest })
    }

    pub(super) fn new(file: File, digest: Digest) -> io::Result<Self> {
        Self::of_file(file, Some(digest))
    }

    pub(super) fn reader(&self) -> BlobReader {
        BlobReader { blob: self.clone(), at: 0 }
    }

    fn document(&self) -> io::Result<Vec<u8>> {
        if self.size > DOCUMENT_MAX {
            return Err(io::Error::other(format!("it has {} bytes, a document may have {DOCUMENT_MAX}", self.size)));
        }
        let mut content = Vec::new();
        self.reader().read_to_end(&mut content)?;
        Ok(content)
    }
}

#[derive(Debug)]
pub(super) struct BlobReader {
    blob: Blob,
    at: u64,
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.blob.size.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let length = left.min(buffer.len());
        let count = self.blob.file.read_at(&mut buffer[..length], self.blob.offset + self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Vec<String>,
}

const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// Where the named parts of an image are found.
trait Parts {
    fn part(&self, name: &str) -> Result<Option<Blob>, ImageError>;
}

/// Opens the OCI layout in the directory `path`.
pub(super) fn layout(path: &Path, tag: Option<&str>) -> Result<Source, ImageError> {
    let root = Rooted::open(path).map_err(|source| ImageError::Source { path: path.to_owned(), source })?;
    read_layout(&Directory { root, path: path.to_owned() }, tag)
}

struct Directory {
    root: Rooted,
    path: PathBuf,
}

impl Parts for Directory {
    fn part(&self, name: &str) -> Result<Option<Blob>, ImageError> {
        let told = |source| ImageError::Source { path: self.path.join(name), source };
        match self.root.file_for_reading(Path::new(name)) {
            Ok(file) => Blob::of_file(file, None).map(Some).map_err(told),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(told(error)),
        }
    }
}

/// What lies there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A directory as OCI lays images out.
    Layout,
    /// An archive of such a directory.
    Oci,
    /// What `docker save` writes.
    Docker,
    /// One of the two archives.
    Archive,
}

/// Where compressed archives are unpacked.
#[derive(Debug)]
pub(super) struct Spool<'a> {
    pub(super) directory: &'a Path,
    /// Bytes.
    pub(super) most: u64,
    pub(super) given_up: &'a GivenUp,
}

/// Opens an archive; a compressed one is unpacked in the spool.
pub(super) fn archive(mut file: File, wanted: &Local<'_>, spool: &Spool<'_>) -> Result<Source, ImageError> {
    let told = |source| ImageError::Source { path: wanted.path.to_owned(), source };
    io::Seek::rewind(&mut file).map_err(told)?;
    let file = plain(file, spool).map_err(told)?;
    let archive = Archive::index(file, wanted.path).map_err(told)?;
    let has = |name| archive.entries.contains_key(name);
    let is_other = match wanted.format {
        Format::Oci if !has("index.json") && has("manifest.json") => {
            Some("one of `docker save`: write docker-archive:")
        }
        Format::Docker if !has("manifest.json") && has("index.json") => Some("an OCI layout: write oci-archive:"),
        _ => None,
    };
    if let Some(what) = is_other {
        let why = format!("it is {what}{}", wanted.path.display());
        return Err(ImageError::Damaged { what: "the archive".to_owned(), why });
    }
    let is_docker = match wanted.format {
        Format::Docker => true,
        Format::Oci | Format::Layout => false,
        // Newer versions of `docker save` write both; names are in Docker's part.
        Format::Archive => has("manifest.json") && (wanted.tag.is_none() || !has("index.json")),
    };
    if is_docker { read_docker(&archive, wanted.tag) } else { read_layout(&archive, wanted.tag) }
}

/// The file itself or, if it is compressed, its content.
fn plain(file: File, spool: &Spool<'_>) -> io::Result<File> {
    let mut start = [0; 6];
    let count = file.read_at(&mut start, 0)?;
    if super::unpack::Compression::sniff(&start[..count]) == super::unpack::Compression::Plain {
        return Ok(file);
    }
    let mut content = tempfile_in(spool.directory)?;
    let plain = spool.given_up.reader(decompress(file)?);
    let count = io::copy(&mut plain.take(spool.most), &mut content)?;
    if count == spool.most {
        let why =
            format!("unpacked it has more than {count} bytes, and the disk of the image store has no more to give");
        return Err(io::Error::new(io::ErrorKind::StorageFull, why));
    }
    io::Seek::rewind(&mut content)?;
    Ok(content)
}

/// A file without a name, which vanishes with its descriptor.
pub(super) fn tempfile_in(directory: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().read(true).write(true).custom_flags(nix::libc::O_TMPFILE).mode(0o600).open(directory)
}

struct Archive {
    path: PathBuf,
    entries: BTreeMap<String, Entry>,
    file: Arc<File>,
}

#[derive(Debug)]
enum Entry {
    File {
        offset: u64,
        size: u64,
    },
    /// Older `docker save` links layers that are alike.
    Link(String),
}

impl Archive {
    fn index(file: File, path: &Path) -> io::Result<Self> {
        let mut entries = BTreeMap::new();
        let mut archive = tar::Archive::new(Metered { file: &file, left: HEADERS_MAX });
        for entry in archive.entries_with_seek()? {
            let entry = entry.map_err(not_an_archive)?;
            let Some(name) = plain_name(&entry.path()?) else { continue };
            if entries.len() >= ENTRIES_MAX {
                return Err(io::Error::other(format!("more than {ENTRIES_MAX} entries: not an archive of an image")));
            }
            let kind = entry.header().entry_type();
            if kind.is_file() {
                entries.insert(name, Entry::File { offset: entry.raw_file_position(), size: entry.size() });
            } else if kind.is_symlink() || kind.is_hard_link() {
                let target = entry.link_name()?.map(|target| target.into_owned()).unwrap_or_default();
                let from =
                    if kind.is_symlink() { Path::new(&name).parent().unwrap_or(Path::new("")) } else { Path::new("") };
                if let Some(target) = plain_name(&from.join(target)) {
                    entries.insert(name, Entry::Link(target));
                }
            }
        }
        Ok(Self { path: path.to_owned(), entries, file: Arc::new(file) })
    }
}

/// What a file says that is no archive is not repeated: the reader puts bytes of it into its words.
fn not_an_archive(error: io::Error) -> io::Error {
    use io::ErrorKind::{InvalidData, InvalidInput, Other, UnexpectedEof};
    let is_of_content =
        error.raw_os_error().is_none() && [InvalidData, InvalidInput, Other, UnexpectedEof].contains(&error.kind());
    match is_of_content {
        true => io::Error::new(
            InvalidData,
            "it is no archive of OCI or Docker, or a damaged one; `docker save` and `skopeo copy` make such",
        ),
        false => error,
    }
}

/// An archive whose headers are read, while content is passed over: of a long name the reader keeps all in memory.
struct Metered<'a> {
    file: &'a File,
    left: u64,
}

impl Read for Metered<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        let left = self.left.checked_sub(count as u64);
        let too_many = || io::Error::new(io::ErrorKind::FileTooLarge, "its headers take more than an image can need");
        self.left = left.ok_or_else(too_many)?;
        Ok(count)
    }
}

impl io::Seek for Metered<'_> {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// `./a/../b` as `b`; `None` for what leads out.
fn plain_name(path: &Path) -> Option<String> {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::ParentDir => drop(out.pop().then_some(())?),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    out.into_os_string().into_string().ok().filter(|name| !name.is_empty())
}

impl Parts for Archive {
    fn part(&self, name: &str) -> Result<Option<Blob>, ImageError> {
        let mut name = name;
        for _ in 0..NESTING_MAX {
            match self.entries.get(name) {
                Some(Entry::File { offset, size }) => {
                    let (offset, size) = (*offset, *size);
                    return Ok(Some(Blob { digest: None, file: self.file.clone(), offset, size }));
                }
                Some(Entry::Link(target)) => name = target,
                None => return Ok(None),
            }
        }
        let why = format!("{name} is a link to a link to a link");
        Err(ImageError::Damaged { what: self.path.display().to_string(), why })
    }
}

fn parsed<T>(name: &str, read: serde_json::Result<T>) -> Result<T, ImageError> {
    read.map_err(|error| ImageError::Damaged { what: name.to_owned(), why: error.to_string() })
}

fn digest_of(descriptor: &Descriptor) -> Result<Digest, ImageError> {
    let damaged = |error: NotADigest| ImageError::Damaged { what: "the image".to_owned(), why: error.to_string() };
    descriptor.digest().to_string().parse().map_err(damaged)
}

fn name_of(descriptor: &Descriptor) -> Option<&str> {
    descriptor.annotations().as_ref()?.get(REF_NAME).map(String::as_str)
}

fn needed(parts: &dyn Parts, name: &str) -> Result<Blob, ImageError> {
    let missing = || ImageError::Damaged { what: "the image".to_owned(), why: format!("{name} is missing") };
    parts.part(name)?.ok_or_else(missing)
}

fn read_part(parts: &dyn Parts, name: &str) -> Result<Vec<u8>, ImageError> {
    let io = |source| ImageError::Source { path: PathBuf::from(name), source };
    needed(parts, name)?.document().map_err(io)
}

/// A JSON document, checked against its digest.
fn checked(parts: &dyn Parts, digest: &Digest) -> Result<Vec<u8>, ImageError> {
    let bytes = read_part(parts, &blob_name(digest))?;
    let got = Digest::of(&bytes);
    if got == *digest { Ok(bytes) } else { Err(ImageError::WrongDigest { expected: digest.clone(), got }) }
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn read_layout(parts: &dyn Parts, tag: Option<&str>) -> Result<Source, ImageError> {
    let index = parsed("index.json", document::index(&read_part(parts, "index.json")?))?;
    let chosen = choose(index.manifests(), tag)?;
    let (digest, manifest) = manifest(parts, chosen, 0)?;
    let layer = |descriptor| {
        let digest = digest_of(descriptor)?;
        let blob = needed(parts, &blob_name(&digest))?;
        Ok(Blob { digest: Some(digest), ..blob })
    };
    Ok(Source {
        digest,
        config: checked(parts, &digest_of(manifest.config())?)?,
        layers: manifest.layers().iter().map(layer).collect::<Result<_, ImageError>>()?,
        names: name_of(chosen).map(str::to_owned).into_iter().collect(),
    })
}

fn choose<'a>(manifests: &'a [Descriptor], tag: Option<&str>) -> Result<&'a Descriptor, ImageError> {
    let tags = || manifests.iter().filter_map(name_of).map(str::to_owned).collect();
    match (tag, manifests) {
        (None, [only]) => Ok(only),
        (None, _) => Err(ImageError::WhichTag { tags: tags() }),
        (Some(tag), _) => {
            let found = manifests.iter().find(|manifest| name_of(manifest) == Some(tag));
            found.ok_or_else(|| ImageError::NoTag { tag: tag.to_owned(), tags: tags() })
        }
    }
}

/// The manifest itself or, of an index, the one for this machine.
fn manifest(parts: &dyn Parts, at: &Descriptor, depth: usize) -> Result<(Digest, ImageManifest), ImageError> {
    let digest = digest_of(at)?;
    let bytes = checked(parts, &digest)?;
    let kind = at.media_type().to_string();
    let is_index = kind.contains("index") || kind.contains("manifest.list");
    if !is_index {
        return Ok((digest, parsed("the manifest", document::manifest(&bytes))?));
    }
    let index = parsed("the index", document::index(&bytes))?;
    let is_ours =
        |platform: &Platform| platform.os().to_string() == "linux" && platform.architecture().to_string() == machine();
    match index.manifests().iter().find(|manifest| manifest.platform().as_ref().is_none_or(is_ours)) {
        Some(found) if depth < NESTING_MAX => manifest(parts, found, depth + 1),
        _ => Err(ImageError::Damaged {
            what: "the index".to_owned(),
            why: format!("it has no image for linux on {}", machine()),
        }),
    }
}

fn read_docker(archive: &Archive, tag: Option<&str>) -> Result<Source, ImageError> {
    let images: Vec<DockerImage> =
        parsed("manifest.json", serde_json::from_slice(&read_part(archive, "manifest.json")?))?;
    let tags = |image: &DockerImage| image.repo_tags.clone().unwrap_or_default();
    let all = || images.iter().flat_map(tags).collect::<Vec<_>>();
    let image = match (tag, images.as_slice()) {
        (None, [only]) => only,
        (None, _) => return Err(ImageError::WhichTag { tags: all() }),
        (Some(tag), _) => images
            .iter()
            .find(|image| tags(image).iter().any(|name| name == tag))
            .ok_or_else(|| ImageError::NoTag { tag: tag.to_owned(), tags: all() })?,
    };
    let config = read_part(archive, &image.config)?;
    let layers = image.layers.iter().map(|layer| needed(archive, layer));
    Ok(Source {
        digest: Digest::of(&config),
        layers: layers.collect::<Result<_, ImageError>>()?,
        config,
        names: tags(image),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_any_length_is_not_read_into_memory() {
        let mut builder = tar::Builder::new(tempfile::tempfile().unwrap());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::GNULongName);
        header.set_size(8 * HEADERS_MAX);
        header.set_cksum();
        builder.append(&header, io::repeat(b'x').take(8 * HEADERS_MAX)).unwrap();
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        builder.append_data(&mut header, "index.json", io::empty()).unwrap();
        let mut file = builder.into_inner().unwrap();
        io::Seek::rewind(&mut file).unwrap();
        let error = Archive::index(file, Path::new("a.tar")).err().unwrap();
        assert!(error.to_string().contains("headers"), "{error}");
    }

    #[test]
    fn bytes_of_a_file_that_is_no_archive_are_not_told() {
        let mut header = [b'x'; 512];
        let orders = b"\x1b[31mforged\n\x1b]0;title\x07";
        header[124..124 + orders.len()].copy_from_slice(orders);
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&header, 0).unwrap();
        let error = Archive::index(file, Path::new("a.tar")).err().unwrap().to_string();
        assert_eq!(
            error,
            "it is no archive of OCI or Docker, or a damaged one; `docker save` and `skopeo copy` make such"
        );
    }

    #[test]
    fn of_an_archive_that_is_of_the_other_kind_the_right_word_is_told() {
        let told = |format: Format, only: &str| {
            let mut builder = tar::Builder::new(tempfile::tempfile().unwrap());
            let mut header = tar::Header::new_gnu();
            header.set_size(2);
            builder.append_data(&mut header, only, &b"[]"[..]).unwrap();
            let (directory, path) = (tempfile::tempdir().unwrap(), Path::new("/a.tar"));
            let spool = Spool { directory: directory.path(), most: 1 << 20, given_up: &GivenUp::default() };
            let local = Local { path, format, tag: None, workspace: "w" };
            archive(builder.into_inner().unwrap(), &local, &spool).unwrap_err().to_string()
        };
        assert!(told(Format::Oci, "manifest.json").ends_with("write docker-archive:/a.tar"));
        assert!(told(Format::Docker, "index.json").ends_with("write oci-archive:/a.tar"));
        assert!(told(Format::Oci, "other").ends_with("index.json is missing"));
    }

    #[test]
    fn names_in_archives_are_made_plain_and_never_lead_out() {
        assert_eq!(plain_name(Path::new("./a/../b/c")).as_deref(), Some("b/c"));
        assert_eq!(plain_name(Path::new("/blobs/x")).as_deref(), Some("blobs/x"));
        assert_eq!(plain_name(Path::new("../x")), None);
        assert_eq!(plain_name(Path::new(".")), None);
    }
}
