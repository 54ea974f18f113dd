//! The role `trainyard registry`: asks a registry what the order on standard input says, by `oci-client`.
//!
//! The crate reads manifests, refusals and tokens of any length into memory; here that is the memory of a process without any
//! rights, which ends when it has none left.

use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::AsFd;
use std::sync::Once;

use futures_util::TryStreamExt;
use oci_client::client::{BlobResponse, Certificate, CertificateEncoding, ClientConfig, ClientProtocol, SizedStream};
use oci_client::errors::{DigestError, OciDistributionError};
use oci_client::secrets::RegistryAuth;
use oci_client::token_cache::RegistryTokenType;
use oci_client::{Client, RegistryOperation};

use super::answers::Question;
use super::credentials::Credentials;
use super::errors::{Missing, RegistryError};
use super::image::{self, Document, Image};
use super::process::{Errand, MEMORY_MAX, News, Order, PIECE_MAX};
use super::trap::Trap;
use super::{DOCUMENT_MAX, Fetched, LayerBlob, Reference, Source, login};
use crate::images::digest::Digest;
use crate::sys::process::{Kept, become_user};

pub(super) const USER_AGENT: &str = concat!("trainyard/", env!("CARGO_PKG_VERSION"));
/// Who has no rights on any machine.
const NOBODY: u32 = 65534;

/// Carries out the order that comes by standard input.
pub fn run() -> io::Result<()> {
    let mut line = String::new();
    let mut stdin = io::BufReader::new(io::stdin());
    stdin.read_line(&mut line)?;
    // Its own message would quote what it has read.
    let order: Order = serde_json::from_str(&line).map_err(|_| io::Error::other("the order cannot be read"))?;
    drop(line);
    // A registry that fills the memory of many of these must not have the daemon ended for it.
    std::fs::write("/proc/self/oom_score_adj", "1000")?;
    become_user(NOBODY, NOBODY, &[], MEMORY_MAX, Kept::Nothing)?;
    let end_with = move || {
        let _ = stdin.read_to_end(&mut Vec::new());
        // Nobody wants it any more.
        crate::sys::process::exit_now(1);
    };
    std::thread::Builder::new().name("wanted".to_owned()).spawn(end_with)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut news = Teller::of_standard_output()?;
    match runtime.block_on(answer(&order, &mut news)) {
        Ok(last) => news.tell(&last),
        Err(Trouble::OfRegistry(error)) => news.tell(&News::Failed(error)),
        Err(Trouble::OfPipe(error)) => Err(error),
    }
}

/// Why there is no answer.
enum Trouble {
    OfRegistry(RegistryError),
    /// Nobody listens.
    OfPipe(io::Error),
}

impl From<RegistryError> for Trouble {
    fn from(error: RegistryError) -> Self {
        Self::OfRegistry(error)
    }
}

/// Standard output, without a buffer: what is told is told.
struct Teller(File);

impl Teller {
    fn of_standard_output() -> io::Result<Self> {
        Ok(Self(File::from(io::stdout().as_fd().try_clone_to_owned()?)))
    }

    fn tell(&mut self, news: &News) -> io::Result<()> {
        self.line_and(news, &[])
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        bytes.chunks(PIECE_MAX).try_for_each(|piece| self.line_and(&News::Bytes(piece.len()), piece))
    }

    fn line_and(&mut self, news: &News, bytes: &[u8]) -> io::Result<()> {
        let mut all = serde_json::to_vec(news)?;
        all.push(b'\n');
        all.extend_from_slice(bytes);
        self.0.write_all(&all)
    }
}

async fn answer(order: &Order, news: &mut Teller) -> Result<News, Trouble> {
    // Both are what the daemon has parsed and written.
    let reference = Reference::parse(&order.image, "docker.io");
    let reference = reference.map_err(|error| RegistryError::Setup { why: error.to_string() })?;
    let source = Source { reference: &reference, credentials: order.credentials.as_ref() };
    let mut secrets: Vec<String> = order.credentials.iter().flat_map(Credentials::secrets).collect();
    let trap = (!order.is_plain).then(Trap::set).transpose();
    let trap = trap.map_err(|error| RegistryError::Setup { why: format!("no place on the loopback: {error}") })?;
    let context = Context { source, order, trap: trap.as_ref() };
    let asker = Asker::open(context, &mut secrets).await?;
    match &order.errand {
        Errand::Describe => Ok(News::Described(Box::new(asker.image().await?))),
        Errand::Blob { layer, from } => asker.blob(layer, *from, news).await,
    }
}

/// Who is asked, and how.
#[derive(Clone, Copy)]
struct Context<'a> {
    source: Source<'a>,
    order: &'a Order,
    trap: Option<&'a Trap>,
}

