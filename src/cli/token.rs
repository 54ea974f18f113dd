//! `trainyard token new|ls|rm`

use clap::Subcommand;
use serde_json::json;

use super::complete::Named;
use super::listing::{Form, Listed, Listing, whole};
use super::output::{self, Format};
use super::times::{duration, seconds};
use super::{Exit, WrongArgument, change};
use crate::api::client::Client;
use crate::api::tokens::{Scope, TokenRequest, TokenView};

#[derive(Debug, Subcommand)]
pub enum TokenVerb {
    /// Make a token, with which programs reach the API over the network; it is printed this once
    New {
        /// What to call it, as in ci
        name: String,
        /// What it is good for: read, jobs (to change them as well), metrics, admin (root's alone)
        #[arg(long = "scope", value_delimiter = ',', default_value = "read")]
        scopes: Vec<Scope>,
        /// Only for these workspaces; all that its user may use when absent
        #[arg(short, long = "workspace", value_delimiter = ',')]
        workspaces: Vec<String>,
        /// Whose it is, by name or number; root may make those of others
        #[arg(long)]
        user: Option<String>,
        /// It is good for so long, as in 30d; for ever when absent
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
    },
    /// List your tokens; root's list has all
    Ls {
        #[command(flatten)]
        listed: Listed,
    },
    /// Revoke tokens: whatever goes on by them ends
    Rm {
        /// Their names
        #[arg(required = true, add = Named::Tokens.completer())]
        names: Vec<String>,
        /// Whose they are, by name or number; root may revoke those of others
        #[arg(long)]
        user: Option<String>,
    },
}

impl TokenVerb {
    /// Those that it names.
    pub(super) fn workspaces(&self) -> &[String] {
        match self {
            Self::New { workspaces, .. } => workspaces,
            Self::Ls { .. } | Self::Rm { .. } => &[],
        }
    }
}

pub(super) async fn run(client: &Client, verb: TokenVerb, format: Format) -> anyhow::Result<Exit> {
    let mut exit = Exit::Success;
    match verb {
        TokenVerb::New { name, scopes, workspaces, user, expires } => {
            let expires = expires.map(|text| duration(&text)).transpose()?;
            if expires.is_some_and(|time| time.as_secs() == 0) {
                let why = "a token that expires at once opens nothing: say at least 1s, as in --expires 30d";
                return Err(WrongArgument(why.to_owned()).into());
            }
            let wanted = TokenRequest {
                name,
                user,
                scopes,
                workspaces: (!workspaces.is_empty()).then_some(workspaces),
                expires_in_s: expires.map(|time| time.as_secs()),
            };
            let made = client.token_new(&wanted).await?;
            match format {
                Format::Json => output::json(&made)?,
                Format::People => {
                    output::aside(&format!("token {} of {}; it is not shown again:", made.token.name, made.token.user));
                    output::line(&made.secret)?;
                }
            }
        }
        TokenVerb::Ls { listed } => list(&client.tokens().await?, listed.form(format))?,
        TokenVerb::Rm { names, user } => {
            for name in names {
                let what = json!({ "token": name, "done": "remove" });
                change::tell(client.token_remove(&name, user.as_deref()).await, &what, format, &mut exit)?;
            }
        }
    }
    Ok(exit)
}

fn list(tokens: &[TokenView], form: Form) -> anyhow::Result<()> {
    if form == Form::Json {
        return output::json(&tokens);
    }
    let listing = Listing {
        heads: &["TOKEN", "USER", "SCOPES", "WORKSPACES", "CREATED", "EXPIRES"],
        wide: &[],
        cells: row,
        name: |token| token.name.clone(),
        json: whole,
        nothing: "no tokens; `trainyard token new NAME` makes one",
    };
    listing.print(tokens, form)
}

fn row(token: &TokenView) -> Vec<String> {
    let scopes: Vec<&str> = token.scopes.iter().map(|scope| scope.name()).collect();
    let workspaces = token.workspaces.as_ref().map_or("all".to_owned(), |names| names.join(" "));
    let expires = token.expires.as_deref().map_or("never".to_owned(), seconds);
    vec![token.name.clone(), token.user.clone(), scopes.join(" "), workspaces, seconds(&token.created), expires]
}
