//! `trainyard image pull|import|ls|show|tag|rm|prune`

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::json;

use super::change;
use super::complete::Named;
use super::listing::{Form, Listed, Listing, whole};
use super::output::{self, Format};
use super::progress::Progress;
use super::times::duration;
use super::whose::Whose;
use super::{Exit, no_file, unreadable};
use crate::api::client::Client;
use crate::api::wire::{ImageStep, ImageView, ImportQuery, NameQuery};
use crate::ids::{Bytes, WorkspaceName};
use crate::spec::Image;

#[derive(Debug, Subcommand)]
pub enum ImageVerb {
    /// Get an image from its registry, also if it is there already
    Pull {
        /// NAME:TAG, REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:…
        name: String,
        #[command(flatten)]
        whose: Whose,
    },
    /// Bring in an image that lies here: an OCI layout, or an archive of OCI or Docker
    Import {
        /// oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:NAME], or a path
        source: String,
        /// What to call it; the archive's own name otherwise
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        whose: Whose,
    },
    /// List images
    Ls {
        /// Those that this workspace sees; the workspace default without it
        #[arg(short, long, add = Named::Workspaces.completer())]
        workspace: Option<WorkspaceName>,
        #[command(flatten)]
        listed: Listed,
    },
    /// Show what an image is made of and what it runs
    Show {
        /// NAME:TAG, as `trainyard image ls` lists it
        #[arg(add = Named::Images.completer())]
        name: String,
        #[command(flatten)]
        whose: Whose,
    },
    /// Give an image another name
    Tag {
        /// NAME:TAG, as `trainyard image ls` lists it
        #[arg(add = Named::Images.completer())]
        name: String,
        /// The other name
        new: String,
        #[command(flatten)]
        whose: Whose,
    },
    /// Remove names of images
    Rm {
        /// NAME:TAG, as `trainyard image ls` lists it
        #[arg(required = true, add = Named::Images.completer())]
        names: Vec<String>,
        #[command(flatten)]
        whose: Whose,
    },
    /// Free what no image and no task needs
    Prune {
        /// Also remove images of workspaces that nobody has used for so long, as in 30d
        #[arg(long)]
        unused: Option<String>,
    },
}

impl ImageVerb {
    pub(super) fn workspace(&self) -> Option<&str> {
        match self {
            Self::Ls { workspace, .. } => workspace.as_ref().map(WorkspaceName::as_str),
            Self::Pull { whose, .. }
            | Self::Import { whose, .. }
            | Self::Show { whose, .. }
            | Self::Tag { whose, .. }
            | Self::Rm { whose, .. } => whose.workspace(),
            Self::Prune { .. } => None,
        }
    }
}

pub(super) async fn run(client: &Client, verb: ImageVerb, format: Format) -> anyhow::Result<Exit> {
    match verb {
        ImageVerb::Pull { name, whose } => {
            let mut told = Told::new(&name, format);
            client.image_pull(&whose.of(&name), |step| told.step(&step)).await?;
            told.end()
        }
        ImageVerb::Import { source, name, whose } => import(client, &source, name.as_deref(), &whose, format).await,
        ImageVerb::Ls { workspace, listed } => list(client, workspace.as_ref(), listed.form(format)).await,
        ImageVerb::Show { name, whose } => show(client, &whose.of(&name), format).await,
        ImageVerb::Tag { name, new, whose } => done(client.image_tag(&whose.of(&name), &new).await?.message, format),
        ImageVerb::Rm { names, whose } => {
            let mut exit = Exit::Success;
            for name in names {
                let what = json!({ "image": name, "done": "remove" });
                change::tell(client.image_remove(&whose.of(&name)).await, &what, format, &mut exit)?;
            }
            Ok(exit)
        }
        ImageVerb::Prune { unused } => {
            let unused = unused.as_deref().map(duration).transpose()?;
            let pruned = client.image_prune(unused).await?;
            if format == Format::Json {
                output::json(&pruned)?;
                return Ok(Exit::Success);
            }
            for name in &pruned.names {
                output::line(&format!("removed {name}"))?;
            }
            output::line(&format!("freed {} in {} layer(s)", Bytes(pruned.bytes), pruned.layers))?;
            Ok(Exit::Success)
        }
    }
}

fn done(message: String, format: Format) -> anyhow::Result<Exit> {
    match format {
        Format::Json => output::json(&serde_json::json!({ "message": message }))?,
        Format::People => output::line(&message)?,
    }
    Ok(Exit::Success)
}

async fn list(client: &Client, workspace: Option<&WorkspaceName>, form: Form) -> anyhow::Result<Exit> {
    let listing = Listing {
        heads: &["NAME", "KIND", "SIZE", "LAYERS", "DIGEST", "BROUGHT", "LAST USED"],
        wide: &["BROUGHT"],
        cells: row,
        name: |image| image.name.clone(),
        json: whole,
        nothing: "no images; `trainyard image pull NAME` gets one, or a job that names it",
    };
    listing.print(&client.images(workspace.map(WorkspaceName::as_str)).await?, form)?;
    Ok(Exit::Success)
}

fn row(image: &ImageView) -> Vec<String> {
    let digest = &image.digest;
    let short = digest.strip_prefix("sha256:").and_then(|hex| hex.get(..12)).unwrap_or(digest);
    vec![
        image.name.clone(),
        image.workspace.as_ref().map_or(image.kind.clone(), |workspace| format!("mine ({workspace})")),
        Bytes(image.size).to_string(),
        image.layers.to_string(),
        short.to_owned(),
        image.brought.clone(),
        image.used.clone(),
    ]
}