impl<'a> Context<'a> {
    fn question(self, what: String, missing: Option<Missing>, secrets: &'a [String]) -> Question<'a> {
        Question { source: self.source, trap: self.trap, stall: self.order.stall, what, missing, secrets }
    }
}

struct Asker<'a> {
    client: Client,
    proof: RegistryAuth,
    context: Context<'a>,
    source: Source<'a>,
    secrets: &'a [String],
}

impl<'a> Asker<'a> {
    async fn open(context: Context<'a>, secrets: &'a mut Vec<String>) -> Result<Self, RegistryError> {
        let Context { source, order, trap } = context;
        use_ring();
        let client = client(order, trap)?;
        let question = context.question("a token".to_owned(), None, secrets);
        let proof = login::proof(&question, order).await?;
        let reference = source.reference.oci();
        match &proof {
            RegistryAuth::Anonymous => {}
            RegistryAuth::Basic(user, password) => {
                // Known to be wanted: it asks nobody else where to send it.
                let known = RegistryTokenType::Basic(user.clone(), password.clone());
                client.tokens.insert(&reference, RegistryOperation::Pull, known).await;
            }
            RegistryAuth::Bearer(token) => secrets.push(token.clone()),
        }
        if proof != RegistryAuth::Anonymous {
            client.store_auth_if_needed(reference.resolve_registry(), &proof).await;
        }
        Ok(Self { client, proof, context, source, secrets })
    }

    fn asking(&self, what: String, missing: Option<Missing>) -> Question<'_> {
        self.context.question(what, missing, self.secrets)
    }

    /// What the name stands for on this machine.
    async fn image(&self) -> Result<Fetched, RegistryError> {
        let (bytes, document) = match self.document(None).await {
            Err(error) => return Err(self.what_is_missing(error).await),
            found => found?,
        };
        match document {
            Document::Image(image) => self.finish(bytes, image, None).await,
            Document::Index(index) => {
                let chosen = image::choose(self.source, &index)?;
                let (manifest, document) = self.document(Some(&chosen)).await?;
                let Document::Image(image) = document else {
                    return Err(self.source.not_an_image("an index inside of an index"));
                };
                self.finish(manifest, image, Some(Digest::of(&bytes))).await
            }
        }
    }

    /// A manifest or an index: of the name, or of this digest.
    async fn document(&self, digest: Option<&Digest>) -> Result<(Vec<u8>, Document), RegistryError> {
        let named = self.source.reference.oci();
        let chosen = digest.map(|digest| named.clone_with_digest(digest.to_string()));
        let selector = digest.map_or(self.source.reference.selector().to_owned(), Digest::to_string);
        let repository = self.source.reference.repository().to_owned();
        let what = format!("manifest {selector}");
        let question = self.asking(what.clone(), Some(Missing::Manifest { repository, selector }));
        let asked = self.client.pull_manifest_raw(chosen.as_ref().unwrap_or(&named), &self.proof, &image::ACCEPTED);
        let (bytes, _) = self.in_time(&what, asked).await?.map_err(|error| question.meaning(error))?;
        if bytes.len() as u64 > DOCUMENT_MAX {
            return Err(self.source.too_large(&what, DOCUMENT_MAX));
        }
        let document = image::read(self.source, &bytes)?;
        Ok((bytes.into(), document))
    }

    async fn finish(
        &self,
        manifest: Vec<u8>,
        image: Image,
        index_digest: Option<Digest>,
    ) -> Result<Fetched, RegistryError> {
        let config = self.config(&image.config).await?;
        let diff_ids = image::diff_ids(self.source, &config, image.layers.len())?;
        let (digest, config_digest, layers) = (Digest::of(&manifest), image.config, image.layers);
        Ok(Fetched { manifest, digest, index_digest, config, config_digest, layers, diff_ids })
    }

    async fn config(&self, digest: &Digest) -> Result<Vec<u8>, RegistryError> {
        let what = format!("configuration {}", digest.short());
        let question = self.asking(what.clone(), Some(self.missing_blob(digest)));
        let collect = async {
            let asked = self.client.pull_blob_stream(&self.source.reference.oci(), digest.to_string().as_str()).await;
            let mut stream = asked.map_err(|error| question.meaning(error))?.stream;
            let mut bytes = Vec::new();
            while let Some(part) = next(&mut stream, &question).await? {
                if (bytes.len() + part.len()) as u64 > DOCUMENT_MAX {
                    return Err(self.source.too_large(&what, DOCUMENT_MAX));
                }
                bytes.extend_from_slice(&part);
            }
            Ok(bytes)
        };
        let bytes = self.in_time(&what, collect).await??;
        let got = Digest::of(&bytes);
        if got == *digest { Ok(bytes) } else { Err(self.source.wrong_digest(&what, digest.clone(), got)) }
    }

    /// A small document comes within the time that a blob may stall.
    async fn in_time<T>(&self, what: &str, asked: impl Future<Output = T>) -> Result<T, RegistryError> {
        let stall = self.context.order.stall;
        tokio::time::timeout(stall, asked).await.map_err(|_| self.source.stalled(what, stall))
    }

    /// A registry says the same of an absent tag and of an absent repository; one more question tells them apart.
    async fn what_is_missing(&self, error: RegistryError) -> RegistryError {
        if !matches!(error, RegistryError::NotFound { .. }) {
            return error;
        }
        let absent = Missing::Repository(self.source.reference.repository().to_owned());
        let question = self.asking("the list of tags".to_owned(), Some(absent));
        let named = self.source.reference.oci();
        let asked = self.client.list_tags(&named, &self.proof, Some(1), None);
        match self.in_time(&question.what, asked).await {
            Ok(Err(refusal)) => match question.meaning(refusal) {
                absent @ RegistryError::NotFound { .. } => absent,
                _ => error,
            },
            _ => error,
        }
    }

    fn missing_blob(&self, digest: &Digest) -> Missing {
        Missing::Blob { repository: self.source.reference.repository().to_owned(), digest: digest.clone() }
    }

    async fn blob(&self, layer: &LayerBlob, from: u64, news: &mut Teller) -> Result<News, Trouble> {
        let question = self.asking(layer.named(), Some(self.missing_blob(&layer.digest)));
        let (is_part, SizedStream { content_length: length, mut stream, .. }) =
            self.stream(&question, layer, from).await?;
        news.tell(&News::Begins { is_part, length }).map_err(Trouble::OfPipe)?;
        while let Some(piece) = next(&mut stream, &question).await? {
            news.bytes(&piece).map_err(Trouble::OfPipe)?;
        }
        Ok(News::End)
    }

    async fn stream(
        &self,
        question: &Question<'_>,
        layer: &LayerBlob,
        from: u64,
    ) -> Result<(bool, SizedStream), RegistryError> {
        let (image, digest) = (self.source.reference.oci(), layer.digest.to_string());
        let asked = match from {
            0 => self.client.pull_blob_stream(&image, digest.as_str()).await.map(BlobResponse::Full),
            from => self.client.pull_blob_stream_partial(&image, digest.as_str(), from, None).await,
        };
        match asked.map_err(|error| question.meaning(error))? {
            BlobResponse::Full(stream) => Ok((false, stream)),
            BlobResponse::Partial(stream) => Ok((true, stream)),
        }
    }
}