async fn show(client: &Client, query: &NameQuery, format: Format) -> anyhow::Result<Exit> {
    let detail = client.image(query).await?;
    if format == Format::Json {
        output::json(&detail)?;
        return Ok(Exit::Success);
    }
    let (image, config) = (&detail.image, &detail.record.config);
    let line =
        |key: &str, value: &str| if value.is_empty() { Ok(()) } else { output::line(&format!("{key:<11} {value}")) };
    // Whoever made the image wrote it.
    let told = |key: &str, value: &str| line(key, &output::plain(value));
    line("name", &image.name)?;
    line("kind", &image.kind)?;
    line("workspace", image.workspace.as_deref().unwrap_or_default())?;
    line("digest", &image.digest)?;
    line("size", &Bytes(image.size).to_string())?;
    told("made", config.created.as_deref().unwrap_or_default())?;
    line("brought", &image.brought)?;
    line("last used", &image.used)?;
    told("platform", &config.architecture)?;
    let runs = crate::contract::shown::line(&config.full_command());
    line("runs", &runs.replace('\n', &format!("\n{:12}", "")))?;
    told("user", &config.user)?;
    told("directory", config.working_directory.as_deref().unwrap_or_default())?;
    told("stops by", config.stop_signal.as_deref().unwrap_or_default())?;
    told("volumes", &config.volumes.join(" "))?;
    for (name, value) in &config.env {
        told("env", &format!("{name}={value}"))?;
    }
    for (name, value) in &config.labels {
        told("label", &format!("{name}={value}"))?;
    }
    for layer in &detail.record.layers {
        line("layer", &layer.to_string())?;
    }
    Ok(Exit::Success)
}

async fn import(
    client: &Client,
    source: &str,
    name: Option<&str>,
    whose: &Whose,
    format: Format,
) -> anyhow::Result<Exit> {
    let Archived { path, tag, format: archive_format } = source_of(source)?;
    // A path on the command line is of whoever types it: read here, with their rights.
    let archive = match path.is_dir() {
        true => Archive::Layout(path.clone()),
        false => Archive::File(std::fs::File::open(&path).map_err(|error| unreadable(&path, error))?),
    };
    // What is sent of a layout is an archive of it.
    let archive_format = if path.is_dir() { Some("oci-archive".to_owned()) } else { archive_format };
    let query = ImportQuery { name: whose.of(name.unwrap_or_default()), tag, format: archive_format };
    let mut told = Told::new(name.unwrap_or(source), format);
    client.image_import(&query, move |writer| archive.send(writer), |step| told.step(&step)).await?;
    told.end()
}

enum Archive {
    File(std::fs::File),
    Layout(PathBuf),
}

impl Archive {
    fn send(self, writer: &mut dyn std::io::Write) -> std::io::Result<()> {
        match self {
            Archive::File(mut file) => std::io::copy(&mut file, writer).map(drop),
            Archive::Layout(path) => {
                let mut builder = tar::Builder::new(writer);
                builder.append_dir_all("", &path)?;
                builder.finish()
            }
        }
    }
}

/// What the command line names.
struct Archived {
    path: PathBuf,
    tag: Option<String>,
    format: Option<String>,
}

fn source_of(source: &str) -> anyhow::Result<Archived> {
    let absolute = |path: &Path| std::path::absolute(path).context("no working directory");
    for scheme in ["oci", "oci-archive", "docker-archive"] {
        if let Some(rest) = source.strip_prefix(scheme).and_then(|rest| rest.strip_prefix(':')) {
            let (path, tag) = rest.split_once(':').map_or((rest, None), |(path, tag)| (path, Some(tag.to_owned())));
            return Ok(Archived { path: absolute(Path::new(path))?, tag, format: Some(scheme.to_owned()) });
        }
    }
    if !Path::new(source).exists() {
        match Image::parse(source) {
            Ok(Image::Named(_)) => {
                bail!("there is no file {source}; `trainyard image pull {source}` gets it from its registry")
            }
            _ => bail!("{}", no_file(Path::new(source))),
        }
    }
    Ok(Archived { path: absolute(Path::new(source))?, tag: None, format: None })
}

/// Tells how far it has come: one line that is written over on a terminal, else the end alone.
struct Told {
    image: String,
    format: Format,
    last: Option<ImageStep>,
    progress: Progress,
}

impl Told {
    fn new(image: &str, format: Format) -> Self {
        Self { image: image.to_owned(), format, last: None, progress: Progress::new(format) }
    }

    fn step(&mut self, step: &ImageStep) {
        if self.format == Format::Json {
            // The last step ends the verb with an error of its own.
            let _ = output::json(step);
        } else if step.layers > 0 {
            let rate = self.progress.rate(step.bytes_done);
            self.progress.set(&self.image, || figures(step, rate));
        }
        self.last = Some(step.clone());
    }

    fn end(mut self) -> anyhow::Result<Exit> {
        self.progress.end();
        let Some(last) = self.last.take() else { bail!("the daemon went away before it was done") };
        if let Some(error) = last.error {
            let is_named = error.contains(&self.image);
            output::error(&if is_named { error } else { format!("{}: {error}", self.image) });
            return Ok(Exit::Failure);
        }
        let (Some(name), Some(digest)) = (&last.name, &last.digest) else {
            bail!("the daemon went away before it was done")
        };
        if self.format == Format::People {
            output::line(&format!("{name} {digest}"))?;
        }
        Ok(Exit::Success)
    }
}

fn figures(step: &ImageStep, rate: u64) -> String {
    let [done, of, rate] = [step.bytes_done, step.bytes, rate].map(|bytes| Bytes(bytes).roughly());
    format!("{} of {} layer(s), {done} of {of}, {rate}/s", step.layers_done, step.layers)
}