/// The next bytes of a blob. That they are the wrong ones is found out, and told, by who keeps them.
async fn next<S>(stream: &mut S, question: &Question<'_>) -> Result<Option<S::Ok>, RegistryError>
where
    S: futures_util::TryStream<Error = io::Error> + Unpin,
{
    match stream.try_next().await {
        Err(error) if error.get_ref().is_some_and(|error| error.is::<DigestError>()) => Ok(None),
        other => other.map_err(|error| question.meaning(OciDistributionError::IoError(error))),
    }
}

fn client(order: &Order, trap: Option<&Trap>) -> Result<Client, RegistryError> {
    let made = Client::try_from(config(order, trap)).or_else(|error| match order.is_plain {
        // A machine without any certificates can still speak plain http, which anybody could change on its way anyhow.
        true => Client::try_from(ClientConfig { accept_invalid_certificates: true, ..config(order, trap) }),
        false => Err(error),
    });
    let why = "the TLS library does not start with the certificates of this machine, or an address of a proxy is none";
    made.map_err(|error| RegistryError::Setup { why: format!("{why}: {error}") })
}

fn config(order: &Order, trap: Option<&Trap>) -> ClientConfig {
    let der = |data: &Vec<u8>| Certificate { encoding: CertificateEncoding::Der, data: data.clone() };

    ClientConfig {
        protocol: if order.is_plain { ClientProtocol::Http } else { ClientProtocol::Https },
        extra_root_certificates: order.certificates.iter().map(der).collect(),
        platform_resolver: None,
        read_timeout: Some(order.stall),
        connect_timeout: Some(order.connect),
        user_agent: USER_AGENT,
        https_proxy: order.https_proxy.clone(),
        http_proxy: trap.map_or(order.http_proxy.clone(), |trap| Some(trap.address.clone())),

        ..ClientConfig::default()
    }
}

/// The process has one TLS provider, whoever comes first.
fn use_ring() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}
